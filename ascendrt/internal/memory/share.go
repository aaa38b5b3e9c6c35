package memory

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Sharing passes memory between processes.
type Sharing struct {
	// Magic begins every handle of the backend. Process id, offset and length
	// within the driver's allocation follow (8 bytes each, little-endian), then
	// the driver's key of the allocation, of KeyBytes.
	Magic    string
	KeyBytes int
	From     Origin // of memory that can be exported
	Export   func(p *Alloc) (key []byte, err error)
	Import   func(key []byte) (base uint64, err error)
	Close    func(key []byte, base uint64)
}

// imported is another process's allocation, opened once however many buffers
// of it are imported.
type imported struct {
	key  string
	base uint64
	refs int
}

// Export makes a handle by which another process can import the buffer.
func (t *Table) Export(b ascendrt.Buffer) (ascendrt.ShareHandle, error) {
	c, s := t.core, &t.driver.Share
	if err := c.Alive(); err != nil {
		return nil, err
	}
	own, ok := b.(*buffer)
	switch {
	case !ok || own.t != t:
		return nil, c.Invalid("export", "the buffer is of another device", ascendrt.ErrInvalid)
	case own.a.dead.Load():
		return nil, c.Invalid("export", "the buffer was freed", ascendrt.ErrClosed)
	case own.a.From != s.From:
		return nil, c.Invalid("export", "the buffer cannot be exported: allocate with PlaceShareable", ascendrt.ErrUnsupported)
	}
	key, err := s.Export(own.a)
	if err != nil {
		return nil, err
	}
	h := []byte(s.Magic)
	h = binary.LittleEndian.AppendUint64(h, uint64(os.Getpid()))
	h = binary.LittleEndian.AppendUint64(h, own.a.Addr-own.a.Piece.Base)
	h = binary.LittleEndian.AppendUint64(h, uint64(own.a.Len))
	return append(h, key...), nil
}

// Import maps the buffer of another process.
func (t *Table) Import(h ascendrt.ShareHandle) (ascendrt.Buffer, error) {
	c, s := t.core, &t.driver.Share
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	m := len(s.Magic)
	if len(h) != m+24+s.KeyBytes || string(h[:m]) != s.Magic {
		return nil, c.Invalid("import", "this is no handle of the "+c.Backend+" backend", ascendrt.ErrInvalid)
	}
	pid, off, n := binary.LittleEndian.Uint64(h[m:]), binary.LittleEndian.Uint64(h[m+8:]), binary.LittleEndian.Uint64(h[m+16:])
	if pid == uint64(os.Getpid()) {
		return nil, c.Invalid("import", "the buffer is of this process: use it as it is", ascendrt.ErrUnsupported)
	}
	if n > absurd || off > absurd {
		return nil, c.Invalid("import", fmt.Sprintf("absurd handle: %d bytes at %d", n, off), ascendrt.ErrInvalid)
	}
	key := string(h[m+24:])
	t.sharing.Lock()
	defer t.sharing.Unlock()
	im := t.imports[key]
	if im == nil {
		base, err := s.Import([]byte(key))
		if err != nil {
			return nil, err
		}
		im = &imported{key: key, base: base}
		t.imports[key] = im
	}
	im.refs++
	a := &Alloc{Addr: im.base + off, Len: int(n), From: FromPeer, im: im}
	t.mu.Lock()
	t.add(a)
	t.mu.Unlock()
	return t.holder(a), nil
}

// unimport closes the allocation with its last buffer.
func (t *Table) unimport(im *imported) {
	t.sharing.Lock()
	defer t.sharing.Unlock()
	if im.refs--; im.refs == 0 {
		delete(t.imports, im.key)
		t.driver.Share.Close([]byte(im.key), im.base)
	}
}

// EndImports closes all imported memory: the device is idle and about to close.
func (t *Table) EndImports() {
	t.sharing.Lock()
	defer t.sharing.Unlock()
	for key, im := range t.imports {
		t.driver.Share.Close([]byte(key), im.base)
	}
	clear(t.imports)
}

// peer is the table of another device of the backend; nil: it is of another one.
func (t *Table) peer(of ascendrt.Device) *Table {
	p, ok := of.(interface{ table() *Table })
	if !ok || p.table().core.Backend != t.core.Backend {
		return nil
	}
	return p.table()
}

func (t *Table) table() *Table { return t }

// PeerAccess tells how this device reaches the memory of another.
func (t *Table) PeerAccess(of ascendrt.Device) (ascendrt.PeerKind, error) {
	if err := t.core.Alive(); err != nil {
		return ascendrt.PeerNone, err
	}
	p := t.peer(of)
	switch {
	case p == nil:
		return ascendrt.PeerNone, nil
	case p.driver.Ordinal == t.driver.Ordinal:
		return ascendrt.PeerDirect, nil
	}
	can, err := t.driver.CanPeer(p.driver.Ordinal)
	switch {
	case err != nil:
		return ascendrt.PeerNone, err
	case can:
		return ascendrt.PeerDirect, nil
	}
	return ascendrt.PeerCopyOnly, nil
}

// EnablePeer makes the memory of another device known here, once kernels reach it.
func (t *Table) EnablePeer(of ascendrt.Device) error {
	k, err := t.PeerAccess(of)
	if err != nil {
		return err
	}
	if k != ascendrt.PeerDirect {
		return t.core.Invalid("enable peer", "the devices do not reach each other's memory", ascendrt.ErrUnsupported)
	}
	p := t.peer(of)
	if p.driver.Ordinal != t.driver.Ordinal {
		if err := t.driver.EnablePeer(of); err != nil {
			return err
		}
	}
	t.addPeer(p)
	return nil
}
