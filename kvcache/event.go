package kvcache

import (
	"errors"
	"fmt"
)

// EventMode switches the recording of KV events.
type EventMode uint8

const (
	// EventsOff records nothing. It is the default.
	EventsOff EventMode = iota
	// EventsOn records every change of what is cached. Each cached position then keeps its chain hash.
	EventsOn
)

// Events configures the recording of KV events.
type Events struct {
	Mode EventMode
	// Algorithm, Seed and Scope are NewHasher's.
	Algorithm HashAlgorithm
	Seed      string
	Scope     Scope
	// Medium names the memory in the events; "" means "GPU".
	Medium string
}

func (e *Events) validate() error {
	if e.Mode > EventsOn {
		return &RangeError{"Events.Mode", int(e.Mode), 0, int(EventsOn)}
	}
	if e.Mode == EventsOff {
		return nil
	}
	_, err := NewHasher(e.Algorithm, e.Seed, e.Scope)
	if err != nil {
		return errors.Join(errors.New("kvcache: Config.Events"), err)
	}
	return nil
}

// EventKind is the kind of a KV event.
type EventKind uint8

const (
	// Stored: positions that had no copy in the group have one now.
	Stored EventKind = iota
	// Removed: positions have lost their last copy in the group.
	Removed
	// Cleared: nothing is cached any more.
	Cleared
)

