//go:build cgo && linux

package cuda

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// A share handle: this, process id, offset and length within the allocation (8
// bytes each, little-endian), the driver's key of the allocation.
const (
	shareMagic = "sluice-cuda-1\n"
	shareKey   = 64 // bytes
)

// memory is what the table of allocations asks of the driver.
func (d *device) memory() memory.Driver {
	return memory.Driver{
		Place: d.place, Release: d.release, Info: d.driverMemInfo,
		Ordinal: d.desc.info.Ordinal, CanPeer: d.canPeer, EnablePeer: func(of ascendrt.Device) error { return d.enablePeer(of.(*device).ctx) },
		Share: memory.Sharing{
			Magic: shareMagic, KeyBytes: shareKey, From: memory.FromShared, Import: d.ipcImport,
			Export: func(a *memory.Alloc) ([]byte, error) { return d.ipcExport(a.Piece.Base) },
			Close:  func(_ []byte, base uint64) { d.ipcClose(base) },
		},
	}
}

// place takes the memory itself.
func (d *device) place(a *memory.Alloc, p ascendrt.Placement) error {
	if a.Host || p != ascendrt.PlacePool {
		return d.arenas.Place(a, p)
	}
	a.From = memory.FromPool
	s, err := d.poolStream()
	if err == nil {
		a.Addr, err = d.poolAlloc(max(a.Len, 1), s.raw)
	}
	return err
}

// sharedAlloc takes memory that another process may map. The driver shares whole
// blocks of this size, so that nothing else may lie in them.
func (d *device) sharedAlloc(n int) (uint64, error) {
	const block = 2 << 20
	return d.driverAlloc((n + block - 1) &^ (block - 1))
}

// AllocRow takes one allocation of the driver for all buffers.
func (d *device) AllocRow(n, bytes int, p ascendrt.Placement) ([]ascendrt.Buffer, error) {
	return d.NewRow(n, bytes, p)
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

func (d *device) release(a *memory.Alloc) {
	if a.From == memory.FromPool {
		d.poolFree(a.Addr, d.pool.raw)
		return
	}
	d.arenas.Release(a)
}
