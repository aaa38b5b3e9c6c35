package replay

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

// stuckStream is a stream whose work ends when the test says so.
type stuckStream struct {
	ascendrt.Stream
	done bool
}

func (s *stuckStream) Done(uint64) bool { return s.done }

func (s *stuckStream) Wait(ctx context.Context, _ uint64) error {
	if s.done {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

type countedGraph struct {
	ascendrt.Graph
	updates int
}

func (g *countedGraph) Update([]ascendrt.Slot) error { g.updates++; return nil }

func TestUpdateOrder(t *testing.T) {
	ctx := context.Background()
	s := &stuckStream{}
	g := &countedGraph{}

	t.Run("a runtime that updates what runs", func(t *testing.T) {
		u := &Updater{overtakes: true}
		require.ErrorIs(t, u.check(), ErrOrder, "a launch without values")
		require.NoError(t, u.begin(ctx))
		require.NoError(t, u.update(g, nil))
		require.NoError(t, u.check())
		u.submitted(ascendrt.Point{Stream: s, Seq: 1})
		require.ErrorIs(t, u.check(), ErrOrder, "the values of the launch before")

		require.ErrorIs(t, u.update(g, nil), ErrOrder, "launch 1 still runs")
		require.Equal(t, 1, g.updates, "nothing was replaced")
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		require.ErrorIs(t, u.begin(short), context.DeadlineExceeded)
		s.done = true
		require.NoError(t, u.begin(ctx))
		require.NoError(t, u.update(g, nil))
		require.NoError(t, u.check())
		require.NoError(t, u.update(g, nil), "a launch that failed is repeated with new values")
		u.submitted(ascendrt.Point{Stream: s, Seq: 2})
	})
	t.Run("a runtime whose updates reach later launches alone", func(t *testing.T) {
		s.done = false
		u := &Updater{}
		u.submitted(ascendrt.Point{Stream: s, Seq: 1})
		require.NoError(t, u.begin(ctx))
		require.NoError(t, u.update(g, nil))
		require.NoError(t, u.check())
	})
}

// orderedDevice is the host with Ascend's rules: attention wants lengths from
// the host, and values may only be replaced when the launch before is over.
type orderedDevice struct {
	ascendrt.Device
	stream *orderedStream
	early  int // updates while a launch was running
	all    int
}

type orderedStream struct {
	ascendrt.Stream
	last ascendrt.Point
}

func (d *orderedDevice) Caps() ascendrt.Caps {
	c := d.Device.Caps()
	c.GraphUpdate, c.HostLengths = ascendrt.UpdateTaskGroup, true
	return c
}

func (d *orderedDevice) NewStream(o ascendrt.StreamOptions) (ascendrt.Stream, error) {
	s, err := d.Device.NewStream(o)
	if err != nil || o.Role != "steps" {
		return s, err
	}
	d.stream = &orderedStream{Stream: s}
	return d.stream, nil
}

func (s *orderedStream) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	p, n, err := s.Stream.Submit(c)
	if err == nil {
		s.last = p
	}
	return p, n, err
}

func (d *orderedDevice) Capture(s ascendrt.Stream, c *ascendrt.Commands, o ascendrt.CaptureOptions) (ascendrt.Graph, error) {
	g, err := d.Device.Capture(s, c, o)
	if err != nil {
		return nil, err
	}
	return &orderedGraph{Graph: g, d: d, updatable: len(o.Updatable)}, nil
}

type orderedGraph struct {
	ascendrt.Graph
	d         *orderedDevice
	updatable int
}

func (g *orderedGraph) Update(u []ascendrt.Slot) error {
	g.d.all++
	if !g.d.stream.last.Done() {
		g.d.early++
	}
	if len(u) != 2*g.updatable {
		return fmt.Errorf("%d values for %d captured operations", len(u), g.updatable)
	}
	return g.Graph.Update(u)
}

// Under Ascend's rules the bytes are the same, every operation gets its
// lengths, and no update overtakes a launch, also when launches are submitted
// back to back.
func TestUpdatesUnderAscendRules(t *testing.T) {
	var dev *orderedDevice
	wrap := func(d ascendrt.Device) ascendrt.Device { dev = &orderedDevice{Device: d}; return dev }
	for _, mode := range []graphs.ModeConfig{graphs.ModeFull, graphs.ModeFullAndPiecewise} {
		a := arm{mode: graphs.ModeNone, kinds: architectures["attention"], k: 3}
		eager := play(t, a, playSeed, playSteps)
		a.mode, a.wrap, a.padding, a.poison = mode, wrap, PadDummyRows, 9
		requireSame(t, eager, play(t, a, playSeed, playSteps))
		require.Positive(t, dev.all)
		require.Zero(t, dev.early)
	}

	e := newEngine(t, arm{mode: graphs.ModeFullDecodeOnly, kinds: architectures["attention"], wrap: wrap, config: func(c *Config) { c.ResultSlots = 4 }})
	defer e.close()
	b, v := decodes(4)
	for range 4 {
		dec := e.d.Select(b)
		require.Equal(t, graphs.Full, dec.Mode)
		res, err := e.set.Launch(context.Background(), Step{Decision: dec, Verdicts: v, Lengths: []int64{1, 1, 1, 1}, Starts: []int64{0, 1, 2, 3, 4}})
		require.NoError(t, err)
		e.last = res.Point
	}
	require.Zero(t, dev.early)

	_, err := e.set.Launch(context.Background(), Step{Decision: e.d.Select(b), Verdicts: v, Lengths: []int64{1}})
	require.ErrorIs(t, err, ErrHeld)
}

// Lengths of the host must not be frozen in pieces.
func TestLengthsOutsideBreak(t *testing.T) {
	e := newEngine(t, arm{mode: graphs.ModeNone, kinds: architectures["attention"]})
	defer e.close()
	d, err := graphs.New(graphs.Config{Mode: graphs.ModePiecewise, MaxNumSeqs: armSeqs, MaxNumBatchedTokens: armBudget})
	require.NoError(t, err)
	e.m.unbroken = true
	s, err := New(e.dev, Config{Dispatcher: d, Program: e.m, Stream: e.stream, ResultWidth: vocab, Lengths: LengthsFromHost, MaxTokens: armBudget})
	require.NoError(t, err)
	defer s.Close()
	require.ErrorContains(t, s.CaptureKey(context.Background(), 0), "frozen")
}
