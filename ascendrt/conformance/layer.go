package conformance

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// layer is one decoder layer with everything between two residuals, over the
// parts of a fused projection, for a prefill of 9 tokens, a decode and padding.
type layer struct {
	b    *bench
	bufs []ascendrt.Buffer
	ops  []ascendrt.Op
	ws   ascendrt.Buffer

	res, kc, vc, ids ascendrt.Tensor
	rec              func(c *ascendrt.Commands)
	att              ascendrt.OpRef
	lens, starts     []int64
}

const (
	layerRows, layerHidden, layerHeads, layerKV, layerDim, layerFFN = 12, 64, 4, 2, 16, 96
	layerBlocks                                                     = 6
)

func newLayer(b *bench, typ ascendrt.DType, blockSize int) *layer {
	l := &layer{b: b}
	m := maker{rand.New(rand.NewPCG(21, uint64(typ)))}
	put := func(v value) ascendrt.Tensor {
		buf := b.alloc(len(v.data))
		b.write(buf.View(), v.data)
		l.bufs = append(l.bufs, buf)
		v.t.View = buf.View()
		return v.t
	}
	need := 1
	plan := func(k ascendrt.OpKind, attr any) ascendrt.Op {
		op, err := b.d.Plan(ascendrt.OpSpec{Kind: k, Type: typ, MaxRows: layerRows, Attr: attr})
		require.NoError(b.t, err)
		l.ops = append(l.ops, op)
		need = max(need, op.Workspace())
		return op
	}
	const h, hq, hk, d, f = layerHidden, layerHeads, layerKV, layerDim, layerFFN
	const fused = (hq + 2*hk) * d
	norm := plan(ascendrt.OpAddRMSNorm, ascendrt.NormAttr{Dim: h, Eps: 1e-6})
	qn := plan(ascendrt.OpRMSNorm, ascendrt.NormAttr{Dim: d, Groups: hq, Eps: 1e-6})
	kn := plan(ascendrt.OpRMSNorm, ascendrt.NormAttr{Dim: d, Groups: hk, Eps: 1e-6})
	mm := func(in, out int) ascendrt.Op {
		return plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: in, Out: out, Weights: ascendrt.WeightsKM})
	}
	qkvOp, outOp, upOp, downOp := mm(h, fused), mm(hq*d, h), mm(h, 2*f), mm(f, h)
	rope := plan(ascendrt.OpRope, ascendrt.RopeAttr{Heads: hq, KVHeads: hk, HeadDim: d, MaxPosition: 64})
	scatter := plan(ascendrt.OpKVScatter, ascendrt.ScatterAttr{KVHeads: hk, HeadDim: d, BlockSize: blockSize})
	att := plan(ascendrt.OpAttention, ascendrt.AttentionAttr{Heads: hq, KVHeads: hk, HeadDim: d, BlockSize: blockSize})
	act := plan(ascendrt.OpSwiGLU, ascendrt.SwiGLUAttr{Dim: f})
	best := plan(ascendrt.OpArgmax, ascendrt.ArgmaxAttr{Dim: h})
	l.ws = b.alloc(need)

	x, y := put(m.floats(typ, 1, layerRows, h)), put(m.out(typ, layerRows, h))
	l.res = put(m.floats(typ, 1, layerRows, h))
	qkv, ao := put(m.out(typ, layerRows, fused)), put(m.out(typ, layerRows, hq*d))
	gate, up := put(m.out(typ, layerRows, 2*f)), put(m.out(typ, layerRows, f))
	l.kc, l.vc = put(m.floats(typ, 1, layerBlocks, blockSize, hk, d)), put(m.floats(typ, 1, layerBlocks, blockSize, hk, d))
	l.ids = put(m.out(ascendrt.Int32, layerRows))
	w := put(m.floats(typ, 1, h))
	wh := put(m.floats(typ, 1, d))
	wqkv, wo := put(m.floats(typ, 0.1, h, fused)), put(m.floats(typ, 0.1, hq*d, h))
	wup, wdown := put(m.floats(typ, 0.1, h, 2*f)), put(m.floats(typ, 0.1, f, h))
	table := put(m.of(ascendrt.Float32, ascendrt.RopeTable(64, d, 1e4), 64, d))
	pos, slots := make([]int32, layerRows), make([]int32, layerRows)
	for i := range pos {
		switch {
		case i < 9:
			pos[i], slots[i] = int32(i), int32(blockSize+i)
		case i == 9:
			pos[i], slots[i] = 40, int32((2+40/blockSize)*blockSize+40%blockSize)
		default:
			pos[i], slots[i] = -1, -1
		}
	}
	pt, st := put(m.ints(pos)), put(m.ints(slots))
	tb := put(m.ints([]int32{1, -1, -1, 2, 3, 4, -1, -1, -1}, 3, 3))
	starts, lens := put(m.ints([]int32{0, 9, 10, 12})), put(m.ints([]int32{9, 41, 0}))
	l.lens, l.starts = []int64{9, 41, 0}, []int64{0, 9, 10, 12}
	ws := l.ws.View()
	l.rec = func(c *ascendrt.Commands) {
		c.Op(norm, ws, x, l.res, w, y)
		c.Op(qkvOp, ws, y, wqkv, qkv)
		q, k, v := qkv.Columns(0, hq*d), qkv.Columns(hq*d, hk*d), qkv.Columns((hq+hk)*d, hk*d)
		c.Op(qn, ws, q, wh, q)
		c.Op(kn, ws, k, wh, k)
		c.Op(rope, ws, q, k, pt, table)
		c.Op(scatter, ws, k, v, st, l.kc, l.vc)
		if b.d.Caps().HostLengths {
			c.SlotValues(0, l.lens...)
			c.SlotValues(1, l.starts...)
		}
		l.att = c.Op(att, ws, q, l.kc, l.vc, tb, starts, lens, ao)
		c.Op(outOp, ws, ao, wo, x)
		c.Op(norm, ws, x, l.res, w, y)
		c.Op(upOp, ws, y, wup, gate)
		c.Op(act, ws, gate, up)
		c.Op(downOp, ws, up, wdown, x)
		c.Op(best, ws, x, l.ids)
	}
	return l
}

