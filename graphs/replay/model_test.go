package replay

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
	"github.com/sluice-serving/sluice/graphs"
)

// A small decoder made of the operations of the device: layers of attention
// over a paged cache and of a gated delta rule with a state per position.

type layerKind uint8

const (
	attentionLayer layerKind = iota
	deltaLayer
)

const (
	vocab, hidden, heads, kvHeads, ffn = 61, 16, 2, 1, 24
	blockSize, maxLen                  = 4, 64
)

// storage is how a device keeps the model.
type storage struct {
	typ                ascendrt.DType
	headDim            int
	block, pool, width int // tokens per block, blocks, blocks per request
}

var (
	wide = storage{ascendrt.Float32, 8, blockSize, 200, 16}
	half = storage{ascendrt.BFloat16, 16, 128, 1 + armSeqs, 1} // what Ascend takes
)

// blocks is the table of a request.
func (s storage) blocks(slot int) []int32 {
	var out []int32
	for i := range s.width {
		out = append(out, int32(1+slot*s.width+i)%int32(s.pool))
	}
	return out
}

type layer struct {
	kind                       layerKind
	norm1, norm2               ascendrt.Tensor
	proj, gates, out, up, down ascendrt.Tensor // proj: q, k, v
	kcache, vcache, states     ascendrt.Tensor
}

type model struct {
	t      testing.TB
	dev    ascendrt.Device
	stream ascendrt.Stream
	static *Static
	seqs   int
	kept   storage
	rows   int

	embed, finalNorm, rope                            ascendrt.Tensor
	x, y, qkv, gateBuf, mixed, upBuf, ffnBuf, res     ascendrt.Tensor
	opEmbed, opNorm, opAddNorm, opQKV, opGates, opOut ascendrt.Op
	opUp, opDown, opAct, opRope, opScatter, opAttn    ascendrt.Op
	opDelta, opDeltaIn, opLogits                      ascendrt.Op
	layers                                            []layer
	activations                                       []ascendrt.Tensor

	prepared, recorded int // calls, for the order of warm-up and capture
	unbroken           bool
	workspace          int
}

