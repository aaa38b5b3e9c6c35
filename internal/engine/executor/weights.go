package executor

import (
	"context"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// layerWeights are the tensors of one transformer block on the device. The
// projections that read the same input are one matrix.
type layerWeights struct {
	inNorm, qkv, qNorm, kNorm, out, postNorm, gateUp, down ascendrt.Tensor

	router ascendrt.Tensor // of experts, whose matrices are stacked in gateUp and down
}

type deviceWeights struct {
	embed  ascendrt.Tensor // [V,H]
	head   ascendrt.Tensor // the output projection, in the layout of matrices
	norm   ascendrt.Tensor // of the final layer
	rope   ascendrt.Tensor // [MaxLen,D], as ascendrt.RopeTable lays it out
	layers []layerWeights
}

// loader moves tensors to the device; its first error stops it.
type loader struct {
	ctx context.Context
	e   *Executor
	w   model.Source
	err error
	f32 []float32 // scratch
}

func (e *Executor) loadWeights(ctx context.Context, w model.Source) (deviceWeights, error) {
	c := e.c.Model
	l := &loader{ctx: ctx, e: e, w: w}
	d := deviceWeights{embed: l.stack(c.Hidden, part{model.EmbedName, c.Vocab})}
	switch {
	case !c.Tied:
		d.head = l.matrix(c.Hidden, part{model.HeadName, c.Vocab})
	case e.layout == ascendrt.WeightsMK:
		d.head = d.embed
	default:
		d.head = l.matrix(c.Hidden, part{model.EmbedName, c.Vocab})
	}
	d.norm = l.vector(model.FinalNormName, c.Hidden)
	d.rope = l.table(c.RopeTable(e.c.MaxLen), e.c.MaxLen, c.HeadDim)
	for i := range c.Layers {
		vec := func(name string, n int) ascendrt.Tensor { return l.vector(model.LayerName(i, name), n) }
		mat := func(in int, parts ...part) ascendrt.Tensor {
			for j := range parts {
				parts[j].name = model.LayerName(i, parts[j].name)
			}
			return l.matrix(in, parts...)
		}
		w := layerWeights{
			inNorm:   vec("input_layernorm", c.Hidden),
			qkv:      mat(c.Hidden, part{"self_attn.q_proj", c.QWidth()}, part{"self_attn.k_proj", c.KVWidth()}, part{"self_attn.v_proj", c.KVWidth()}),
			out:      mat(c.QWidth(), part{"self_attn.o_proj", c.Hidden}),
			postNorm: vec("post_attention_layernorm", c.Hidden),
		}
		if e.c.sparse() {
			w.router, w.gateUp, w.down = l.experts(i)
		} else {
			w.gateUp = mat(c.Hidden, part{"mlp.gate_proj", c.FFN}, part{"mlp.up_proj", c.FFN})
			w.down = mat(c.FFN, part{"mlp.down_proj", c.Hidden})
		}
		if c.HeadNorm {
			w.qNorm, w.kNorm = vec("self_attn.q_norm", c.HeadDim), vec("self_attn.k_norm", c.HeadDim)
		}
		d.layers = append(d.layers, w)
	}
	return d, l.err
}

// part is a tensor of some rows in a stack.
type part struct {
	name string
	rows int
}

// widenElements is how many elements are converted at a time.
const widenElements = 4 << 20

// vector uploads a tensor of one dimension.
func (l *loader) vector(name string, n int) ascendrt.Tensor {
	d := l.get(name, n)
	t := l.room(n)
	l.put(t, 0, d, n)
	return t
}

func (l *loader) get(name string, shape ...int) model.Data {
	if l.err != nil {
		return model.Data{}
	}
	d, err := l.w.Get(name, shape...)
	l.err = err
	return d
}

// room allocates a tensor of the storage type.
func (l *loader) room(dims ...int) ascendrt.Tensor {
	if l.err != nil {
		return ascendrt.Tensor{}
	}
	n := l.e.c.storage().Size()
	for _, d := range dims {
		n *= d
	}
	buf, err := l.e.alloc(n)
	if l.err = err; err != nil {
		return ascendrt.Tensor{}
	}
	return ascendrt.NewTensor(buf.View(), l.e.c.storage(), dims...)
}

// put writes n elements of d at an element of t, in t's type.
func (l *loader) put(t ascendrt.Tensor, at int, d model.Data, n int) {
	if l.err != nil {
		return
	}
	size := t.Type.Size()
	same := d.Noise == nil && (t.Type == ascendrt.BFloat16) == (d.Type == model.BF16) && d.Type != model.F16
	switch {
	case same:
		l.err = ascendrt.Upload(l.ctx, l.e.dev, l.e.stream, t.View.Slice(size*at, size*n), d.Raw)
		return
	case d.Noise != nil && l.e.ops.fused != nil:
		l.err = l.e.fillNoise(l.ctx, ascendrt.NewTensor(t.View.Slice(size*at, size*n), t.Type, 1, n), *d.Noise)
		return
	}
	for from := 0; from < n && l.err == nil; from += widenElements {
		some := min(widenElements, n-from)
		l.f32 = d.Widen(l.f32[:0], from, some)
		l.err = ascendrt.Upload(l.ctx, l.e.dev, l.e.stream, t.View.Slice(size*(at+from), size*some), l.e.stored(l.f32))
	}
}

// stack uploads matrices [rows,in] above each other.
func (l *loader) stack(in int, parts ...part) ascendrt.Tensor {
	rows := 0
	for _, p := range parts {
		rows += p.rows
	}
	t := l.room(rows, in)
	at := 0
	for _, p := range parts {
		l.put(t, at*in, l.get(p.name, p.rows, in), p.rows*in)
		at += p.rows
	}
	return t
}

// matrix stacks matrices over their outputs in the layout that the device prefers.
func (l *loader) matrix(in int, parts ...part) ascendrt.Tensor {
	if l.e.layout == ascendrt.WeightsMK {
		return l.stack(in, parts...)
	}
	turned := l.turned(in, parts...)
	if l.err != nil {
		return ascendrt.Tensor{}
	}
	t := l.room(in, len(turned)/in)
	l.put(t, 0, model.Data{Type: model.F32, Raw: model.Bytes(turned)}, len(turned))
	return t
}

// turned stacks matrices [rows,in] and gives the transpose, in fp32.
func (l *loader) turned(in int, parts ...part) []float32 {
	var all []float32
	for _, p := range parts {
		if d := l.get(p.name, p.rows, in); l.err == nil {
			all = d.Widen(all, 0, p.rows*in)
		}
	}
	if l.err != nil {
		return nil
	}
	out := len(all) / in
	turned := make([]float32, len(all))
	for m := range out {
		for k := range in {
			turned[k*out+m] = all[m*in+k]
		}
	}
	return turned
}

// table uploads fp32 values as they are.
func (l *loader) table(data []float32, dims ...int) ascendrt.Tensor {
	if l.err != nil {
		return ascendrt.Tensor{}
	}
	buf, err := l.e.alloc(4 * len(data))
	if err == nil {
		err = ascendrt.Upload(l.ctx, l.e.dev, l.e.stream, buf.View(), model.Bytes(data))
	}
	if l.err = err; err != nil {
		return ascendrt.Tensor{}
	}
	return ascendrt.NewTensor(buf.View(), ascendrt.Float32, dims...)
}

// stored gives values as they lie in memory; bfloat16 rounds each to nearest even.
func (e *Executor) stored(data []float32) []byte {
	if e.c.Type != ascendrt.BFloat16 {
		return model.Bytes(data)
	}
	half := make([]uint16, len(data))
	arith.ToBF16(half, data)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(half))), 2*len(half))
}

// intWords views bytes of pinned memory as int32 values.
func intWords(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
