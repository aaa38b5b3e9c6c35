package conformance

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

func testLimits(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{MaxStreams: 3, MaxEvents: 2, MaxGraphs: 1})
	two, three := b.stream(), b.stream()
	_, err := b.d.NewStream(ascendrt.StreamOptions{})
	require.ErrorIs(t, err, ascendrt.ErrResourceLimit)
	l := b.d.Limits()
	require.Equal(t, 3, l.Streams)
	require.Equal(t, 0, l.StreamsFree)
	require.NoError(t, two.Close())
	two = b.stream()
	e1, e2 := b.event(ascendrt.EventOrder), b.event(ascendrt.EventTiming)
	_, err = b.d.NewEvent(ascendrt.EventOrder)
	require.ErrorIs(t, err, ascendrt.ErrResourceLimit)
	require.NoError(t, e1.Close())
	e1 = b.event(ascendrt.EventOrder)
	x := b.alloc(8)
	var c ascendrt.Commands
	c.Fill(x.View(), 1)
	g, err := b.d.Capture(b.s, &c, ascendrt.CaptureOptions{})
	require.NoError(t, err)
	_, err = b.d.Capture(b.s, &c, ascendrt.CaptureOptions{})
	require.ErrorIs(t, err, ascendrt.ErrResourceLimit)
	b.launch(g)
	require.NoError(t, g.Close())
	g, err = b.d.Capture(b.s, &c, ascendrt.CaptureOptions{})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	for _, x := range []interface{ Close() error }{two, three, e1, e2} {
		require.NoError(t, x.Close())
	}
	b.free(x)
	b.closed()
}

func testClosedHandles(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	x := b.alloc(64)
	e, st, op := b.event(ascendrt.EventOrder), b.stream(), b.adder()
	g := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) { c.Fill(x.View(), 1) })
	for _, h := range []interface{ Close() error }{e, st, op, g} {
		require.NoError(t, h.Close())
		require.NoError(t, h.Close(), "Close is idempotent")
	}
	// New handles take the places of the closed ones; the old words stay dead.
	e2, st2, op2 := b.event(ascendrt.EventOrder), b.stream(), b.adder()
	g2 := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) { c.Fill(x.View(), 1) })
	row := ascendrt.NewTensor(x.View(), ascendrt.Float32, 1, 4)
	for name, f := range map[string]func(c *ascendrt.Commands){
		"record":     func(c *ascendrt.Commands) { c.Record(e) },
		"wait event": func(c *ascendrt.Commands) { c.WaitEvent(e) },
		"on stream":  func(c *ascendrt.Commands) { c.OnStream(st) },
		"op":         func(c *ascendrt.Commands) { c.Op(op, ascendrt.View{}, row, row, row) },
		"graph":      func(c *ascendrt.Commands) { c.Graph(g) },
	} {
		var c ascendrt.Commands
		f(&c)
		_, _, err := b.s.Submit(&c)
		require.ErrorIs(t, err, ascendrt.ErrClosed, name)
	}
	_, _, err := st.Submit(&ascendrt.Commands{})
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	_, err = b.d.Capture(st, &ascendrt.Commands{}, ascendrt.CaptureOptions{})
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	_, err = e.Done()
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	for name, f := range map[string]func(c *ascendrt.Commands){
		"nil event":  func(c *ascendrt.Commands) { c.Record(nil) },
		"nil stream": func(c *ascendrt.Commands) { c.OnStream(nil) },
		"nil op":     func(c *ascendrt.Commands) { c.Op(nil, ascendrt.View{}) },
		"nil graph":  func(c *ascendrt.Commands) { c.Graph(nil) },
	} {
		var c ascendrt.Commands
		f(&c)
		_, _, err := b.s.Submit(&c)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, name)
	}
	for _, h := range []interface{ Close() error }{e2, st2, op2, g2} {
		require.NoError(t, h.Close())
	}
	b.free(x)
	b.closed()
}

