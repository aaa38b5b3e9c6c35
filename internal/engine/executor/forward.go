package executor

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs/replay"
)

// activations are the buffers between the operations of a step, sized for the
// largest one. t is tokens, p places whose logits are computed.
type activations struct {
	hidden   ascendrt.Tensor // [t,H] the residual stream, binary32 with fused operations
	near     ascendrt.Tensor // [min(t,NearRows),H] the same rounded, with fused operations alone
	x        ascendrt.Tensor // [t,H] normalised
	qkv      ascendrt.Tensor // [t,Q+2KV] queries, keys and values side by side
	attended ascendrt.Tensor // [t,Q]
	y        ascendrt.Tensor // [t,H] what a half layer adds
	gateUp   ascendrt.Tensor // [t,2F]
	ffn      ascendrt.Tensor // [t,F]
	last     ascendrt.Tensor // [p,H] the tokens that are sampled behind
	logits   ascendrt.Tensor // [p,V]
	experts  expertActs
}

func (e *Executor) allocActivations() (activations, error) {
	c := e.c.Model
	var a activations
	t, r := e.maxTokens, e.placesOf(e.maxTokens, e.maxReqs)
	for _, x := range []struct {
		dst         *ascendrt.Tensor
		rows, width int
	}{
		{&a.hidden, t, c.Hidden}, {&a.near, min(t, ascendrt.NearRows), c.Hidden}, {&a.x, t, c.Hidden}, {&a.qkv, t, c.QWidth() + 2*c.KVWidth()}, {&a.attended, t, c.QWidth()},
		{&a.y, t, c.Hidden}, {&a.gateUp, t, 2 * c.FFN}, {&a.ffn, t, c.FFN}, {&a.last, r, c.Hidden}, {&a.logits, r, c.Vocab},
	} {
		typ := e.c.Type
		if e.ops.fused != nil {
			switch x.dst {
			case &a.hidden, &a.logits:
				typ = ascendrt.Float32
			case &a.x, &a.y, &a.gateUp, &a.last:
				continue // fused operations keep these to themselves
			}
		} else if x.dst == &a.near {
			continue
		}
		if e.c.sparse() && (x.dst == &a.gateUp || x.dst == &a.ffn) {
			continue
		}
		buf, err := e.alloc(typ.Size() * x.rows * x.width)
		if err != nil {
			return a, err
		}
		*x.dst = ascendrt.NewTensor(buf.View(), typ, x.rows, x.width)
	}
	var err error
	if e.c.sparse() {
		a.experts, err = e.allocExperts()
	}
	return a, err
}

// pass records the parts of the forward pass that depend on the number of
// tokens alone.
type pass struct {
	e *Executor
	p *replay.Pass
	t int
}

func (p pass) op(o ascendrt.Op, args ...ascendrt.Tensor) {
	p.p.Commands().Op(o, p.p.Workspace(), args...)
}

// begin embeds the tokens and prepares the input of the first layer.
func (p pass) begin() {
	e, a := p.e, &p.e.act
	p.op(e.ops.embed, e.static.IDs.First(p.t), e.w.embed, a.hidden.First(p.t))
	p.op(e.ops.norm, a.hidden.First(p.t), e.w.layers[0].inNorm, a.x.First(p.t))
}

// project makes the queries, keys and values of a layer and writes the cache.
func (p pass) project(l int) {
	e, a, w := p.e, &p.e.act, &p.e.w.layers[l]
	q, k, v := e.heads(p.t)
	p.op(e.ops.qkv, a.x.First(p.t), w.qkv, a.qkv.First(p.t))
	if e.c.Model.HeadNorm {
		p.op(e.ops.qNorm, q, w.qNorm, q)
		p.op(e.ops.kNorm, k, w.kNorm, k)
	}
	p.op(e.ops.rope, q, k, e.static.Positions.First(p.t), e.w.rope)
	p.op(e.ops.scatter, k, v, e.static.Slots.First(p.t), e.kv[l].k, e.kv[l].v)
}

// finish runs the rest of a layer and prepares the input of what follows.
func (p pass) finish(l int) {
	e, a, w := p.e, &p.e.act, &p.e.w.layers[l]
	next := e.w.norm
	if l+1 < len(e.w.layers) {
		next = e.w.layers[l+1].inNorm
	}
	h, x, y := a.hidden.First(p.t), a.x.First(p.t), a.y.First(p.t)
	p.op(e.ops.out, a.attended.First(p.t), w.out, y)
	p.op(e.ops.addNorm, y, h, w.postNorm, x)
	if e.ops.experts != nil {
		p.experts(l, x, y)
	} else {
		p.op(e.ops.gateUp, x, w.gateUp, a.gateUp.First(p.t))
		p.op(e.ops.swiglu, a.gateUp.First(p.t), a.ffn.First(p.t))
		p.op(e.ops.down, a.ffn.First(p.t), w.down, y)
	}
	p.op(e.ops.addNorm, y, h, next, x)
}

// attend reads the cache of a layer for t tokens.
func attend(e *Executor, p *replay.Pass, l, t int) error {
	q, _, _ := e.heads(t)
	r, s := p.Shape().Reqs, e.static
	attn := e.ops.attn
	if f := e.ops.fused; f != nil && p.Shape().Bound == 1 {
		attn = f.attendOne
	}
	p.Attention(attn, q, e.kv[l].k, e.kv[l].v, s.Table.First(r), s.Starts.First(r+1), s.Lens.First(r), e.act.attended.First(t))
	return nil
}

// sample takes the most likely token of every place.
func sample(e *Executor, p *replay.Pass, t int) error {
	if e.ops.fused != nil {
		return e.sampleFused(p, t)
	}
	r := e.placesOf(t, p.Shape().Reqs)
	rows, _ := e.sampled(r)
	last, logits := e.act.last.First(r), e.act.logits.First(r)
	op := func(o ascendrt.Op, args ...ascendrt.Tensor) { p.Commands().Op(o, p.Workspace(), args...) }
	op(e.ops.gather, e.act.x.First(t), rows, last)
	op(e.ops.head, last, e.w.head, logits)
	op(e.ops.argmax, logits, vector(p.Result(), r))
	return nil
}

// vector is the first n elements of an Int32 tensor of width 1, without the
// second dimension.
func vector(t ascendrt.Tensor, n int) ascendrt.Tensor {
	return ascendrt.NewTensor(t.View, ascendrt.Int32, n)
}

// heads are the columns of the fused projection.
func (e *Executor) heads(t int) (q, k, v ascendrt.Tensor) {
	c := e.c.Model
	qkv := e.act.qkv.First(t)
	return qkv.Columns(0, c.QWidth()), qkv.Columns(c.QWidth(), c.KVWidth()), qkv.Columns(c.QWidth()+c.KVWidth(), c.KVWidth())
}
