package executor

import (
	"context"
	"errors"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/graphs/replay"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// Step is a submitted step.
type Step struct {
	e      *Executor
	result replay.Result
	out    *output
}

// Submit takes up a plan: it forgets the requests that the plan names as gone,
// follows the changes of the block tables and submits the rows. It does not
// wait, but for an earlier step where the runtime needs that to replace values,
// and for this one where a Scorer reads the logits of its prompts.
// A plan without rows gives a Step that is done at once.
func (e *Executor) Submit(ctx context.Context, p *scheduler.Plan) (Step, error) {
	e.forget(p.Finished)
	e.forget(p.Preempted)
	if p.Rows() == 0 {
		return Step{}, nil
	}
	if err := e.follow(p); err != nil {
		return Step{}, err
	}
	out := &e.outputs[e.next]
	if out.busy {
		return Step{}, ErrTooManySteps
	}
	if err := e.resolve(ctx, p); err != nil {
		return Step{}, err
	}
	staged, err := e.static.Stage(e.batch(p), p.Graph)
	if err != nil {
		return Step{}, e.because(err)
	}
	if e.ops.fused == nil {
		e.feeds(p)
	}
	step, err := e.launch(ctx, p, out, staged, p.Graph, p.Verdicts)
	if err != nil {
		return Step{}, err
	}
	return step, e.score(ctx, p)
}

// because prefers the loss of the device to what follows from it: steps that do
// not end leave no room for others.
func (e *Executor) because(err error) error {
	if lost := e.dev.Health(); errors.Is(lost, ascendrt.ErrDeviceLost) {
		return lost
	}
	return err
}

// launch submits what is staged.
func (e *Executor) launch(ctx context.Context, p *scheduler.Plan, out *output, staged replay.Staged, dec graphs.Decision, verdicts []graphs.RowVerdict) (Step, error) {
	out.plan, out.counts = p, append(out.counts[:0], make([]int32, p.Rows())...)
	e.place(p, out)
	if err := e.choices(p, out); err != nil {
		return Step{}, err
	}
	result, err := e.set.Launch(ctx, replay.Step{
		Decision: dec, Verdicts: verdicts, Lengths: staged.Lengths, Starts: staged.Starts,
		Inputs: func(c *ascendrt.Commands) {
			staged.Upload(c)
			e.uploadPlaces(c, out)
			if e.ops.fused == nil {
				e.copyWords(c)
			}
		},
		After: func(c *ascendrt.Commands, sampled ascendrt.Tensor) {
			if e.ops.fused == nil {
				e.keep(c, p, sampled)
			}
			c.Copy(out.buf.Slice(0, sampled.Bytes()), sampled.View.Slice(0, sampled.Bytes()))
			e.fetch(c, out)
		},
	})
	if err != nil {
		return Step{}, err
	}
	staged.Submitted(result.Point)
	out.busy, out.point = true, result.Point
	e.next = (e.next + 1) % len(e.outputs)
	return Step{e: e, result: result, out: out}, nil
}

// Wait blocks until the step has run and appends the tokens of the rows that
// sample, in the order of the rows; rows with drafts have several, see Counts.
// Steps are waited for in the order of their submission, each once, and before
// their plan is applied.
func (s Step) Wait(ctx context.Context, dst []scheduler.Token) ([]scheduler.Token, error) {
	if s.out == nil {
		return dst, nil
	}
	o := s.out
	if err := s.e.choose(ctx, o); err != nil {
		return dst, err
	}
	o.busy = false
	for i, n := range o.counts {
		for _, tok := range o.tokens[o.at[i]:][:n] {
			dst = append(dst, scheduler.Token(tok))
		}
	}
	return dst, s.result.Release()
}

// Counts are the numbers of tokens that Wait gave for the rows; valid until the
// next Submit.
func (s Step) Counts() []int32 {
	if s.out == nil {
		return nil
	}
	return s.out.counts
}

// Ran blocks until the step has run and takes nothing: Wait still follows.
func (s Step) Ran(ctx context.Context) error {
	if s.out == nil {
		return nil
	}
	return s.result.Point.Wait(ctx)
}

// Idle reports whether the step had no rows.
func (s Step) Idle() bool { return s.out == nil }

// Done tells without blocking whether the step has run.
func (s Step) Done() bool { return s.out == nil || s.result.Point.Done() }

// Blocks is the block table of a request as the last plan left it; empty if the
// request has not run.
func (e *Executor) Blocks(id scheduler.RequestID) []kvcache.BlockID {
	if slot := int(id.Slot()); slot < len(e.seqs) && e.seqs[slot].id == id {
		return e.seqs[slot].blocks
	}
	return nil
}

// forget drops what is known of requests whose slots may be used again.
func (e *Executor) forget(ids []scheduler.RequestID) {
	for _, id := range ids {
		if int(id.Slot()) >= len(e.seqs) {
			continue
		}
		s := &e.seqs[id.Slot()]
		if s.id == id {
			e.release(s)
		}
	}
}

func (e *Executor) release(s *seq) {
	if s.cell >= 0 {
		e.free = append(e.free, s.cell)
	}
	s.id, s.cell, s.chosen, s.blocks = 0, -1, nil, s.blocks[:0]
}

// follow applies the changes of the rows' block tables and checks the rows.
func (e *Executor) follow(p *scheduler.Plan) error {
	for i, id := range p.Requests {
		slot := int(id.Slot())
		for slot >= len(e.seqs) {
			e.seqs = append(e.seqs, seq{cell: -1})
		}
		s := &e.seqs[slot]
		switch {
		case p.Kinds[i] != scheduler.RowRunning:
			e.release(s)
			if len(e.free) == 0 {
				return planError(p, i, "more than %d requests run", e.cells.Rows()-1)
			}
			s.id, s.cell = id, e.free[len(e.free)-1]
			e.free = e.free[:len(e.free)-1]
		case s.id != id:
			return planError(p, i, "request %s continues but has not run here", id)
		}
		from, blocks := p.Table(i, 0)
		if from > len(s.blocks) {
			return planError(p, i, "the table changes at %d but has %d blocks", from, len(s.blocks))
		}
		s.blocks = append(s.blocks[:from], blocks...)
		end := int(p.Computed[i] + p.Scheduled[i])
		if p.Scheduled[i] <= 0 || len(p.Input(i)) != int(p.Scheduled[i]) {
			return planError(p, i, "%d tokens scheduled, %d given", p.Scheduled[i], len(p.Input(i)))
		}
		if err := e.checkDrafts(p, i); err != nil {
			return err
		}
		if end > e.c.MaxLen || end > len(s.blocks)*e.c.BlockSize {
			return planError(p, i, "%d tokens do not fit %d blocks or the length %d", end, len(s.blocks), e.c.MaxLen)
		}
		for _, b := range s.blocks[from:] {
			if b < kvcache.NullBlock || int(b) >= e.c.Blocks {
				return planError(p, i, "block %d is not in the pool", b)
			}
		}
		for j, tok := range p.Input(i) {
			if tok < scheduler.Unknown || int(tok) >= e.c.Model.Vocab {
				return planError(p, i, "token %d is not in the vocabulary", tok)
			}
			if tok == scheduler.Unknown && p.Kinds[i] != scheduler.RowRunning && j < int(p.Scheduled[i]-p.Placeholders[i]) {
				return planError(p, i, "a %s request takes a token that no step in flight samples", p.Kinds[i])
			}
		}
	}
	return nil
}

// feeds lists the copies of tokens that an earlier step samples on the device
// into the inputs of this one.
func (e *Executor) feeds(p *scheduler.Plan) {
	e.to, e.from = e.to[:0], e.from[:0]
	if e.c.InFlight < 2 {
		return // the host knows every token before it plans the next step
	}
	for i, id := range p.Requests {
		s := &e.seqs[id.Slot()]
		for j, tok := range p.Input(i) {
			if s.input(tok) == scheduler.Unknown {
				e.to = append(e.to, word(e.static.IDs, int(p.InputsAt[i])+j))
				e.from = append(e.from, word(e.cells, int(s.cell)))
			}
		}
	}
}

// keep stores the sampled tokens in their requests' cells.
func (e *Executor) keep(c *ascendrt.Commands, p *scheduler.Plan, sampled ascendrt.Tensor) {
	if e.c.InFlight < 2 {
		return // the host knows every token before it plans the next step
	}
	e.to, e.from = e.to[:0], e.from[:0]
	for i, id := range p.Requests {
		if p.Samples[i] != 0 {
			e.to = append(e.to, word(e.cells, int(e.seqs[id.Slot()].cell)))
			e.from = append(e.from, word(sampled, i))
		}
	}
	e.copyWords(c)
}

func (e *Executor) copyWords(c *ascendrt.Commands) {
	switch {
	case len(e.to) == 0:
	case e.dev.Caps().BatchCopy:
		c.CopyBatch(e.to, e.from)
	default:
		for i := range e.to {
			c.Copy(e.to[i], e.from[i])
		}
	}
}

// word is one element of an Int32 vector.
func word(t ascendrt.Tensor, i int) ascendrt.View { return t.View.Slice(4*i, 4) }
