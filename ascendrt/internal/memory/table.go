package memory

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// Driver is what a table asks of its backend.
type Driver struct {
	// Place takes a.Len bytes, of the host if a.Host, and sets a.Addr, a.From and
	// a.Piece.
	Place func(a *Alloc, p ascendrt.Placement) error
	// Release gives them back; it is not called for imported memory.
	Release func(a *Alloc)
	// Info gives the device's free and total bytes.
	Info func() (free, total uint64, err error)
	// Share passes memory between processes.
	Share Sharing
	// Ordinal is the device's number. CanPeer tells whether its kernels can reach
	// the memory of another device, by that one's number, and EnablePeer lets them.
	Ordinal    int
	CanPeer    func(ordinal int) (bool, error)
	EnablePeer func(of ascendrt.Device) error // of this backend
}

// Table holds the allocations of one device. A backend embeds it: its methods
// are those of the device that concern memory. It is safe for concurrent use.
type Table struct {
	core   *base.Core
	driver Driver

	mu       sync.RWMutex
	sorted   []*Alloc // by address
	used     int
	hostUsed int
	buffers  int
	host     int
	peers    atomic.Pointer[[]*Table] // whose memory this device may access

	sharing sync.Mutex
	imports map[string]*imported
}

// Init makes the table of a device.
func (t *Table) Init(c *base.Core, d Driver) {
	t.core, t.driver, t.imports = c, d, map[string]*imported{}
}

// Find gives the allocation around [addr, addr+n), of this device or of a peer
// whose memory it may access.
func (t *Table) Find(addr uint64, n int) (*Alloc, error) {
	a, err := t.own(addr, n)
	if err == nil {
		return a, nil
	}
	if peers := t.peers.Load(); peers != nil {
		for _, p := range *peers {
			if a, perr := p.own(addr, n); perr == nil {
				return a, nil
			}
		}
	}
	return nil, err
}

// addPeer makes the memory of another device known to Find.
func (t *Table) addPeer(p *Table) {
	t.sharing.Lock()
	defer t.sharing.Unlock()
	var next []*Table
	if old := t.peers.Load(); old != nil {
		if slices.Contains(*old, p) {
			return
		}
		next = slices.Clone(*old)
	}
	next = append(next, p)
	t.peers.Store(&next)
}

// place is the index of addr among the sorted allocations, or where it belongs.
func (t *Table) place(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(t.sorted, addr, func(a *Alloc, x uint64) int { return cmp.Compare(a.Addr, x) })
}

// at is the allocation that starts last at or below addr; nil if there is none.
// A buffer that was imported twice stands twice, and one of them may be freed.
func (t *Table) at(addr uint64) *Alloc {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i, ok := t.place(addr)
	if !ok {
		if i--; i < 0 {
			return nil
		}
		i, _ = t.place(t.sorted[i].Addr)
	}
	a := t.sorted[i]
	for _, b := range t.sorted[i:] {
		if b.Addr != a.Addr {
			break
		}
		if a = b; !a.dead.Load() {
			break
		}
	}
	return a
}

func (t *Table) own(addr uint64, n int) (*Alloc, error) {
	a := t.at(addr)
	switch {
	case a == nil || a.dead.Load() || addr >= a.Addr+uint64(max(a.Len, 1)):
		return nil, fmt.Errorf("address %#x is in no live buffer (freed?): %w", addr, ascendrt.ErrInvalid)
	case n < 0 || addr+uint64(n) > a.Addr+uint64(a.Len):
		return nil, fmt.Errorf("[%d, %d) leaves a buffer of %d bytes: %w", addr-a.Addr, addr-a.Addr+uint64(n), a.Len, ascendrt.ErrInvalid)
	}
	return a, nil
}

// add books an allocation; mu is held.
func (t *Table) add(a *Alloc) {
	i, _ := t.place(a.Addr)
	t.sorted = slices.Insert(t.sorted, i, a)
	t.book(a, 1)
}

// drop takes an allocation out of the books, if it is in them; mu is held.
func (t *Table) drop(a *Alloc) bool {
	i := slices.Index(t.sorted, a)
	if i < 0 {
		return false
	}
	t.sorted = slices.Delete(t.sorted, i, i+1)
	t.book(a, -1)
	return true
}

func (t *Table) book(a *Alloc, sign int) {
	if a.Host {
		t.hostUsed += sign * a.Len
		t.host += sign
	} else {
		t.used += sign * a.Len
		t.buffers += sign
	}
}

