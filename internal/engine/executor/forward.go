package executor

import "github.com/sluice-serving/sluice/ascendrt"

// activations are the buffers between the operations of a step, sized for the
// largest one.
type activations struct {
	hidden, x, qkv, attended, y, gateUp, ffn, last, logits, sampled ascendrt.Tensor

	workspace ascendrt.View
}

func (e *Executor) allocActivations() (activations, error) {
	c := e.c.Model
	var a activations
	var failed error
	tensor := func(t ascendrt.DType, dims ...int) ascendrt.Tensor {
		n := t.Size()
		for _, d := range dims {
			n *= d
		}
		buf, err := e.alloc(n)
		if err != nil {
			failed = err
			return ascendrt.Tensor{}
		}
		return ascendrt.NewTensor(buf.View(), t, dims...)
	}
	t, r := e.maxTokens, e.maxReqs
	a.hidden = tensor(ascendrt.Float32, t, c.Hidden)
	a.x = tensor(ascendrt.Float32, t, c.Hidden)
	a.qkv = tensor(ascendrt.Float32, t, c.QWidth()+2*c.KVWidth())
	a.attended = tensor(ascendrt.Float32, t, c.QWidth())
	a.y = tensor(ascendrt.Float32, t, c.Hidden)
	a.gateUp = tensor(ascendrt.Float32, t, 2*c.FFN)
	a.ffn = tensor(ascendrt.Float32, t, c.FFN)
	a.last = tensor(ascendrt.Float32, r, c.Hidden)
	a.logits = tensor(ascendrt.Float32, r, c.Vocab)
	a.sampled = tensor(ascendrt.Int32, r)
	if e.ops.workspace > 0 && failed == nil {
		buf, err := e.alloc(e.ops.workspace)
		if err != nil {
			return a, err
		}
		a.workspace = buf.View()
	}
	return a, failed
}

// pass records parts of the forward pass over t token rows and r request rows.
type pass struct {
	e    *Executor
	c    *ascendrt.Commands
	t, r int
}

func (p pass) op(o ascendrt.Op, args ...ascendrt.Tensor) ascendrt.OpRef {
	return p.c.Op(o, p.e.act.workspace, args...)
}

// begin embeds the tokens and prepares the input of the first layer.
func (p pass) begin() {
	e, a, m := p.e, &p.e.act, &p.e.meta
	p.op(e.ops.embed, m.ids.First(p.t), e.w.embed, a.hidden.First(p.t))
	p.op(e.ops.norm, a.hidden.First(p.t), e.w.layers[0].inNorm, a.x.First(p.t))
}

// project makes the queries, keys and values of a layer and writes the cache.
func (p pass) project(l int) {
	e, a, m, w := p.e, &p.e.act, &p.e.meta, &p.e.w.layers[l]
	q, k, v := p.heads()
	p.op(e.ops.qkv, a.x.First(p.t), w.qkv, a.qkv.First(p.t))
	p.op(e.ops.qNorm, q, w.qNorm, q)
	p.op(e.ops.kNorm, k, w.kNorm, k)
	p.op(e.ops.rope, q, k, m.positions.First(p.t), e.w.rope)
	p.op(e.ops.scatter, k, v, m.slots.First(p.t), e.kv[l].k, e.kv[l].v)
}

// attend reads the cache of a layer.
func (p pass) attend(l int) ascendrt.OpRef {
	e, a, m := p.e, &p.e.act, &p.e.meta
	q, _, _ := p.heads()
	if e.hostLengths != nil {
		p.c.SlotValues(0, e.hostLengths[:p.r]...)
	}
	return p.op(e.ops.attn, q, e.kv[l].k, e.kv[l].v, m.table.First(p.r), m.starts.First(p.r+1), m.lens.First(p.r), a.attended.First(p.t))
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
	p.op(e.ops.gateUp, x, w.gateUp, a.gateUp.First(p.t))
	p.op(e.ops.swiglu, a.gateUp.First(p.t), a.ffn.First(p.t))
	p.op(e.ops.down, a.ffn.First(p.t), w.down, y)
	p.op(e.ops.addNorm, y, h, next, x)
}

// sample takes the most likely token of every request row.
func (p pass) sample() {
	e, a, m := p.e, &p.e.act, &p.e.meta
	last, logits := a.last.First(p.r), a.logits.First(p.r)
	p.op(e.ops.gather, a.x.First(p.t), m.rows.First(p.r), last)
	p.op(e.ops.head, last, e.w.head, logits)
	p.op(e.ops.argmax, logits, a.sampled.First(p.r))
}

// whole records the forward pass without a break and names its attention calls.
func (p pass) whole() (attn []ascendrt.OpRef) {
	p.begin()
	for l := range p.e.w.layers {
		p.project(l)
		attn = append(attn, p.attend(l))
		p.finish(l)
	}
	p.sample()
	return attn
}

// heads are the columns of the fused projection.
func (p pass) heads() (q, k, v ascendrt.Tensor) {
	c := p.e.c.Model
	qkv := p.e.act.qkv.First(p.t)
	return qkv.Columns(0, c.QWidth()), qkv.Columns(c.QWidth(), c.KVWidth()), qkv.Columns(c.QWidth()+c.KVWidth(), c.KVWidth())
}
