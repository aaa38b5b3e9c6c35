package conformance

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

func (b *bench) capture(o ascendrt.CaptureOptions, f func(c *ascendrt.Commands)) ascendrt.Graph {
	b.t.Helper()
	var c ascendrt.Commands
	f(&c)
	g, err := b.d.Capture(b.s, &c, o)
	require.NoError(b.t, err)
	return g
}

func (b *bench) launch(g ascendrt.Graph) { b.do(func(c *ascendrt.Commands) { c.Graph(g) }) }

func testCapture(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	in, out := b.pinned(256), b.pinned(256)
	x, y := b.alloc(256), b.alloc(256)
	other := b.stream()
	fork, join := b.event(ascendrt.EventOrder), b.event(ascendrt.EventOrder)
	g := b.capture(ascendrt.CaptureOptions{Upload: ascendrt.UploadNow}, func(c *ascendrt.Commands) {
		c.Copy(x.View(), in.View())
		c.Record(fork)
		c.OnStream(other)
		c.WaitEvent(fork)
		c.Copy(y.Slice(0, 128), x.Slice(128, 128))
		c.Record(join)
		c.OnStream(b.s)
		c.Fill(y.Slice(128, 128), 0x33)
		c.WaitEvent(join)
		c.Copy(out.View(), y.View())
	})
	require.Positive(t, g.Info().Nodes)
	require.Equal(t, make([]byte, 256), out.Bytes(), "capturing runs nothing")
	for i := range 5 {
		copy(in.Bytes(), ramp(256, i)) // pinned sources are read again at each launch
		b.launch(g)
		require.Equal(t, ramp(256, i)[128:], out.Bytes()[:128])
		require.Equal(t, bytes.Repeat([]byte{0x33}, 128), out.Bytes()[128:])
	}
	var c ascendrt.Commands // launches mix with other commands, on another stream too
	clear(out.Bytes())
	c.Fill(y.View(), 0)
	c.Graph(g)
	c.Graph(g)
	b.wait(b.submit(other, &c))
	require.Equal(t, byte(0x33), out.Bytes()[255])
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	require.NoError(t, fork.Close())
	require.NoError(t, join.Close())
	require.NoError(t, other.Close())
	b.free(in, out, x, y)
	b.closed()
}

func testCaptureRules(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	x, y := b.alloc(64), b.alloc(64)
	other := b.stream()
	e, e2 := b.event(ascendrt.EventOrder), b.event(ascendrt.EventOrder)
	empty := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) { c.Fill(y.View(), 5) })
	b.do(func(c *ascendrt.Commands) { c.Fill(x.View(), 1); c.Record(e2) })
	p := b.submit(b.s, &ascendrt.Commands{})
	before := b.d.Live()
	for _, bad := range []struct {
		name  string
		class error
		rec   func(c *ascendrt.Commands)
	}{
		{"batch", ascendrt.ErrCapture, func(c *ascendrt.Commands) {
			c.CopyBatch([]ascendrt.View{x.View()}, []ascendrt.View{y.View()})
		}},
		{"graph in a graph", ascendrt.ErrCapture, func(c *ascendrt.Commands) { c.Graph(empty) }},
		{"wait for a point", ascendrt.ErrCapture, func(c *ascendrt.Commands) { c.WaitPoint(p) }},
		{"stream that did not fork", ascendrt.ErrCapture, func(c *ascendrt.Commands) { c.OnStream(other); c.Fill(x.View(), 2) }},
		{"event from outside", ascendrt.ErrCapture, func(c *ascendrt.Commands) { c.WaitEvent(e2) }},
		{"fork not joined", ascendrt.ErrCapture, func(c *ascendrt.Commands) {
			c.Record(e)
			c.OnStream(other)
			c.WaitEvent(e)
			c.Fill(x.View(), 2)
		}},
		{"work behind the join", ascendrt.ErrCapture, func(c *ascendrt.Commands) {
			c.Record(e)
			c.OnStream(other)
			c.WaitEvent(e)
			c.Record(e2)
			c.Fill(x.View(), 2)
			c.OnStream(b.s)
			c.WaitEvent(e2)
		}},
		{"wrong argument", ascendrt.ErrInvalid, func(c *ascendrt.Commands) { c.Fill(x.View(), 2); c.Fill(x.Slice(60, 5), 2) }},
		{"updatable is no operation", ascendrt.ErrInvalid, func(c *ascendrt.Commands) { c.Fill(x.View(), 2) }},
	} {
		var c ascendrt.Commands
		bad.rec(&c)
		o := ascendrt.CaptureOptions{}
		if bad.name == "updatable is no operation" {
			o.Updatable = []ascendrt.OpRef{0}
		}
		_, err := b.d.Capture(b.s, &c, o)
		require.ErrorIs(t, err, bad.class, bad.name)
		require.Equal(t, byte(1), b.read(x.View())[0], "%s: nothing was enqueued", bad.name)
		g := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) { c.Copy(y.View(), x.View()) })
		b.launch(g)
		require.NoError(t, g.Close(), "%s: the stream still captures", bad.name)
	}
	require.Equal(t, before, b.d.Live(), "failed captures leave nothing behind")
	require.NoError(t, empty.Close())
	require.NoError(t, e.Close())
	require.NoError(t, e2.Close())
	require.NoError(t, other.Close())
	b.free(x, y)
	b.closed()
}