func (l *layer) results() [][]byte {
	return [][]byte{l.b.read(l.res.View), l.b.read(l.kc.View), l.b.read(l.vc.View), l.b.read(l.ids.View)}
}

func (l *layer) close() {
	for _, x := range l.bufs {
		l.b.free(x)
	}
	l.b.free(l.ws)
	for _, o := range l.ops {
		require.NoError(l.b.t, o.Close())
	}
}

// testLayer runs a layer three times over its own output, eagerly and as a
// graph; both must be what the host backend computes.
func testLayer(t *testing.T, s Suite) {
	for _, typ := range []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16} {
		t.Run(typ.String(), func(t *testing.T) {
			if s.lacks(ascendrt.OpSpec{Kind: ascendrt.OpAttention, Type: typ, Attr: ascendrt.AttentionAttr{
				Heads: layerHeads, KVHeads: layerKV, HeadDim: layerDim, BlockSize: s.blockSize()}}) {
				t.Skip("the device has no attention over ", typ)
			}
			ref, b := hostBench(t), s.bench(t, ascendrt.OpenOptions{})
			exact := b.d.Caps().DeterministicReduce
			want := newLayer(ref, typ, s.blockSize())
			eager, captured := newLayer(b, typ, s.blockSize()), newLayer(b, typ, s.blockSize())
			g := b.capture(ascendrt.CaptureOptions{}, captured.rec)
			for i := range 3 {
				ref.do(want.rec)
				b.do(eager.rec)
				b.launch(g)
				w, e, c := want.results(), eager.results(), captured.results()
				for k := range w {
					typ := []ascendrt.DType{typ, typ, typ, ascendrt.Int32}[k]
					if !exact && typ == ascendrt.Int32 {
						require.Equal(t, e[k], c[k], "eager and captured")
						continue
					}
					requireClose(t, s, exact, typ, w[k], e[k], fmt.Sprintf("eager, run %d, result %d", i, k))
					requireClose(t, s, true, typ, e[k], c[k], fmt.Sprintf("captured, run %d, result %d", i, k))
				}
			}
			require.NoError(t, g.Close())
			want.close()
			eager.close()
			captured.close()
			b.closed()
		})
	}
}