func f32Bytes(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

func newModel(t testing.TB, dev ascendrt.Device, stream ascendrt.Stream, kept storage, kinds []layerKind, maxTokens, seqs, states int, padding Padding) *model {
	t.Helper()
	headDim := kept.headDim
	m := &model{t: t, dev: dev, stream: stream, seqs: seqs, kept: kept, rows: maxTokens}
	var err error
	m.static, err = NewStatic(dev, StaticConfig{MaxTokens: maxTokens, MaxReqs: seqs, TableWidth: kept.width + maxTokens/kept.block + 1, Padding: padding})
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(7, 11))
	random := func(scale float64, dims ...int) ascendrt.Tensor {
		n := 1
		for _, d := range dims {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64() * scale)
		}
		return m.upload(kept.typ, v, dims...)
	}
	ones := func(n int) ascendrt.Tensor {
		v := make([]float32, n)
		for i := range v {
			v[i] = 1
		}
		return m.upload(kept.typ, v, n)
	}
	act := func(width int) ascendrt.Tensor {
		x := m.alloc(kept.typ, maxTokens, width)
		m.activations = append(m.activations, x)
		return x
	}
	width := (heads + 2*kvHeads) * headDim
	m.embed, m.finalNorm = random(1, vocab, hidden), ones(hidden)
	m.rope = m.upload(ascendrt.Float32, ascendrt.RopeTable(maxLen+16, headDim, 10000), maxLen+16, headDim)
	m.x, m.y, m.res = act(hidden), act(hidden), act(hidden)
	m.qkv, m.gateBuf, m.mixed = act(3*heads*headDim), act(2*heads), act(heads*headDim)
	m.upBuf, m.ffnBuf = act(2*ffn), act(ffn)

	m.opEmbed = m.plan(ascendrt.OpEmbedding, ascendrt.EmbeddingAttr{Vocab: vocab, Hidden: hidden})
	m.opNorm = m.plan(ascendrt.OpRMSNorm, ascendrt.NormAttr{Dim: hidden, Eps: 1e-6})
	m.opAddNorm = m.plan(ascendrt.OpAddRMSNorm, ascendrt.NormAttr{Dim: hidden, Eps: 1e-6})
	m.opOut = m.plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: heads * headDim, Out: hidden})
	m.opUp = m.plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: hidden, Out: 2 * ffn})
	m.opDown = m.plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: ffn, Out: hidden})
	m.opAct = m.plan(ascendrt.OpSwiGLU, ascendrt.SwiGLUAttr{Dim: ffn})
	m.opLogits = m.plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: hidden, Out: vocab})
	m.opQKV = m.plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: hidden, Out: width})
	m.opRope = m.plan(ascendrt.OpRope, ascendrt.RopeAttr{Heads: heads, KVHeads: kvHeads, HeadDim: headDim, MaxPosition: maxLen + 16})
	m.opScatter = m.plan(ascendrt.OpKVScatter, ascendrt.ScatterAttr{KVHeads: kvHeads, HeadDim: headDim, BlockSize: kept.block})
	m.opAttn = m.plan(ascendrt.OpAttention, ascendrt.AttentionAttr{Heads: heads, KVHeads: kvHeads, HeadDim: headDim, BlockSize: kept.block})

	for _, k := range kinds {
		l := layer{
			kind: k, norm1: ones(hidden), norm2: ones(hidden), out: random(0.5, hidden, heads*headDim),
			up: random(0.5, 2*ffn, hidden), down: random(0.5, hidden, ffn),
		}
		if k == attentionLayer {
			l.proj = random(0.6, width, hidden)
			l.kcache = m.alloc(kept.typ, kept.pool, kept.block, kvHeads, headDim)
			l.vcache = m.alloc(kept.typ, kept.pool, kept.block, kvHeads, headDim)
		} else {
			if m.opDelta == nil {
				m.opDelta = m.plan(host.OpGatedDelta, host.GatedDeltaAttr{Heads: heads, HeadDim: headDim})
				m.opDeltaIn = m.plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: hidden, Out: 3 * heads * headDim})
				m.opGates = m.plan(ascendrt.OpMatmul, ascendrt.MatmulAttr{In: hidden, Out: 2 * heads})
			}
			l.proj, l.gates = random(0.1, 3*heads*headDim, hidden), random(0.5, 2*heads, hidden)
			l.states = m.alloc(ascendrt.Float32, states, heads, headDim, headDim)
		}
		m.layers = append(m.layers, l)
	}
	return m
}

func (m *model) plan(k ascendrt.OpKind, attr any) ascendrt.Op {
	o, err := m.dev.Plan(ascendrt.OpSpec{Kind: k, Type: m.kept.typ, MaxRows: m.rows, Attr: attr})
	require.NoError(m.t, err)
	m.workspace = max(m.workspace, o.Workspace())
	return o
}

func (m *model) alloc(typ ascendrt.DType, dims ...int) ascendrt.Tensor {
	n := typ.Size()
	for _, d := range dims {
		n *= d
	}
	b, err := m.dev.Alloc(n, ascendrt.PlaceDefault)
	require.NoError(m.t, err)
	return ascendrt.NewTensor(b.View(), typ, dims...)
}

func (m *model) upload(typ ascendrt.DType, v []float32, dims ...int) ascendrt.Tensor {
	x := m.alloc(typ, dims...)
	data := f32Bytes(v)
	if typ == ascendrt.BFloat16 {
		data = data[:0]
		for _, f := range v {
			data = binary.NativeEndian.AppendUint16(data, arith.BF16(f))
		}
	}
	require.NoError(m.t, ascendrt.Upload(context.Background(), m.dev, m.stream, x.View, data))
	return x
}

func (m *model) download(x ascendrt.Tensor) []byte {
	out := make([]byte, x.Bytes())
	require.NoError(m.t, ascendrt.Download(context.Background(), m.dev, m.stream, out, x.View))
	return out
}

