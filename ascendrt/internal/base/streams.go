package base

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
)

// StreamSet holds the open streams of a device; the zero value is ready. It is
// safe for concurrent use.
type StreamSet[S comparable] struct {
	mu   sync.Mutex
	open map[S]bool

	closing sync.Once
	err     error
}

// Add notes an open stream. The caller has entered the device (Core.Enter), or
// opens it.
func (x *StreamSet[S]) Add(s S) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = map[S]bool{}
	}
	x.open[s] = true
}

// Drop forgets a stream that was closed; it is false if the device was closed
// before.
func (x *StreamSet[S]) Drop(s S) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	known := x.open[s]
	delete(x.open, s)
	return known
}

// All gives the open streams, in no stated order.
func (x *StreamSet[S]) All() []S {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make([]S, 0, len(x.open))
	for s := range x.open {
		all = append(all, s)
	}
	return all
}

// End forgets all streams for good.
func (x *StreamSet[S]) End() {
	x.mu.Lock()
	x.open = nil
	x.mu.Unlock()
}

// waitSlice is how long one crossing waits at most: between slices the context is
// looked at.
const waitSlice = 2 * time.Millisecond

// defaultSpin is how long a wait polls where the options do not say.
const defaultSpin = 50 * time.Microsecond

// Waited is a stream that a caller waits for.
type Waited interface {
	// Reached tells whether the sequence number has passed, without blocking.
	Reached(seq uint64) bool
	// Block waits for it, no longer than most, and tells whether it has passed; its
	// error is why it may never do.
	Block(seq uint64, most time.Duration) (bool, error)
}

// Wait waits for a sequence number of those submitted: it polls for a while, then
// blocks by slices.
func Wait[S Waited](ctx context.Context, c *Core, s S, seq, submitted uint64) error {
	if err := c.LostError(); err != nil {
		return err
	}
	if s.Reached(seq) {
		return nil
	}
	if seq > submitted {
		return c.Invalid("wait", "sequence number "+strconv.FormatUint(seq, 10)+" was never submitted", ascendrt.ErrInvalid)
	}
	spin := c.Options.WaitSpin
	if spin == 0 {
		spin = defaultSpin
	}
	for end := time.Now().Add(spin); time.Now().Before(end); {
		if s.Reached(seq) {
			return nil
		}
	}
	for {
		most, err := c.slice(ctx, seq)
		if err != nil {
			return err
		}
		if done, err := s.Block(seq, most); done || err != nil {
			return err
		}
		if err := c.LostError(); err != nil {
			return err
		}
	}
}

// slice is how long a wait for a sequence number may block before it looks at ctx again:
// no longer than ctx allows.
func (c *Core) slice(ctx context.Context, seq uint64) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, c.Invalid("wait", "sequence number "+strconv.FormatUint(seq, 10)+" is not done", ascendrt.ErrTimeout)
		}
		return 0, err
	}
	if at, ok := ctx.Deadline(); ok {
		return max(0, min(waitSlice, time.Until(at))), nil
	}
	return waitSlice, nil
}

// Queue is what Close asks of a stream.
type Queue interface {
	comparable
	// Stop refuses further submissions and gives the last sequence number.
	Stop() uint64
	Wait(ctx context.Context, seq uint64) error
}

// Close shuts a device: it waits for its streams within ctx, then runs giveBack
// under c.Life. A lost device, or one that still works when ctx ends, is left as
// it is, since its driver answers nothing that could be acted on. Only the first
// call does anything; all give its error.
func Close[S Queue](ctx context.Context, c *Core, x *StreamSet[S], giveBack func([]S) error) error {
	x.closing.Do(func() {
		c.Shut()
		streams := x.All()
		for _, s := range streams {
			last := s.Stop()
			if c.LostError() != nil || x.err != nil {
				continue
			}
			if err := s.Wait(ctx, last); err != nil && !errors.Is(err, ascendrt.ErrDeviceLost) {
				x.err = c.Invalid("close", "work was still running: "+err.Error(), ascendrt.ErrTimeout)
			}
		}
		if c.LostError() == nil && x.err == nil {
			c.Life.Lock()
			c.Drain()
			x.err = giveBack(streams)
			c.Life.Unlock()
		}
		x.End()
		c.Forget()
	})
	return x.err
}

// CloseStream closes one stream, whose ref its owner has removed: it waits for
// what was submitted, then runs gone under c.Life, which is told whether the
// stream is idle. If the device was closed meanwhile, gone is left to that Close.
func CloseStream[S Queue](c *Core, x *StreamSet[S], s S, gone func(idle bool)) error {
	err := s.Wait(context.Background(), s.Stop())
	c.Reap()
	c.Life.Lock()
	defer c.Life.Unlock()
	if c.Closed() {
		return err
	}
	x.Drop(s)
	gone(err == nil)
	return err
}

// Accepted is how many of n translated commands a runtime has taken that answered
// err to their submission.
func Accepted(err error, n int) int {
	var e *ascendrt.Error
	if errors.As(err, &e) && e.Class != ascendrt.ErrDeviceLost && e.Command >= 0 {
		return e.Command
	}
	return n
}
