package executor

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/testkit/device"
	"github.com/sluice-serving/sluice/scheduler"
)

// reader keeps the logits of the prompts of some requests.
type reader struct {
	mu  sync.Mutex
	len map[scheduler.RequestID]int
	got map[scheduler.RequestID]map[int][]float32
}

func (r *reader) Scored(id scheduler.RequestID) int { return r.len[id] }

func (r *reader) Score(id scheduler.RequestID, pos int, logits []float32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.got[id] == nil {
		r.got[id] = map[int][]float32{}
	}
	r.got[id][pos] = slices.Clone(logits)
}

// read answers prompts together, reads the logits of every second one and gives
// them by position.
func (r *rig) read(x *reader, prompts [][]int, n int) (tokens [][]int, logits [][][]float32) {
	ids := make([]scheduler.RequestID, len(prompts))
	order := 0
	tokens = r.generate(prompts, n, func(p *scheduler.Plan) {
		for i, id := range p.Requests {
			if p.Kinds[i] != scheduler.RowNew {
				continue
			}
			ids[order] = id
			if order%2 == 0 {
				x.len[id] = len(prompts[order]) - 1
			}
			order++
		}
	})
	logits = make([][][]float32, len(prompts))
	for i, id := range ids {
		require.Len(r.t, x.got[id], x.len[id], "prompt %d: each position behind which a token of it stands", i)
		for pos := range x.len[id] {
			logits[i] = append(logits[i], x.got[id][pos])
		}
	}
	return tokens, logits
}

func newReader() *reader {
	return &reader{len: map[scheduler.RequestID]int{}, got: map[scheduler.RequestID]map[int][]float32{}}
}

func apart(t *testing.T, want, got []float32) float64 {
	require.Len(t, got, len(want))
	var d, n float64
	for i, w := range want {
		e := float64(got[i] - w)
		d, n = d+e*e, n+float64(w)*float64(w)
	}
	return math.Sqrt(d / n)
}

// The logits behind every token of a prompt are the model's, in every mode and
// however its steps are cut, and nobody's answer is another one for it.
func TestLogitsOfPromptsAgainstReference(t *testing.T) {
	c, w := model.Builtin(), weights()
	all := prompts()[1:6]
	var answers [][]int
	for _, p := range all {
		answers = append(answers, model.NewReference(c, w).Greedy(p, 5))
	}
	for _, mode := range []graphs.ModeConfig{graphs.ModeNone, graphs.ModeFullAndPiecewise} {
		for _, tokens := range stepSizes {
			for _, inFlight := range []int{1, 2} {
				x := newReader()
				r := newRig(t, mode, tokens, inFlight, func(c *Config) { c.Scorer = x })
				got, logits := r.read(x, all, 5)
				require.Equal(t, answers, got)
				for i, p := range all {
					ref := model.NewReference(c, w)
					for pos, l := range logits[i] {
						require.Less(t, apart(t, ref.Step(p[pos]), l), 1e-5, "mode %v, %d tokens per step: prompt %d, position %d", mode, tokens, i, pos)
					}
				}
			}
		}
	}
}

// Beside drafts, too: a step then has more places than rows.
func TestLogitsOfPromptsBesideDrafts(t *testing.T) {
	c, w := model.Builtin(), weights()
	p := prompts()[5]
	x := newReader()
	r := newRig(t, graphs.ModeFullDecodeOnly, 48, 1, func(c *Config) { c.Scorer, c.Graphs.K = x, 2 })
	_, logits := r.read(x, [][]int{p}, 3)
	ref := model.NewReference(c, w)
	require.Len(t, logits[0], len(p)-1)
	for pos, l := range logits[0] {
		require.Less(t, apart(t, ref.Step(p[pos]), l), 1e-5, "position %d", pos)
	}
}

// Without anybody who reads prompts there is no room for their logits, and the first
// who does finds as much as is bounded.
func TestRoomForLogitsOfPrompts(t *testing.T) {
	x := newReader()
	r := newRig(t, graphs.ModeNone, 64, 1, func(c *Config) { c.Scorer = x })
	r.generate(prompts()[1:4], 2, nil)
	require.Nil(t, r.exec.scores.logits)
	r.read(x, prompts()[5:6], 2)
	require.Len(t, r.exec.scores.logits.Bytes(), r.exec.pieceOf()*r.exec.logitsBytes())
	require.LessOrEqual(t, r.exec.pieceOf()*r.exec.logitsBytes(), scoreBytes)
	require.Less(t, r.exec.pieceOf(), len(prompts()[5]), "it took several pieces")
}

// A device reads the host's logits: with named operations their bits, with fused
// ones within rounding.
func TestLogitsOfPromptsOnDevice(t *testing.T) {
	d := device.Choose(t)
	c, w := device.Wide()
	questions := prompts()
	if !d.Asked {
		questions = questions[2:4]
	}
	run := func(t *testing.T, dev ascendrt.Device, typ ascendrt.DType, named bool) [][][]float32 {
		x := newReader()
		cfg := deviceConfig(c, typ, graphs.ModeFullAndPiecewise, 48, 2)
		cfg.Scorer = x
		if named {
			cfg.Ops = OpsNamed
		}
		_, logits := rigOf(t, dev, cfg, w).read(x, questions, 3)
		return logits
	}
	for _, typ := range storages(t, d) {
		for _, named := range []bool{true, false} {
			if !d.Asked && named != (typ == ascendrt.Float32) {
				continue // emulated
			}
			t.Run(fmt.Sprintf("%v/named=%v", typ, named), func(t *testing.T) {
				want, got := run(t, onHost(t), typ, named), run(t, d.Open(t), typ, named)
				worst := 0.0
				for i := range want {
					for pos := range want[i] {
						worst = max(worst, apart(t, want[i][pos], got[i][pos]))
					}
				}
				t.Logf("at most %.2g apart", worst)
				if named && d.Same {
					require.Zero(t, worst)
				}
				require.LessOrEqual(t, worst, fusedApart)
			})
		}
	}
}
