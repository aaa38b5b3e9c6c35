package memory

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// fake hands out addresses and keeps what was given back.
type fake struct {
	next   uint64
	live   []uint64
	mapped map[string]uint64
	full   bool
	core   *base.Core
}

func (f *fake) place(a *Alloc, p ascendrt.Placement) error {
	if f.full {
		return f.core.Invalid("alloc", "no memory", ascendrt.ErrOutOfMemory)
	}
	if p == ascendrt.PlaceShareable {
		a.From = FromShared
	}
	f.next += 0x1000
	a.Addr = f.next
	a.Piece.Base = f.next - 64
	f.live = append(f.live, a.Addr)
	return nil
}

func (f *fake) release(a *Alloc) {
	i := slices.Index(f.live, a.Addr)
	f.live = slices.Delete(f.live, i, i+1) // panics if it is given back twice
}

// newTable makes the table of a device in a process of its own: its handles
// carry another id than ours.
func newTable(o ascendrt.OpenOptions) (*Table, *fake) {
	c := &base.Core{}
	c.Init("test", o)
	f := &fake{core: c, mapped: map[string]uint64{}}
	t := &Table{}
	t.Init(c, Driver{Place: f.place, Release: f.release, Info: func() (uint64, uint64, error) { return 700, 1000, nil }, Share: Sharing{
		Magic: "test-1\n", KeyBytes: 3, From: FromShared,
		Export: func(a *Alloc) ([]byte, error) { return []byte("key"), nil },
		Import: func(key []byte) (uint64, error) { f.mapped[string(key)]++; return 1 << 40, nil },
		Close:  func(key []byte, base uint64) { f.mapped[string(key)]-- },
	}})
	return t, f
}

func TestFind(t *testing.T) {
	x, f := newTable(ascendrt.OpenOptions{})
	var bufs []ascendrt.Buffer
	for range 3 {
		b, err := x.Alloc(100, ascendrt.PlaceDefault)
		require.NoError(t, err)
		bufs = append(bufs, b)
	}
	at := uint64(bufs[1].Addr())
	a, err := x.Find(at+60, 40)
	require.NoError(t, err)
	require.Equal(t, at, a.Addr)
	require.EqualValues(t, 40, a.Room(at+60))
	for _, bad := range []struct {
		addr uint64
		n    int
		says string
	}{
		{at + 60, 41, "[60, 101) leaves a buffer of 100 bytes"},
		{at, -1, "leaves a buffer"},
		{at + 100, 1, "no live buffer"},
		{5, 1, "no live buffer"},
	} {
		_, err := x.Find(bad.addr, bad.n)
		require.ErrorIs(t, err, ascendrt.ErrInvalid)
		require.ErrorContains(t, err, bad.says)
	}
	require.NoError(t, bufs[1].FreeAfter(ascendrt.Point{}))
	_, err = x.Find(at, 1)
	require.ErrorContains(t, err, "freed?")
	require.ErrorIs(t, bufs[1].FreeAfter(ascendrt.Point{}), ascendrt.ErrClosed)
	require.Len(t, f.live, 2)

	y, _ := newTable(ascendrt.OpenOptions{})
	_, err = y.Find(uint64(bufs[0].Addr()), 1)
	require.Error(t, err)
	enabled := 0
	y.driver.Ordinal = 1
	y.driver.CanPeer = func(ordinal int) (bool, error) { return ordinal == 0, nil }
	y.driver.EnablePeer = func(ascendrt.Device) error { enabled++; return nil }
	require.NoError(t, y.EnablePeer(peer{t: x}))
	require.Equal(t, 1, enabled)
	_, err = y.Find(uint64(bufs[0].Addr()), 1)
	require.NoError(t, err, "the memory of a peer")
}

func TestGraphsHoldMemory(t *testing.T) {
	x, f := newTable(ascendrt.OpenOptions{})
	b, err := x.Alloc(8, ascendrt.PlaceDefault)
	require.NoError(t, err)
	a, err := x.Find(uint64(b.Addr()), 8)
	require.NoError(t, err)
	Hold([]*Alloc{a})
	require.ErrorIs(t, b.FreeAfter(ascendrt.Point{}), ascendrt.ErrInUse)
	Drop([]*Alloc{a})
	require.NoError(t, b.FreeAfter(ascendrt.Point{}))
	require.Empty(t, f.live)
}