func (t *Table) newAlloc(n int, host bool, p ascendrt.Placement) (*Alloc, error) {
	c := t.core
	call := fmt.Sprintf("alloc(%d)", n)
	if n < 0 || n > absurd {
		return nil, c.Invalid(call, "the size is negative or absurd", ascendrt.ErrInvalid)
	}
	a := &Alloc{Len: n, Host: host}
	used, limit := &t.used, c.Options.MemoryBytes
	if host {
		used, limit = &t.hostUsed, c.Options.PinnedBytes
	}
	// The bytes are booked first, so that two callers cannot pass the limit together.
	t.mu.Lock()
	if limit != 0 && uint64(*used+n) > limit {
		text := fmt.Sprintf("%d of %d bytes free", limit-uint64(*used), limit)
		t.mu.Unlock()
		return nil, c.Invalid(call, text, ascendrt.ErrOutOfMemory)
	}
	*used += n
	t.mu.Unlock()
	err := t.driver.Place(a, p)
	if err == nil && host {
		clear(a.bytes())
	}
	if c.Options.Debug == ascendrt.DebugSync {
		a.stack = make([]uintptr, 16)
		a.stack = a.stack[:runtime.Callers(3, a.stack)]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	*used -= n
	if err != nil {
		var e *ascendrt.Error
		if errors.As(err, &e) && e.Class == ascendrt.ErrOutOfMemory {
			if free, total, merr := t.driver.Info(); merr == nil {
				e.Text = fmt.Sprintf("%d bytes: %d of %d bytes free", n, free, total)
			}
		}
		return nil, err
	}
	t.add(a)
	return a, nil
}

// absurd is above any device's memory: sizes beyond it would overflow sums.
const absurd = 1 << 46

// release gives the memory back after its points.
func (t *Table) release(a *Alloc) {
	t.mu.Lock()
	known := t.drop(a)
	t.mu.Unlock()
	if !known { // the device was closed
		return
	}
	if a.From == FromPeer {
		t.unimport(a.im)
		return
	}
	if a.row != nil {
		if a.row.left.Add(-1) > 0 {
			return
		}
		a = a.row.whole
	}
	t.driver.Release(a)
}

func (t *Table) freeAfter(a *Alloc, p ascendrt.Point, cleanup *runtime.Cleanup) error {
	c := t.core
	c.Life.Lock()
	if err := c.Alive(); err != nil {
		c.Life.Unlock()
		return err
	}
	if a.graphs.Load() > 0 {
		c.Life.Unlock()
		return c.Invalid("free", "close the graphs that name the buffer first", ascendrt.ErrInUse)
	}
	first := a.dead.CompareAndSwap(false, true)
	c.Life.Unlock()
	if !first {
		return c.Invalid("free", "the buffer was freed before", ascendrt.ErrClosed)
	}
	cleanup.Stop()
	if c.Enter() != nil {
		return nil // the device has just closed, and given everything back
	}
	defer c.Leave()
	c.Later([]ascendrt.Point{p}, func() { t.release(a) })
	return nil
}

// Alloc takes device memory.
func (t *Table) Alloc(n int, p ascendrt.Placement) (ascendrt.Buffer, error) {
	t.core.Reap()
	if err := t.core.Enter(); err != nil {
		return nil, err
	}
	defer t.core.Leave()
	a, err := t.newAlloc(n, false, p)
	if err != nil {
		return nil, err
	}
	return t.holder(a), nil
}

// AllocHost takes pinned memory, zeroed.
func (t *Table) AllocHost(n int) (ascendrt.HostBuffer, error) {
	t.core.Reap()
	if err := t.core.Enter(); err != nil {
		return nil, err
	}
	defer t.core.Leave()
	a, err := t.newAlloc(n, true, ascendrt.PlaceDefault)
	if err != nil {
		return nil, err
	}
	return t.hostHolder(a), nil
}

// MemInfo is the driver's, within the limit of the options.
func (t *Table) MemInfo() (free, total uint64, err error) {
	t.core.Reap()
	if err := t.core.Enter(); err != nil {
		return 0, 0, err
	}
	defer t.core.Leave()
	if free, total, err = t.driver.Info(); err != nil {
		return 0, 0, err
	}
	if l := t.core.Options.MemoryBytes; l > 0 {
		t.mu.RLock()
		used := uint64(t.used)
		t.mu.RUnlock()
		total = min(total, l)
		free = min(free, l-min(l, used))
	}
	return free, total, nil
}

// Live counts the open handles and the memory.
func (t *Table) Live() ascendrt.Live {
	t.core.Reap()
	var l ascendrt.Live
	t.core.FillLive(&l)
	t.mu.RLock()
	defer t.mu.RUnlock()
	l.Buffers, l.HostBuffers, l.Bytes, l.HostBytes = t.buffers, t.host, t.used, t.hostUsed
	return l
}

// Forget drops all allocations: the device is closed.
func (t *Table) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sorted, t.used, t.hostUsed, t.buffers, t.host = nil, 0, 0, 0, 0
}
