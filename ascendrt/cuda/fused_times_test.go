//go:build cgo && linux

package cuda

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// TestFusedTimes prints the time of each fused operation of a decode step, in
// microseconds: a graph of 28 calls, each with weights and a cache of its own,
// divided by 28. It runs where SLUICE_CUDA_TIMES lists numbers of sequences.
func TestFusedTimes(t *testing.T) {
	list := os.Getenv("SLUICE_CUDA_TIMES")
	if list == "" {
		t.Skip("SLUICE_CUDA_TIMES is not set")
	}
	b := fusedBench(t)
	const layers, hidden, ffn, hq, hk, d, bs, context = 28, 1024, 3072, 16, 8, 128, 64, 1024
	room := func(typ ascendrt.DType, dims ...int) ascendrt.Tensor {
		n := typ.Size()
		for _, x := range dims {
			n *= x
		}
		buf, err := b.d.Alloc(n, ascendrt.PlaceDefault)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, buf.FreeAfter(ascendrt.Point{})) })
		return ascendrt.NewTensor(buf.View(), typ, dims...)
	}
	noise := func(dims ...int) ascendrt.Tensor {
		x := room(ascendrt.BFloat16, dims...)
		flat := ascendrt.NewTensor(x.View, x.Type, x.Rows(), x.RowLen())
		b.run(ascendrt.OpNoise, 0, ascendrt.NoiseAttr{Dim: x.RowLen(), Seed: 1, Factor: 1e-6}, flat)
		return x
	}
	bf := ascendrt.BFloat16
	var qkvW, outW, ffnW, downW, kc, vc []ascendrt.Tensor
	most := 0
	var sizes []int
	for _, f := range strings.Split(list, ",") {
		n, err := strconv.Atoi(f)
		require.NoError(t, err)
		sizes, most = append(sizes, n), max(most, n)
	}
	per := context / bs
	for range layers {
		qkvW, outW = append(qkvW, noise((hq+2*hk)*d, hidden)), append(outW, noise(hidden, hq*d))
		ffnW, downW = append(ffnW, noise(2*ffn, hidden)), append(downW, noise(hidden, ffn))
		kc, vc = append(kc, noise(most*per+1, bs, hk, d)), append(vc, noise(most*per+1, bs, hk, d))
	}
	gain, headGain := noise(hidden), noise(d)
	ropes := b.floats(ascendrt.RopeTable(2048, d, 1e6), 2048, d)
	for _, n := range sizes {
		h, near := room(ascendrt.Float32, n, hidden), noise(min(n, ascendrt.NearRows), hidden)
		qkv, att, mid := noise(n, (hq+2*hk)*d), noise(n, hq*d), noise(n, ffn)
		pos, slots, starts, lens, table := make([]int32, n), make([]int32, n), make([]int32, n+1), make([]int32, n), make([]int32, n*per)
		for i := range n {
			pos[i], starts[i+1], lens[i] = context-1, int32(i+1), context
			for j := range per {
				table[i*per+j] = int32(1 + i*per + j)
			}
			slots[i] = table[i*per+per-1]*bs + bs - 1
		}
		tp, tslots, tstarts, tlens, ttable := b.ints(pos), b.ints(slots), b.ints(starts), b.ints(lens), b.ints(table, n, per)
		type call struct {
			name string
			kind ascendrt.OpKind
			attr any
			args func(l int) []ascendrt.Tensor
		}
		type T = []ascendrt.Tensor
		calls := []call{
			{"qkv", ascendrt.OpLinear, ascendrt.LinearAttr{In: hidden, Out: (hq + 2*hk) * d, Norm: true, Eps: 1e-6}, func(l int) T { return T{h, near, gain, qkvW[l], qkv} }},
			{"rotate", ascendrt.OpRotateWrite, ascendrt.RotateAttr{Heads: hq, KVHeads: hk, HeadDim: d, BlockSize: bs, MaxPosition: 2048, Norm: true, Eps: 1e-6},
				func(l int) T { return T{qkv, headGain, headGain, tp, ropes, tslots, kc[l], vc[l]} }},
			{"attention", ascendrt.OpAttention, ascendrt.AttentionAttr{Heads: hq, KVHeads: hk, HeadDim: d, BlockSize: bs, Order: ascendrt.SumFree, MaxQuery: 1},
				func(l int) T { return T{qkv.Columns(0, hq*d), kc[l], vc[l], ttable, tstarts, tlens, att} }},
			{"out", ascendrt.OpLinear, ascendrt.LinearAttr{In: hq * d, Out: hidden, Epilogue: ascendrt.EpilogueAdd}, func(l int) T { return T{att, outW[l], h, near} }},
			{"ffn", ascendrt.OpLinear, ascendrt.LinearAttr{In: hidden, Out: ffn, Norm: true, Eps: 1e-6, Epilogue: ascendrt.EpilogueSwiGLU}, func(l int) T { return T{h, near, gain, ffnW[l], mid} }},
			{"down", ascendrt.OpLinear, ascendrt.LinearAttr{In: ffn, Out: hidden, Epilogue: ascendrt.EpilogueAdd}, func(l int) T { return T{mid, downW[l], h, near} }},
		}
		var ops []ascendrt.Op
		ws := 0
		for _, c := range calls {
			op, err := b.d.Plan(ascendrt.OpSpec{Kind: c.kind, Type: bf, MaxRows: n, Attr: c.attr})
			require.NoError(t, err)
			ops, ws = append(ops, op), max(ws, op.Workspace())
		}
		work := room(ascendrt.Uint8, ws)
		measure := func(name string, with func(i int) bool) {
			var c ascendrt.Commands
			record := func() {
				for l := range layers {
					for i, op := range ops {
						if with(i) {
							c.Op(op, work.View, calls[i].args(l)...)
						}
					}
				}
			}
			record()
			p, _, err := b.s.Submit(&c)
			require.NoError(t, err)
			require.NoError(t, p.Wait(t.Context()))
			g, err := b.d.Capture(b.s, &c, ascendrt.CaptureOptions{})
			require.NoError(t, err)
			defer g.Close()
			var us []float64
			for range 30 {
				c.Reset()
				for range 4 {
					c.Graph(g)
				}
				t0 := time.Now()
				p, _, err := b.s.Submit(&c)
				require.NoError(t, err)
				require.NoError(t, p.Wait(t.Context()))
				us = append(us, time.Since(t0).Seconds()*1e6/4/layers)
			}
			slices.Sort(us)
			fmt.Printf("times %d %s %.2f\n", n, name, us[len(us)/2])
		}
		for i := range calls {
			measure(calls[i].name, func(j int) bool { return i == j })
		}
		measure("layer", func(int) bool { return true })
		for i := range calls {
			measure("without-"+calls[i].name, func(j int) bool { return i != j })
		}
		for _, op := range ops {
			require.NoError(t, op.Close())
		}
	}
}