func TestLimit(t *testing.T) {
	x, f := newTable(ascendrt.OpenOptions{MemoryBytes: 150})
	b, err := x.Alloc(100, ascendrt.PlaceDefault)
	require.NoError(t, err)
	_, err = x.Alloc(51, ascendrt.PlaceDefault)
	require.ErrorIs(t, err, ascendrt.ErrOutOfMemory)
	require.ErrorContains(t, err, "50 of 150 bytes free")
	free, total, err := x.MemInfo()
	require.NoError(t, err)
	require.Equal(t, []uint64{50, 150}, []uint64{free, total})
	_, err = x.Alloc(-1, ascendrt.PlaceDefault)
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	f.full = true
	_, err = x.Alloc(10, ascendrt.PlaceDefault)
	require.ErrorContains(t, err, "10 bytes: 700 of 1000 bytes free", "the driver's own limit")
	require.Equal(t, ascendrt.Live{Buffers: 1, Bytes: 100}, x.Live(), "what failed is not booked")
	require.NoError(t, b.FreeAfter(ascendrt.Point{}))
	require.Equal(t, ascendrt.Live{}, x.Live())
}

// handleOf is what another process would hand over.
func handleOf(t *testing.T, off, n int) ascendrt.ShareHandle {
	t.Helper()
	x, _ := newTable(ascendrt.OpenOptions{})
	b, err := x.Alloc(n, ascendrt.PlaceShareable)
	require.NoError(t, err)
	h, err := x.Export(b)
	require.NoError(t, err)
	h = slices.Clone(h)
	h[len("test-1\n")] ^= 0xff // another process id
	h[len("test-1\n")+8] = byte(off)
	return h
}

// A buffer that is imported twice is one mapping, which ends with the last.
func TestImportTwice(t *testing.T) {
	x, f := newTable(ascendrt.OpenOptions{})
	h := handleOf(t, 64, 32)
	one, err := x.Import(h)
	require.NoError(t, err)
	two, err := x.Import(h)
	require.NoError(t, err)
	require.Equal(t, one.Addr(), two.Addr())
	require.EqualValues(t, 1, f.mapped["key"])
	for i, b := range []ascendrt.Buffer{one, two} {
		_, err = x.Find(uint64(b.Addr()), 32)
		require.NoError(t, err, "import %d is alive", i)
		require.NoError(t, b.FreeAfter(ascendrt.Point{}))
	}
	require.EqualValues(t, 0, f.mapped["key"])
	_, err = x.Find(uint64(two.Addr()), 1)
	require.Error(t, err)
	_, err = x.Export(one)
	require.ErrorIs(t, err, ascendrt.ErrClosed)
}

func TestBadHandles(t *testing.T) {
	x, _ := newTable(ascendrt.OpenOptions{})
	good := handleOf(t, 64, 32)
	for says, h := range map[string]ascendrt.ShareHandle{
		"no handle of the test backend": good[:len(good)-1],
		"absurd handle":                 append(slices.Clone(good[:len(good)-5]), 0x7f, 0x7f, 'k', 'e', 'y'),
	} {
		_, err := x.Import(h)
		require.ErrorContains(t, err, says)
	}
	own, err := x.Alloc(8, ascendrt.PlaceShareable)
	require.NoError(t, err)
	h, err := x.Export(own)
	require.NoError(t, err)
	_, err = x.Import(h)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported, "of this process")
	plain, err := x.Alloc(8, ascendrt.PlaceDefault)
	require.NoError(t, err)
	_, err = x.Export(plain)
	require.ErrorContains(t, err, "PlaceShareable")
}

// peer is a device that shows its table.
type peer struct {
	ascendrt.Device
	t *Table
}

func (p peer) table() *Table { return p.t }

