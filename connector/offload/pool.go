package offload

import (
	"fmt"

	"github.com/sluice-serving/sluice/kvcache"
)

// slot is a host block.
type slot int32

const noSlot slot = -1

// Key is the content of a shared block: what it holds and everything before
// it.
type Key struct {
	Group     uint8
	Namespace [32]byte
	Hash      [32]byte
}

func (k Key) String() string { return fmt.Sprintf("%d/%x/%x", k.Group, k.Namespace[:4], k.Hash[:8]) }

type slotState uint8

const (
	slotFree    slotState = iota
	slotPrivate           // one request's
	slotPending           // shared content whose copy is not complete
	slotShared            // shared content, matchable
)

// pool is the scheduler's account of the host blocks.
type pool struct {
	slots  []slotUse
	free   []slot
	index  map[Key]slot   // pending and shared
	order  evictor        // shared
	unused int            // shared with no user: what eviction can free
	gone   func(*slotUse) // is told what was shared and named, and is forgotten; may be nil
}

// slotUse is what a slot holds, and for how many.
type slotUse struct {
	state slotState
	refs  int
	key   Key
	name  kvcache.Hash // in events; zero: it was not told of
}

func newPool(n int, p Policy) *pool {
	h := &pool{index: map[Key]slot{}, order: newEvictor(p, n)}
	h.slots = make([]slotUse, n)
	for i := n - 1; i >= 0; i-- {
		h.free = append(h.free, slot(i))
	}
	return h
}

// available is how many slots alloc could give.
func (p *pool) available() int { return len(p.free) + p.unused }

// alloc takes n private slots with one user each, all or nothing.
func (p *pool) alloc(n int) ([]slot, bool) {
	if n > p.available() {
		return nil, false
	}
	if missing := n - len(p.free); missing > 0 {
		for _, s := range p.order.victims(missing, func(s slot) bool { return p.slots[s].refs == 0 }) {
			p.order.evict(s)
			p.forget(s)
		}
	}
	out := make([]slot, n)
	for i := range out {
		s := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.slots[s].state, p.slots[s].refs = slotPrivate, 1
		out[i] = s
	}
	return out, true
}

// forget frees a shared slot without users.
func (p *pool) forget(s slot) {
	x := &p.slots[s]
	delete(p.index, x.key)
	if p.gone != nil && !x.name.IsZero() {
		p.gone(x)
	}
	*x = slotUse{}
	p.unused--
	p.free = append(p.free, s)
}

// promise gives a private slot a key, under which it is matchable when it is
// published. It does nothing if another slot has the key.
func (p *pool) promise(s slot, k Key) {
	if _, taken := p.index[k]; taken {
		return
	}
	p.slots[s].state, p.slots[s].key = slotPending, k
	p.index[k] = s
}

// publish makes a promised slot matchable, and reports whether it was promised.
func (p *pool) publish(s slot) bool {
	x := &p.slots[s]
	if x.state != slotPending {
		return false
	}
	x.state = slotShared
	p.order.add(s, x.key)
	return true
}

// find returns the slot of a key and whether it is matchable.
func (p *pool) find(k Key) (s slot, ready, ok bool) {
	s, ok = p.index[k]
	return s, ok && p.slots[s].state == slotShared, ok
}

// hold adds a user to a shared slot.
func (p *pool) hold(s slot) {
	if p.slots[s].refs == 0 {
		p.unused--
	}
	p.slots[s].refs++
	p.order.touch(s)
}

// drop takes a user away. The last one frees a slot that is not shared.
func (p *pool) drop(s slot) {
	x := &p.slots[s]
	if x.refs <= 0 {
		panic(fmt.Sprintf("offload: slot %d has no user to drop", s))
	}
	if x.refs--; x.refs > 0 {
		return
	}
	switch x.state {
	case slotShared:
		p.unused++
	case slotPending:
		delete(p.index, x.key)
		fallthrough
	default:
		x.state, x.key = slotFree, Key{}
		p.free = append(p.free, s)
	}
}

// reset frees every shared slot that nobody uses.
func (p *pool) reset() {
	for i := range p.slots {
		if x := &p.slots[i]; x.state == slotShared && x.refs == 0 {
			p.order.remove(slot(i))
			p.forget(slot(i))
		}
	}
}

// check panics when the account does not add up.
func (p *pool) check() {
	free, unused := 0, 0
	for i := range p.slots {
		switch x := p.slots[i]; {
		case x.state == slotFree && x.refs == 0:
			free++
		case x.state == slotShared && x.refs == 0:
			unused++
		case x.refs <= 0:
			panic(fmt.Sprintf("offload: slot %d is in state %d with %d users", i, x.state, x.refs))
		}
		if x := p.slots[i]; x.state >= slotPending && p.index[x.key] != slot(i) {
			panic(fmt.Sprintf("offload: slot %d is not under its key", i))
		}
	}
	if free != len(p.free) || unused != p.unused {
		panic(fmt.Sprintf("offload: %d free of %d, %d unused of %d", free, len(p.free), unused, p.unused))
	}
}
