package base

import (
	"cmp"
	"slices"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Gate lets one submission at a time onto a stream, so that buffers never
// interleave. A backend's stream embeds it.
type Gate struct {
	mu      sync.Mutex
	stopped bool
}

func (g *Gate) gate() *Gate { return g }

// Shut lets no further submission in, once the one under way is over, and runs
// then, if it is set, before anybody else looks.
func (g *Gate) Shut(then func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	if then != nil {
		then()
	}
}

// Gated is a stream with a Gate.
type Gated interface {
	gate() *Gate
	Ref() ascendrt.Ref
}

// LockAll begins a submission over several streams, which it sorts: their gates
// are locked in the order of their refs. Without an error the caller ends it by
// UnlockAll.
func LockAll[S Gated](c *Core, call string, streams []S) error {
	if len(streams) > 1 {
		slices.SortFunc(streams, func(a, b S) int { return cmp.Compare(a.Ref(), b.Ref()) })
	}
	for _, s := range streams {
		s.gate().mu.Lock()
	}
	for _, s := range streams {
		if s.gate().stopped {
			UnlockAll(streams)
			return c.Invalid(call, "a stream was closed before", ascendrt.ErrClosed)
		}
	}
	return nil
}

// UnlockAll ends what LockAll began.
func UnlockAll[S Gated](streams []S) {
	for _, s := range streams {
		s.gate().mu.Unlock()
	}
}
