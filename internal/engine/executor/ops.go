package executor

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
)

// ops are the planned operations of the forward pass.
type ops struct {
	embed, norm, addNorm, qNorm, kNorm, qkv, rope, scatter, attn, out, gateUp, swiglu, down, gather, head, argmax ascendrt.Op

	fused *fusedOps // nil: the named ones above; else those are nil but attn

	experts *expertOps // nil in dense models; else there is no gateUp, swiglu and down

	workspace int // bytes, the largest need of any
	all       []ascendrt.Op
}

func (e *Executor) planOps() (ops, error) {
	c := e.c.Model
	var o ops
	var failed error
	plan := func(kind ascendrt.OpKind, rows int, attr any) ascendrt.Op {
		if failed != nil {
			return nil
		}
		op, err := e.dev.Plan(ascendrt.OpSpec{Kind: kind, Type: e.c.Type, MaxRows: rows, Attr: attr})
		if err != nil {
			failed = fmt.Errorf("plan %s: %w", kind, err)
			return nil
		}
		o.all = append(o.all, op)
		o.workspace = max(o.workspace, op.Workspace())
		return op
	}
	t, r := e.maxTokens, e.placesOf(e.maxTokens, e.maxReqs)
	matmul := func(rows, in, out int) ascendrt.Op {
		return plan(ascendrt.OpMatmul, rows, ascendrt.MatmulAttr{In: in, Out: out, Weights: e.layout})
	}
	norm := func(kind ascendrt.OpKind, dim, groups int) ascendrt.Op {
		return plan(kind, t, ascendrt.NormAttr{Dim: dim, Groups: groups, Eps: c.NormEps})
	}
	if e.c.storage() == ascendrt.BFloat16 && !e.c.sparse() && e.c.Ops != OpsNamed {
		f, err := e.planFused()
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, ascendrt.ErrUnsupported) {
			return f, err
		}
	}
	o.embed = plan(ascendrt.OpEmbedding, t, ascendrt.EmbeddingAttr{Vocab: c.Vocab, Hidden: c.Hidden})
	o.norm = norm(ascendrt.OpRMSNorm, c.Hidden, 1)
	o.addNorm = norm(ascendrt.OpAddRMSNorm, c.Hidden, 1)
	if c.HeadNorm {
		o.qNorm = norm(ascendrt.OpRMSNorm, c.HeadDim, c.Heads)
		o.kNorm = norm(ascendrt.OpRMSNorm, c.HeadDim, c.KVHeads)
	}
	o.qkv = matmul(t, c.Hidden, c.QWidth()+2*c.KVWidth())
	o.rope = plan(ascendrt.OpRope, t, ascendrt.RopeAttr{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, MaxPosition: e.c.MaxLen})
	o.scatter = plan(ascendrt.OpKVScatter, t, ascendrt.ScatterAttr{KVHeads: c.KVHeads, HeadDim: c.HeadDim, BlockSize: e.c.BlockSize})
	o.attn = plan(ascendrt.OpAttention, t, ascendrt.AttentionAttr{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, BlockSize: e.c.BlockSize})
	o.out = matmul(t, c.QWidth(), c.Hidden)
	if e.c.sparse() {
		o.experts = e.planExperts(plan)
	} else {
		o.gateUp = matmul(t, c.Hidden, 2*c.FFN)
		o.swiglu = plan(ascendrt.OpSwiGLU, t, ascendrt.SwiGLUAttr{Dim: c.FFN})
		o.down = matmul(t, c.FFN, c.Hidden)
	}
	o.gather = plan(ascendrt.OpGather, r, ascendrt.GatherAttr{Dim: c.Hidden})
	o.head = matmul(r, c.Hidden, c.Vocab)
	o.argmax = plan(ascendrt.OpArgmax, r, ascendrt.ArgmaxAttr{Dim: c.Vocab})
	return o, failed
}

func (o *ops) close() error {
	var errs []error
	for _, op := range o.all {
		errs = append(errs, op.Close())
	}
	return errors.Join(errs...)
}
