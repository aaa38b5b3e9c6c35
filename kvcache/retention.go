package kvcache

import "fmt"

// Retention classes in the order in which they give way. Class 1+p is priority p.
const (
	classPlain = 0
	maxRank    = 100
)

// Retention says how long the blocks of a sequence are worth keeping once
// nobody holds them. The zero value is plain retention. Lease and Await
// keep them longer.
type Retention struct {
	// Prioritised blocks give way after plain ones, those of lower priority first.
	Prioritised bool
	// Priority is 0 to 100.
	Priority int
}

// SetRetention sets the retention of the blocks that the sequence lets go from
// now on. A block that several sequences share keeps what the last one gave it.
func (c *Cache) SetRetention(s *Seq, r Retention) error {
	if err := c.own(s); err != nil {
		return err
	}
	if r.Priority < 0 || r.Priority > maxRank {
		return &RangeError{"Retention.Priority", r.Priority, 0, maxRank}
	}
	s.class = classPlain
	if r.Prioritised {
		s.class = uint8(1 + r.Priority)
	}
	return nil
}

// Class is the retention class of an evicted block.
type Class uint8

const (
	// Plain blocks give way first.
	Plain Class = iota
	// Prioritised blocks give way next, low priorities first.
	Prioritised
	// Awaited blocks give way next, the latest instant first.
	Awaited
	// Leased blocks give way last, the earliest deadline first.
	Leased
)

// String returns the class's name.
func (c Class) String() string {
	switch c {
	case Plain:
		return "plain"
	case Prioritised:
		return "prioritised"
	case Awaited:
		return "awaited"
	case Leased:
		return "leased"
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// Reason says why a block could be taken.
type Reason uint8

const (
	// Surplus: the position has another copy.
	Surplus Reason = iota
	// LastCopy: nothing is cached below the position any more.
	LastCopy
	// OutsideWindow: a sliding-window group keeps holes.
	OutsideWindow
)

// String returns the reason's name.
func (r Reason) String() string {
	switch r {
	case Surplus:
		return "surplus copy"
	case LastCopy:
		return "last copy"
	case OutsideWindow:
		return "window block"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// An Eviction explains why a cached block was taken for another use.
type Eviction struct {
	Block    BlockID
	Group    int
	Depth    int // position in its sequence, in blocks
	Class    Class
	Priority int    // of a Prioritised block
	Deadline Time   // of a Leased or an Awaited block
	Release  uint64 // sequence number of its last release; of equal blocks the least gives way first, of Awaited ones with an instant the greatest
	Reason   Reason
}

// String explains the eviction in one line.
func (e Eviction) String() string {
	class := e.Class.String()
	switch e.Class {
	case Prioritised:
		class = fmt.Sprintf("priority %d", e.Priority)
	case Awaited:
		if e.Deadline == Anytime {
			class = "awaited at any time"
			break
		}
		return fmt.Sprintf("block %d of group %d at depth %d: awaited until %d, %s, nobody is expected later, release %d was the youngest", e.Block, e.Group, e.Depth, e.Deadline, e.Reason, e.Release)
	case Leased:
		class = fmt.Sprintf("leased until %d, and nothing unleased was left", e.Deadline)
	}
	return fmt.Sprintf("block %d of group %d at depth %d: %s, %s, release %d was the oldest", e.Block, e.Group, e.Depth, class, e.Reason, e.Release)
}

// account counts an eviction and hands it to the observer.
func (c *Cache) account(id BlockID, b *block) {
	class := Plain
	switch {
	case b.state&blockLeased != 0:
		class = Leased
	case b.state&blockAwaited != 0:
		class = Awaited
	case b.stamp>>stampBits != classPlain:
		class = Prioritised
	}
	c.stats.evictions[class]++
	c.residency.note(b.stamp&(1<<stampBits-1), c.releases)
	if c.cfg.OnEvict == nil {
		return
	}
	e := Eviction{Block: id, Group: int(b.group), Depth: c.depth(id), Class: class, Release: b.stamp & (1<<stampBits - 1)}
	switch class {
	case Leased, Awaited:
		e.Deadline = c.leases[c.guardOf(id, b)].deadline
	case Prioritised:
		e.Priority = int(b.stamp>>stampBits) - 1
	}
	switch {
	case b.next != id:
		e.Reason = Surplus
	case c.groups[b.group].spec.Kind == SlidingWindow:
		e.Reason = OutsideWindow
	default:
		e.Reason = LastCopy
	}
	c.cfg.OnEvict(e)
}
