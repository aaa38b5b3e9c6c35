package executor

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/invariants"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// stillDevice is a device whose stream of steps, once it is still, takes commands
// and does nothing: what is left of a step is this repository's own work.
type stillDevice struct {
	ascendrt.Device
	steps *stillStream
}

func (d *stillDevice) NewStream(o ascendrt.StreamOptions) (ascendrt.Stream, error) {
	s, err := d.Device.NewStream(o)
	if err != nil || o.Role != "steps" {
		return s, err
	}
	d.steps = &stillStream{Stream: s}
	return d.steps, nil
}

type stillStream struct {
	ascendrt.Stream
	still  bool
	copies int // commands of the newest submission
}

func (s *stillStream) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	if !s.still {
		return s.Stream.Submit(c)
	}
	s.copies = c.Len()
	return ascendrt.Point{}, c.Len(), c.Err()
}

// ownRig is a scheduler and an executor of rows decodes on a still device, of which
// each has known tokens.
type ownRig struct {
	t       testing.TB
	dev     *stillDevice
	exec    *Executor
	sched   *scheduler.Scheduler
	pending []pending
	tokens  []scheduler.Token
}

func newOwnRig(t testing.TB, rows, known int) *ownRig {
	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	r := &ownRig{t: t, dev: &stillDevice{Device: dev}}
	const length, bs = 1 << 14, 64
	blocks := rows*length/bs + 1
	tokens := max(2048, rows)
	c := Config{
		Model:  model.Config{Vocab: 8, Hidden: 8, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 2, FFN: 2, RopeTheta: 1e4, NormEps: 1e-6, MaxPositions: length, Tied: true},
		Blocks: blocks, BlockSize: bs, MaxSeqs: rows, MaxTokens: tokens, MaxLen: length, InFlight: 2,
		Graphs: graphs.Config{Mode: graphs.ModeFullDecodeOnly, MaxNumSeqs: rows, MaxNumBatchedTokens: tokens},
	}
	c.Graphs.Ladder.Sizes = []int{rows}
	r.exec, err = New(t.Context(), r.dev, c, model.Random{Config: c.Model})
	require.NoError(t, err)
	t.Cleanup(func() {
		r.dev.steps.still = false
		require.NoError(t, r.exec.Close())
		require.NoError(t, dev.Close(context.Background()))
	})
	cache, err := kvcache.New(kvcache.Config{Blocks: blocks, BlockSize: bs, MaxInFlight: 2 * tokens, Caching: kvcache.CachingOff})
	require.NoError(t, err)
	r.sched, err = scheduler.New(scheduler.Config{MaxNumSeqs: rows, MaxBatchedTokens: tokens, MaxModelLen: length, InFlight: 2, Scheduling: scheduler.Async}, cache, scheduler.WithGraphs(r.exec.Dispatcher()))
	require.NoError(t, err)
	r.dev.steps.still = true
	for i := range rows {
		_, err := r.sched.Add(scheduler.Request{ID: fmt.Sprint(i), Prompt: make([]scheduler.Token, known), MaxTokens: length - known - 8})
		require.NoError(t, err)
	}
	for range rows*known/tokens + 16 {
		r.step()
	}
	require.Equal(t, graphs.Full, r.pending[0].plan.Graph.Mode)
	require.Equal(t, rows, r.pending[0].plan.Rows())
	return r
}

// step is one decode step of all rows, with two in flight.
func (r *ownRig) step() {
	p := r.sched.Plan(0)
	s, err := r.exec.Submit(context.Background(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	r.pending = append(r.pending, pending{p, s})
	if len(r.pending) < 2 {
		return
	}
	f := r.pending[0]
	r.pending = append(r.pending[:0], r.pending[1:]...)
	if r.tokens, err = f.step.Wait(context.Background(), r.tokens[:0]); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.sched.Apply(f.plan, scheduler.Result{Tokens: r.tokens}); err != nil {
		r.t.Fatal(err)
	}
}

// A decode step is six commands of one submission, however many rows, and nothing of it
// is allocated, from Plan to Apply.
func TestDecodeStepsAllocateNothing(t *testing.T) {
	if raceEnabled || invariants.Enabled {
		t.Skip("the race detector and the checks of invariants allocate")
	}
	for _, rows := range []int{1, 8, 32} {
		r := newOwnRig(t, rows, 256)
		require.Zero(t, testing.AllocsPerRun(200, r.step), "%d rows", rows)
		require.Equal(t, 6, r.dev.steps.copies, "inputs, the token of the step before, graph, result, its token, tokens to the host")
	}
}

// BenchmarkOwnSide is Plan, Submit without the device, and Apply, of decodes with
// 1,152 tokens of context. What a driver takes is not in it.
func BenchmarkOwnSide(b *testing.B) {
	for _, rows := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			r := newOwnRig(b, rows, 1152)
			b.ReportAllocs()
			for b.Loop() {
				r.step()
			}
		})
	}
}
