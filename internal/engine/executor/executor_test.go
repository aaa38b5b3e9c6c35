package executor

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/internal/testkit/ascend"
	"github.com/sluice-serving/sluice/internal/testkit/device"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// TestMain points the process at the emulated Ascend runtime before anything asks for one.
func TestMain(m *testing.M) {
	ascend.Prepare()
	device.Prepare()
	goleak.VerifyTestMain(m)
}

// rig is an executor with a scheduler in front of it.
type rig struct {
	t      *testing.T
	dev    ascendrt.Device
	exec   *Executor
	sched  *scheduler.Scheduler
	flight []pending
	limit  int
}

type pending struct {
	plan *scheduler.Plan
	step Step
}

func newRig(t *testing.T, mode graphs.ModeConfig, tokens, inFlight int, change ...func(*Config)) *rig {
	t.Helper()
	return newRigWith(t, weights(), mode, tokens, inFlight, change...)
}

func newRigWith(t *testing.T, w model.Source, mode graphs.ModeConfig, tokens, inFlight int, change ...func(*Config)) *rig {
	t.Helper()
	dev, err := (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	c := Config{
		Model: model.Builtin(), Blocks: 400, BlockSize: 4, MaxSeqs: 6, MaxTokens: tokens, MaxLen: 256, InFlight: inFlight,
		Graphs: graphs.Config{Mode: mode, MaxNumSeqs: 6, MaxNumBatchedTokens: tokens},
	}
	for _, f := range change {
		f(&c)
	}
	return rigOf(t, dev, c, w)
}

// rigOn owns the device.
func rigOn(t *testing.T, dev ascendrt.Device, c Config) *rig {
	t.Helper()
	return rigOf(t, dev, c, weights())
}

func rigOf(t *testing.T, dev ascendrt.Device, c Config, w model.Source) *rig {
	t.Helper()
	r := &rig{t: t, dev: dev, limit: c.InFlight}
	t.Cleanup(func() {
		if r.exec != nil {
			require.NoError(t, r.exec.Close())
			require.NoError(t, r.exec.Close(), "a second time")
		}
		live := dev.Live()
		live.Leaked = 0
		require.Equal(t, ascendrt.Live{}, live, "everything was released")
		require.NoError(t, dev.Close(context.Background()))
	})
	var err error
	r.exec, err = New(t.Context(), dev, c, w)
	require.NoError(t, err)
	cache, err := kvcache.New(kvcache.Config{Blocks: c.Blocks, BlockSize: c.BlockSize})
	require.NoError(t, err)
	sc := scheduler.Config{MaxNumSeqs: c.MaxSeqs, MaxBatchedTokens: c.MaxTokens, MaxModelLen: c.MaxLen, InFlight: c.InFlight}
	if c.InFlight > 1 {
		sc.Scheduling = scheduler.Async
	}
	r.sched, err = scheduler.New(sc, cache, scheduler.WithGraphs(r.exec.Dispatcher()))
	require.NoError(t, err)
	return r
}

func weights() model.Weights {
	return model.Generate(model.Builtin(), model.BuiltinScales(), 1, tokenizer.Speakable)
}

// generate answers prompts together and gives n tokens for each. before is
// called with every plan, before it is submitted.
func (r *rig) generate(prompts [][]int, n int, before func(*scheduler.Plan)) [][]int {
	r.t.Helper()
	order := map[scheduler.RequestID]int{}
	for i, p := range prompts {
		tokens := make([]scheduler.Token, len(p))
		for j, v := range p {
			tokens[j] = scheduler.Token(v)
		}
		id, err := r.sched.Add(scheduler.Request{ID: string(rune('a' + i)), Prompt: tokens, MaxTokens: n})
		require.NoError(r.t, err)
		order[id] = i
	}
	out := make([][]int, len(prompts))
	for steps := 0; r.sched.HasWork() || len(r.flight) > 0; steps++ {
		require.Less(r.t, steps, 10000)
		planned := false
		if len(r.flight) < r.limit && r.sched.HasWork() {
			p := r.sched.Plan(0)
			planned = p.Rows() > 0
			if before != nil {
				before(p)
			}
			step, err := r.exec.Submit(r.t.Context(), p)
			require.NoError(r.t, err)
			r.flight = append(r.flight, pending{p, step})
		}
		if len(r.flight) == r.limit || !planned {
			f := r.flight[0]
			r.flight = r.flight[1:]
			tokens, err := f.step.Wait(r.t.Context(), nil)
			require.NoError(r.t, err)
			require.True(r.t, f.step.Done())
			outs, err := r.sched.Apply(f.plan, scheduler.Result{Tokens: tokens})
			require.NoError(r.t, err)
			for _, o := range outs {
				for _, tok := range o.Tokens {
					out[order[o.Request]] = append(out[order[o.Request]], int(tok))
				}
			}
		}
	}
	return out
}

func prompts() [][]int {
	text := "the executor reads what the scheduler planned and writes the keys of every layer before it reads one of them"
	var out [][]int
	for _, n := range []int{1, 2, 7, 16, 33, 64, 90, 105} {
		p := make([]int, n)
		for i := range p {
			p[i] = int(text[(i*7+n)%len(text)])
		}
		out = append(out, p)
	}
	return out
}

// The executor answers as the reference model does, which shares no code with
// it, in every mode and however steps are cut.
func TestAgainstReference(t *testing.T) {
	const n = 24
	c, w := model.Builtin(), weights()
	want := make([][]int, 0, len(prompts()))
	for _, p := range prompts() {
		want = append(want, model.NewReference(c, w).Greedy(p, n))
	}
	for _, mode := range []graphs.ModeConfig{graphs.ModeNone, graphs.ModeFullDecodeOnly, graphs.ModePiecewise, graphs.ModeFullAndPiecewise, graphs.ModeFull} {
		for _, tokens := range stepSizes {
			for _, inFlight := range []int{1, 2} {
				r := newRig(t, mode, tokens, inFlight)
				require.Equal(t, want, r.generate(prompts(), n, nil), "mode %v, %d tokens per step, %d in flight", mode, tokens, inFlight)
				if mode == graphs.ModeNone {
					require.Zero(t, r.exec.Graphs())
				} else {
					require.Equal(t, len(r.exec.Dispatcher().Keys()), r.exec.Graphs())
				}
			}
		}
	}

	// The control: overwritten keys and values change what is said.
	r := newRig(t, graphs.ModeFullDecodeOnly, 64, 1)
	done := map[scheduler.RequestID]bool{}
	noisy := r.generate(prompts(), n, func(p *scheduler.Plan) {
		for i, id := range p.Requests {
			if p.Kinds[i] == scheduler.RowRunning && !done[id] {
				done[id] = true
				blocks := r.exec.Blocks(id)
				require.NoError(t, r.exec.Noise(t.Context(), blocks[len(blocks)/2], uint64(i)))
			}
		}
	})
	identity.Control(t, answers(want), answers(noisy))
}

// With bfloat16 storage the answers are other ones, and the same in every mode
// and however steps are cut: each operation rounds each element once, at its end.
func TestBFloat16(t *testing.T) {
	const n = 24
	half := func(c *Config) { c.Type = ascendrt.BFloat16 }
	want := newRig(t, graphs.ModeNone, 256, 1, half).generate(prompts(), n, nil)
	require.NotEqual(t, newRig(t, graphs.ModeNone, 256, 1).generate(prompts(), n, nil), want, "rounding is seen in the answers")
	for _, mode := range []graphs.ModeConfig{graphs.ModePiecewise, graphs.ModeFullAndPiecewise, graphs.ModeFull} {
		for _, tokens := range stepSizes {
			r := newRig(t, mode, tokens, 2, half)
			require.Equal(t, want, r.generate(prompts(), n, nil), "mode %v, %d tokens per step", mode, tokens)
			require.NotZero(t, r.exec.Graphs())
		}
	}
	r := newRig(t, graphs.ModeFullDecodeOnly, 64, 1, half)
	regions, err := r.exec.Regions()
	require.NoError(t, err)
	layout := r.exec.Layout("m")
	require.Equal(t, "bf16", layout.DType)
	require.Equal(t, layout.BytesPerBlock(), 2*model.Builtin().Layers*regions[0].BlockBytes)
	done := map[scheduler.RequestID]bool{}
	noisy := r.generate(prompts(), n, func(p *scheduler.Plan) {
		for i, id := range p.Requests {
			if p.Kinds[i] == scheduler.RowRunning && !done[id] {
				done[id] = true
				blocks := r.exec.Blocks(id)
				require.NoError(t, r.exec.Noise(t.Context(), blocks[len(blocks)/2], uint64(i)))
			}
		}
	})
	identity.Control(t, answers(want), answers(noisy))
}

func answers(tokens [][]int) []identity.Answer {
	out := make([]identity.Answer, len(tokens))
	for i, a := range tokens {
		for _, tok := range a {
			out[i] = append(out[i], int32(tok))
		}
	}
	return out
}

func TestPlansThatCannotRun(t *testing.T) {
	r := newRig(t, graphs.ModeNone, 64, 1)
	id, other := connector.NewRequestID(0, 1), connector.NewRequestID(0, 2)
	plan := func(change func(*scheduler.Plan)) *scheduler.Plan {
		p := &scheduler.Plan{
			Seq: 7, Groups: 1, Requests: []scheduler.RequestID{id}, Kinds: []scheduler.RowKind{scheduler.RowNew},
			Scheduled: []int32{3}, Drafts: []int32{0}, Placeholders: []int32{0}, Computed: []int32{0}, Samples: []uint8{1},
			Inputs: []scheduler.Token{1, 2, 3}, InputsAt: []int32{0, 3},
			TableFrom: []int32{0}, Blocks: []kvcache.BlockID{1}, BlocksAt: []int32{0, 1}, Total: 3,
			Verdicts: []graphs.RowVerdict{graphs.PrefillFresh},
			Graph:    graphs.Decision{Tokens: 3, Reqs: 1, PaddedTokens: 3, PaddedReqs: 1, KeyID: graphs.NoKey},
		}
		change(p)
		return p
	}
	for name, change := range map[string]func(*scheduler.Plan){
		"drafts":                      func(p *scheduler.Plan) { p.Drafts[0] = 1 },
		"a negative number of drafts": func(p *scheduler.Plan) { p.Drafts[0] = -1 },
		"block beyond the pool":       func(p *scheduler.Plan) { p.Blocks[0] = 400 },
		"negative block":              func(p *scheduler.Plan) { p.Blocks[0] = -1 },
		"token beyond the vocabulary": func(p *scheduler.Plan) { p.Inputs[1] = 272 },
		"unknown token of a new one":  func(p *scheduler.Plan) { p.Inputs[2] = scheduler.Unknown },
		"too few blocks":              func(p *scheduler.Plan) { p.Computed[0] = 2 },
		"nothing scheduled":           func(p *scheduler.Plan) { p.Scheduled[0] = 0 },
		"never ran":                   func(p *scheduler.Plan) { p.Kinds[0], p.Requests[0] = scheduler.RowRunning, other },
		"table with a hole":           func(p *scheduler.Plan) { p.TableFrom[0] = 5 },
	} {
		_, err := r.exec.Submit(t.Context(), plan(change))
		var bad *PlanError
		require.ErrorAs(t, err, &bad, name)
	}
	step, err := r.exec.Submit(t.Context(), plan(func(*scheduler.Plan) {}))
	require.NoError(t, err)
	_, err = r.exec.Submit(t.Context(), plan(func(*scheduler.Plan) {}))
	require.ErrorIs(t, err, ErrTooManySteps)
	tokens, err := step.Wait(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, tokens, 1)
	idle, err := r.exec.Submit(t.Context(), &scheduler.Plan{Finished: []scheduler.RequestID{id, connector.NewRequestID(99, 1)}})
	require.NoError(t, err)
	require.True(t, idle.Idle())
	require.Empty(t, r.exec.Blocks(id), "forgotten")
	require.ErrorContains(t, r.exec.Noise(t.Context(), 0, 1), "not in 1..399")
}

func TestRegions(t *testing.T) {
	r := newRig(t, graphs.ModeNone, 64, 1)
	regions, err := r.exec.Regions()
	require.NoError(t, err)
	layout := r.exec.Layout("m")
	require.Len(t, regions, 2*model.Builtin().Layers)
	sum := 0
	for _, x := range regions {
		m := x.Memory.(connector.HostMemory)
		require.Len(t, m.Bytes(), 400*x.BlockBytes)
		sum += x.BlockBytes
		_, err := m.WriteAt(make([]byte, 8), int64(len(m.Bytes())-4))
		require.Error(t, err)
		_, err = m.ReadAt(make([]byte, 8), -1)
		require.Error(t, err)
	}
	require.Equal(t, layout.BytesPerBlock(), sum)
	require.NoError(t, r.exec.Noise(t.Context(), 3, 9))
	b := regions[1].Memory.(connector.HostMemory).Bytes()
	require.NotZero(t, b[3*regions[1].BlockBytes+2])
	require.Zero(t, b[4*regions[1].BlockBytes+2])
}

// secretive refuses memory that another process may map.
type secretive struct{ ascendrt.Device }

func (d secretive) Alloc(n int, p ascendrt.Placement) (ascendrt.Buffer, error) {
	if p == ascendrt.PlaceShareable {
		return nil, &ascendrt.Error{Backend: "test", Call: "alloc", Command: -1, Class: ascendrt.ErrUnsupported}
	}
	return d.Device.Alloc(n, p)
}

// Memory that cannot be shared is no reason not to serve.
func TestPoolThatCannotBeShared(t *testing.T) {
	dev, err := (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(context.Background())) }()
	c := Config{
		Model: model.Builtin(), Blocks: 4, BlockSize: 16, MaxSeqs: 1, MaxTokens: 8, MaxLen: 16, KV: ascendrt.PlaceShareable,
		Graphs: graphs.Config{Mode: graphs.ModeNone, MaxNumSeqs: 1, MaxNumBatchedTokens: 8},
	}
	e, err := New(t.Context(), secretive{dev}, c, weights())
	require.NoError(t, err)
	regions, err := e.Regions()
	require.NoError(t, err)
	require.Len(t, regions, 2*c.Model.Layers)
	require.NoError(t, e.Close())
	require.Zero(t, dev.Live())
}

