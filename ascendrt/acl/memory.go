//go:build cgo && linux

package acl

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// A share handle: this, process id, offset and length within the allocation (8
// bytes each, little-endian), the runtime's key of the allocation (65 bytes).
const shareMagic = "sluice-ascend-1\n"

// memory is what the table of allocations asks of the runtime.
func (d *device) memory() memory.Driver {
	return memory.Driver{
		Place: d.place, Release: d.release, Info: d.driverMemInfo, Peer: d.peer,
		Share: memory.Sharing{
			Magic: shareMagic, KeyBytes: ipcKeyBytes, From: memory.FromShared, Import: d.ipcImport,
			Export: func(a *memory.Alloc) ([]byte, error) { return d.ipcExport(a.Piece.Base, a.Piece.Len) },
			Close:  func(key []byte, _ uint64) { d.ipcClose(key) },
		},
	}
}

// place takes the memory itself. Pool memory is arena memory here: the pools of
// this runtime are experimental.
func (d *device) place(a *memory.Alloc, p ascendrt.Placement) (err error) {
	switch {
	case a.Host:
		a.Piece, err = d.pinned.Get(a.Len)
	case p == ascendrt.PlaceShareable:
		a.From = memory.FromShared
		a.Piece, err = d.shared.Get(a.Len + tailPad)
	default:
		a.Piece, err = d.device.Get(a.Len + tailPad)
	}
	a.Addr = a.Piece.Addr
	return err
}

func (d *device) release(a *memory.Alloc) {
	switch {
	case a.Host:
		d.pinned.Put(a.Piece)
	case a.From == memory.FromShared:
		d.shared.Put(a.Piece)
	default:
		d.device.Put(a.Piece)
	}
}

// peer gives nil for a device of another backend.
func (d *device) peer(of ascendrt.Device) *memory.Peer {
	p, ok := of.(*device)
	if !ok {
		return nil
	}
	return &memory.Peer{
		Table: &p.Table, Same: p.info.Ordinal == d.info.Ordinal,
		Can:    func() (bool, error) { return d.canPeer(p.info.Ordinal) },
		Enable: func() error { return d.enablePeer(p.info.Ordinal) },
	}
}
