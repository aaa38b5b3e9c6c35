package up

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Defaults of a Config.
const (
	DefaultReadyTimeout = 30 * time.Second
	DefaultGrace        = 10 * time.Second
)

// readyLine is what a child prints before the address that it serves.
const readyLine = "listening on "

// Config says how children are looked after.
type Config struct {
	Executable   string        // empty: the running one
	Log          *Log          // nil: output is dropped
	ReadyTimeout time.Duration // until a child must be ready; 0: DefaultReadyTimeout
	Grace        time.Duration // between SIGTERM and SIGKILL; 0: DefaultGrace
	Env          []string      // added to the environment of this process
}

// Command is one child to start.
type Command struct {
	Name string   // unique among the children that run
	Args []string // arguments of the executable
}

// EarlyDeath reports a child that ended although nobody had stopped it.
type EarlyDeath struct {
	Name string
	Err  error    // of the process; nil for exit status 0
	Last []string // its last lines of output
}

func (e *EarlyDeath) Error() string {
	how := "exit status 0"
	if e.Err != nil {
		how = e.Err.Error()
	}
	if len(e.Last) == 0 {
		return fmt.Sprintf("%s ended early: %s", e.Name, how)
	}
	return fmt.Sprintf("%s ended early: %s; its last output:\n  %s", e.Name, how, strings.Join(e.Last, "\n  "))
}

func (e *EarlyDeath) Unwrap() error { return e.Err }

// Supervisor owns a set of child processes. Its methods may be called from any
// goroutine.
type Supervisor struct {
	cfg    Config
	client *http.Client
	deaths chan error

	mu       sync.Mutex
	children []*Child // in the order of their start
}

// New makes a supervisor without children.
func New(cfg Config) (*Supervisor, error) {
	if cfg.Executable == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own executable: %w", err)
		}
		cfg.Executable = exe
	}
	if cfg.ReadyTimeout == 0 {
		cfg.ReadyTimeout = DefaultReadyTimeout
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	return &Supervisor{
		cfg: cfg, deaths: make(chan error, 1),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second},
	}, nil
}

// Deaths yields the first *EarlyDeath of a child that had become ready.
func (s *Supervisor) Deaths() <-chan error { return s.deaths }

// Start starts a child and waits until it is ready: it has printed the address
// that it serves, and /health there answers 200. On an error the child is gone.
func (s *Supervisor) Start(ctx context.Context, c Command) (*Child, error) {
	cmd := exec.Command(s.cfg.Executable, c.Args...)
	cmd.Env = append(os.Environ(), s.cfg.Env...)
	cmd.SysProcAttr = ownGroup()
	cmd.WaitDelay = time.Second // a grandchild may hold the output open
	out := newOutput(c.Name, s.cfg.Log)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	child := &Child{name: c.Name, cmd: cmd, out: out, ended: make(chan struct{})}
	go child.wait(s)
	if err := s.waitReady(ctx, child); err != nil {
		s.end(child)
		return nil, err
	}
	s.mu.Lock()
	s.children = append(s.children, child)
	s.mu.Unlock()
	child.becameReady(s)
	return child, nil
}

func (s *Supervisor) waitReady(ctx context.Context, c *Child) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.ReadyTimeout, fmt.Errorf("%s is not ready after %v", c.name, s.cfg.ReadyTimeout))
	defer cancel()
	select {
	case <-c.out.ready:
	case <-c.ended:
		return c.death()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		if s.healthy(ctx, c.URL()) {
			return nil
		}
		select {
		case <-c.ended:
			return c.death()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Supervisor) healthy(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status counts
	return resp.StatusCode == http.StatusOK
}

// Stop ends one child: SIGTERM, then SIGKILL after the grace period. The error
// says when it had to be killed or did not end with status 0.
func (s *Supervisor) Stop(c *Child) error {
	s.mu.Lock()
	s.children = slices.DeleteFunc(s.children, func(o *Child) bool { return o == c })
	s.mu.Unlock()
	return s.end(c)
}

// Kill ends one child at once, as a crash does, and returns when it is gone. It
// does not count as an early death.
func (s *Supervisor) Kill(c *Child) error {
	s.mu.Lock()
	s.children = slices.DeleteFunc(s.children, func(o *Child) bool { return o == c })
	s.mu.Unlock()
	if c.stopping() {
		if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill %s: %w", c.name, err)
		}
	}
	<-c.ended
	return nil
}

// StopAll ends every child, the last started first, and returns after the last has ended.
func (s *Supervisor) StopAll() error {
	s.mu.Lock()
	children := s.children
	s.children = nil
	s.mu.Unlock()
	var errs []error
	for _, c := range slices.Backward(children) {
		errs = append(errs, s.end(c))
	}
	return errors.Join(errs...)
}

func (s *Supervisor) end(c *Child) error {
	if !c.stopping() { // it has ended by itself
		<-c.ended
		return nil
	}
	c.notePeak()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	timer := time.NewTimer(s.cfg.Grace)
	defer timer.Stop()
	select {
	case <-c.ended:
	case <-timer.C:
		if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill %s: %w", c.name, err)
		}
		<-c.ended
		return fmt.Errorf("%s did not end within %v of SIGTERM and was killed", c.name, s.cfg.Grace)
	}
	if c.err != nil {
		return fmt.Errorf("%s ended with %w", c.name, c.err)
	}
	return nil
}