// Where the CPU does not address the device's memory, regions copy.
func TestRegionsOfFarMemory(t *testing.T) {
	dev, err := (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(context.Background())) }()
	far := struct{ ascendrt.Device }{dev} // no Mapper
	c := Config{
		Model: model.Builtin(), Blocks: 200, BlockSize: 16, MaxSeqs: 1, MaxTokens: 8, MaxLen: 16,
		Graphs: graphs.Config{Mode: graphs.ModeNone, MaxNumSeqs: 1, MaxNumBatchedTokens: 8},
	}
	e, err := New(t.Context(), far, c, weights())
	require.NoError(t, err)
	regions, err := e.Regions()
	require.NoError(t, err)
	m := regions[3].Memory
	_, mapped := m.(connector.HostMemory)
	require.False(t, mapped)
	size := 200 * regions[3].BlockBytes
	require.Greater(t, size, 2*copierBytes, "several pieces")
	data := make([]byte, size-8)
	for i := range data {
		data[i] = byte(i * 7)
	}
	n, err := m.WriteAt(data, 8)
	require.NoError(t, err)
	require.Equal(t, len(data), n)
	got := make([]byte, size)
	n, err = m.ReadAt(got, 8)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, data, got[:n])
	_, err = m.WriteAt(make([]byte, 8), int64(size-4))
	require.ErrorIs(t, err, errOutside)
	_, err = m.ReadAt(make([]byte, 8), -1)
	require.ErrorIs(t, err, errOutside)
	require.NoError(t, e.Close())
	require.Zero(t, dev.Live())
}

