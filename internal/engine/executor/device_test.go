package executor

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/testkit/device"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
	"github.com/sluice-serving/sluice/scheduler"
)

var allModes = []graphs.ModeConfig{graphs.ModeNone, graphs.ModeFullDecodeOnly, graphs.ModePiecewise, graphs.ModeFullAndPiecewise, graphs.ModeFull}

// deviceConfig fits every device.
func deviceConfig(c model.Config, typ ascendrt.DType, mode graphs.ModeConfig, tokens, inFlight int) Config {
	return Config{
		Model: c, Type: typ, Blocks: 40, BlockSize: 128, MaxSeqs: 6, MaxTokens: tokens, MaxLen: 256, InFlight: inFlight,
		Graphs: graphs.Config{Mode: mode, MaxNumSeqs: 6, MaxNumBatchedTokens: tokens},
	}
}

// storages are the types that a device has.
func storages(t *testing.T, d device.Chosen) []ascendrt.DType {
	dev := d.Open(t)
	defer dev.Close(t.Context())
	if dev.Caps().Backend == "ascend" {
		return []ascendrt.DType{ascendrt.BFloat16}
	}
	return []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16}
}

func onHost(t *testing.T) ascendrt.Device {
	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	return dev
}

// spoil overwrites a block of every request once, in its first step that reads one.
func (r *rig) spoil() func(*scheduler.Plan) {
	done := map[scheduler.RequestID]bool{}
	return func(p *scheduler.Plan) {
		for i, id := range p.Requests {
			if p.Kinds[i] == scheduler.RowRunning && !done[id] {
				done[id] = true
				require.NoError(r.t, r.exec.Noise(r.t.Context(), r.exec.Blocks(id)[0], uint64(i)))
			}
		}
	}
}

// With named operations a device answers token by token as the host does, in every
// mode, however steps are cut, with one step in flight and two.
func TestExactAnswersOnDevice(t *testing.T) {
	d := device.Choose(t)
	if !d.Same {
		t.Skip("this device sums in an order of its own")
	}
	questions, n, sizes, modes := prompts(), 24, []int{16, 256}, allModes
	if !d.Asked {
		questions, n, sizes, modes = questions[1:5], 6, []int{48}, []graphs.ModeConfig{graphs.ModeNone, graphs.ModeFullAndPiecewise}
	}
	for _, typ := range storages(t, d) {
		want := rigOn(t, onHost(t), deviceConfig(model.Builtin(), typ, graphs.ModeNone, 256, 1)).generate(questions, n, nil)
		for _, mode := range modes {
			for i, tokens := range sizes {
				t.Run(fmt.Sprintf("%v/%v/%d", typ, mode, tokens), func(t *testing.T) {
					c := deviceConfig(model.Builtin(), typ, mode, tokens, 1+i%2)
					c.Ops = OpsNamed
					r := rigOn(t, d.Open(t), c)
					require.Nil(t, r.exec.ops.fused)
					require.Equal(t, want, r.generate(questions, n, nil))
					require.Equal(t, mode != graphs.ModeNone, r.exec.Graphs() > 0)
				})
			}
		}
		t.Run(typ.String()+"/control", func(t *testing.T) {
			c := deviceConfig(model.Builtin(), typ, graphs.ModeFullDecodeOnly, 64, 1)
			c.Ops = OpsNamed
			r := rigOn(t, d.Open(t), c)
			identity.Control(t, answers(want), answers(r.generate(questions, n, r.spoil())))
		})
	}
}

// trace is what one request was answered, and the logits behind each token.
type trace struct {
	tokens []int
	logits [][]float32
}

// follow answers prompts together, one step at a time.
func (r *rig) follow(prompts [][]int, n int, before func(*scheduler.Plan)) []trace {
	r.t.Helper()
	out := make([]trace, len(prompts))
	order := map[scheduler.RequestID]int{}
	for i, p := range prompts {
		ids := make([]scheduler.Token, len(p))
		for j, v := range p {
			ids[j] = scheduler.Token(v)
		}
		id, err := r.sched.Add(scheduler.Request{ID: fmt.Sprint(i), Prompt: ids, MaxTokens: n})
		require.NoError(r.t, err)
		order[id] = i
	}
	for r.sched.HasWork() {
		p := r.sched.Plan(0)
		if before != nil {
			before(p)
		}
		step, err := r.exec.Submit(r.t.Context(), p)
		require.NoError(r.t, err)
		tokens, err := step.Wait(r.t.Context(), nil)
		require.NoError(r.t, err)
		next := 0
		for i, id := range p.Requests {
			if p.Samples[i] == 0 {
				continue
			}
			logits, err := r.exec.Logits(r.t.Context(), i)
			require.NoError(r.t, err)
			require.Equal(r.t, model.Argmax(logits), int(tokens[next]), "the token is the most likely one of its own logits")
			x := &out[order[id]]
			x.tokens, x.logits = append(x.tokens, int(tokens[next])), append(x.logits, logits)
			next++
		}
		_, err = r.sched.Apply(p, scheduler.Result{Tokens: tokens})
		require.NoError(r.t, err)
	}
	return out
}

