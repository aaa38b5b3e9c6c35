package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// sparse is the tiny shape with experts, and weights with which context matters.
func sparse(t *testing.T) (model.Config, model.Weights) {
	t.Helper()
	c, err := model.Shape("tiny-moe")
	require.NoError(t, err)
	return c, model.Generate(c, model.BuiltinScales(), 1, func(int) bool { return true })
}

func sparseConfig(c model.Config, mode graphs.ModeConfig, tokens, inFlight int) Config {
	x := deviceConfig(c, ascendrt.Float32, mode, tokens, inFlight)
	x.Blocks, x.BlockSize = 400, 4
	return x
}

// A model with experts answers as the reference does, in every mode and however
// steps are cut.
func TestExpertsAgainstReference(t *testing.T) {
	const n = 24
	c, w := sparse(t)
	var want [][]int
	for _, p := range prompts() {
		want = append(want, model.NewReference(c, w).Greedy(p, n))
	}
	for i, mode := range allModes {
		for j, tokens := range stepSizes {
			r := rigOf(t, onHost(t), sparseConfig(c, mode, tokens, 1+(i+j)%2), w)
			require.Equal(t, want, r.generate(prompts(), n, nil), "mode %v, %d tokens per step", mode, tokens)
			require.Equal(t, mode != graphs.ModeNone, r.exec.Graphs() > 0)
		}
	}
	r := rigOf(t, onHost(t), sparseConfig(c, graphs.ModeFullDecodeOnly, 64, 1), w)
	identity.Control(t, answers(want), answers(r.generate(prompts(), n, r.spoil())))
}

