package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/graphs/replay"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/scheduler"
)

// expertOps are the operations of layers with experts; nil in dense models.
type expertOps struct{ router, route, run, combine ascendrt.Op }

// expertActs are the buffers between them. t is tokens, R ranks of the group.
type expertActs struct {
	logits  ascendrt.Tensor // [t,E] binary32
	ids     ascendrt.Tensor // [t,K]
	weights ascendrt.Tensor // [t,K] binary32
	parts   ascendrt.Tensor // [R·t,K·H] what the experts of this rank give for the tokens of all

	allX, allIDs, own ascendrt.Tensor // with a group: the inputs of all ranks, and what comes back for this rank's tokens
}

// sparse reports whether the model has experts.
func (c Config) sparse() bool { return c.Model.MoE.Experts > 0 }

// ranks is the number of ranks among which the experts lie.
func (c Config) ranks() int {
	if c.Group == nil {
		return 1
	}
	return c.Group.Size()
}

// ownExperts are those of this rank: count of them from first on.
func (c Config) ownExperts() (first, count int) {
	count = c.Model.MoE.Experts / c.ranks()
	if c.Group == nil {
		return 0, count
	}
	return c.Group.Rank() * count, count
}

func (c Config) validateExperts() error {
	switch n := c.ranks(); {
	case c.Group == nil:
		return nil
	case !c.sparse():
		return errors.New("executor: a group of ranks shares experts, and the model has none")
	case c.Model.MoE.Experts%n != 0:
		return fmt.Errorf("executor: %d experts do not spread evenly over %d ranks", c.Model.MoE.Experts, n)
	}
	return nil
}

// planExperts plans the operations; plan is that of the others.
func (e *Executor) planExperts(plan func(kind ascendrt.OpKind, rows int, attr any) ascendrt.Op) *expertOps {
	c, t, r := e.c.Model, e.maxTokens, e.c.ranks()
	first, count := e.c.ownExperts()
	return &expertOps{
		router:  plan(ascendrt.OpMatmul, t, ascendrt.MatmulAttr{In: c.Hidden, Out: c.MoE.Experts, Weights: e.layout, OutType: ascendrt.Float32}),
		route:   plan(host.OpRoute, t, host.RouteAttr{Experts: c.MoE.Experts, TopK: c.MoE.TopK, Normalised: c.MoE.Normalised}),
		run:     plan(host.OpExperts, r*t, host.ExpertsAttr{In: c.Hidden, Inner: c.FFN, TopK: c.MoE.TopK, First: first, Count: count}),
		combine: plan(host.OpCombine, t, host.CombineAttr{Dim: c.Hidden, TopK: c.MoE.TopK, PerRank: count}),
	}
}

func (e *Executor) allocExperts() (expertActs, error) {
	c, t, r := e.c.Model, e.maxTokens, e.c.ranks()
	k := c.MoE.TopK
	var a expertActs
	for _, x := range []struct {
		dst         *ascendrt.Tensor
		typ         ascendrt.DType
		rows, width int
		shared      bool // only with a group
	}{
		{&a.logits, ascendrt.Float32, t, c.MoE.Experts, false}, {&a.ids, ascendrt.Int32, t, k, false}, {&a.weights, ascendrt.Float32, t, k, false},
		{&a.parts, e.c.Type, r * t, k * c.Hidden, false}, {&a.own, e.c.Type, r * t, k * c.Hidden, true},
		{&a.allX, e.c.Type, r * t, c.Hidden, true}, {&a.allIDs, ascendrt.Int32, r * t, k, true},
	} {
		if x.shared && e.c.Group == nil {
			continue
		}
		buf, err := e.alloc(x.typ.Size() * x.rows * x.width)
		if err != nil {
			return a, err
		}
		*x.dst = ascendrt.NewTensor(buf.View(), x.typ, x.rows, x.width)
	}
	return a, nil
}