func TestReach(t *testing.T) {
	x, _ := newTable(ascendrt.OpenOptions{})
	x.driver.CanPeer = func(ordinal int) (bool, error) { return ordinal == 1, nil }
	of := func(ordinal int, backend string) ascendrt.Device {
		y, f := newTable(ascendrt.OpenOptions{})
		y.driver.Ordinal, f.core.Backend = ordinal, backend
		return peer{t: y}
	}
	for _, c := range []struct {
		of   ascendrt.Device
		want ascendrt.PeerKind
	}{
		{struct{ ascendrt.Device }{}, ascendrt.PeerNone}, // of a backend without tables
		{of(0, "another"), ascendrt.PeerNone},
		{of(0, "test"), ascendrt.PeerDirect}, // the same device
		{of(1, "test"), ascendrt.PeerDirect},
		{of(2, "test"), ascendrt.PeerCopyOnly},
	} {
		k, err := x.PeerAccess(c.of)
		require.NoError(t, err)
		require.Equal(t, c.want, k)
		if k != ascendrt.PeerDirect {
			require.ErrorIs(t, x.EnablePeer(c.of), ascendrt.ErrUnsupported)
		}
	}
	lost := errors.New("lost")
	x.driver.EnablePeer = func(ascendrt.Device) error { return lost }
	require.Equal(t, lost, x.EnablePeer(of(1, "test")))
	require.NoError(t, x.EnablePeer(of(0, "test")), "its own memory needs no leave")
}

// What is placed lies where its placement says, with room behind blocks of the device.
func TestArenas(t *testing.T) {
	live := map[uint64]string{}
	source := func(what string, from uint64) Source {
		return Source{
			Grow: func(n int) (uint64, error) {
				for from++; from%Align != 0; from++ {
				}
				live[from] = what
				return from, nil
			},
			Shrink: func(base uint64) { delete(live, base) },
		}
	}
	var x Arenas
	x.Init(32, source("device", 1<<32), source("pinned", 1<<33), source("shared", 1<<34))
	for _, c := range []struct {
		host   bool
		place  ascendrt.Placement
		what   string
		from   Origin
		rounds int
	}{
		{true, ascendrt.PlaceShareable, "pinned", FromArena, Align},
		{false, ascendrt.PlaceShareable, "shared", FromShared, 2 * Align},
		{false, ascendrt.PlaceDefault, "device", FromArena, 2 * Align},
		{false, ascendrt.PlacePool, "device", FromArena, 2 * Align},
	} {
		a := &Alloc{Len: Align, Host: c.host}
		require.NoError(t, x.Place(a, c.place))
		require.Equal(t, c.what, live[a.Piece.Base])
		require.Equal(t, c.from, a.From)
		require.Equal(t, c.rounds, a.Piece.Len)
		require.Equal(t, a.Piece.Addr, a.Addr)
		again := a.Addr
		x.Release(a)
		b := &Alloc{Len: Align, Host: c.host}
		require.NoError(t, x.Place(b, c.place))
		if c.what != "shared" { // whose chunks hold one piece each
			require.Equal(t, again, b.Addr, "given back to where it is from")
		}
	}
	x.Close()
	require.Empty(t, live)
}

func TestCheckOp(t *testing.T) {
	x, _ := newTable(ascendrt.OpenOptions{})
	sig, err := opspec.Describe(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: ascendrt.Float32, Attr: ascendrt.MatmulAttr{In: 2, Out: 2}})
	require.NoError(t, err)
	dev, err := x.Alloc(256, ascendrt.PlaceDefault)
	require.NoError(t, err)
	host := &Alloc{Host: true, Len: 256, Addr: 1 << 30}
	x.add(host)
	args := func(last ascendrt.View) []ascendrt.Tensor {
		var out []ascendrt.Tensor
		for i := range sig.Params {
			v := dev.View()
			if i == len(sig.Params)-1 {
				v = last
			}
			out = append(out, ascendrt.NewTensor(v, ascendrt.Float32, 2, 2))
		}
		return out
	}
	require.NoError(t, CheckOp(sig, nil, ascendrt.View{}, 0, args(dev.View()), x.Find))
	for says, err := range map[string]error{
		"lies in host memory":     CheckOp(sig, nil, ascendrt.View{}, 0, args(host.view()), x.Find),
		"no live buffer":          CheckOp(sig, nil, ascendrt.View{}, 0, args(ascendrt.View{Addr: 4, Len: 16, Max: 16}), x.Find),
		"slot 0 takes no values":  CheckOp(sig, base.Slots{{1}}, ascendrt.View{}, 0, args(dev.View()), x.Find),
		"10 bytes; 11 are needed": CheckOp(sig, nil, dev.Slice(0, 10), 11, args(dev.View()), x.Find),
		"workspace: address 0x3":  CheckOp(sig, nil, ascendrt.View{Addr: 3, Len: 16}, 16, args(dev.View()), x.Find),
		"3 arguments, not 0":      CheckOp(sig, nil, ascendrt.View{}, 0, nil, x.Find),
	} {
		require.ErrorContains(t, err, says)
	}
}
