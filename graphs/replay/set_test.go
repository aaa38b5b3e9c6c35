package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
)

// adder is a program with one number per token: the result is the input plus
// one, in steps that breaks separate: an eager break adds the second input.
type adder struct {
	t      testing.TB
	dev    ascendrt.Device
	stream ascendrt.Stream
	op     ascendrt.Op
	a, b   ascendrt.Tensor
	ones   ascendrt.Tensor
	breaks int // breaks in one pass
	fail   func(kind string) error

	log []string // what happened, in order
}

const adderTokens = 32

func newAdder(t testing.TB, o ascendrt.OpenOptions) (*adder, *graphs.Dispatcher, ascendrt.Stream) {
	t.Helper()
	dev, err := host.Backend{}.Open(0, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close(context.Background())) })
	s, err := dev.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	p := &adder{t: t, dev: dev, stream: s, breaks: 1}
	p.op, err = dev.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 1}})
	require.NoError(t, err)
	vec := func(v float32) ascendrt.Tensor {
		b, err := dev.Alloc(4*adderTokens, ascendrt.PlaceDefault)
		require.NoError(t, err)
		x := make([]float32, adderTokens)
		for i := range x {
			x[i] = v
		}
		require.NoError(t, ascendrt.Upload(context.Background(), dev, s, b.View(), f32Bytes(x)))
		return ascendrt.NewTensor(b.View(), ascendrt.Float32, adderTokens, 1)
	}
	p.a, p.b, p.ones = vec(0), vec(0), vec(1)
	d, err := graphs.New(graphs.Config{MaxNumSeqs: 8, MaxNumBatchedTokens: adderTokens, Ladder: graphs.LadderConfig{Sizes: []int{2, 4}, MaxSize: 8}})
	require.NoError(t, err)
	return p, d, s
}

func (p *adder) ResultRows(s Shape) int { return s.Tokens }

func (p *adder) Prepare(c *ascendrt.Commands, s Shape) error {
	p.log = append(p.log, "prepare")
	c.Fill(p.a.View, 0)
	return p.fault("prepare")
}

func (p *adder) fault(kind string) error {
	if p.fail == nil {
		return nil
	}
	return p.fail(kind)
}

func (p *adder) Record(pass *Pass) error {
	p.log = append(p.log, "record")
	n := pass.Shape().Tokens
	r := pass.Result().First(n)
	pass.Commands().Op(p.op, ascendrt.View{}, p.a.First(n), p.ones.First(n), r)
	for i := range p.breaks {
		if err := pass.Break(func(pass *Pass) error {
			p.log = append(p.log, fmt.Sprintf("break %d", i))
			pass.Commands().Op(p.op, ascendrt.View{}, r, p.b.First(n), r)
			return p.fault("break")
		}); err != nil {
			return err
		}
		pass.Commands().Op(p.op, ascendrt.View{}, r, p.ones.First(n), r)
	}
	return p.fault("record")
}

func (p *adder) Inputs(Shape) []ascendrt.View { return []ascendrt.View{p.a.View, p.b.View} }

func (p *adder) set(c Config) *Set {
	p.t.Helper()
	c.Program, c.ResultWidth, c.Stream = p, 1, p.stream
	s, err := New(p.dev, c)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, s.Close()) })
	return s
}