func testWrongOps(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	for name, spec := range map[string]ascendrt.OpSpec{
		"unknown kind":   {Kind: "nonsense", Type: ascendrt.Float32},
		"no attribute":   {Kind: ascendrt.OpAdd, Type: ascendrt.Float32},
		"wrong struct":   {Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.NormAttr{Dim: 4}},
		"zero size":      {Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{}},
		"integer type":   {Kind: ascendrt.OpAdd, Type: ascendrt.Int32, Attr: ascendrt.AddAttr{Dim: 4}},
		"odd head":       {Kind: ascendrt.OpRope, Type: ascendrt.Float32, Attr: ascendrt.RopeAttr{Heads: 1, KVHeads: 1, HeadDim: 3, MaxPosition: 1}},
		"uneven groups":  {Kind: ascendrt.OpAttention, Type: ascendrt.Float32, Attr: ascendrt.AttentionAttr{Heads: 3, KVHeads: 2, HeadDim: 8, BlockSize: 8}},
		"negative scale": {Kind: ascendrt.OpAttention, Type: ascendrt.Float32, Attr: ascendrt.AttentionAttr{Heads: 2, KVHeads: 2, HeadDim: 8, BlockSize: 8, Scale: -1}},
	} {
		_, err := b.d.Plan(spec)
		require.Error(t, err, name)
		require.True(t, errors.Is(err, ascendrt.ErrInvalid) || errors.Is(err, ascendrt.ErrUnsupported), "%s: %v", name, err)
	}
	op := b.adder()
	ws := b.alloc(max(1, op.Workspace()))
	x, h := b.alloc(256), b.pinned(256)
	row := ascendrt.NewTensor(x.View(), ascendrt.Float32, 2, 4)
	for name, args := range map[string][]ascendrt.Tensor{
		"too few arguments":  {row, row},
		"too many arguments": {row, row, row, row},
		"wrong type":         {row, ascendrt.NewTensor(x.View(), ascendrt.Int32, 2, 4), row},
		"wrong row":          {row, ascendrt.NewTensor(x.View(), ascendrt.Float32, 2, 5), row},
		"wrong rank":         {row, ascendrt.NewTensor(x.View(), ascendrt.Float32, 8), row},
		"rows differ":        {row, row.First(1), row},
		"past the end":       {row, row, ascendrt.NewTensor(x.Slice(240, 16), ascendrt.Float32, 2, 4)},
		"unaligned":          {row, row, ascendrt.NewTensor(x.Slice(1, 100), ascendrt.Float32, 2, 4)},
		"host memory":        {row, row, ascendrt.NewTensor(h.View(), ascendrt.Float32, 2, 4)},
		"negative dimension": {row, row, ascendrt.NewTensor(x.View(), ascendrt.Float32, -2, 4)},
		"five dimensions":    {row, row, ascendrt.NewTensor(x.View(), ascendrt.Float32, 1, 1, 1, 2, 4)},
		"stride below row":   {row, row, {View: x.View(), Type: ascendrt.Float32, Rank: 2, Dim: [4]int{2, 4}, RowStride: 3}},
	} {
		var c ascendrt.Commands
		c.Fill(x.View(), 0)
		c.Op(op, ws.View(), args...)
		_, n, err := b.s.Submit(&c)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, name)
		require.Equal(t, 1, n, name)
		var e *ascendrt.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 1, e.Command, name)
	}
	require.NoError(t, op.Close())
	b.free(x, h, ws)
	b.closed()
}

func testPartialAcceptance(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	x := b.alloc(16)
	var c ascendrt.Commands
	c.Fill(x.View(), 1)
	c.Fill(x.Slice(0, 8), 2)
	c.Fill(x.Slice(12, 8), 3)
	c.Fill(x.View(), 4)
	_, n, err := b.s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	require.Equal(t, 2, n)
	got := b.read(x.View())
	require.Equal(t, byte(2), got[0], "accepted commands ran")
	require.Equal(t, byte(1), got[15], "refused ones did not")
	b.free(x)
	b.closed()
}

func testNothingToDo(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	x := b.alloc(16)
	zero := b.alloc(0)
	op := b.adder()
	ws := b.alloc(max(1, op.Workspace()))
	none := ascendrt.NewTensor(x.Slice(0, 0), ascendrt.Float32, 0, 4)
	b.do(func(c *ascendrt.Commands) {})
	b.do(func(c *ascendrt.Commands) {
		c.Fill(x.View(), 6)
		c.Copy(x.Slice(0, 0), x.Slice(16, 0))
		c.Fill(x.Slice(16, 0), 1)
		c.Fill(zero.View(), 1)
		c.CopyBatch(nil, nil)
		c.Op(op, ws.View(), none, none, none)
		c.Copy(ascendrt.View{}, ascendrt.View{})
	})
	g := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) {})
	b.launch(g)
	require.Equal(t, byte(6), b.read(x.View())[15])
	require.NoError(t, g.Close())
	require.NoError(t, op.Close())
	b.free(x, zero, ws)
	b.closed()
}