// External events cross the edge of a graph in both directions.
func testExternalEvents(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	in, out := b.event(ascendrt.EventExternal), b.event(ascendrt.EventExternal)
	x, y, h := b.alloc(64), b.alloc(64), b.pinned(64)
	other := b.stream()
	slow, release := b.slow(10 * time.Millisecond)
	g := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) {
		c.WaitEvent(in)
		c.Copy(y.View(), x.View())
		c.Record(out)
	})
	slow.Fill(x.View(), 42)
	slow.Record(in)
	b.submit(other, slow)
	var c ascendrt.Commands
	c.Graph(g)
	b.submit(b.s, &c)
	c.Reset()
	c.WaitEvent(out)
	c.Copy(h.View(), y.View())
	b.wait(b.submit(other, &c))
	require.Equal(t, byte(42), h.Bytes()[63])
	require.NoError(t, g.Close())
	require.NoError(t, in.Close())
	require.NoError(t, out.Close())
	require.NoError(t, other.Close())
	b.free(x, y, h)
	release()
	b.closed()
}

// rowPitch is the distance of small tensors in one buffer: what every device takes.
const rowPitch = 64

// adder is y = a + b over n float32 rows of 4: the smallest updatable operation.
func (b *bench) adder() ascendrt.Op {
	b.t.Helper()
	op, err := b.d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 4}})
	require.NoError(b.t, err)
	return op
}

func slotNamed(t *testing.T, op ascendrt.Op, name string) int {
	t.Helper()
	for i, s := range op.Slots() {
		if s.Name == name {
			return i
		}
	}
	t.Fatalf("no slot %s among %v", name, op.Slots())
	return -1
}