func TestWeightsThatDoNotFit(t *testing.T) {
	dev, err := (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(context.Background())) }()
	c := Config{
		Model: model.Builtin(), Blocks: 8, BlockSize: 4, MaxSeqs: 1, MaxTokens: 8, MaxLen: 16,
		Graphs: graphs.Config{Mode: graphs.ModeNone, MaxNumSeqs: 1, MaxNumBatchedTokens: 8},
	}
	for _, x := range []struct {
		change func(model.Weights)
		text   string
	}{
		{func(w model.Weights) { delete(w, model.LayerName(2, "self_attn.k_norm")) }, "model.layers.2.self_attn.k_norm.weight is missing; the model needs shape [32]"},
		{func(w model.Weights) { w[model.FinalNormName] = make([]float32, 3) }, "model.norm.weight has 3 elements; the model needs shape [128]"},
	} {
		w := weights()
		x.change(w)
		_, err := New(t.Context(), dev, c, w)
		require.ErrorContains(t, err, x.text)
		require.Zero(t, dev.Live().Buffers)
	}
	small, err := (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1, MemoryBytes: 1 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, small.Close(context.Background())) }()
	_, err = New(t.Context(), small, c, weights())
	require.ErrorIs(t, err, ascendrt.ErrOutOfMemory)
	require.Zero(t, small.Live().Buffers)
	c.MaxLen = 1 << 20
	require.ErrorContains(t, c.Validate(), "positions")
}
