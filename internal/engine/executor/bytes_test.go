package executor

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/testkit/ascend"
	"github.com/sluice-serving/sluice/scheduler"
)

// poison makes everything NaN that no row may depend on: the null block of
// every layer, where padding reads and writes, and what the step before left in
// the buffers between the operations.
func (r *rig) poison() {
	fill := func(v ascendrt.View, bytesOf int) {
		require.NoError(r.t, ascendrt.Upload(r.t.Context(), r.dev, r.exec.stream, v, bytes.Repeat([]byte{0xff}, bytesOf)))
	}
	for _, kv := range r.exec.kv {
		fill(kv.kb.Slice(0, r.exec.regionBytes()), r.exec.regionBytes())
		fill(kv.vb.Slice(0, r.exec.regionBytes()), r.exec.regionBytes())
	}
	a := &r.exec.act
	for _, t := range []ascendrt.Tensor{a.hidden, a.x, a.qkv, a.attended, a.y, a.gateUp, a.ffn, a.last, a.logits} {
		fill(t.View, t.Rows()*t.RowLen()*t.Type.Size())
	}
}

// record answers random requests that come and go, and gives the bytes of the
// logits of every row that sampled, in order. before is called with each plan.
func (r *rig) record(seed uint64, before func(*scheduler.Plan)) [][]byte {
	rnd := rand.New(rand.NewPCG(seed, 7))
	var out [][]byte
	for added := 0; added < 12 || r.sched.HasWork(); {
		for added < 12 && (rnd.IntN(3) == 0 || !r.sched.HasWork()) {
			prompt := make([]scheduler.Token, 1+rnd.IntN(90))
			for i := range prompt {
				prompt[i] = scheduler.Token('a' + rnd.IntN(26))
			}
			_, err := r.sched.Add(scheduler.Request{ID: string(rune('a' + added)), Prompt: prompt, MaxTokens: 1 + rnd.IntN(12)})
			require.NoError(r.t, err)
			added++
		}
		p := r.sched.Plan(0)
		if before != nil {
			before(p)
		}
		step, err := r.exec.Submit(r.t.Context(), p)
		require.NoError(r.t, err)
		tokens, err := step.Wait(r.t.Context(), nil)
		require.NoError(r.t, err)
		for i, yields := range p.Samples {
			if yields == 0 {
				continue
			}
			logits, err := r.exec.Logits(r.t.Context(), i)
			require.NoError(r.t, err)
			var b []byte
			for _, x := range logits {
				require.False(r.t, math.IsNaN(float64(x)), "plan %d, row %d", p.Seq, i)
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
			}
			out = append(out, b)
		}
		_, err = r.sched.Apply(p, scheduler.Result{Tokens: tokens})
		require.NoError(r.t, err)
	}
	return out
}

// The built-in model computes the same bytes eagerly and with graphs of every
// mode, on the host and on the emulated Ascend runtime, over batches of random
// requests, whatever lies in padding and in the buffers that steps leave behind.
func TestEveryModeGivesTheSameBytes(t *testing.T) {
	modes := []graphs.ModeConfig{graphs.ModePiecewise, graphs.ModeFullDecodeOnly, graphs.ModeFullAndPiecewise, graphs.ModeFull}
	if byteSeeds == 1 {
		modes = modes[2:3]
	}
	onHost := func(c Config) *rig {
		dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
		require.NoError(t, err)
		return rigOn(t, dev, c)
	}
	equal := func(want, got [][]byte, what string) {
		require.Equal(t, len(want), len(got), what)
		for i := range want {
			require.True(t, bytes.Equal(want[i], got[i]), "%s: row %d differs", what, i)
		}
	}
	for _, half := range []bool{false, true} {
		config := func(mode graphs.ModeConfig) Config {
			c := ascendConfig(mode, 64, 1)
			if !half {
				c.Type, c.Blocks, c.BlockSize = ascendrt.Float32, 400, 4
			}
			return c
		}
		for seed := range uint64(byteSeeds) {
			want := onHost(config(graphs.ModeNone)).record(seed, nil)
			require.Greater(t, len(want), 12)
			for _, mode := range modes {
				r := onHost(config(mode))
				full := 0
				equal(want, r.record(seed, func(p *scheduler.Plan) {
					r.poison()
					if p.Graph.Mode == graphs.Full {
						full++
					}
				}), mode.String())
				require.Equal(t, mode != graphs.ModePiecewise, full > 0, "%s replays FULL graphs", mode)
			}

			// The control: one block of a request that runs on is overwritten.
			r := onHost(config(graphs.ModeFullDecodeOnly))
			noisy := r.record(seed, func(p *scheduler.Plan) {
				for i, id := range p.Requests {
					if p.Kinds[i] == scheduler.RowRunning {
						require.NoError(t, r.exec.Noise(t.Context(), r.exec.Blocks(id)[0], seed))
					}
				}
			})
			require.NotEqual(t, want, noisy)
		}
	}
	for _, mode := range append([]graphs.ModeConfig{graphs.ModeNone}, modes...) {
		t.Run("ascend/"+mode.String(), func(t *testing.T) {
			want := onHost(ascendConfig(graphs.ModeNone, 64, 1)).record(3, nil)
			r := rigOn(t, ascend.Open(t), ascendConfig(mode, 64, 1))
			got := r.record(3, func(*scheduler.Plan) { r.poison() })
			equal(want, got, mode.String())
		})
	}
}
