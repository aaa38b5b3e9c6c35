package ascendrt

import "errors"

// Addr is a device address. It is never a Go pointer.
type Addr uint64

// Placement says what an allocation must be good for.
type Placement uint8

const (
	// PlaceDefault is memory of this process.
	PlaceDefault Placement = iota
	// PlaceShareable memory can be exported to another process.
	PlaceShareable
	// PlacePool memory comes from the driver's pool where it has one: cheap to
	// take and to free, for what lives shortly. It cannot be exported.
	PlacePool
)

// String names the placement.
func (p Placement) String() string {
	switch p {
	case PlaceShareable:
		return "shareable"
	case PlacePool:
		return "pool"
	}
	return "default"
}

// Buffer is device memory. Its owner frees it once with FreeAfter; nothing
// frees it behind the owner's back.
type Buffer interface {
	Addr() Addr // first byte, aligned to Caps.Align
	Len() int   // bytes
	View() View // all of it
	// Slice is a part; one that leaves the buffer is an invalid view, which
	// every command refuses with ErrInvalid.
	Slice(off, n int) View
	// FreeAfter returns at once; the memory is reused when p has passed (the
	// zero Point has passed). ErrInUse while a live graph names the buffer,
	// ErrClosed the second time.
	FreeAfter(p Point) error
}

// RowAllocator is a device that places buffers of one size at equal distances in one
// allocation of its driver, so that the copy engines take the same part of all of them
// as one copy. Each buffer is used, shared and freed by itself; the memory goes back with
// the last of them. Another process to which one of them is exported maps all.
type RowAllocator interface {
	// AllocRow takes n buffers of bytes each; all or none.
	AllocRow(n, bytes int, p Placement) ([]Buffer, error)
}

// AllocRow takes n buffers of the same number of bytes, in a row where the device is a
// RowAllocator. On error nothing stays allocated.
func AllocRow(dev Device, n, bytes int, p Placement) ([]Buffer, error) {
	if r, ok := dev.(RowAllocator); ok {
		return r.AllocRow(n, bytes, p)
	}
	var out []Buffer
	for range n {
		b, err := dev.Alloc(bytes, p)
		if err != nil {
			for _, b := range out {
				err = errors.Join(err, b.FreeAfter(Point{}))
			}
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// HostBuffer is pinned host memory.
type HostBuffer interface {
	// Bytes is the memory itself, valid until FreeAfter's point. Reads and
	// writes by the CPU are ordered with the device's by points.
	Bytes() []byte
	// View is all of it, for commands.
	View() View
	// Slice is a part, for commands; see Buffer.Slice.
	Slice(off, n int) View
	// FreeAfter gives the memory back when p has passed; see Buffer.FreeAfter.
	FreeAfter(p Point) error
}

// View is a range of device or pinned memory.
type View struct {
	Addr Addr
	Len  int // bytes; negative: invalid, made by a slice that left its buffer
	Max  int // bytes from Addr to the end of the allocation
}

// Slice is a part of the view, or an invalid view if it leaves it.
func (v View) Slice(off, n int) View {
	if off < 0 || n < 0 || v.Len < 0 || off > v.Len || n > v.Len-off {
		return View{Addr: v.Addr, Len: -1}
	}
	return View{Addr: v.Addr + Addr(off), Len: n, Max: v.Max - off}
}

// Valid tells whether the view came from inside its buffer.
func (v View) Valid() bool { return v.Len >= 0 && v.Max >= v.Len }

// ShareHandle names a buffer for another process: opaque, self-describing
// (backend, kind, key, offset, length, process).
type ShareHandle []byte
