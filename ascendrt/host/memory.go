package host

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

const (
	align     = 512
	addrShift = 38 // log2 of the largest allocation; above it the allocation's number
	addrMask  = 1<<addrShift - 1
)

// alloc is one allocation. Commands in flight hold its bytes, so a free while
// they run costs nothing but their meaning.
type alloc struct {
	id     uint64
	data   []byte
	host   bool
	graphs atomic.Int32 // live graphs that name it
	dead   atomic.Bool  // FreeAfter was called
	stack  []uintptr
}

// bytesFor gives n bytes aligned to 64, as words so that typed views are aligned.
func bytesFor(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	words := make([]uint64, (n+63)/8+8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	off := int(-uintptr(unsafe.Pointer(&b[0])) & 63)
	return b[off : off+n : off+n]
}

func (d *device) newAlloc(n int, host bool) (*alloc, error) {
	call := "alloc"
	if host {
		call = "alloc_host"
	}
	call = fmt.Sprintf("%s(%d)", call, n)
	if n < 0 || n > addrMask {
		return nil, invalid(call, "the size is negative or above the largest allocation", ascendrt.ErrInvalid)
	}
	d.Reap()
	d.mem.Lock()
	defer d.mem.Unlock()
	if d.Closed() {
		return nil, invalid(call, "closed", ascendrt.ErrClosed)
	}
	if host {
		if d.Options.PinnedBytes != 0 && uint64(d.hostBytes+n) > d.Options.PinnedBytes {
			return nil, invalid(call, fmt.Sprintf("%d of %d pinned bytes free", int(d.Options.PinnedBytes)-d.hostBytes, d.Options.PinnedBytes), ascendrt.ErrOutOfMemory)
		}
	} else if uint64(d.devBytes+n) > d.info.TotalMemory {
		return nil, invalid(call, fmt.Sprintf("%d of %d bytes free", d.info.TotalMemory-uint64(d.devBytes), d.info.TotalMemory), ascendrt.ErrOutOfMemory)
	}
	a := &alloc{data: bytesFor(n), host: host}
	if d.Options.Debug == ascendrt.DebugSync {
		if !host {
			for i := range a.data {
				a.data[i] = 0xff // NaN in every float type
			}
		}
		a.stack = make([]uintptr, 16)
		a.stack = a.stack[:runtime.Callers(3, a.stack)]
	}
	d.nextID++
	a.id = d.nextID
	if d.allocs == nil {
		d.allocs = map[uint64]*alloc{}
	}
	d.allocs[a.id] = a
	if host {
		d.hostBytes += n
		d.live.hostBuffers++
	} else {
		d.devBytes += n
		d.live.buffers++
	}
	return a, nil
}

func (a *alloc) addr() ascendrt.Addr { return ascendrt.Addr(a.id << addrShift) }

func (a *alloc) view() ascendrt.View {
	return ascendrt.View{Addr: a.addr(), Len: len(a.data), Max: len(a.data)}
}

// resolve gives the bytes of [addr, addr+n).
// Nothing is in every buffer.
func (d *device) resolve(addr ascendrt.Addr, n int) ([]byte, *alloc, error) {
	if n == 0 {
		return nil, nil, nil
	}
	d.mem.Lock()
	a := d.allocs[uint64(addr)>>addrShift]
	d.mem.Unlock()
	off := int(addr & addrMask)
	switch {
	case a == nil || a.dead.Load():
		return nil, nil, fmt.Errorf("address %#x is in no live buffer (freed?): %w", uint64(addr), ascendrt.ErrInvalid)
	case n < 0 || off > len(a.data) || n > len(a.data)-off:
		return nil, nil, fmt.Errorf("[%d, %d) leaves a buffer of %d bytes: %w", off, off+n, len(a.data), ascendrt.ErrInvalid)
	}
	return a.data[off : off+n : off+n], a, nil
}

// release gives the allocation back after its point.
func (d *device) release(a *alloc) {
	d.mem.Lock()
	defer d.mem.Unlock()
	if _, ok := d.allocs[a.id]; !ok {
		return
	}
	delete(d.allocs, a.id)
	if a.host {
		d.hostBytes -= len(a.data)
		d.live.hostBuffers--
	} else {
		d.devBytes -= len(a.data)
		d.live.buffers--
	}
}

func (d *device) freeAfter(a *alloc, p ascendrt.Point, cleanup *runtime.Cleanup) error {
	if err := d.Alive(); err != nil {
		return err
	}
	d.Life.Lock()
	if a.graphs.Load() > 0 {
		d.Life.Unlock()
		return invalid("free", "close the graphs that name the buffer first", ascendrt.ErrInUse)
	}
	first := a.dead.CompareAndSwap(false, true)
	d.Life.Unlock()
	if !first {
		return invalid("free", "the buffer was freed before", ascendrt.ErrClosed)
	}
	cleanup.Stop()
	s, ok := p.Stream.(*stream)
	if p.Stream == nil || !ok || s.d != d {
		// Nobody here waits for a point of another device: a later look gives the
		// memory back.
		d.Later([]ascendrt.Point{p}, func() { d.release(a) })
		return nil
	}
	s.afterPoint(p.Seq, func() { d.release(a) })
	return nil
}

// buffer is the handle that the caller holds; dropping it without FreeAfter is
// a leak, which the collector reports.
type buffer struct {
	d       *device
	a       *alloc
	cleanup runtime.Cleanup
}

var (
	_ ascendrt.Buffer     = (*buffer)(nil)
	_ ascendrt.HostBuffer = (*hostBuffer)(nil)
)

func (b *buffer) Addr() ascendrt.Addr              { return b.a.addr() }
func (b *buffer) Len() int                         { return len(b.a.data) }
func (b *buffer) View() ascendrt.View              { return b.a.view() }
func (b *buffer) Slice(off, n int) ascendrt.View   { return b.a.view().Slice(off, n) }
func (b *buffer) FreeAfter(p ascendrt.Point) error { return b.d.freeAfter(b.a, p, &b.cleanup) }

type hostBuffer struct{ buffer }

func (b *hostBuffer) Bytes() []byte { return b.a.data }

func (d *device) Alloc(n int, p ascendrt.Placement) (ascendrt.Buffer, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if p == ascendrt.PlaceShareable {
		return nil, invalid("alloc", "shareable memory", ascendrt.ErrUnsupported)
	}
	if err := d.inject("alloc"); err != nil {
		return nil, err
	}
	a, err := d.newAlloc(n, false)
	if err != nil {
		return nil, err
	}
	b := &buffer{d: d, a: a}
	b.cleanup = runtime.AddCleanup(b, d.Leaks.Report, handles.Dropped{What: "buffer", Bytes: len(a.data), Stack: a.stack})
	return b, nil
}

func (d *device) AllocHost(n int) (ascendrt.HostBuffer, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if err := d.inject("alloc_host"); err != nil {
		return nil, err
	}
	a, err := d.newAlloc(n, true)
	if err != nil {
		return nil, err
	}
	b := &hostBuffer{buffer{d: d, a: a}}
	b.cleanup = runtime.AddCleanup(b, d.Leaks.Report, handles.Dropped{What: "host buffer", Bytes: len(a.data), Stack: a.stack})
	return b, nil
}

// Map gives the bytes of a view of this device's memory.
func (d *device) Map(v ascendrt.View) ([]byte, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	b, _, err := d.resolve(v.Addr, v.Len)
	if err != nil {
		return nil, invalid("map", err.Error(), ascendrt.ErrInvalid)
	}
	return b, nil
}

func (d *device) Export(ascendrt.Buffer) (ascendrt.ShareHandle, error) {
	return nil, d.unsupported("export")
}

func (d *device) Import(ascendrt.ShareHandle) (ascendrt.Buffer, error) {
	return nil, d.unsupported("import")
}

func (d *device) MemInfo() (free, total uint64, err error) {
	if err := d.Alive(); err != nil {
		return 0, 0, err
	}
	d.Reap()
	d.mem.Lock()
	defer d.mem.Unlock()
	return d.info.TotalMemory - uint64(d.devBytes), d.info.TotalMemory, nil
}
