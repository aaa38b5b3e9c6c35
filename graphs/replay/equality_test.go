package replay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
)

var architectures = map[string][]layerKind{
	"attention": {attentionLayer, attentionLayer},
	"delta":     {deltaLayer, deltaLayer},
	"hybrid":    {deltaLayer, attentionLayer},
}

const (
	playSteps = 60
	playSeed  = 3
)

// requireSame compares what two arms computed, byte for byte: the logits of
// all rows that exist in both, and the recurrent states.
func requireSame(t *testing.T, want, got history) {
	t.Helper()
	require.Equal(t, len(want.logits), len(got.logits))
	for i := range want.logits {
		for j := range want.logits[i] {
			require.True(t, bytes.Equal(want.logits[i][j], got.logits[i][j]), "logits of step %d, row %d", i, j)
		}
		require.True(t, bytes.Equal(want.states[i], got.states[i]), "states of step %d", i)
	}
	for i := range want.reqs {
		require.Equal(t, want.reqs[i].tokens, got.reqs[i].tokens, "request %d", i)
	}
}

// Eager, PIECEWISE and FULL runs of the same steps give the same bytes, with
// poisoned padding, poisoned placeholders, and a poisoned null block.
func TestModesAgreeToTheByte(t *testing.T) {
	for name, kinds := range architectures {
		for _, k := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s/K=%d", name, k), func(t *testing.T) {
				eager := play(t, arm{mode: graphs.ModeNone, kinds: kinds, k: k}, playSeed, playSteps)
				for i, mode := range []graphs.ModeConfig{graphs.ModePiecewise, graphs.ModeFull, graphs.ModeFullDecodeOnly, graphs.ModeFullAndPiecewise} {
					for _, src := range []LengthSource{LengthsInBuffers, LengthsFromHost} {
						a := arm{mode: mode, kinds: kinds, k: k, poison: uint64(i + 1), lengths: src}
						if src == LengthsFromHost {
							a.padding = PadDummyRows
						}
						got := play(t, a, playSeed, playSteps)
						requireSame(t, eager, got)
						if mode != graphs.ModePiecewise {
							require.NotZero(t, got.count.Modes[graphs.Full], "the arm must have replayed FULL graphs")
						}
						if mode == graphs.ModeFullAndPiecewise {
							require.NotZero(t, got.count.Modes[graphs.Piecewise])
							require.NotZero(t, got.count.Tails, "the arm must have replayed tails")
							if k > 0 {
								require.NotZero(t, got.count.PaddedTails)
							}
							require.Greater(t, got.count.PaddedReqs, got.count.Reqs, "the arm must have replayed dummy rows")
						}
					}
				}
			})
		}
	}
}

// What a batch answers does not depend on the other rows: every request gets
// the tokens that it gets alone, with its prompt in one chunk.
func TestBatchesAnswerAsAlone(t *testing.T) {
	kinds := architectures["hybrid"]
	h := play(t, arm{mode: graphs.ModeFullAndPiecewise, kinds: kinds, k: 3, poison: 5}, playSeed, playSteps)
	checked := 0
	for _, r := range h.reqs {
		if n := len(r.tokens) - len(r.prompt); n > 3 && checked < 12 {
			require.Equal(t, solo(t, kinds, r.prompt, n), r.tokens[len(r.prompt):])
			checked++
		}
	}
	require.Positive(t, checked)
}

// The policies change the classification alone: same steps, same bytes. Only
// the number of FULL steps differs, in the order of what they admit.
func TestPoliciesAgreeToTheByte(t *testing.T) {
	for _, k := range []int{0, 3} {
		var first history
		full := map[graphs.Policy]uint64{}
		for i, p := range []graphs.Policy{graphs.Strict, graphs.ConsumerOneToken, graphs.OneNewToken, graphs.OneNewTokenHardened} {
			h := play(t, arm{mode: graphs.ModeFullAndPiecewise, policy: p, kinds: architectures["hybrid"], k: k, poison: uint64(i)}, playSeed, playSteps)
			if i == 0 {
				first = h
			}
			requireSame(t, first, h)
			full[p] = h.count.Modes[graphs.Full]
		}
		require.Greater(t, full[graphs.OneNewToken], full[graphs.Strict])
		require.GreaterOrEqual(t, full[graphs.OneNewToken], full[graphs.OneNewTokenHardened])
		require.GreaterOrEqual(t, full[graphs.ConsumerOneToken], full[graphs.Strict])
		if k == 0 {
			require.Equal(t, full[graphs.OneNewToken], full[graphs.ConsumerOneToken])
		}
	}
}

// Negative controls: the comparison must notice what is wrong.
func TestControlsFail(t *testing.T) {
	differs := func(a, b history) bool {
		return !slices.EqualFunc(a.logits, b.logits, func(x, y [][]byte) bool { return slices.EqualFunc(x, y, bytes.Equal) })
	}
	t.Run("padding that keeps slots of real rows", func(t *testing.T) {
		a := arm{mode: graphs.ModeNone, kinds: architectures["attention"]}
		eager := play(t, a, playSeed, playSteps)
		a.mode, a.stale = graphs.ModeFullAndPiecewise, true
		require.True(t, differs(eager, play(t, a, playSeed, playSteps)))
	})
	t.Run("classification by shape", func(t *testing.T) {
		// A prompt of exactly the decode width, in a place that another request has used.
		answer := func(p graphs.Policy) ([]int32, graphs.Counters) {
			e := newEngine(t, arm{mode: graphs.ModeFullAndPiecewise, policy: p, kinds: architectures["delta"], k: 3})
			defer e.close()
			old := newRequest(0, []int32{7, 8, 9, 10, 11, 12})
			e.step([]work{{r: old, n: 6}})
			e.step([]work{{r: old, n: 1, drafts: []int32{1, 2, 3}}})
			r := newRequest(0, []int32{20, 21, 22, 23})
			e.step([]work{{r: r, n: 4}})
			e.step([]work{{r: r, n: 1, drafts: []int32{1, 2, 3}}})
			e.step([]work{{r: r, n: 1, drafts: []int32{1, 2, 3}}})
			return append(r.tokens[4:], words(e.states(r))...), *e.count
		}
		want := solo(t, architectures["delta"], []int32{20, 21, 22, 23}, 3)
		for _, p := range []graphs.Policy{graphs.Strict, graphs.OneNewToken, graphs.OneNewTokenHardened} {
			got, count := answer(p)
			require.Equal(t, want, got[:3], p)
			require.Equal(t, uint64(2), count.Reasons[graphs.ReasonPrefillRow], "both prompts")
		}
		good, _ := answer(graphs.Strict)
		bad, count := answer(graphs.ShapeOnly)
		require.Equal(t, uint64(4), count.Modes[graphs.Full], "the prompt replayed a decode graph")
		require.NotEqual(t, good, bad, "and took up a stale state")
	})
}

// words gives bytes as words, to be compared beside tokens.
func words(b []byte) []int32 {
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}
