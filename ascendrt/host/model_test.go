package host

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-serving/sluice/ascendrt"
)

// BenchmarkDecoderLayers runs a decoder of the size of the built-in model on
// one core: 4 layers, hidden 128, 8 query and 2 KV heads of 32, ffn 384.
func BenchmarkDecoderLayers(b *testing.B) {
	for _, typ := range []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16} {
		for _, rows := range []int{512, 1} {
			for _, lay := range []ascendrt.WeightLayout{ascendrt.WeightsMK, ascendrt.WeightsKM} {
				b.Run(fmt.Sprintf("%v/rows=%d/%v", typ, rows, lay), func(b *testing.B) { benchLayers(b, typ, rows, lay) })
			}
		}
	}
}

func benchLayers(b *testing.B, typ ascendrt.DType, rows int, lay ascendrt.WeightLayout) {
	const layers, hidden, hq, hk, dim, ffn, bs, ctx = 4, 128, 8, 2, 32, 384, 16, 512
	d, err := Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close(context.Background())
	s, _ := d.NewStream(ascendrt.StreamOptions{})
	rng := rand.New(rand.NewPCG(1, 1))
	alloc := func(t ascendrt.DType, dims ...int) ascendrt.Tensor {
		n := 1
		for _, v := range dims {
			n *= v
		}
		buf, _ := d.Alloc(n*t.Size(), ascendrt.PlaceDefault)
		x := ascendrt.NewTensor(buf.View(), t, dims...)
		if t != ascendrt.Int32 {
			data := make([]byte, n*t.Size())
			if t == ascendrt.Float32 {
				for i := range n {
					typed[float32](data)[i] = float32(rng.NormFloat64()) * 0.1
				}
			} else {
				for i := range n {
					typed[uint16](data)[i] = uint16(0x3c00 + rng.IntN(256) + rng.IntN(2)<<15)
				}
			}
			_ = ascendrt.Upload(context.Background(), d, s, x.View, data)
		}
		return x
	}
	ints := func(x []int32) ascendrt.Tensor {
		t := alloc(ascendrt.Int32, len(x))
		_ = ascendrt.Upload(context.Background(), d, s, t.View, bytesOf(x))
		return t
	}
	plan := func(k ascendrt.OpKind, attr any) ascendrt.Op {
		o, err := d.Plan(ascendrt.OpSpec{Kind: k, Type: typ, Attr: attr})
		if err != nil {
			b.Fatal(err)
		}
		return o
	}
	weight := func(out, in int) ascendrt.Tensor {
		if lay == ascendrt.WeightsKM {
			return alloc(typ, in, out)
		}
		return alloc(typ, out, in)
	}
	mm := func(in, out int) ascendrt.Op {
		return plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: in, Out: out, Weights: lay})
	}
	qkvW := (hq + 2*hk) * dim
	norm, headNorm := plan(ascendrt.OpAddRMSNorm, ascendrt.NormAttr{Dim: hidden, Eps: 1e-6}), plan(ascendrt.OpRMSNorm, ascendrt.NormAttr{Dim: dim, Groups: hq, Eps: 1e-6})
	kNorm := plan(ascendrt.OpRMSNorm, ascendrt.NormAttr{Dim: dim, Groups: hk, Eps: 1e-6})
	rope := plan(ascendrt.OpRope, ascendrt.RopeAttr{Heads: hq, KVHeads: hk, HeadDim: dim, MaxPosition: ctx})
	scat := plan(ascendrt.OpKVScatter, ascendrt.ScatterAttr{KVHeads: hk, HeadDim: dim, BlockSize: bs})
	att := plan(ascendrt.OpAttention, ascendrt.AttentionAttr{Heads: hq, KVHeads: hk, HeadDim: dim, BlockSize: bs})
	act := plan(ascendrt.OpSwiGLU, ascendrt.SwiGLUAttr{Dim: ffn})
	qkvOp, oOp, upOp, downOp := mm(hidden, qkvW), mm(hq*dim, hidden), mm(hidden, 2*ffn), mm(ffn, hidden)

	pos, slots, table := make([]int32, rows), make([]int32, rows), make([]int32, ctx/bs)
	for i := range rows {
		pos[i] = int32(ctx - rows + i)
		slots[i] = pos[i] + bs
	}
	for i := range table {
		table[i] = int32(i + 1)
	}
	x, res, y := alloc(typ, rows, hidden), alloc(typ, rows, hidden), alloc(typ, rows, hidden)
	qkv, ao, gate, up := alloc(typ, rows, qkvW), alloc(typ, rows, hq*dim), alloc(typ, rows, 2*ffn), alloc(typ, rows, ffn)
	pt, st := ints(pos), ints(slots)
	tb := ints(table)
	tb.Rank, tb.Dim = 2, [4]int{1, len(table)}
	starts, lens := ints([]int32{0, int32(rows)}), ints([]int32{ctx})
	cs := alloc(ascendrt.Float32, ctx, dim)
	wn, wh := alloc(typ, hidden), alloc(typ, dim)
	var c ascendrt.Commands
	for range layers {
		kc, vc := alloc(typ, ctx/bs+1, bs, hk, dim), alloc(typ, ctx/bs+1, bs, hk, dim)
		none := ascendrt.View{}
		c.Op(norm, none, x, res, wn, y)
		c.Op(qkvOp, none, y, weight(qkvW, hidden), qkv)
		q, k, v := qkv.Columns(0, hq*dim), qkv.Columns(hq*dim, hk*dim), qkv.Columns((hq+hk)*dim, hk*dim)
		c.Op(headNorm, none, q, wh, q)
		c.Op(kNorm, none, k, wh, k)
		c.Op(rope, none, q, k, pt, cs)
		c.Op(scat, none, k, v, st, kc, vc)
		c.Op(att, none, q, kc, vc, tb, starts, lens, ao)
		c.Op(oOp, none, ao, weight(hidden, hq*dim), x)
		c.Op(norm, none, x, res, wn, y)
		c.Op(upOp, none, y, weight(2*ffn, hidden), gate)
		c.Op(act, none, gate, up)
		c.Op(downOp, none, up, weight(hidden, ffn), x)
	}
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var launch ascendrt.Commands
	launch.Graph(g)
	for b.Loop() {
		p, _, err := s.Submit(&launch)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
