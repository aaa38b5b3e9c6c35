package executor

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// hostSampler chooses the n-th most likely token for requests that it holds.
type hostSampler struct {
	mu   sync.Mutex
	rank map[scheduler.RequestID]int
	got  map[scheduler.RequestID][]int // positions, in the order of the choices
}

func (h *hostSampler) OnHost(id scheduler.RequestID, _ int) bool {
	_, ok := h.rank[id]
	return ok
}

func (h *hostSampler) Choose(id scheduler.RequestID, n int, logits []float32) scheduler.Token {
	h.mu.Lock()
	h.got[id] = append(h.got[id], n)
	h.mu.Unlock()
	for range h.rank[id] {
		logits[model.Argmax(logits)] = -1e30
	}
	return scheduler.Token(model.Argmax(logits))
}

// Tokens that the host chooses feed the next step although that was planned
// before; the requests beside keep theirs on the device.
func TestHostChoicesFeedTheNextStep(t *testing.T) {
	const n = 12
	c, w := model.Builtin(), weights()
	all := prompts()[2:6]
	second := func(prompt []int) (out []int) {
		r := model.NewReference(c, w)
		var logits []float32
		for _, tok := range prompt {
			logits = r.Step(tok)
		}
		for range n {
			logits[model.Argmax(logits)] = -1e30
			out = append(out, model.Argmax(logits))
			logits = r.Step(out[len(out)-1])
		}
		return out
	}
	for _, inFlight := range []int{1, 3} {
		h := &hostSampler{rank: map[scheduler.RequestID]int{}, got: map[scheduler.RequestID][]int{}}
		r := newRig(t, graphs.ModeFullDecodeOnly, 40, inFlight, func(c *Config) { c.Sampler = h })
		var hosted []scheduler.RequestID
		got := r.generate(all, n, func(p *scheduler.Plan) {
			for i, id := range p.Requests {
				if p.Kinds[i] == scheduler.RowNew && id.Slot()%2 == 1 {
					h.rank[id] = 1
					hosted = append(hosted, id)
				}
			}
		})
		for i, prompt := range all {
			want := model.NewReference(c, w).Greedy(prompt, n)
			if i%2 == 1 {
				want = second(prompt)
			}
			require.Equal(t, want, got[i], "prompt %d, %d in flight", i, inFlight)
		}
		require.Len(t, hosted, 2)
		for _, id := range hosted {
			for at, place := range h.got[id] { // with three steps in flight one may lie behind the end
				require.Equal(t, at, place, "each place once, in order")
			}
			require.GreaterOrEqual(t, len(h.got[id]), n)
		}
	}
}

// Where nobody chooses on the host, no logits leave the device.
func TestGreedyFetchesNoLogits(t *testing.T) {
	h := &hostSampler{got: map[scheduler.RequestID][]int{}}
	r := newRig(t, graphs.ModeFullDecodeOnly, 40, 2, func(c *Config) { c.Sampler = h })
	r.generate(prompts()[2:4], 5, nil)
	for _, o := range r.exec.outputs {
		require.Nil(t, o.logits)
	}
	require.Empty(t, h.got)
}

// Drafts count as far as each is the token that the model chooses, whoever
// chooses; what follows the first wrong one is nothing.
func TestDraftsAreVerified(t *testing.T) {
	const k = 3
	c, w := model.Builtin(), weights()
	prompt := prompts()[5]
	want := model.NewReference(c, w).Greedy(prompt, k+2)
	for wrong := range k + 1 { // the first wrong draft; k: none
		h := &hostSampler{rank: map[scheduler.RequestID]int{}, got: map[scheduler.RequestID][]int{}}
		r := newRig(t, graphs.ModeFullDecodeOnly, 80, 1, func(c *Config) { c.Sampler, c.Graphs.K = h, k })
		cache, err := kvcache.New(kvcache.Config{Blocks: 400, BlockSize: 4})
		require.NoError(t, err)
		sched, err := scheduler.New(scheduler.Config{
			MaxNumSeqs: 6, MaxBatchedTokens: 80, MaxModelLen: 256, Drafts: k, TailPadding: scheduler.PadAlways,
		}, cache, scheduler.WithGraphs(r.exec.Dispatcher()))
		require.NoError(t, err)
		var ids []scheduler.Token
		for _, v := range prompt {
			ids = append(ids, scheduler.Token(v))
		}
		id, err := sched.Add(scheduler.Request{ID: "a", Prompt: ids, MaxTokens: 20})
		require.NoError(t, err)
		if wrong%2 == 0 { // the host chooses
			h.rank[id] = 0
		}
		p := sched.Plan(0)
		step, err := r.exec.Submit(t.Context(), p)
		require.NoError(t, err)
		got, err := step.Wait(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, []int32{1}, step.Counts())
		drafts := make([]scheduler.Token, k)
		for j := range drafts {
			drafts[j] = scheduler.Token(want[1+j])
			if j == wrong {
				drafts[j] = scheduler.Token(want[1+j]+1) % 200
			}
		}
		_, err = sched.Apply(p, scheduler.Result{Tokens: got, Counts: step.Counts(), Drafts: drafts, DraftCounts: []int32{k}})
		require.NoError(t, err)
		p = sched.Plan(0)
		require.Equal(t, int32(k), p.Drafts[0])
		require.Equal(t, graphs.Full, p.Graph.Mode)
		step, err = r.exec.Submit(t.Context(), p)
		require.NoError(t, err)
		got, err = step.Wait(t.Context(), got)
		require.NoError(t, err)
		require.Equal(t, []int32{int32(wrong + 1)}, step.Counts())
		for i, tok := range got {
			require.EqualValues(t, want[i], tok, "token %d", i)
		}
		require.Len(t, got, wrong+2)
	}
}

func TestDraftsNeedStepsThatDoNotOverlap(t *testing.T) {
	c := Config{Model: model.Builtin(), Blocks: 8, BlockSize: 4, MaxSeqs: 2, MaxTokens: 16, MaxLen: 16, InFlight: 2, Graphs: graphs.Config{K: 1}}
	require.ErrorContains(t, c.Validate(), "1 drafts with 2 steps in flight")
	c.InFlight = 1
	require.NoError(t, c.Validate())
}
