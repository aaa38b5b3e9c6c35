package abi

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// handle is what C holds of an object: its kind in the top 8 bits, a
// generation in the next 32, a slot in the low 24.
type handle uint64

type kind uint8

const (
	schedulerKind kind = iota + 1
	graphsKind
)

const slotBits = 24

// object is something that C holds a handle of. One call uses it at a time.
type object struct {
	handle handle
	busy   atomic.Bool
	freed  atomic.Bool
	broken bool // a call panicked; guarded by busy

	mu   sync.Mutex
	text string // of the last failure; guarded by mu

	core   *core       // of a scheduler
	graphs *dispatcher // of a dispatcher, or of a scheduler with graphs
}

func (o *object) kind() kind { return kind(o.handle >> 56) }

// note keeps the text of a failure. It is called with or without the object
// entered.
func (o *object) note(text string) {
	o.mu.Lock()
	o.text = text
	o.mu.Unlock()
}

func (o *object) lastError() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text
}

// handles finds objects by handle. Finding takes no lock.
type handles struct {
	slots atomic.Pointer[[]*atomic.Pointer[object]]

	mu         sync.Mutex
	free       []uint32
	generation uint32
}

// newHandles begins at a random generation, so that a handle of another process
// is found out.
func newHandles() *handles {
	h := &handles{generation: rand.Uint32()}
	h.slots.Store(&[]*atomic.Pointer[object]{})
	return h
}

// put gives an object its handle, or 0 if there are too many.
func (h *handles) put(k kind, o *object) handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	var slot uint32
	if n := len(h.free); n > 0 {
		slot = h.free[n-1]
		h.free = h.free[:n-1]
	} else {
		old := *h.slots.Load()
		if len(old) >= 1<<slotBits {
			return 0
		}
		slot = uint32(len(old))
		grown := append(append(make([]*atomic.Pointer[object], 0, len(old)+1), old...), &atomic.Pointer[object]{})
		h.slots.Store(&grown)
	}
	h.generation++
	o.handle = handle(k)<<56 | handle(h.generation)<<slotBits | handle(slot)
	(*h.slots.Load())[slot].Store(o)
	return o.handle
}

// get finds the object of a handle, nil if there is none.
func (h *handles) get(x handle) *object {
	slots := *h.slots.Load()
	slot := x & (1<<slotBits - 1)
	if int(slot) >= len(slots) {
		return nil
	}
	if o := slots[slot].Load(); o != nil && o.handle == x {
		return o
	}
	return nil
}

// drop makes a handle stale. The object stays entered, so that a call that had
// found it before meets a busy one.
func (h *handles) drop(o *object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o.freed.Store(true)
	slot := uint32(o.handle & (1<<slotBits - 1))
	(*h.slots.Load())[slot].Store(nil)
	h.free = append(h.free, slot)
}
