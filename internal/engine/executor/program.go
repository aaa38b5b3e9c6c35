package executor

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/graphs/replay"
)

// program is the forward pass as graphs capture it.
type program struct{ e *Executor }

var _ replay.Program = program{}

// Prepare appends the inputs of a dummy batch.
func (p program) Prepare(c *ascendrt.Commands, s replay.Shape) error {
	staged, err := p.e.static.Dummy(s, graphs.CaptureRows(s.Key, p.e.c.MaxSeqs))
	if err != nil {
		return err
	}
	staged.Upload(c)
	return nil
}

// ResultRows is one token per place.
func (p program) ResultRows(s replay.Shape) int { return p.e.placesOf(s.Tokens, s.Reqs) }

// Record writes one pass: attention and what depends on the number of rows
// stand outside of PIECEWISE graphs.
func (p program) Record(r *replay.Pass) error {
	e := p.e
	t := r.Shape().Tokens
	if e.ops.fused != nil {
		return e.recordFused(r)
	}
	pass := pass{e: e, p: r, t: t}
	pass.begin()
	for l := range e.w.layers {
		pass.project(l)
		if err := r.Break(func(r *replay.Pass) error { return attend(e, r, l, t) }); err != nil {
			return err
		}
		pass.finish(l)
	}
	return r.Break(func(r *replay.Pass) error { return sample(e, r, t) })
}
