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
	comparable
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

// Used are the streams of one buffer, the submitting one first.
type Used[S Gated] struct {
	All     []S
	Current S
	locked  []S
}

// Begin is the start of a buffer on s.
func (u *Used[S]) Begin(s S) {
	u.All, u.Current = append(u.All[:0], s), s
}

// Switch goes on with the stream of a record of kind KindStream.
func (u *Used[S]) Switch(c *Core, r ascendrt.Record) error {
	s, err := Handle[S](c, r.A[0], "stream")
	if err != nil {
		return err
	}
	if !slices.Contains(u.All, s) {
		u.All = append(u.All, s)
	}
	u.Current = s
	return nil
}

// Lock is LockAll for all of them, whose order stays; Unlock ends it.
func (u *Used[S]) Lock(c *Core, call string) error {
	u.locked = append(u.locked[:0], u.All...)
	return LockAll(c, call, u.locked)
}

// Unlock ends what Lock began.
func (u *Used[S]) Unlock() { UnlockAll(u.locked) }
