package memory

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/arena"
)

// Align is the alignment of all memory that Arenas give, and of the buffers of a
// row, in bytes.
const Align = 512

// Arenas hold what a device has of its driver.
type Arenas struct {
	Device arena.Arena
	Pinned arena.Arena // of the host
	Shared arena.Arena // memory that another process may map: alone in what it is given

	tail int
}

// Source is where an arena has its chunks from.
type Source struct {
	Grow   func(n int) (base uint64, err error)
	Shrink func(base uint64)
}

// Init is called first. Operators may touch tail bytes behind a block of the
// device.
func (x *Arenas) Init(tail int, device, pinned, shared Source) {
	const deviceChunk, pinnedChunk = 64 << 20, 8 << 20
	x.tail = tail
	x.Device = arena.Arena{Chunk: deviceChunk, Align: Align, Grow: device.Grow, Shrink: device.Shrink}
	x.Pinned = arena.Arena{Chunk: pinnedChunk, Align: Align, Grow: pinned.Grow, Shrink: pinned.Shrink}
	x.Shared = arena.Arena{Chunk: 1, Align: Align, Grow: shared.Grow, Shrink: shared.Shrink}
}

// Place is that of a Driver; pool memory is the device's here.
func (x *Arenas) Place(a *Alloc, p ascendrt.Placement) (err error) {
	switch {
	case a.Host:
		a.Piece, err = x.Pinned.Get(a.Len)
	case p == ascendrt.PlaceShareable:
		a.From = FromShared
		a.Piece, err = x.Shared.Get(a.Len + x.tail)
	default:
		a.Piece, err = x.Device.Get(a.Len + x.tail)
	}
	a.Addr = a.Piece.Addr
	return err
}

// Release is that of a Driver.
func (x *Arenas) Release(a *Alloc) {
	switch {
	case a.Host:
		x.Pinned.Put(a.Piece)
	case a.From == FromShared:
		x.Shared.Put(a.Piece)
	default:
		x.Device.Put(a.Piece)
	}
}

// Close gives everything back to the driver.
func (x *Arenas) Close() {
	x.Pinned.Close()
	x.Shared.Close()
	x.Device.Close()
}