// experts makes of x what the token's experts make of it. With a group every
// rank sends its tokens to all and gets back what their experts gave; the sum is
// made where the token is, in the order of its experts, so that it does not
// depend on where they lie.
func (p pass) experts(l int, x, y ascendrt.Tensor) {
	e, a, o, w := p.e, &p.e.act.experts, p.e.ops.experts, &p.e.w.layers[l]
	ids, weights, parts := a.ids.First(p.t), a.weights.First(p.t), a.parts.First(p.t*e.c.ranks())
	p.op(o.router, x, w.router, a.logits.First(p.t))
	p.op(o.route, a.logits.First(p.t), ids, weights)
	g := e.c.Group
	if g == nil {
		p.op(o.run, x, ids, w.gateUp, w.down, parts)
		p.op(o.combine, parts, ids, weights, y)
		return
	}
	allX, allIDs, own := a.allX.First(p.t*g.Size()), a.allIDs.First(p.t*g.Size()), a.own.First(p.t*g.Size())
	p.p.Commands().AllGather(g, allX, x)
	p.p.Commands().AllGather(g, allIDs, ids)
	p.op(o.run, allX, allIDs, w.gateUp, w.down, parts)
	p.p.Commands().AllToAll(g, own, parts)
	p.op(o.combine, own, ids, weights, y)
}

// experts loads those of this rank, each matrix as [inputs, outputs].
func (l *loader) experts(layer int) (router, gateUp, down ascendrt.Tensor) {
	c := l.e.c.Model
	first, count := l.e.c.ownExperts()
	router = l.matrix(c.Hidden, part{model.LayerName(layer, "mlp.gate"), c.MoE.Experts})
	gateUp, down = l.room(count, c.Hidden, 2*c.FFN), l.room(count, c.FFN, c.Hidden)
	put := func(t ascendrt.Tensor, i, in int, parts ...part) {
		if turned := l.turned(in, parts...); l.err == nil {
			l.put(t, i*len(turned), model.Data{Type: model.F32, Raw: model.Bytes(turned)}, len(turned))
		}
	}
	for i := range count {
		name := func(what string) string { return model.ExpertName(layer, first+i, what) }
		put(gateUp, i, c.Hidden, part{name("gate_proj"), c.FFN}, part{name("up_proj"), c.FFN})
		put(down, i, c.FFN, part{name("down_proj"), c.Hidden})
	}
	return router, gateUp, down
}

// SubmitIdle takes up a plan without rows and runs a dummy step as the ranks of
// the group have agreed: they cannot run theirs without this one. Like every
// step it is waited for.
func (e *Executor) SubmitIdle(ctx context.Context, p *scheduler.Plan, dec graphs.Decision) (Step, error) {
	if p.Rows() != 0 || dec.Reqs != 1 {
		return Step{}, planError(p, -1, "%d rows in a step without work, decided for %d", p.Rows(), dec.Reqs)
	}
	e.forget(p.Finished)
	e.forget(p.Preempted)
	out := &e.outputs[e.next]
	if out.busy {
		return Step{}, ErrTooManySteps
	}
	staged, err := e.static.Stage(e.idleBatch(int(dec.Tokens)), dec)
	if err != nil {
		return Step{}, e.because(err)
	}
	e.feeds(p) // none
	return e.launch(ctx, p, out, staged, dec, idleVerdicts)
}

var idleVerdicts = []graphs.RowVerdict{graphs.Decode}

// idleBatch is one row of n tokens that reads the null block and writes nothing.
func (e *Executor) idleBatch(n int) replay.Batch {
	b := &e.idle
	if len(b.IDs) != n {
		*b = replay.Batch{
			IDs: make([]int32, n), Positions: make([]int32, n), Slots: make([]int32, n),
			Query: []int32{int32(n)}, Lens: []int32{int32(n)}, Tables: [][]int32{nil},
		}
		for i := range b.Slots {
			b.Slots[i] = replay.PadSlot
		}
	}
	return *b
}
