//go:build cgo && linux

package acl

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/sluice-serving/sluice/ascendrt"
)

// A share handle: "sluice-ascend-1\n", process id, offset and length within the
// allocation (8 bytes each, little-endian), the runtime's key of the allocation
// (65 bytes).
const shareMagic = "sluice-ascend-1\n"

// imported is another process's allocation, opened once however many buffers
// of it are imported.
type imported struct {
	key  string
	base uint64
	refs int
}

func (d *device) Export(b ascendrt.Buffer) (ascendrt.ShareHandle, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	own, ok := b.(*buffer)
	if !ok || own.d != d {
		return nil, invalid("export", "the buffer is of another device", ascendrt.ErrInvalid)
	}
	if own.a.dead.Load() {
		return nil, invalid("export", "the buffer was freed", ascendrt.ErrClosed)
	}
	if own.a.from != fromShared {
		return nil, invalid("export", "the buffer cannot be exported: allocate with PlaceShareable", ascendrt.ErrUnsupported)
	}
	key, err := d.ipcExport(own.a.piece.Base, own.a.piece.Len)
	if err != nil {
		return nil, err
	}
	h := []byte(shareMagic)
	h = binary.LittleEndian.AppendUint64(h, uint64(os.Getpid()))
	h = binary.LittleEndian.AppendUint64(h, own.a.addr-own.a.piece.Base)
	h = binary.LittleEndian.AppendUint64(h, uint64(own.a.n))
	return append(h, key...), nil
}

func (d *device) Import(h ascendrt.ShareHandle) (ascendrt.Buffer, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	m := len(shareMagic)
	if len(h) != m+24+ipcKeyBytes || string(h[:m]) != shareMagic {
		return nil, invalid("import", "this is no handle of the ascend backend", ascendrt.ErrInvalid)
	}
	pid, off, n := binary.LittleEndian.Uint64(h[m:]), binary.LittleEndian.Uint64(h[m+8:]), binary.LittleEndian.Uint64(h[m+16:])
	if pid == uint64(os.Getpid()) {
		return nil, invalid("import", "the buffer is of this process: use it as it is", ascendrt.ErrUnsupported)
	}
	if n > 1<<46 || off > 1<<46 {
		return nil, invalid("import", fmt.Sprintf("absurd handle: %d bytes at %d", n, off), ascendrt.ErrInvalid)
	}
	key := string(h[m+24:])
	d.internals.Lock()
	defer d.internals.Unlock()
	im := d.imports[key]
	if im == nil {
		base, err := d.ipcImport([]byte(key))
		if err != nil {
			return nil, err
		}
		im = &imported{key: key, base: base}
		d.imports[key] = im
	}
	im.refs++
	a := &alloc{addr: im.base + off, n: int(n), from: fromPeer, im: im}
	d.mem.Lock()
	d.add(a)
	d.mem.Unlock()
	return d.holder(a), nil
}

// unimport closes the allocation with its last buffer.
func (d *device) unimport(im *imported) {
	d.internals.Lock()
	defer d.internals.Unlock()
	if im.refs--; im.refs == 0 {
		delete(d.imports, im.key)
		d.ipcClose([]byte(im.key))
	}
}

func (d *device) PeerAccess(peer ascendrt.Device) (ascendrt.PeerKind, error) {
	if err := d.alive(); err != nil {
		return ascendrt.PeerNone, err
	}
	p, ok := peer.(*device)
	if !ok {
		return ascendrt.PeerNone, nil
	}
	if p.info.Ordinal == d.info.Ordinal {
		return ascendrt.PeerDirect, nil
	}
	can, err := d.canPeer(p.info.Ordinal)
	if err != nil {
		return ascendrt.PeerNone, err
	}
	if can {
		return ascendrt.PeerDirect, nil
	}
	return ascendrt.PeerCopyOnly, nil
}

func (d *device) EnablePeer(peer ascendrt.Device) error {
	k, err := d.PeerAccess(peer)
	if err != nil {
		return err
	}
	p, ok := peer.(*device)
	if !ok || k != ascendrt.PeerDirect {
		return invalid("enable peer", "the devices do not reach each other's memory", ascendrt.ErrUnsupported)
	}
	if p.info.Ordinal != d.info.Ordinal {
		if err := d.enablePeer(p.info.Ordinal); err != nil {
			return err
		}
	}
	d.internals.Lock()
	defer d.internals.Unlock()
	d.addPeer(p)
	return nil
}
