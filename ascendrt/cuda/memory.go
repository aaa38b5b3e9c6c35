//go:build cgo && linux

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/arena"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

type origin uint8

const (
	fromArena origin = iota
	fromPool
	fromPeer // imported
)

// alloc is one live allocation.
type alloc struct {
	addr   uint64
	n      int
	host   bool
	from   origin
	piece  arena.Piece
	im     *imported
	graphs atomic.Int32
	dead   atomic.Bool
	stack  []uintptr
}

func (a *alloc) view() ascendrt.View {
	return ascendrt.View{Addr: ascendrt.Addr(a.addr), Len: a.n, Max: a.n}
}

// find gives the allocation around [addr, addr+n), of this device or of a peer
// whose memory it may access.
func (d *device) find(addr uint64, n int) (*alloc, error) {
	a, err := d.own(addr, n)
	if err == nil {
		return a, nil
	}
	if peers := d.peers.Load(); peers != nil {
		for _, p := range *peers {
			if a, perr := p.own(addr, n); perr == nil {
				return a, nil
			}
		}
	}
	return nil, err
}

func (d *device) addPeer(p *device) {
	var next []*device
	if old := d.peers.Load(); old != nil {
		if slices.Contains(*old, p) {
			return
		}
		next = slices.Clone(*old)
	}
	next = append(next, p)
	d.peers.Store(&next)
}

func (d *device) own(addr uint64, n int) (*alloc, error) {
	d.mem.RLock()
	i, ok := slices.BinarySearchFunc(d.sorted, addr, func(a *alloc, x uint64) int { return cmp.Compare(a.addr, x) })
	if !ok {
		i--
	}
	var a *alloc
	if i >= 0 && i < len(d.sorted) {
		a = d.sorted[i]
	}
	d.mem.RUnlock()
	switch {
	case a == nil || a.dead.Load() || addr >= a.addr+uint64(max(a.n, 1)):
		return nil, fmt.Errorf("address %#x is in no live buffer (freed?): %w", addr, ascendrt.ErrInvalid)
	case n < 0 || addr+uint64(n) > a.addr+uint64(a.n):
		return nil, fmt.Errorf("[%d, %d) leaves a buffer of %d bytes: %w", addr-a.addr, addr-a.addr+uint64(n), a.n, ascendrt.ErrInvalid)
	}
	return a, nil
}

func (d *device) add(a *alloc) {
	i, _ := slices.BinarySearchFunc(d.sorted, a.addr, func(x *alloc, addr uint64) int { return cmp.Compare(x.addr, addr) })
	d.sorted = slices.Insert(d.sorted, i, a)
	if a.host {
		d.hostUsed += a.n
		d.counts.hostBuffers++
	} else {
		d.used += a.n
		d.counts.buffers++
	}
}

func (d *device) newAlloc(n int, host bool, p ascendrt.Placement) (*alloc, error) {
	call := fmt.Sprintf("alloc(%d)", n)
	if n < 0 || n > 1<<46 {
		return nil, invalid(call, "the size is negative or absurd", ascendrt.ErrInvalid)
	}
	d.reap()
	a := &alloc{n: n, host: host}
	limit := d.opts.MemoryBytes
	if host {
		limit = d.opts.PinnedBytes
	}
	// The bytes are booked first, so that two callers cannot pass the limit together.
	d.mem.Lock()
	used := &d.used
	if host {
		used = &d.hostUsed
	}
	if limit != 0 && uint64(*used+n) > limit {
		text := fmt.Sprintf("%d of %d bytes free", limit-uint64(*used), limit)
		d.mem.Unlock()
		return nil, invalid(call, text, ascendrt.ErrOutOfMemory)
	}
	*used += n
	d.mem.Unlock()
	err := d.place(a, p)
	if d.opts.Debug == ascendrt.DebugSync {
		a.stack = make([]uintptr, 16)
		a.stack = a.stack[:runtime.Callers(3, a.stack)]
	}
	d.mem.Lock()
	defer d.mem.Unlock()
	*used -= n
	if err != nil {
		var e *ascendrt.Error
		if errors.As(err, &e) && e.Class == ascendrt.ErrOutOfMemory {
			if free, total, merr := d.driverMemInfo(); merr == nil {
				e.Text = fmt.Sprintf("%d bytes: %d of %d bytes free", n, free, total)
			}
		}
		return nil, err
	}
	d.add(a)
	return a, nil
}

// place takes the memory itself.
func (d *device) place(a *alloc, p ascendrt.Placement) (err error) {
	switch {
	case a.host:
		a.piece, err = d.pinned.Get(a.n)
	case p == ascendrt.PlacePool:
		a.from = fromPool
		var s *stream
		if s, err = d.poolStream(); err == nil {
			a.addr, err = d.poolAlloc(max(a.n, 1), s.raw)
		}
		return err
	default:
		a.piece, err = d.device.Get(a.n)
	}
	a.addr = a.piece.Addr
	if err == nil && a.host {
		clear(a.bytes())
	}
	return err
}

