package executor

import (
	"context"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// Step is a submitted step.
type Step struct {
	e      *Executor
	img    *image
	sample []uint8 // per row, valid until the plan is applied
}

// Submit takes up a plan: it forgets the requests that the plan names as gone,
// follows the changes of the block tables and submits the rows. It does not
// wait. A plan without rows gives a Step that is done at once.
func (e *Executor) Submit(p *scheduler.Plan) (Step, error) {
	e.forget(p.Finished)
	e.forget(p.Preempted)
	if p.Rows() == 0 {
		return Step{}, nil
	}
	if err := e.follow(p); err != nil {
		return Step{}, err
	}
	img := &e.images[e.next]
	if img.busy {
		return Step{}, ErrTooManySteps
	}
	dec := p.Graph
	t, r := int(p.Total), p.Rows()
	if dec.Mode != graphs.None {
		t = int(dec.PaddedTokens)
	}
	if dec.Mode == graphs.Full {
		r = int(dec.PaddedReqs)
	}
	if t > e.maxTokens || r > e.maxReqs {
		return Step{}, planError(p, -1, "%d tokens in %d rows exceed the step's %d and %d", t, r, e.maxTokens, e.maxReqs)
	}
	e.fill(img, p, t, r)

	e.cmd.Reset()
	m := &e.meta
	head := 4 * (m.rowsAt + r)
	e.cmd.Copy(m.buf.Slice(0, head), img.meta.Slice(0, head))
	table := 4 * r * m.width
	e.cmd.Copy(m.buf.Slice(4*m.tableAt, table), img.meta.Slice(4*m.tableAt, table))
	e.feed(p)
	if e.hostLengths != nil {
		for i := range r {
			e.hostLengths[i] = int64(img.words[m.lensAt+i])
		}
	}
	if err := e.run(dec, t, r); err != nil {
		return Step{}, err
	}
	e.keep(p)
	e.cmd.Copy(img.sampled.Slice(0, 4*p.Rows()), e.act.sampled.First(p.Rows()).View.Slice(0, 4*p.Rows()))
	point, _, err := e.stream.Submit(&e.cmd)
	if err != nil {
		return Step{}, err
	}
	img.point, img.busy = point, true
	e.next = (e.next + 1) % len(e.images)
	return Step{e: e, img: img, sample: p.Samples}, nil
}

// Wait blocks until the step has run and appends the tokens of the rows that
// sample, in the order of the rows. Steps are waited for in the order of their
// submission, each once, and before their plan is applied.
func (s Step) Wait(ctx context.Context, dst []scheduler.Token) ([]scheduler.Token, error) {
	if s.img == nil {
		return dst, nil
	}
	err := s.img.point.Wait(ctx)
	if err != nil {
		return dst, err
	}
	s.img.busy = false
	for i, yields := range s.sample {
		if yields != 0 {
			dst = append(dst, scheduler.Token(s.img.tokens[i]))
		}
	}
	return dst, nil
}

// Idle reports whether the step had no rows.
func (s Step) Idle() bool { return s.img == nil }

// Done tells without blocking whether the step has run.
func (s Step) Done() bool { return s.img == nil || s.img.point.Done() }

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
	s.id, s.cell, s.blocks = 0, -1, s.blocks[:0]
}

// follow applies the changes of the rows' block tables and checks the rows.
func (e *Executor) follow(p *scheduler.Plan) error {
	for i, id := range p.Requests {
		slot := int(id.Slot())
		for slot >= len(e.seqs) {
			e.seqs = append(e.seqs, seq{cell: -1})
		}
		s := &e.seqs[slot]
		if p.Drafts[i] != 0 {
			return planError(p, i, "%d drafts, but this executor verifies none", p.Drafts[i])
		}
		switch {
		case p.Kinds[i] != scheduler.RowRunning:
			e.release(s)
			if len(e.free) == 0 {
				return planError(p, i, "more than %d requests run", e.cells.Rows())
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
		if end > e.c.MaxLen || end > len(s.blocks)*e.c.BlockSize {
			return planError(p, i, "%d tokens do not fit %d blocks or the length %d", end, len(s.blocks), e.c.MaxLen)
		}
		for _, b := range s.blocks[from:] {
			if b < kvcache.NullBlock || int(b) >= e.c.Blocks {
				return planError(p, i, "block %d is not in the pool", b)
			}
		}
		for _, tok := range p.Input(i) {
			if tok < scheduler.Unknown || int(tok) >= e.c.Model.Vocab {
				return planError(p, i, "token %d is not in the vocabulary", tok)
			}
			if tok == scheduler.Unknown && p.Kinds[i] != scheduler.RowRunning {
				return planError(p, i, "a %s request takes a token that no step in flight samples", p.Kinds[i])
			}
		}
	}
	return nil
}

// feed puts tokens that an earlier step samples into the inputs of this one.
func (e *Executor) feed(p *scheduler.Plan) {
	e.to, e.from = e.to[:0], e.from[:0]
	for i, id := range p.Requests {
		for j, tok := range p.Input(i) {
			if tok == scheduler.Unknown {
				e.to = append(e.to, word(e.meta.ids, int(p.InputsAt[i])+j))
				e.from = append(e.from, word(e.cells, int(e.seqs[id.Slot()].cell)))
			}
		}
	}
	e.copyWords()
}

// keep stores the sampled tokens in their requests' cells.
func (e *Executor) keep(p *scheduler.Plan) {
	if e.c.InFlight < 2 {
		return // the host knows every token before it plans the next step
	}
	e.to, e.from = e.to[:0], e.from[:0]
	for i, id := range p.Requests {
		if p.Samples[i] != 0 {
			e.to = append(e.to, word(e.cells, int(e.seqs[id.Slot()].cell)))
			e.from = append(e.from, word(e.act.sampled, i))
		}
	}
	e.copyWords()
}

func (e *Executor) copyWords() {
	switch {
	case len(e.to) == 0:
	case e.dev.Caps().BatchCopy:
		e.cmd.CopyBatch(e.to, e.from)
	default:
		for i := range e.to {
			e.cmd.Copy(e.to[i], e.from[i])
		}
	}
}

// word is one element of an Int32 vector.
func word(t ascendrt.Tensor, i int) ascendrt.View { return t.View.Slice(4*i, 4) }
