// Package memory keeps the allocations of a device whose bytes a driver holds,
// by address: commands name memory by addresses alone, and every range is
// looked up before it crosses.
package memory

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/arena"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// Origin is where an allocation's bytes come from.
type Origin uint8

// Origins.
const (
	FromArena  Origin = iota
	FromShared        // an arena of its own, for another process to map
	FromPool          // the driver's pool, in stream order
	FromPeer          // another process
)

// Alloc is one live allocation.
type Alloc struct {
	Addr   uint64
	Len    int
	Host   bool
	From   Origin
	Piece  arena.Piece // FromArena and FromShared
	im     *imported   // FromPeer
	row    *row        // of AllocRow
	graphs atomic.Int32
	dead   atomic.Bool
	stack  []uintptr
}

// Holds tells whether [addr, addr+n) lies in the allocation, which is alive.
func (a *Alloc) Holds(addr uint64, n int) bool {
	return n >= 0 && addr >= a.Addr && addr-a.Addr <= uint64(a.Len) && uint64(n) <= a.Room(addr) && !a.dead.Load()
}

// Together tells whether both lie in one allocation of the driver.
func (a *Alloc) Together(b *Alloc) bool { return a == b || a.row != nil && a.row == b.row }

// Room is the number of bytes from addr on.
func (a *Alloc) Room(addr uint64) uint64 { return a.Addr + uint64(a.Len) - addr }

func (a *Alloc) view() ascendrt.View {
	return ascendrt.View{Addr: ascendrt.Addr(a.Addr), Len: a.Len, Max: a.Len}
}

// bytes are those of host memory.
func (a *Alloc) bytes() []byte {
	if a.Len == 0 {
		return []byte{}
	}
	p := a.Addr
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), a.Len)
}

// buffer is the handle that the caller holds; dropping it without FreeAfter is
// a leak, which the collector reports.
type buffer struct {
	t       *Table
	a       *Alloc
	cleanup runtime.Cleanup
}

var (
	_ ascendrt.Buffer     = (*buffer)(nil)
	_ ascendrt.HostBuffer = (*hostBuffer)(nil)
)

func (b *buffer) Addr() ascendrt.Addr              { return ascendrt.Addr(b.a.Addr) }
func (b *buffer) Len() int                         { return b.a.Len }
func (b *buffer) View() ascendrt.View              { return b.a.view() }
func (b *buffer) Slice(off, n int) ascendrt.View   { return b.a.view().Slice(off, n) }
func (b *buffer) FreeAfter(p ascendrt.Point) error { return b.t.freeAfter(b.a, p, &b.cleanup) }

type hostBuffer struct{ buffer }

func (b *hostBuffer) Bytes() []byte { return b.a.bytes() }

func (t *Table) holder(a *Alloc) *buffer {
	b := &buffer{t: t, a: a}
	b.cleanup = runtime.AddCleanup(b, t.core.Leaks.Report, handles.Dropped{What: "buffer", Bytes: a.Len, Stack: a.stack})
	return b
}

func (t *Table) hostHolder(a *Alloc) *hostBuffer {
	b := &hostBuffer{buffer{t: t, a: a}}
	b.cleanup = runtime.AddCleanup(b, t.core.Leaks.Report, handles.Dropped{What: "host buffer", Bytes: a.Len, Stack: a.stack})
	return b
}
