package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs/replay"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// fusedOps are the operations of a device that does several at once: six per
// layer. They sum in an order of their own.
type fusedOps struct {
	embed, qkv, rotate, out, ffn, down, head, pick ascendrt.Op

	attendOne ascendrt.Op // for graphs whose rows have one token
}

// planFused plans them; ErrUnsupported if the device lacks one.
func (e *Executor) planFused() (ops, error) {
	c := e.c.Model
	var o ops
	f := &fusedOps{}
	t, r := e.maxTokens, e.placesOf(e.maxTokens, e.maxReqs)
	attention := ascendrt.AttentionAttr{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, BlockSize: e.c.BlockSize, Order: ascendrt.SumFree}
	perRow := e.c.Ops == OpsPerRow
	if perRow {
		attention.Order = ascendrt.SumPerRow
	}
	one := attention
	one.MaxQuery = 1
	for _, x := range []struct {
		dst  *ascendrt.Op
		kind ascendrt.OpKind
		rows int
		attr any
	}{
		{&f.embed, ascendrt.OpFeedEmbedding, t, ascendrt.FeedAttr{Vocab: c.Vocab, Hidden: c.Hidden}},
		{&f.qkv, ascendrt.OpLinear, t, ascendrt.LinearAttr{In: c.Hidden, Out: c.QWidth() + 2*c.KVWidth(), Norm: true, Eps: c.NormEps, PerRow: perRow}},
		{&f.rotate, ascendrt.OpRotateWrite, t, ascendrt.RotateAttr{
			Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, BlockSize: e.c.BlockSize, MaxPosition: e.c.MaxLen, Norm: c.HeadNorm, Eps: c.NormEps}},
		{&o.attn, ascendrt.OpAttention, t, attention},
		{&f.attendOne, ascendrt.OpAttention, t, one},
		{&f.out, ascendrt.OpLinear, t, ascendrt.LinearAttr{In: c.QWidth(), Out: c.Hidden, Epilogue: ascendrt.EpilogueAdd, PerRow: perRow}},
		{&f.ffn, ascendrt.OpLinear, t, ascendrt.LinearAttr{In: c.Hidden, Out: c.FFN, Norm: true, Eps: c.NormEps, Epilogue: ascendrt.EpilogueSwiGLU, PerRow: perRow}},
		{&f.down, ascendrt.OpLinear, t, ascendrt.LinearAttr{In: c.FFN, Out: c.Hidden, Epilogue: ascendrt.EpilogueAdd, PerRow: perRow}},
		{&f.head, ascendrt.OpLinear, r, ascendrt.LinearAttr{In: c.Hidden, Out: c.Vocab, Norm: true, Eps: c.NormEps, Rows: true, Epilogue: ascendrt.EpilogueFloat, PerRow: perRow}},
		{&f.pick, ascendrt.OpPick, r, ascendrt.PickAttr{Dim: c.Vocab}},
	} {
		op, err := e.dev.Plan(ascendrt.OpSpec{Kind: x.kind, Type: e.c.storage(), MaxRows: x.rows, Attr: x.attr})
		if err != nil {
			return ops{}, errors.Join(fmt.Errorf("plan %s: %w", x.kind, err), o.close())
		}
		*x.dst = op
		o.all = append(o.all, op)
		o.workspace = max(o.workspace, op.Workspace())
	}
	o.fused = f
	return o, nil
}

// residual is the stream of t tokens, and the same rounded.
func (e *Executor) residual(t int) (h, near ascendrt.Tensor) {
	return e.act.hidden.First(t), e.act.near.First(min(t, ascendrt.NearRows))
}

// recordFused writes one pass with fused operations.
func (e *Executor) recordFused(r *replay.Pass) error {
	f, a, s, t := e.ops.fused, &e.act, e.static, r.Shape().Tokens
	op := func(o ascendrt.Op, args ...ascendrt.Tensor) { r.Commands().Op(o, r.Workspace(), args...) }
	h, near := e.residual(t)
	op(f.embed, s.IDs.First(t), s.StateOut.First(t), e.cells, e.w.embed, h, near)
	for l := range e.w.layers {
		w, kv := &e.w.layers[l], &e.kv[l]
		op(f.qkv, h, near, w.inNorm, w.qkv, a.qkv.First(t))
		if e.c.Model.HeadNorm {
			op(f.rotate, a.qkv.First(t), w.qNorm, w.kNorm, s.Positions.First(t), e.w.rope, s.Slots.First(t), kv.k, kv.v)
		} else {
			op(f.rotate, a.qkv.First(t), s.Positions.First(t), e.w.rope, s.Slots.First(t), kv.k, kv.v)
		}
		if err := r.Break(func(r *replay.Pass) error { return attend(e, r, l, t) }); err != nil {
			return err
		}
		op(f.out, a.attended.First(t), w.out, h, near)
		op(f.ffn, h, near, w.postNorm, w.gateUp, a.ffn.First(t))
		op(f.down, a.ffn.First(t), w.down, h, near)
	}
	return r.Break(func(r *replay.Pass) error { return sample(e, r, t) })
}

// sampleFused takes the most likely token of every place and leaves it in the
// row's cell too.
func (e *Executor) sampleFused(p *replay.Pass, t int) error {
	f, r := e.ops.fused, e.placesOf(t, p.Shape().Reqs)
	rows, cells := e.sampled(r)
	logits := e.act.logits.First(r)
	op := func(o ascendrt.Op, args ...ascendrt.Tensor) { p.Commands().Op(o, p.Workspace(), args...) }
	h, near := e.residual(t)
	op(f.head, h, near, e.w.norm, e.w.head, rows, logits)
	op(f.pick, logits, cells, e.cells, vector(p.Result(), r))
	return nil
}

// fillNoise generates a tensor on the device.
func (e *Executor) fillNoise(ctx context.Context, t ascendrt.Tensor, n model.Noise) error {
	op, err := e.dev.Plan(ascendrt.OpSpec{Kind: ascendrt.OpNoise, Type: t.Type, Attr: ascendrt.NoiseAttr{Dim: t.RowLen(), Seed: n.Seed, Factor: n.Factor}})
	if err != nil {
		return err
	}
	var c ascendrt.Commands
	c.Op(op, ascendrt.View{}, t)
	p, _, err := e.stream.Submit(&c)
	if err == nil {
		err = p.Wait(ctx)
	}
	return errors.Join(err, op.Close())
}