func testUpdate(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	if b.d.Caps().GraphUpdate == ascendrt.UpdateNone {
		t.Skip("this runtime captures again instead")
	}
	op := b.adder()
	x := b.alloc(5 * rowPitch)
	at := func(i int) ascendrt.Tensor {
		return ascendrt.NewTensor(x.Slice(rowPitch*i, 16), ascendrt.Float32, 1, 4)
	}
	one := []float32{1, 1, 1, 1}
	b.write(at(0).View, floatBytes(one))
	b.write(at(1).View, floatBytes([]float32{10, 10, 10, 10}))
	b.write(at(2).View, floatBytes([]float32{100, 100, 100, 100}))
	slow, release := b.slow(10 * time.Millisecond)
	var ref ascendrt.OpRef
	ws := b.alloc(max(1, op.Workspace()))
	var rec ascendrt.Commands
	rec.Fill(at(4).View, 0)
	ref = rec.Op(op, ws.View(), at(0), at(1), at(3))
	rec.Op(op, ws.View(), at(3), at(4), at(4))
	g, err := b.d.Capture(b.s, &rec, ascendrt.CaptureOptions{Updatable: []ascendrt.OpRef{ref}})
	require.NoError(t, err)
	h := b.pinned(32)
	var c ascendrt.Commands
	b.submit(b.s, slow)
	c.Graph(g)
	c.Copy(h.Slice(0, 16), at(4).View)
	b.submit(b.s, &c)
	// The first launch is behind slow work: it must not see this update.
	slot := slotNamed(t, op, "addr:b")
	require.NoError(t, g.Update([]ascendrt.Slot{{Op: ref, Slot: slot, Addr: at(2).View}}))
	c.Reset()
	c.Graph(g)
	c.Copy(h.Slice(16, 16), at(4).View)
	b.wait(b.submit(b.s, &c))
	require.Equal(t, []float32{11, 11, 11, 11}, floatsOf(h.Bytes()[:16]), "launched before the update")
	require.Equal(t, []float32{101, 101, 101, 101}, floatsOf(h.Bytes()[16:]), "launched after the update")

	require.ErrorIs(t, g.Update([]ascendrt.Slot{{Op: ref + 1, Slot: slot, Addr: at(0).View}}), ascendrt.ErrGraphUpdate, "not captured as updatable")
	require.ErrorIs(t, g.Update([]ascendrt.Slot{{Op: ref, Slot: 999}}), ascendrt.ErrGraphUpdate)
	require.ErrorIs(t, g.Update([]ascendrt.Slot{{Op: ref, Slot: slot, Addr: x.Slice(0, 4)}}), ascendrt.ErrGraphUpdate, "too short")
	require.ErrorIs(t, g.Update([]ascendrt.Slot{
		{Op: ref, Slot: slot, Addr: at(1).View},
		{Op: ref, Slot: slot, Addr: ascendrt.View{Addr: 64, Len: 16, Max: 16}},
	}), ascendrt.ErrGraphUpdate, "memory of nobody")
	b.launch(g)
	require.Equal(t, []float32{101, 101, 101, 101}, floatsOf(b.read(at(4).View)), "failed updates change nothing")
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.Update(nil), ascendrt.ErrClosed)
	require.NoError(t, op.Close())
	b.free(x, ws, h)
	release()
	b.closed()
}

// A graph that doubles a value, launched many times from two streams, loses no launch.
func testNoOverlap(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	op := b.adder()
	ws := b.alloc(max(1, op.Workspace()))
	const rows, launches = 500, 10
	x, y := b.alloc(rows*16), b.alloc(rows*16)
	tx, ty := ascendrt.NewTensor(x.View(), ascendrt.Float32, rows, 4), ascendrt.NewTensor(y.View(), ascendrt.Float32, rows, 4)
	start := make([]float32, rows*4)
	for i := range start {
		start[i] = 1
	}
	b.write(x.View(), floatBytes(start))
	g := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) {
		c.Op(op, ws.View(), tx, tx, ty)
		c.Copy(x.View(), y.View())
	})
	other := b.stream()
	var c ascendrt.Commands
	c.Graph(g)
	var last [2]ascendrt.Point
	for range launches {
		last[0], last[1] = b.submit(b.s, &c), b.submit(other, &c)
	}
	b.wait(last[0])
	b.wait(last[1])
	for _, v := range floatsOf(b.read(x.View())) {
		require.Equal(t, float32(1<<(2*launches)), v)
	}
	require.NoError(t, g.Close())
	require.NoError(t, op.Close())
	require.NoError(t, other.Close())
	b.free(x, y, ws)
	b.closed()
}

func testGraphPins(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	x := b.alloc(64)
	g := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) { c.Fill(x.View(), 8) })
	require.ErrorIs(t, x.FreeAfter(ascendrt.Point{}), ascendrt.ErrInUse)
	b.launch(g)
	require.Equal(t, byte(8), b.read(x.View())[63], "the refusal changed nothing")
	require.NoError(t, g.Close())
	b.free(x)
	b.closed()
}