// poison fills the null block, the null state and all activations with NaN.
func (m *model) poison(c *ascendrt.Commands) {
	headDim := m.kept.headDim
	for _, a := range m.activations {
		c.Fill(a.View, 0xff)
	}
	for _, l := range m.layers {
		if l.kind == attentionLayer {
			n := m.kept.typ.Size() * m.kept.block * kvHeads * headDim
			c.Fill(l.kcache.View.Slice(0, n), 0xff)
			c.Fill(l.vcache.View.Slice(0, n), 0xff)
		} else {
			c.Fill(l.states.View.Slice(0, 4*heads*headDim*headDim), 0xff)
		}
	}
}

var _ Program = (*model)(nil)

func (m *model) ResultRows(s Shape) int { return s.Tokens }

func (m *model) Prepare(c *ascendrt.Commands, s Shape) error {
	m.prepared++
	g, err := m.static.Dummy(s, graphs.CaptureRows(s.Key, m.seqs))
	if err != nil {
		return err
	}
	g.Upload(c)
	return nil
}

func (m *model) Record(p *Pass) error {
	m.recorded++
	n, s, headDim := p.Shape().Tokens, m.static, m.kept.headDim
	op := func(o ascendrt.Op, args ...ascendrt.Tensor) { p.Commands().Op(o, p.Workspace(), args...) }
	x, y, res := m.x.First(n), m.y.First(n), m.res.First(n)
	brk := p.Break
	if m.unbroken {
		brk = func(f func(*Pass) error) error { return f(p) }
	}
	op(m.opEmbed, s.IDs.First(n), m.embed, res)
	op(m.opNorm, res, m.layers[0].norm1, y)
	for i := range m.layers {
		l := &m.layers[i]
		var err error
		if l.kind == attentionLayer {
			qkv := m.qkv
			qkv.Dim[1], qkv.RowStride = (heads+2*kvHeads)*headDim, m.qkv.Stride()
			qkv = qkv.First(n)
			q, k, v := qkv.Columns(0, heads*headDim), qkv.Columns(heads*headDim, kvHeads*headDim), qkv.Columns((heads+kvHeads)*headDim, kvHeads*headDim)
			op(m.opQKV, y, l.proj, qkv)
			op(m.opRope, q, k, s.Positions.First(n), m.rope)
			op(m.opScatter, k, v, s.Slots.First(n), l.kcache, l.vcache)
			err = brk(func(p *Pass) error {
				r := p.Shape().Reqs
				p.Attention(m.opAttn, q, l.kcache, l.vcache, s.Table.First(r), s.Starts.First(r+1), s.Lens.First(r), m.mixed.First(n))
				return nil
			})
		} else {
			qkv := m.qkv.First(n)
			w := heads * headDim
			op(m.opDeltaIn, y, l.proj, qkv)
			op(m.opGates, y, l.gates, m.gateBuf.First(n))
			err = brk(func(p *Pass) error {
				r := p.Shape().Reqs
				p.Commands().Op(m.opDelta, p.Workspace(), qkv.Columns(0, w), qkv.Columns(w, w), qkv.Columns(2*w, w), m.gateBuf.First(n),
					s.Starts.First(r+1), s.StateIn.First(r), s.StateOut.First(n), l.states, m.mixed.First(n))
				return nil
			})
		}
		if err != nil {
			return err
		}
		op(m.opOut, m.mixed.First(n), l.out, x)
		op(m.opAddNorm, x, res, l.norm2, y)
		op(m.opUp, y, l.up, m.upBuf.First(n))
		op(m.opAct, m.upBuf.First(n), m.ffnBuf.First(n))
		op(m.opDown, m.ffnBuf.First(n), l.down, x)
		next := m.finalNorm
		if i+1 < len(m.layers) {
			next = m.layers[i+1].norm1
		}
		op(m.opAddNorm, x, res, next, y)
	}
	op(m.opLogits, y, m.embed, p.Result().First(n))
	return nil
}
