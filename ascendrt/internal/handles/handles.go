// Package handles maps the words of command records to live handles.
package handles

import (
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Registry holds the live handles of one device; the zero value is ready and
// safe for concurrent use. A word carries the generation of its slot, so a
// closed handle is not mistaken for the one that took its slot.
type Registry struct {
	mu    sync.RWMutex
	slots []slot
	free  []uint32
}

type slot struct {
	gen uint32
	v   any
}

// Add gives v a word.
func (r *Registry) Add(v any) ascendrt.Ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	var i uint32
	if n := len(r.free); n > 0 {
		i = r.free[n-1]
		r.free = r.free[:n-1]
	} else {
		i = uint32(len(r.slots))
		r.slots = append(r.slots, slot{gen: 1})
	}
	r.slots[i].v = v
	return ascendrt.Ref(uint64(r.slots[i].gen)<<32 | uint64(i+1))
}

// Remove closes a word and reports whether it was live.
func (r *Registry) Remove(ref ascendrt.Ref) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := uint32(ref) - 1
	if int(i) >= len(r.slots) || r.slots[i].gen != uint32(ref>>32) || r.slots[i].v == nil {
		return false
	}
	r.slots[i].v = nil
	r.slots[i].gen++
	r.free = append(r.free, i)
	return true
}

// Lookup gives the handle of a word; false if it was closed or is of another kind.
func Lookup[T any](r *Registry, ref ascendrt.Ref) (T, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := uint32(ref) - 1
	if int(i) >= len(r.slots) || r.slots[i].gen != uint32(ref>>32) {
		var zero T
		return zero, false
	}
	v, ok := r.slots[i].v.(T)
	return v, ok
}

// Each calls f for every live handle, in no stated order; f does not call back.
func (r *Registry) Each(f func(v any)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.slots {
		if s.v != nil {
			f(s.v)
		}
	}
}
