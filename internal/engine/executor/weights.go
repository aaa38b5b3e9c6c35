package executor

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// layerWeights are the tensors of one transformer block on the device. The
// projections that read the same input are one matrix.
type layerWeights struct {
	inNorm, qkv, qNorm, kNorm, out, postNorm, gateUp, down ascendrt.Tensor
}

type deviceWeights struct {
	embed  ascendrt.Tensor // [V,H]
	head   ascendrt.Tensor // the embedding again, in the layout of matrices
	norm   ascendrt.Tensor // of the final layer
	rope   ascendrt.Tensor // [MaxLen,D], as ascendrt.RopeTable lays it out
	layers []layerWeights
}

// loader moves host arrays to the device; its first error stops it.
type loader struct {
	ctx context.Context
	e   *Executor
	w   model.Weights
	err error
}

func (e *Executor) loadWeights(ctx context.Context, w model.Weights) (deviceWeights, error) {
	c := e.c.Model
	l := &loader{ctx: ctx, e: e, w: w}
	embed := l.get(model.EmbedName, c.Vocab, c.Hidden)
	d := deviceWeights{
		embed: l.upload(embed, c.Vocab, c.Hidden),
		head:  l.matrix(c.Hidden, embed),
		norm:  l.vector(model.FinalNormName, c.Hidden),
		rope:  l.put(ascendrt.Float32, model.Bytes(ascendrt.RopeTable(e.c.MaxLen, c.HeadDim, c.RopeTheta)), e.c.MaxLen, c.HeadDim),
	}
	for i := range c.Layers {
		vec := func(part string, n int) ascendrt.Tensor { return l.vector(model.LayerName(i, part), n) }
		mat := func(part string, out, in int) []float32 { return l.get(model.LayerName(i, part), out, in) }
		d.layers = append(d.layers, layerWeights{
			inNorm: vec("input_layernorm", c.Hidden),
			qkv: l.matrix(c.Hidden, mat("self_attn.q_proj", c.QWidth(), c.Hidden),
				mat("self_attn.k_proj", c.KVWidth(), c.Hidden), mat("self_attn.v_proj", c.KVWidth(), c.Hidden)),
			qNorm:    vec("self_attn.q_norm", c.HeadDim),
			kNorm:    vec("self_attn.k_norm", c.HeadDim),
			out:      l.matrix(c.QWidth(), mat("self_attn.o_proj", c.Hidden, c.QWidth())),
			postNorm: vec("post_attention_layernorm", c.Hidden),
			gateUp:   l.matrix(c.Hidden, mat("mlp.gate_proj", c.FFN, c.Hidden), mat("mlp.up_proj", c.FFN, c.Hidden)),
			down:     l.matrix(c.FFN, mat("mlp.down_proj", c.Hidden, c.FFN)),
		})
	}
	return d, l.err
}

func (l *loader) get(name string, dims ...int) []float32 {
	n := 1
	for _, d := range dims {
		n *= d
	}
	data, ok := l.w[name]
	switch {
	case l.err != nil:
	case !ok:
		l.err = fmt.Errorf("weight %s is missing; the model needs it with shape %v", name, dims)
	case len(data) != n:
		l.err = fmt.Errorf("weight %s has %d elements; the model needs shape %v", name, len(data), dims)
	default:
		return data
	}
	return make([]float32, n)
}

func (l *loader) vector(name string, n int) ascendrt.Tensor { return l.upload(l.get(name, n), n) }

// matrix stacks matrices [M_i, in] over their outputs and uploads them in the
// layout that the device prefers.
func (l *loader) matrix(in int, parts ...[]float32) ascendrt.Tensor {
	var all []float32
	for _, p := range parts {
		all = append(all, p...)
	}
	out := len(all) / in
	if l.e.layout == ascendrt.WeightsMK {
		return l.upload(all, out, in)
	}
	t := make([]float32, len(all))
	for m := range out {
		for k := range in {
			t[k*out+m] = all[m*in+k]
		}
	}
	return l.upload(t, in, out)
}

func (l *loader) upload(data []float32, dims ...int) ascendrt.Tensor {
	if l.err != nil {
		return ascendrt.Tensor{}
	}
	return l.put(l.e.c.Type, l.e.stored(data), dims...)
}

func (l *loader) put(t ascendrt.DType, data []byte, dims ...int) ascendrt.Tensor {
	if l.err != nil {
		return ascendrt.Tensor{}
	}
	buf, err := l.e.alloc(len(data))
	if err == nil {
		err = ascendrt.Upload(l.ctx, l.e.dev, l.e.stream, buf.View(), data)
	}
	if l.err = err; err != nil {
		return ascendrt.Tensor{}
	}
	return ascendrt.NewTensor(buf.View(), t, dims...)
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