// String returns the kind's name in vLLM's events.
func (k EventKind) String() string {
	switch k {
	case Stored:
		return "BlockStored"
	case Removed:
		return "BlockRemoved"
	case Cleared:
		return "AllBlocksCleared"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// An Event is one change of what is cached. Its slices belong to the receiver.
type Event struct {
	Kind   EventKind
	Group  int
	Spec   GroupSpec
	Medium string
	// Hashes are the chain hashes of the positions, consecutive ones for Stored.
	Hashes []Hash
	// Parent is the hash of the position before the first; zero at the start of a sequence.
	Parent Hash
	// Tokens are those of a Stored event's blocks, BlockSize each.
	Tokens    []Token
	BlockSize int
	Namespace Namespace
	// AtStart says that the first block stands at the start of its sequence.
	AtStart bool
}

// journal records events in order until they are drained.
type journal struct {
	recording  bool
	hasher     *Hasher
	medium     string
	hashes     [][]Hash // by node: the hash of each position
	queue      []Event
	drained    uint64
	sealed     uint64 // the newest mark: what is before it does not grow
	cancelling bool   // a removal takes back what is still pending
}

// open is the index in the queue of the oldest event that may still grow.
func (j *journal) open() int { return int(max(j.sealed, j.drained) - j.drained) }

func (j *journal) init(cfg Config) {
	if cfg.Events.Mode == EventsOff {
		return
	}
	j.recording = true
	j.hasher, _ = NewHasher(cfg.Events.Algorithm, cfg.Events.Seed, cfg.Events.Scope) // validated
	if j.medium = cfg.Events.Medium; j.medium == "" {
		j.medium = "GPU"
	}
}

// EventMark returns the number of events recorded so far. An event belongs to
// the step during whose planning it was recorded; the mark taken after planning
// tells TakeEvents, when the step is applied, how far to drain. What is recorded
// behind a mark joins no event before it.
func (c *Cache) EventMark() uint64 {
	c.sealed = c.drained + uint64(len(c.queue))
	return c.sealed
}

// TakeEvents appends to dst the recorded events before mark, in order, forgets
// them, and returns dst. Blocks that Uncache took back before their step was
// applied never appear.
func (c *Cache) TakeEvents(mark uint64, dst []Event) []Event {
	if mark <= c.drained {
		return dst
	}
	n := int(min(mark-c.drained, uint64(len(c.queue))))
	for i := range c.queue[:n] {
		if e := &c.queue[i]; e.Kind == Cleared || len(e.Hashes) > 0 {
			dst = append(dst, *e)
		}
	}
	rest := copy(c.queue, c.queue[n:])
	clear(c.queue[rest:])
	c.queue = c.queue[:rest]
	c.drained += uint64(n)
	return dst
}

// growHashes computes the hashes of a node's new positions.
func (c *Cache) growHashes(i int32) {
	if !c.recording {
		return
	}
	for len(c.hashes) <= int(i) {
		c.hashes = append(c.hashes, nil)
	}
	nd := c.t.at(i)
	hs := c.hashes[i]
	toks := c.t.tokens(nd)
	ns := &c.spaces[c.t.rest(i).space].ns
	for k := len(hs); k < int(nd.n); k++ {
		at := Inner
		if int(nd.depth)+k == 0 {
			at = First
		}
		hs = append(hs, c.hasher.Block(c.hashBefore(nd, hs, k), toks[k*c.bs:(k+1)*c.bs], ns, at))
	}
	c.hashes[i] = hs
}

// hashBefore returns the hash of the position before offset k of a node, zero at the start.
func (c *Cache) hashBefore(nd *node, hs []Hash, k int) Hash {
	if k > 0 {
		return hs[k-1]
	}
	p := c.t.at(nd.parent)
	if p.isRoot() {
		return Hash{}
	}
	return c.hashes[nd.parent][p.n-1]
}

func (c *Cache) splitHashes(i, u int32, k int) {
	if !c.recording {
		return
	}
	for len(c.hashes) <= int(max(i, u)) {
		c.hashes = append(c.hashes, nil)
	}
	c.hashes[u] = append([]Hash(nil), c.hashes[i][:k]...)
	c.hashes[i] = append([]Hash(nil), c.hashes[i][k:]...)
}

// shrinkHashes forgets the hashes of positions that have left a node.
func (c *Cache) shrinkHashes(i int32, n int) {
	if c.recording {
		c.hashes[i] = c.hashes[i][:n]
	}
}

// recordStored records that a group got its first copy at a position. It joins
// the newest event when that one ends at the position before and has no mark behind it.
func (c *Cache) recordStored(unit int32, g int) {
	if !c.recording {
		return
	}
	i := c.owner(unit)
	nd := c.t.at(i)
	off := int(unit - nd.run)
	h := c.hashes[i][off]
	parent := c.hashBefore(nd, c.hashes[i], off)
	toks := c.t.slab.tokens(unit, 1)
	for k := len(c.queue) - 1; k >= max(c.open(), len(c.queue)-len(c.groups)); k-- {
		e := &c.queue[k]
		if e.Kind == Stored && e.Group == g && len(e.Hashes) > 0 && !parent.IsZero() && e.Hashes[len(e.Hashes)-1] == parent {
			e.Hashes = append(e.Hashes, h)
			e.Tokens = append(e.Tokens, toks...)
			return
		}
	}
	c.queue = append(c.queue, Event{
		Kind: Stored, Group: g, Spec: c.groups[g].spec, Medium: c.medium,
		Hashes: []Hash{h}, Parent: parent, Tokens: append([]Token(nil), toks...), BlockSize: c.bs,
		Namespace: c.spaces[c.t.rest(i).space].ns, AtStart: int(nd.depth)+off == 0,
	})
}

// recordRemoved records that a group has lost its last copy at a position.
func (c *Cache) recordRemoved(unit int32, g int) {
	if !c.recording {
		return
	}
	i := c.owner(unit)
	h := c.hashes[i][unit-c.t.at(i).run]
	if c.cancelling {
		for k := len(c.queue) - 1; k >= 0; k-- {
			e := &c.queue[k]
			if n := len(e.Hashes); e.Kind == Stored && e.Group == g && n > 0 && e.Hashes[n-1] == h {
				e.Hashes, e.Tokens = e.Hashes[:n-1], e.Tokens[:(n-1)*c.bs]
				return
			}
		}
	}
	if k := len(c.queue) - 1; k >= c.open() {
		if e := &c.queue[k]; e.Kind == Removed && e.Group == g {
			e.Hashes = append(e.Hashes, h)
			return
		}
	}
	c.queue = append(c.queue, Event{Kind: Removed, Group: g, Spec: c.groups[g].spec, Medium: c.medium, Hashes: []Hash{h}})
}

func (c *Cache) recordCleared() {
	if c.recording {
		clear(c.hashes)
		c.queue = append(c.queue, Event{Kind: Cleared, Medium: c.medium})
	}
}