// fusedApart is how far the logits of two ways to compute in bfloat16 may be from
// each other, relatively: each may be half of it from binary32.
const fusedApart = 4e-2

// far is the largest relative distance of two answers' logits up to the first
// token in which they differ, behind which they are answers to other questions.
func far(want, got trace) (worst float64, same int) {
	for i := range want.tokens {
		var d, n float64
		for j, w := range want.logits[i] {
			e := float64(got.logits[i][j] - w)
			d, n = d+e*e, n+float64(w)*float64(w)
		}
		worst = max(worst, math.Sqrt(d/n))
		if math.IsNaN(d) {
			return math.Inf(1), i
		}
		if want.tokens[i] != got.tokens[i] {
			return worst, i
		}
	}
	return worst, len(want.tokens)
}

// With fused operations two ways to serve a request agree: in every mode, however
// steps are cut, within rounding, and to the bit where they sum per row. With the
// host's bfloat16 they agree within rounding. Wrong keys and values are further off.
func TestFusedAnswersOnDevice(t *testing.T) {
	for name, ops := range map[string]Ops{"fused": OpsFused, "per row": OpsPerRow} {
		t.Run(name, func(t *testing.T) { fusedAnswersOnDevice(t, ops) })
	}
}

func fusedAnswersOnDevice(t *testing.T, ops Ops) {
	d := device.Choose(t)
	if !d.Asked && byteSeeds == 1 {
		t.Skip("emulated, under the race detector: TestExactAnswersOnDevice takes the same ways")
	}
	c, w := device.Wide()
	questions, n, sizes, modes := prompts(), 24, []int{16, 64}, allModes
	if !d.Asked {
		questions, n, sizes, modes = questions[1:4], 3, []int{16}, []graphs.ModeConfig{graphs.ModeFull}
	}
	run := func(t *testing.T, dev ascendrt.Device, mode graphs.ModeConfig, tokens int, spoil bool) ([]trace, bool) {
		cfg := deviceConfig(c, ascendrt.BFloat16, mode, tokens, 1)
		cfg.Ops = ops
		r := rigOf(t, dev, cfg, w)
		var before func(*scheduler.Plan)
		if spoil {
			before = r.spoil()
		}
		return r.follow(questions, n, before), r.exec.ops.fused != nil
	}
	byHost, _ := run(t, onHost(t), graphs.ModeNone, 256, false)
	want, fused := run(t, d.Open(t), graphs.ModeNone, 256, false)
	near := func(t *testing.T, a, b []trace, exact bool) {
		worst, same, total := 0.0, 0, 0
		for i := range a {
			far, n := far(a[i], b[i])
			worst, same, total = max(worst, far), same+n, total+len(a[i].tokens)
			require.LessOrEqual(t, far, fusedApart, "answer %d", i)
		}
		t.Logf("at most %.2g apart, %d of %d tokens up to the first other one", worst, same, total)
		if exact {
			require.Zero(t, worst, "the same bits")
		}
	}
	named := !fused && d.Same
	t.Run("host", func(t *testing.T) { near(t, byHost, want, named) })
	for _, mode := range modes {
		for _, tokens := range sizes {
			t.Run(fmt.Sprintf("%v/%d", mode, tokens), func(t *testing.T) {
				got, _ := run(t, d.Open(t), mode, tokens, false)
				near(t, want, got, named || fused && ops == OpsPerRow)
			})
		}
	}
	t.Run("control", func(t *testing.T) {
		noisy, _ := run(t, d.Open(t), graphs.ModeFullDecodeOnly, 256, true)
		seen := 0
		for i := range want {
			if worst, _ := far(want[i], noisy[i]); worst > 2*fusedApart {
				seen++
			}
		}
		require.GreaterOrEqual(t, float64(seen), identity.MinChanged*float64(len(want)), "wrong keys and values are seen")
	})
}
