package up

import (
	"os/exec"
	"sync"
)

// Child is a process that a Supervisor owns.
type Child struct {
	name  string
	cmd   *exec.Cmd
	out   *output
	ended chan struct{} // closed when the process is gone and its output is read
	err   error         // of the process; valid after ended

	mu    sync.Mutex
	state childState
	peak  int64 // bytes
}

type childState uint8

const (
	starting childState = iota
	running
	stopping
	gone
)

// Name is the name that the child was started under.
func (c *Child) Name() string { return c.name }

// URL is the address that the child serves, without a trailing slash.
func (c *Child) URL() string { return c.out.url() }

// PID is the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// PeakMemory is the largest resident size in bytes that the child has had; 0
// where the system does not tell. After the child's end it is the value at its stop.
func (c *Child) PeakMemory() int64 {
	c.notePeak()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peak
}

func (c *Child) notePeak() {
	select {
	case <-c.ended: // the id may already name another process
		return
	default:
	}
	peak := peakMemory(c.PID())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peak = max(c.peak, peak)
}

// wait is the goroutine that reaps the process.
func (c *Child) wait(s *Supervisor) {
	c.err = c.cmd.Wait()
	c.out.close()
	c.mu.Lock()
	early := c.state == running
	c.state = gone
	c.mu.Unlock()
	close(c.ended)
	if early {
		c.report(s)
	}
}

// becameReady makes a later end an early death; one that has already come is
// reported now.
func (c *Child) becameReady(s *Supervisor) {
	c.mu.Lock()
	late := c.state == gone
	if c.state == starting {
		c.state = running
	}
	c.mu.Unlock()
	if late {
		c.report(s)
	}
}

func (c *Child) report(s *Supervisor) {
	select {
	case s.deaths <- c.death():
	default: // an earlier death is already reported
	}
}

// stopping marks that the child is being ended; false when it is already gone.
func (c *Child) stopping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == gone {
		return false
	}
	c.state = stopping
	return true
}

func (c *Child) death() error {
	return &EarlyDeath{Name: c.name, Err: c.err, Last: c.out.last()}
}