// groupOf makes executors among which the experts lie, with their schedulers.
func groupOf(t *testing.T, n int, c Config, w model.Source) []*rig {
	t.Helper()
	out, errs := make([]*rig, n), make([]error, n)
	for i := range out {
		out[i] = &rig{t: t, dev: onHost(t), limit: c.InFlight}
	}
	id, err := out[0].dev.(ascendrt.Collectives).UniqueID()
	require.NoError(t, err)
	var wg sync.WaitGroup
	comms := make([]ascendrt.Communicator, n)
	for i, r := range out {
		wg.Go(func() {
			own := c
			if comms[i], errs[i] = r.dev.(ascendrt.Collectives).NewCommunicator(id, i, n); errs[i] == nil {
				own.Group = comms[i]
				r.exec, errs[i] = New(t.Context(), r.dev, own, w)
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for i, r := range out {
			whole := r.dev.Health() == nil
			if comms[i] != nil {
				require.NoError(t, comms[i].Close())
			}
			if r.exec != nil {
				err := r.exec.Close()
				require.True(t, err == nil || !whole, "%v", err)
			}
			live := r.dev.Live()
			live.Leaked = 0
			require.True(t, live == ascendrt.Live{} || !whole, "everything was released: %+v", live)
			require.NoError(t, r.dev.Close(context.Background()))
		}
	})
	require.NoError(t, errors.Join(errs...))
	for _, r := range out {
		cache, err := kvcache.New(kvcache.Config{Blocks: c.Blocks, BlockSize: c.BlockSize})
		require.NoError(t, err)
		r.sched, err = scheduler.New(scheduler.Config{MaxNumSeqs: c.MaxSeqs, MaxBatchedTokens: c.MaxTokens, MaxModelLen: c.MaxLen}, cache, scheduler.WithGraphs(r.exec.Dispatcher()))
		require.NoError(t, err)
	}
	return out
}

// agree makes the plans of all ranks and the decisions that they agree on.
func agree(t *testing.T, rs []*rig) ([]*scheduler.Plan, []graphs.Decision) {
	t.Helper()
	plans, batches, votes := make([]*scheduler.Plan, len(rs)), make([]graphs.Batch, len(rs)), make([]graphs.Vote, len(rs))
	for i, r := range rs {
		d := r.exec.Dispatcher()
		plans[i] = r.sched.Plan(0)
		batches[i] = d.Idle(graphs.Step{})
		if plans[i].Rows() > 0 {
			batches[i] = d.Classify(plans[i].GraphRows(), graphs.Step{}, plans[i].Verdicts)
		}
		votes[i] = d.Vote(batches[i])
	}
	a := graphs.Agree(votes)
	decs := make([]graphs.Decision, len(rs))
	for i, r := range rs {
		var err error
		decs[i], err = r.exec.Dispatcher().SelectAgreed(batches[i], a)
		require.NoError(t, err)
		decs[i].PaddedTokens = max(decs[i].PaddedTokens, a.Tokens)
	}
	return plans, decs
}

// together answers prompts of several ranks, one step of all at a time, and
// counts the steps in which a rank had no work; modes are those of all steps.
func together(t *testing.T, rs []*rig, prompts [][][]int, n int) (out [][][]int, idle int, modes graphs.ModeSet) {
	t.Helper()
	order := make([]map[scheduler.RequestID]int, len(rs))
	out = make([][][]int, len(rs))
	for i, r := range rs {
		order[i], out[i] = map[scheduler.RequestID]int{}, make([][]int, len(prompts[i]))
		for j, p := range prompts[i] {
			ids := make([]scheduler.Token, len(p))
			for k, v := range p {
				ids[k] = scheduler.Token(v)
			}
			id, err := r.sched.Add(scheduler.Request{ID: fmt.Sprint(j), Prompt: ids, MaxTokens: n})
			require.NoError(t, err)
			order[i][id] = j
		}
	}
	work := func() bool {
		for _, r := range rs {
			if r.sched.HasWork() {
				return true
			}
		}
		return false
	}
	for work() {
		plans, decs := agree(t, rs)
		steps := make([]Step, len(rs))
		modes |= graphs.Modes(decs[0].Mode)
		for i, r := range rs {
			var err error
			if plans[i].Rows() == 0 {
				idle++
				steps[i], err = r.exec.SubmitIdle(t.Context(), plans[i], decs[i])
			} else {
				plans[i].Graph = decs[i]
				steps[i], err = r.exec.Submit(t.Context(), plans[i])
			}
			require.NoError(t, err)
		}
		for i, r := range rs {
			tokens, err := steps[i].Wait(t.Context(), nil)
			require.NoError(t, err)
			outs, err := r.sched.Apply(plans[i], scheduler.Result{Tokens: tokens})
			require.NoError(t, err)
			for _, o := range outs {
				for _, tok := range o.Tokens {
					out[i][order[i][o.Request]] = append(out[i][order[i][o.Request]], int(tok))
				}
			}
		}
	}
	return out, idle, modes
}

// Ranks that share the experts answer as one rank with all of them does, bit by
// bit, in every mode, while others have other work or none.
func TestExpertParallelAnswers(t *testing.T) {
	const n = 16
	c, w := sparse(t)
	for _, typ := range []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16} {
		one := sparseConfig(c, graphs.ModeNone, 256, 1)
		one.Type = typ
		want := rigOf(t, onHost(t), one, w).generate(prompts(), n, nil)
		for _, ranks := range []int{2, 4} {
			for _, mode := range allModes {
				t.Run(fmt.Sprintf("%v/%d/%v", typ, ranks, mode), func(t *testing.T) {
					x := sparseConfig(c, mode, 12, 1) // the ladder ends above
					x.Type = typ
					rs := groupOf(t, ranks, x, w)
					share := make([][][]int, ranks)
					for i, p := range prompts() { // most on rank 0, none on the last one
						at := 0
						if i%3 == 0 {
							at = i / 3 % (ranks - 1)
						}
						share[at] = append(share[at], p)
					}
					got, idle, modes := together(t, rs, share, n)
					require.Positive(t, idle)
					if mode == graphs.ModeFullAndPiecewise {
						require.Equal(t, graphs.Modes(graphs.Full, graphs.Piecewise), modes)
					}
					next := make([]int, ranks)
					for i := range prompts() {
						at := 0
						if i%3 == 0 {
							at = i / 3 % (ranks - 1)
						}
						require.Equal(t, want[i], got[at][next[at]], "answer %d", i)
						next[at]++
					}
					require.Equal(t, c.MoE.Experts/ranks, rs[1].exec.w.layers[0].gateUp.Rows(), "each rank has its part")
				})
			}
		}
	}
}

// The control: where a rank without work does not take part the others stand
// still; when it does they go on.
func TestIdleRanksMustTakePart(t *testing.T) {
	c, w := sparse(t)
	synctest.Test(t, func(t *testing.T) {
		rs := groupOf(t, 2, sparseConfig(c, graphs.ModeFullAndPiecewise, 48, 1), w)
		_, err := rs[0].sched.Add(scheduler.Request{ID: "a", Prompt: []scheduler.Token{1, 2, 3}, MaxTokens: 1})
		require.NoError(t, err)
		plans, decs := agree(t, rs)
		plans[0].Graph = decs[0]
		step, err := rs[0].exec.Submit(t.Context(), plans[0])
		require.NoError(t, err)
		synctest.Wait() // nothing moves any more
		require.False(t, step.Done())
		require.Equal(t, []int{1}, host.Missing(rs[0].exec.c.Group))
		idle, err := rs[1].exec.SubmitIdle(t.Context(), plans[1], decs[1])
		require.NoError(t, err)
		for _, s := range []Step{step, idle} {
			_, err := s.Wait(t.Context(), nil)
			require.NoError(t, err)
		}
	})
}

// Ranks that have not agreed on a length end with an error, not in a wait.
func TestRanksThatDisagreeEnd(t *testing.T) {
	c, w := sparse(t)
	rs := groupOf(t, 2, sparseConfig(c, graphs.ModeNone, 48, 1), w)
	_, err := rs[0].sched.Add(scheduler.Request{ID: "a", Prompt: []scheduler.Token{1, 2, 3}, MaxTokens: 1})
	require.NoError(t, err)
	plans, decs := agree(t, rs)
	plans[0].Graph = decs[0]
	decs[1].PaddedTokens = 1
	step, err := rs[0].exec.Submit(t.Context(), plans[0])
	require.NoError(t, err)
	idle, err := rs[1].exec.SubmitIdle(t.Context(), plans[1], decs[1])
	require.NoError(t, err)
	for _, s := range []Step{step, idle} {
		_, err := s.Wait(t.Context(), nil)
		require.ErrorContains(t, err, "the ranks disagree")
	}
}

func TestGroupsThatCannotBe(t *testing.T) {
	c, w := sparse(t)
	dev := onHost(t)
	defer dev.Close(t.Context())
	of := func(rank, size int) ascendrt.Communicator { return seat{rank: rank, size: size} }
	for text, change := range map[string]func(*Config){
		"8 experts do not spread evenly over 3 ranks":             func(x *Config) { x.Group = of(0, 3) },
		"a group of ranks shares experts, and the model has none": func(x *Config) { x.Model, x.Group = model.Builtin(), of(0, 2) },
	} {
		x := sparseConfig(c, graphs.ModeNone, 48, 1)
		change(&x)
		_, err := New(t.Context(), dev, x, w)
		require.ErrorContains(t, err, text)
	}
	r := rigOf(t, onHost(t), sparseConfig(c, graphs.ModeNone, 48, 1), w)
	_, err := r.sched.Add(scheduler.Request{ID: "a", Prompt: []scheduler.Token{1}, MaxTokens: 1})
	require.NoError(t, err)
	var wrong *PlanError
	p := r.sched.Plan(0)
	_, err = r.exec.SubmitIdle(t.Context(), p, p.Graph)
	require.ErrorAs(t, err, &wrong)
}

type seat struct {
	ascendrt.Communicator
	rank, size int
}

func (s seat) Rank() int { return s.rank }
func (s seat) Size() int { return s.size }
