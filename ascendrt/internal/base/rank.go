package base

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
)

// CheckRank checks what a communicator is made from.
func (c *Core) CheckRank(id []byte, idBytes, rank, size int) error {
	if len(id) == idBytes && rank >= 0 && rank < size {
		return nil
	}
	return c.Invalid("communicator", fmt.Sprintf("an id of %d bytes, rank %d of %d", len(id), rank, size), ascendrt.ErrInvalid)
}

// Rank is a rank of a runtime's group: the caller's communicator, and what
// records of collectives find under its Ref.
type Rank[R any] struct {
	Raw        R
	core       *Core
	rank, size int
	ref        ascendrt.Ref
	leave      func(raw R, lost bool) error
}

// NewRank makes the communicator of the runtime's raw, which leave gives back.
func NewRank[R any](c *Core, raw R, rank, size int, leave func(raw R, lost bool) error) *Rank[R] {
	x := &Rank[R]{Raw: raw, core: c, rank: rank, size: size, leave: leave}
	x.ref = c.Refs.Add(x)
	c.Add(Communicators)
	return x
}

// Rank is this one's number, from 0.
func (x *Rank[R]) Rank() int { return x.rank }

// Size is the number of ranks.
func (x *Rank[R]) Size() int { return x.size }

// Ref names the communicator in records.
func (x *Rank[R]) Ref() ascendrt.Ref { return x.ref }

// Close leaves the group.
func (x *Rank[R]) Close() error {
	c := x.core
	if c.Closed() || !c.Refs.Remove(x.ref) {
		return nil
	}
	c.Give(Communicators)
	return x.leave(x.Raw, c.LostError() != nil)
}
