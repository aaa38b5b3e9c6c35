package transport

import (
	"fmt"
	"io"
	"sync"
)

// Regions is a table of registered regions with users counted, for transports
// to embed. The zero value is ready.
type Regions struct {
	mu   sync.Mutex
	last RegionID
	m    map[RegionID]*Region
}

// Region is a registered piece of memory.
type Region struct {
	ID   RegionID
	Size int64
	Unit int64
	mem  Memory
	raw  []byte // nil when not mapped

	users sync.WaitGroup
}

// Register adds memory. unit must divide its size.
func (t *Regions) Register(m Memory, unit int64) (Descriptor, error) {
	size := m.Size()
	if size <= 0 || unit <= 0 || size%unit != 0 {
		return Descriptor{}, fmt.Errorf("register: size %d is not a multiple of unit %d above 0", size, unit)
	}
	r := &Region{Size: size, Unit: unit, mem: m}
	if b, ok := m.(Mapped); ok {
		r.raw = b.Bytes()
		if int64(len(r.raw)) != size {
			return Descriptor{}, fmt.Errorf("register: %d bytes mapped of %d", len(r.raw), size)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[RegionID]*Region{}
	}
	t.last++
	r.ID = t.last
	t.m[r.ID] = r
	return Descriptor{Region: r.ID, Size: size, Unit: unit}, nil
}

// Deregister removes a region and blocks until its users have released it.
func (t *Regions) Deregister(id RegionID) error {
	t.mu.Lock()
	r := t.m[id]
	delete(t.m, id)
	t.mu.Unlock()
	if r == nil {
		return fmt.Errorf("deregister region %d: %w", id, ErrRegion)
	}
	r.users.Wait()
	return nil
}

// Acquire returns a region and counts a user, who calls Release.
func (t *Regions) Acquire(id RegionID) (*Region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.m[id]
	if r == nil {
		return nil, fmt.Errorf("%w: region %d", ErrRegion, id)
	}
	r.users.Add(1)
	return r, nil
}

// Release ends one use.
func (r *Region) Release() { r.users.Done() }

// Holds reports whether [off, off+n) lies in the region and is not empty.
func (r *Region) Holds(off, n int64) bool {
	return off >= 0 && n > 0 && off <= r.Size && n <= r.Size-off
}

// HoldsUnits reports whether units of that size are the region's, up to this one.
func (r *Region) HoldsUnits(bytes int64, most int32) bool {
	return bytes == r.Unit && most >= 0 && int64(most) < r.Size/r.Unit
}

// Slice is the memory of [off, off+n), or nil when the region is not mapped.
func (r *Region) Slice(off, n int64) []byte {
	if r.raw == nil {
		return nil
	}
	return r.raw[off : off+n : off+n]
}

// ReadAt copies out of the region; a short read is an error.
func (r *Region) ReadAt(p []byte, off int64) error {
	if r.raw != nil {
		copy(p, r.raw[off:off+int64(len(p))])
		return nil
	}
	n, err := r.mem.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: read region %d: %w", ErrMemory, r.ID, err)
}

// WriteAt copies into the region.
func (r *Region) WriteAt(p []byte, off int64) error {
	if r.raw != nil {
		copy(r.raw[off:off+int64(len(p))], p)
		return nil
	}
	n, err := r.mem.WriteAt(p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("%w: write region %d: %w", ErrMemory, r.ID, err)
	}
	return nil
}

// Host is memory on the Go heap.
type Host []byte

var (
	_ Memory = Host(nil)
	_ Mapped = Host(nil)
)

// Size is the length in bytes.
func (h Host) Size() int64 { return int64(len(h)) }

// Bytes is the memory itself.
func (h Host) Bytes() []byte { return h }

// ReadAt implements io.ReaderAt.
func (h Host) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(h)) {
		return 0, fmt.Errorf("read at %d of %d", off, len(h))
	}
	n := copy(p, h[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (h Host) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(h)) {
		return 0, fmt.Errorf("write at %d of %d", off, len(h))
	}
	n := copy(h[off:], p)
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}
