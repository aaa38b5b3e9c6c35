package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/internal/engine"
)

// RunOptions say where an engine listens and what it writes.
type RunOptions struct {
	Options
	Host      string                                  // default 127.0.0.1
	Port      int                                     // 0: any free port
	TraceFile string                                  // "": no trace
	Out       io.Writer                               // gets the line "listening on http://…" when the engine is ready
	Open      func(rank int) (ascendrt.Device, error) // as engine.Options.Open
	Capturing func(rank, done, all int)               // as engine.Options.Capturing
}

// Run serves until ctx ends, then drains: running requests may end within the
// configured time, new ones are refused. A request that is cut off by the end
// of the drain is aborted.
func Run(ctx context.Context, cfg engine.Config, o RunOptions) (err error) {
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	var trace *engine.Trace
	if o.TraceFile != "" {
		if trace, err = engine.OpenTrace(o.TraceFile); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, trace.Close()) }()
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	e, err := engine.New(ctx, cfg, engine.Options{Logger: o.Logger, Trace: trace, Open: o.Open, Capturing: o.Capturing})
	if err != nil {
		ln.Close()
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	srv := &http.Server{Handler: New(e, o.Options), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	if _, err := fmt.Fprintf(o.Out, "listening on http://%s\n", ln.Addr()); err != nil {
		ln.Close()
		return err
	}

	g, ended := errgroup.WithContext(context.WithoutCancel(ctx))
	stop, stopNow := context.WithCancel(ctx)
	defer stopNow()
	g.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT)
	g.Go(func() error {
		defer signal.Stop(quit)
		for {
			select {
			case <-quit:
				dump(e, o.Logger)
			case <-ended.Done():
				return nil
			case <-e.Done():
				return nil
			}
		}
	})
	g.Go(func() error { // a lost device ends the server at once
		err := e.Wait()
		stopNow()
		return err
	})
	g.Go(func() error {
		select {
		case <-stop.Done():
		case <-ended.Done():
		}
		shut, cancel := context.WithTimeout(context.Background(), e.Config().DrainTimeout)
		defer cancel()
		if err := e.Drain(shut); err != nil && !errors.Is(err, engine.ErrClosed) && o.Logger != nil {
			o.Logger.Warn("not everything ended within the drain timeout", "error", err)
		}
		if err := srv.Shutdown(shut); err != nil {
			_ = srv.Close() // connections that did not end in time
		}
		return e.Close()
	})
	return g.Wait()
}

// dump writes the last steps of the engine and logs where they are, and the
// stacks of all goroutines.
func dump(e *engine.Engine, log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	files, err := e.DumpSteps()
	log.Warn("asked to show what the engine does", "last steps", files, "error", err)
	stacks := make([]byte, 1<<20)
	log.Warn("goroutines\n" + string(stacks[:runtime.Stack(stacks, true)]))
}