// values reads a result.
func (p *adder) values(r Result) []float32 {
	p.t.Helper()
	x, err := r.Tensor()
	require.NoError(p.t, err)
	data := make([]byte, x.Bytes())
	require.NoError(p.t, ascendrt.Download(context.Background(), p.dev, p.stream, data, x.View))
	out := make([]float32, len(data)/4)
	for i := range out {
		out[i] = f32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}

// write gives the inputs of a step.
func (p *adder) write(a, b byte) func(*ascendrt.Commands) {
	return func(c *ascendrt.Commands) {
		c.Fill(p.a.View, a)
		c.Fill(p.b.View, b)
	}
}

func decodes(n int32) (graphs.Batch, []graphs.RowVerdict) {
	return graphs.Batch{Reqs: n, Tokens: n, MaxQuery: 1, Uniform: 1, Bound: 1}, make([]graphs.RowVerdict, n)
}

func TestCaptureOrder(t *testing.T) {
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	var keys []graphs.Key
	froze := 0
	s := p.set(Config{
		Dispatcher: d, WarmUps: 2,
		Progress:     func(done, all int, k graphs.Key) { keys = append(keys, k); require.Equal(t, len(keys), done) },
		BeforeFreeze: func() error { froze++; require.Empty(t, p.log); return nil },
	})
	require.Equal(t, graphs.NothingCaptured, d.State())
	require.NoError(t, s.Capture(context.Background()))
	require.Equal(t, d.Keys(), keys)
	require.Equal(t, graphs.Piecewise, keys[0].Mode)
	require.Equal(t, int32(8), keys[0].Tokens, "PIECEWISE first, the largest first")
	require.Equal(t, 1, froze)
	// Two warm-ups with inputs of their own, then inputs once more, then the capture.
	require.Equal(t, []string{"prepare", "record", "break 0", "prepare", "record", "break 0", "prepare", "record", "break 0"}, p.log[:9])
	require.Equal(t, graphs.AllCaptured, d.State())
	require.Equal(t, len(keys), s.Captured())
}

// Captured work does not run during capture; the work of breaks does.
func TestCaptureRunsOnlyBreaks(t *testing.T) {
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	s := p.set(Config{Dispatcher: d})
	for id, k := range d.Keys() {
		p.log = nil
		require.NoError(t, s.CaptureKey(context.Background(), graphs.KeyID(id)))
		e := s.entries[id]
		var shape string
		for _, g := range e.segments {
			if g.graph != nil {
				shape += "G"
			} else {
				shape += "E"
			}
		}
		if k.Mode == graphs.Piecewise {
			require.Equal(t, "GEG", shape)
		} else {
			require.Equal(t, "G", shape)
		}
	}
}

func TestSegments(t *testing.T) {
	for breaks, want := range []string{"G", "GEG", "GEGEG"} {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		p.breaks = breaks
		s := p.set(Config{Dispatcher: d})
		require.NoError(t, s.Capture(context.Background()))
		var shape string
		for _, g := range s.entries[0].segments {
			if g.graph != nil {
				shape += "G"
			} else {
				shape += "E"
			}
		}
		require.Equal(t, want, shape)

		// Every mode gives the same value, a + breaks*b + breaks + 1.
		var first []float32
		for _, mode := range []graphs.ModeSet{graphs.Modes(graphs.None), graphs.Modes(graphs.None, graphs.Piecewise), graphs.AllModes} {
			b, v := decodes(3)
			dec := d.SelectAmong(b, mode)
			res, err := s.Launch(context.Background(), Step{Decision: dec, Verdicts: v, Inputs: p.write(0x3f, 0x40)})
			require.NoError(t, err)
			got := p.values(res)[:3]
			if first == nil {
				first = got
				require.NotZero(t, got[0])
			}
			require.Equal(t, first, got, dec.Mode)
			require.NoError(t, res.Release())
		}
		// Other inputs, other values: graphs and breaks read what is there at replay.
		b, v := decodes(3)
		res, err := s.Launch(context.Background(), Step{Decision: d.Select(b), Verdicts: v, Inputs: p.write(0x41, 0x41)})
		require.NoError(t, err)
		require.NotEqual(t, first[0], p.values(res)[0])
	}
}

func TestCaptureErrors(t *testing.T) {
	ctx := context.Background()
	t.Run("twice", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		s := p.set(Config{Dispatcher: d})
		require.NoError(t, s.CaptureKey(ctx, 0))
		err := s.CaptureKey(ctx, 0)
		require.ErrorIs(t, err, ErrTwice)
		require.ErrorContains(t, err, d.Keys()[0].String())
	})
	t.Run("while serving", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		s := p.set(Config{Dispatcher: d})
		require.NoError(t, s.CaptureKey(ctx, 0))
		s.Seal()
		require.True(t, s.Sealed())
		require.ErrorIs(t, s.CaptureKey(ctx, 1), ErrSealed)
		require.ErrorIs(t, s.Capture(ctx), ErrSealed)
		_, err := s.Estimate(ctx)
		require.ErrorIs(t, err, ErrSealed)
		require.Equal(t, graphs.PartlyCaptured, d.State())
	})
	t.Run("nothing captured", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		s := p.set(Config{Dispatcher: d})
		s.Seal()
		b, _ := decodes(1)
		require.Equal(t, graphs.ReasonNotCaptured, d.Select(b).Reason)
	})
	t.Run("within a capture", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		var s *Set
		var inner error
		p.fail = func(string) error { inner = s.CaptureKey(ctx, 1); return nil }
		s = p.set(Config{Dispatcher: d})
		require.NoError(t, s.CaptureKey(ctx, 0))
		require.ErrorIs(t, inner, ErrNested)
		p.fail = nil
		require.NoError(t, s.CaptureKey(ctx, 1))
	})
	t.Run("a break within a break", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		prog := &nested{adder: p}
		s, err := New(p.dev, Config{Dispatcher: d, Program: prog, Stream: p.stream, ResultWidth: 1})
		require.NoError(t, err)
		defer s.Close()
		require.ErrorIs(t, s.CaptureKey(ctx, 0), ErrNested)
		require.Zero(t, p.dev.Live().Graphs)
	})
	for _, at := range []string{"prepare", "record", "break"} {
		t.Run("error in "+at, func(t *testing.T) {
			p, d, _ := newAdder(t, ascendrt.OpenOptions{})
			broken := errors.New("broken")
			p.fail = func(kind string) error {
				if kind == at {
					return broken
				}
				return nil
			}
			s := p.set(Config{Dispatcher: d})
			err := s.CaptureKey(ctx, 0)
			require.ErrorIs(t, err, broken)
			require.ErrorContains(t, err, d.Keys()[0].String())
			require.Zero(t, p.dev.Live().Graphs, "no graph stays behind")
			p.fail = nil
			require.NoError(t, s.Capture(ctx), "the set can be used on")
		})
	}
	t.Run("panic", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		p.fail = func(kind string) error {
			if kind == "record" {
				panic("broken")
			}
			return nil
		}
		s := p.set(Config{Dispatcher: d})
		require.Panics(t, func() { _ = s.CaptureKey(ctx, 0) })
		p.fail = nil
		require.NoError(t, s.Capture(ctx), "no capture is active any more")
	})
	t.Run("nothing recorded", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		s, err := New(p.dev, Config{Dispatcher: d, Program: empty{p}, Stream: p.stream, ResultWidth: 1})
		require.NoError(t, err)
		defer s.Close()
		require.ErrorIs(t, s.CaptureKey(ctx, 0), ErrShape)
	})
	t.Run("configuration", func(t *testing.T) {
		p, _, _ := newAdder(t, ascendrt.OpenOptions{})
		_, err := New(p.dev, Config{})
		for _, what := range []string{"dispatcher", "program", "stream", "width"} {
			require.ErrorContains(t, err, what)
		}
	})
	t.Run("before the first capture", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{})
		busy := errors.New("side stream busy")
		s := p.set(Config{Dispatcher: d, BeforeFreeze: func() error { return busy }})
		require.ErrorIs(t, s.Capture(ctx), busy)
	})
}

