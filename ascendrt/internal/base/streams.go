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

// Slice is how long a wait for a sequence number may block before it asks again:
// at most that long, and no longer than ctx allows.
func (c *Core) Slice(ctx context.Context, seq uint64, most time.Duration) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, c.Invalid("wait", "sequence number "+strconv.FormatUint(seq, 10)+" is not done", ascendrt.ErrTimeout)
		}
		return 0, err
	}
	if at, ok := ctx.Deadline(); ok {
		return max(0, min(most, time.Until(at))), nil
	}
	return most, nil
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