// poolStream is the stream whose order pool memory follows; it carries nothing else.
func (d *device) poolStream() (*stream, error) {
	d.poolMu.Lock()
	defer d.poolMu.Unlock()
	if d.pool != nil {
		return d.pool, nil
	}
	if !d.desc.pools {
		return nil, invalid("alloc", "the device has no memory pools", ascendrt.ErrUnsupported)
	}
	if err := d.poolSetup(); err != nil {
		return nil, err
	}
	s, err := d.newStream(ascendrt.StreamOptions{Role: "pool"})
	if err != nil {
		return nil, err
	}
	d.pool = s
	return s, nil
}

func (a *alloc) bytes() []byte {
	if a.n == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(pointer(a.addr)), a.n)
}

// release gives the memory back after its points.
func (d *device) release(a *alloc) {
	d.mem.Lock()
	i, ok := slices.BinarySearchFunc(d.sorted, a.addr, func(x *alloc, addr uint64) int { return cmp.Compare(x.addr, addr) })
	if !ok || d.sorted[i] != a {
		d.mem.Unlock()
		return
	}
	d.sorted = slices.Delete(d.sorted, i, i+1)
	if a.host {
		d.hostUsed -= a.n
		d.counts.hostBuffers--
	} else {
		d.used -= a.n
		d.counts.buffers--
	}
	d.mem.Unlock()
	switch {
	case a.host:
		d.pinned.Put(a.piece)
	case a.from == fromPool:
		d.poolFree(a.addr, d.pool.raw)
	case a.from == fromPeer:
		d.unimport(a.im)
	default:
		d.device.Put(a.piece)
	}
}

func (d *device) freeAfter(a *alloc, p ascendrt.Point, cleanup *runtime.Cleanup) error {
	if err := d.alive(); err != nil {
		return err
	}
	d.life.Lock()
	if a.graphs.Load() > 0 {
		d.life.Unlock()
		return invalid("free", "close the graphs that name the buffer first", ascendrt.ErrInUse)
	}
	first := a.dead.CompareAndSwap(false, true)
	d.life.Unlock()
	if !first {
		return invalid("free", "the buffer was freed before", ascendrt.ErrClosed)
	}
	cleanup.Stop()
	d.later([]ascendrt.Point{p}, func() { d.release(a) })
	return nil
}

type buffer struct {
	d       *device
	a       *alloc
	cleanup runtime.Cleanup
}

var (
	_ ascendrt.Buffer     = (*buffer)(nil)
	_ ascendrt.HostBuffer = (*hostBuffer)(nil)
)

func (b *buffer) Addr() ascendrt.Addr              { return ascendrt.Addr(b.a.addr) }
func (b *buffer) Len() int                         { return b.a.n }
func (b *buffer) View() ascendrt.View              { return b.a.view() }
func (b *buffer) Slice(off, n int) ascendrt.View   { return b.a.view().Slice(off, n) }
func (b *buffer) FreeAfter(p ascendrt.Point) error { return b.d.freeAfter(b.a, p, &b.cleanup) }

type hostBuffer struct{ buffer }

func (b *hostBuffer) Bytes() []byte { return b.a.bytes() }

func (d *device) Alloc(n int, p ascendrt.Placement) (ascendrt.Buffer, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	a, err := d.newAlloc(n, false, p)
	if err != nil {
		return nil, err
	}
	return d.holder(a), nil
}

func (d *device) holder(a *alloc) *buffer {
	b := &buffer{d: d, a: a}
	b.cleanup = runtime.AddCleanup(b, d.leaks.Report, handles.Dropped{What: "buffer", Bytes: a.n, Stack: a.stack})
	return b
}

func (d *device) AllocHost(n int) (ascendrt.HostBuffer, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	a, err := d.newAlloc(n, true, ascendrt.PlaceDefault)
	if err != nil {
		return nil, err
	}
	b := &hostBuffer{buffer{d: d, a: a}}
	b.cleanup = runtime.AddCleanup(b, d.leaks.Report, handles.Dropped{What: "host buffer", Bytes: a.n, Stack: a.stack})
	return b, nil
}

func (d *device) MemInfo() (free, total uint64, err error) {
	if err := d.alive(); err != nil {
		return 0, 0, err
	}
	d.reap()
	if free, total, err = d.driverMemInfo(); err != nil {
		return 0, 0, err
	}
	if l := d.opts.MemoryBytes; l > 0 {
		d.mem.RLock()
		used := uint64(d.used)
		d.mem.RUnlock()
		total = min(total, l)
		free = min(free, l-min(l, used))
	}
	return free, total, nil
}