type nested struct{ *adder }

func (n *nested) Record(p *Pass) error {
	return p.Break(func(p *Pass) error { return p.Break(func(*Pass) error { return nil }) })
}

type empty struct{ *adder }

func (empty) Record(*Pass) error { return nil }

// A launch whose graph is missing says so and runs nothing.
func TestMissingKey(t *testing.T) {
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	s := p.set(Config{Dispatcher: d})
	require.NoError(t, s.CaptureKey(context.Background(), 0))
	d.SetCaptureState(graphs.AllCaptured) // a dispatcher that believes in more than there is
	b, v := decodes(3)
	dec := d.Select(b)
	p.log = nil
	_, err := s.Launch(context.Background(), Step{Decision: dec, Verdicts: v, Inputs: p.write(1, 1)})
	var missing *MissingKeyError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, dec.Key, missing.Key)
	require.ErrorContains(t, err, "FULL t=4 r=4 uniform=1")
	require.Empty(t, p.log, "nothing was recorded, let alone captured")

	dec.KeyID = 0 // a decision of another dispatcher
	_, err = s.Launch(context.Background(), Step{Decision: dec, Verdicts: v})
	require.ErrorAs(t, err, &missing)
	dec.KeyID = 99
	_, err = s.Launch(context.Background(), Step{Decision: dec, Verdicts: v})
	require.ErrorAs(t, err, &missing)
}

// A decode graph is not launched over a row that is no decode.
func TestLaunchChecksRows(t *testing.T) {
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	s := p.set(Config{Dispatcher: d})
	require.NoError(t, s.Capture(context.Background()))
	b, v := decodes(3)
	v[1] = graphs.PrefillFreshOneToken
	_, err := s.Launch(context.Background(), Step{Decision: d.Select(b), Verdicts: v})
	var wrong *graphs.WrongRowError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, 1, wrong.Row)

	_, err = s.Launch(context.Background(), Step{Decision: d.Select(b), Verdicts: v[:2]})
	require.ErrorIs(t, err, ErrShape)
	_, err = s.Launch(context.Background(), Step{Decision: graphs.Decision{Tokens: 900, Reqs: 1, PaddedTokens: 900, PaddedReqs: 1}, Verdicts: v[:1]})
	require.ErrorIs(t, err, ErrShape)
	_, err = s.Launch(context.Background(), Step{})
	require.ErrorIs(t, err, ErrShape, "nothing to run")
}

