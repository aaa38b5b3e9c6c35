package host

import (
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
)

// registry maps the words of command records to live handles. A word carries
// the generation of its slot, so a closed handle is not mistaken for the one
// that took its slot.
type registry struct {
	mu    sync.RWMutex
	slots []slot
	free  []uint32
}

type slot struct {
	gen uint32
	v   any
}

func (r *registry) add(v any) ascendrt.Ref {
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

// remove reports whether the handle was live.
func (r *registry) remove(ref ascendrt.Ref) bool {
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

func lookup[T any](r *registry, ref ascendrt.Ref) (T, bool) {
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