func testLost(t *testing.T, s Suite) {
	if s.Lose == nil {
		t.Skip("the backend shows this in a process of its own")
	}
	d := s.Open(t, ascendrt.OpenOptions{})
	b := &bench{t: t, d: d, busy: s.Busy}
	b.s = b.stream()
	x, h := b.alloc(64), b.pinned(64)
	e, op := b.event(ascendrt.EventTiming), b.adder()
	g := b.capture(ascendrt.CaptureOptions{}, func(c *ascendrt.Commands) { c.Fill(x.View(), 1) })
	slow, _ := b.slow(100 * time.Millisecond)
	p := b.submit(b.s, slow)
	waited := make(chan error, 1)
	go func() { waited <- p.Wait(context.Background()) }()
	time.Sleep(5 * time.Millisecond)
	s.Lose(d)
	select {
	case err := <-waited:
		require.ErrorIs(t, err, ascendrt.ErrDeviceLost, "a blocked Wait returns")
	case <-time.After(30 * time.Second):
		t.Fatal("Wait hangs after the loss")
	}
	begin := time.Now()
	lost := func(name string, err error) { t.Helper(); require.ErrorIs(t, err, ascendrt.ErrDeviceLost, name) }
	_, err := d.Alloc(8, ascendrt.PlaceDefault)
	lost("Alloc", err)
	_, err = d.AllocHost(8)
	lost("AllocHost", err)
	_, err = d.NewStream(ascendrt.StreamOptions{})
	lost("NewStream", err)
	_, err = d.NewEvent(ascendrt.EventOrder)
	lost("NewEvent", err)
	_, err = d.Plan(op.Spec())
	lost("Plan", err)
	_, err = d.LoadProgram(ascendrt.Program{})
	lost("LoadProgram", err)
	_, err = d.Capture(b.s, &ascendrt.Commands{}, ascendrt.CaptureOptions{})
	lost("Capture", err)
	_, _, err = d.MemInfo()
	lost("MemInfo", err)
	_, err = d.Export(x)
	lost("Export", err)
	_, err = d.Import(nil)
	lost("Import", err)
	_, _, err = b.s.Submit(&ascendrt.Commands{})
	lost("Submit", err)
	lost("Wait", p.Wait(context.Background()))
	require.False(t, p.Done())
	_, err = e.Done()
	lost("Event.Done", err)
	_, err = e.Elapsed(e)
	lost("Elapsed", err)
	lost("Update", g.Update(nil))
	lost("FreeAfter", h.FreeAfter(ascendrt.Point{}))
	lost("Health", d.Health())
	require.Less(t, time.Since(begin), 10*time.Second, "answers come at once")
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	_ = d.Close(ctx)
	require.NoError(t, ctx.Err(), "Close returns")
	require.ErrorIs(t, d.Health(), ascendrt.ErrClosed)
}

func testClose(t *testing.T, s Suite) {
	d := s.Open(t, ascendrt.OpenOptions{})
	b := &bench{t: t, d: d, busy: s.Busy}
	b.s = b.stream()
	slow, _ := b.slow(20 * time.Millisecond)
	h := b.pinned(8)
	x := b.alloc(8)
	slow.Fill(x.View(), 4)
	slow.Copy(h.View(), x.View())
	mem := h.Bytes()
	_ = mem
	p := b.submit(b.s, slow)
	require.NoError(t, d.Close(context.Background()), "Close drains")
	require.NoError(t, d.Close(context.Background()), "Close is idempotent")
	require.True(t, p.Done(), "the work was finished")
	_, err := d.Alloc(8, ascendrt.PlaceDefault)
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	_, _, err = b.s.Submit(&ascendrt.Commands{})
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	_, err = d.NewStream(ascendrt.StreamOptions{})
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	require.ErrorIs(t, x.FreeAfter(ascendrt.Point{}), ascendrt.ErrClosed)
	require.ErrorIs(t, d.Health(), ascendrt.ErrClosed)
	require.NoError(t, b.s.Close())

	// A context that ends first ends Close.
	d = s.Open(t, ascendrt.OpenOptions{})
	b = &bench{t: t, d: d, busy: s.Busy}
	b.s = b.stream()
	slow, _ = b.slow(300 * time.Millisecond)
	b.submit(b.s, slow)
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer stop()
	require.ErrorIs(t, d.Close(ctx), ascendrt.ErrTimeout)
}

func testDropped(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	drop := func() { b.alloc(100); b.event(ascendrt.EventOrder) }
	drop()
	require.Eventually(t, func() bool {
		runtime.GC()
		return b.d.Live().Leaked >= 2
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, 1, b.d.Live().Buffers, "a cleanup reports; it frees nothing")
}
