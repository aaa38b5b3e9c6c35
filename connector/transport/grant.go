package transport

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Grants is the table of open capabilities of a guarded transport. The zero
// value is ready. All methods may be called from any goroutine.
type Grants struct {
	mu sync.Mutex
	m  map[Capability]*grant
}

type grant struct {
	access  Access
	regions map[RegionID]struct{}
	units   []uint64 // bitmap
	revoked atomic.Bool

	mu    sync.Mutex
	holds map[*Hold]func() // what breaks the access off
	idle  chan struct{}    // closed when revoked and without holds
}

// maxUnit bounds the bitmap of a grant: 2^28 units are 32 MiB.
const maxUnit = 1 << 28

// Grant opens units of regions under a fresh random capability.
func (g *Grants) Grant(a Access, regions []RegionID, units []int32) (Capability, error) {
	if a != PeerReads && a != PeerWrites {
		return Capability{}, fmt.Errorf("grant: unknown %v", a)
	}
	gr := &grant{access: a, regions: make(map[RegionID]struct{}, len(regions)), holds: map[*Hold]func(){}, idle: make(chan struct{})}
	for _, r := range regions {
		gr.regions[r] = struct{}{}
	}
	top := int32(-1)
	for _, u := range units {
		if u < 0 || u >= maxUnit {
			return Capability{}, fmt.Errorf("grant: unit %d out of range", u)
		}
		top = max(top, u)
	}
	gr.units = make([]uint64, (int(top)+64)/64)
	for _, u := range units {
		gr.units[u/64] |= 1 << (u % 64)
	}
	var c Capability
	rand.Read(c[:]) // never fails
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.m == nil {
		g.m = map[Capability]*grant{}
	}
	g.m[c] = gr
	return c, nil
}

// Hold is one access in progress under a grant.
type Hold struct{ g *grant }

// Acquire begins an access. abort is called at most once, from another
// goroutine, when the grant is revoked and the access does not end by itself
// within the grace time; it must make the access end. The caller releases the
// hold.
func (g *Grants) Acquire(c Capability, a Access, abort func()) (*Hold, error) {
	g.mu.Lock()
	gr := g.m[c]
	g.mu.Unlock()
	if gr == nil {
		return nil, fmt.Errorf("%w: unknown or revoked capability", ErrDenied)
	}
	if gr.access != a {
		return nil, fmt.Errorf("%w: capability opens %v, not %v", ErrDenied, gr.access, a)
	}
	h := &Hold{gr}
	gr.mu.Lock()
	defer gr.mu.Unlock()
	if gr.revoked.Load() {
		return nil, fmt.Errorf("%w: revoked capability", ErrDenied)
	}
	gr.holds[h] = abort
	return h, nil
}

// Allows reports whether the grant covers bytes [off, off+n) of a region with
// the given unit size. n is above 0.
func (h *Hold) Allows(r RegionID, unit, off, n int64) bool {
	if _, ok := h.g.regions[r]; !ok || unit <= 0 || off < 0 || n <= 0 {
		return false
	}
	for u := off / unit; u <= (off+n-1)/unit; u++ {
		if u/64 >= int64(len(h.g.units)) || h.g.units[u/64]&(1<<(u%64)) == 0 {
			return false
		}
	}
	return true
}

// AllowsUnits reports whether the grant covers these units of each of the regions.
func (h *Hold) AllowsUnits(regions []RegionID, units []int32) bool {
	for _, r := range regions {
		if _, ok := h.g.regions[r]; !ok {
			return false
		}
	}
	for _, u := range units {
		if u < 0 || int(u/64) >= len(h.g.units) || h.g.units[u/64]&(1<<(u%64)) == 0 {
			return false
		}
	}
	return true
}

// Revoked reports whether the access must end now.
func (h *Hold) Revoked() bool { return h.g.revoked.Load() }

// Release ends the access.
func (h *Hold) Release() {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	delete(h.g.holds, h)
	if h.g.revoked.Load() && len(h.g.holds) == 0 {
		h.g.close()
	}
}

func (g *grant) close() {
	select {
	case <-g.idle:
	default:
		close(g.idle)
	}
}

// Revoke ends a grant. Accesses in progress get the grace time to end by
// themselves, then their abort is called; Revoke returns when all have ended.
func (g *Grants) Revoke(c Capability, grace time.Duration) {
	g.mu.Lock()
	gr := g.m[c]
	delete(g.m, c)
	g.mu.Unlock()
	if gr == nil {
		return
	}
	gr.mu.Lock()
	gr.revoked.Store(true)
	if len(gr.holds) == 0 {
		gr.close()
	}
	gr.mu.Unlock()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-gr.idle:
		return
	case <-t.C:
	}
	gr.mu.Lock()
	var aborts []func()
	for _, abort := range gr.holds {
		aborts = append(aborts, abort)
	}
	gr.mu.Unlock()
	for _, abort := range aborts {
		abort()
	}
	<-gr.idle
}
