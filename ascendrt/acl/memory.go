//go:build cgo && linux

package acl

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// A share handle: this, process id, offset and length within the allocation (8
// bytes each, little-endian), the runtime's key of the allocation (65 bytes).
const shareMagic = "sluice-ascend-1\n"

// memory is what the table of allocations asks of the runtime. Pool memory is
// arena memory here: the pools of this runtime are experimental.
func (d *device) memory() memory.Driver {
	return memory.Driver{
		Place: d.arenas.Place, Release: d.arenas.Release, Info: d.driverMemInfo,
		Ordinal: d.info.Ordinal, CanPeer: d.canPeer, EnablePeer: func(of ascendrt.Device) error { return d.enablePeer(of.Info().Ordinal) },
		Share: memory.Sharing{
			Magic: shareMagic, KeyBytes: ipcKeyBytes, From: memory.FromShared, Import: d.ipcImport,
			Export: func(a *memory.Alloc) ([]byte, error) { return d.ipcExport(a.Piece.Base, a.Piece.Len) },
			Close:  func(key []byte, _ uint64) { d.ipcClose(key) },
		},
	}
}