// The result of one launch survives others until it is released.
func TestResultLifetime(t *testing.T) {
	ctx := context.Background()
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	s := p.set(Config{Dispatcher: d, ResultSlots: 2})
	require.NoError(t, s.Capture(ctx))
	launch := func(n int32, fill byte) (Result, error) {
		b, v := decodes(n)
		return s.Launch(ctx, Step{Decision: d.Select(b), Verdicts: v, Inputs: p.write(fill, 0)})
	}
	a, err := launch(3, 0x3f)
	require.NoError(t, err)
	before := p.values(a)
	require.Len(t, before, 4, "the padded rows")
	b, err := launch(7, 0x40) // another graph, the same memory for results
	require.NoError(t, err)
	require.Equal(t, before, p.values(a))
	require.NotEqual(t, before[0], p.values(b)[0])

	_, err = launch(2, 0x41)
	require.ErrorIs(t, err, ErrHeld)
	require.Equal(t, before, p.values(a))

	require.NoError(t, a.Release())
	require.ErrorIs(t, a.Release(), ErrReleased)
	_, err = a.Tensor()
	require.ErrorIs(t, err, ErrReleased)
	c, err := launch(2, 0x41)
	require.NoError(t, err)
	_, err = a.Tensor()
	require.ErrorIs(t, err, ErrReleased, "the place has another tenant")
	require.NoError(t, b.Release())
	require.NoError(t, c.Release())
}

func TestAddressCheck(t *testing.T) {
	ctx := context.Background()
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	s := p.set(Config{Dispatcher: d, Addresses: AddressesChecked})
	require.NoError(t, s.Capture(ctx))
	b, v := decodes(3)
	step := Step{Decision: d.Select(b), Verdicts: v, Views: []ascendrt.View{p.a.View, p.b.View}}
	res, err := s.Launch(ctx, step)
	require.NoError(t, err)
	require.NoError(t, res.Release())
	step.Views[1] = p.ones.View
	_, err = s.Launch(ctx, step)
	require.ErrorIs(t, err, ErrMoved)
	step.Views = step.Views[:1]
	_, err = s.Launch(ctx, step)
	require.ErrorIs(t, err, ErrMoved)
}

// An engine that slept captures again, on purpose.
func TestReopen(t *testing.T) {
	ctx := context.Background()
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	s := p.set(Config{Dispatcher: d})
	require.NoError(t, s.Capture(ctx))
	launch := func() graphs.Mode {
		b, v := decodes(3)
		dec := d.Select(b)
		res, err := s.Launch(ctx, Step{Decision: dec, Verdicts: v, Inputs: p.write(0, 0)})
		require.NoError(t, err)
		require.Equal(t, []float32{2, 2, 2}, p.values(res)[:3])
		require.NoError(t, res.Release())
		return dec.Mode
	}
	require.Equal(t, graphs.Full, launch())
	require.NoError(t, s.Reopen())
	require.Zero(t, p.dev.Live().Graphs)
	require.Equal(t, graphs.None, launch())
	require.NoError(t, s.Capture(ctx))
	require.Equal(t, graphs.Full, launch())

	s.updater.last = ascendrt.Point{Stream: &stuckStream{}, Seq: 1}
	require.ErrorIs(t, s.Reopen(), ErrBusy)
	s.updater.last = ascendrt.Point{}
}

func TestEstimate(t *testing.T) {
	ctx := context.Background()
	p, d, _ := newAdder(t, ascendrt.OpenOptions{})
	s := p.set(Config{Dispatcher: d})
	est, err := s.Estimate(ctx)
	require.NoError(t, err)
	require.Equal(t, len(d.Keys()), est.Graphs)
	require.Equal(t, uint64(minGraphBytes), est.Full, "two of three measured, the host's graphs cost nothing")
	require.Equal(t, est.Piecewise+est.Full, est.Total())
	require.Zero(t, p.dev.Live().Graphs, "the sample is gone")
	require.Equal(t, graphs.NothingCaptured, d.State())
	require.NoError(t, s.Capture(ctx))

	p, d, _ = newAdder(t, ascendrt.OpenOptions{MaxGraphs: 2})
	s = p.set(Config{Dispatcher: d})
	_, err = s.Estimate(ctx)
	var ex *ExhaustedError
	require.ErrorAs(t, err, &ex)
	require.Zero(t, p.dev.Live().Graphs)
}
