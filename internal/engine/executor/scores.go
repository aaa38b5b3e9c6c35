package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/scheduler"
)

// Scorer reads the logits of prompts. The executor calls it from within Submit.
type Scorer interface {
	// Scored is the number of positions of a request's prompt, from the first on,
	// behind which the logits are wanted; 0 for most requests.
	Scored(id scheduler.RequestID) int
	// Score is given the logits behind the prompt's token at a position, one value
	// per token id; they are its own until it returns. A position comes again when it
	// is computed again. Several goroutines call it at once, each for another position,
	// while that of Submit stands still.
	Score(id scheduler.RequestID, pos int, logits []float32)
}

// scoreBytes bounds the logits of prompts that are in host memory at a time.
const scoreBytes = 32 << 20

// scores is the room for the logits of prompts. Of the places that a step computes
// logits for it takes as many as the rows of a step have and the bound allows, one
// piece after the other.
type scores struct {
	tokens ascendrt.Tensor     // [piece] rows by token
	rows   ascendrt.HostBuffer // what is copied there
	logits ascendrt.HostBuffer // nil before the first prompt
	places []scored            // scratch
}

// scored is a token of a step whose logits are read.
type scored struct {
	id  scheduler.RequestID
	pos int
	row int32 // of the step's tokens
}

// pieceOf is how many places a piece has.
func (e *Executor) pieceOf() int {
	return max(1, min(e.act.logits.Rows(), scoreBytes/e.logitsBytes()))
}

func (e *Executor) allocScores() error {
	if e.c.Scorer == nil {
		return nil
	}
	n := e.pieceOf()
	buf, err := e.alloc(4 * n)
	if err != nil {
		return err
	}
	e.scores.tokens = ascendrt.NewTensor(buf.View(), ascendrt.Int32, n)
	e.scores.rows, err = e.dev.AllocHost(4 * n)
	return err
}

func (s *scores) free() error {
	var errs []error
	for _, b := range []ascendrt.HostBuffer{s.rows, s.logits} {
		if b != nil {
			errs = append(errs, b.FreeAfter(ascendrt.Point{}))
		}
	}
	s.rows, s.logits = nil, nil
	return errors.Join(errs...)
}

// score computes the logits behind the tokens of the step that was just launched
// whose prompts are read, and hands them over. The next step overwrites what they
// are made from, so it waits for them.
func (e *Executor) score(ctx context.Context, p *scheduler.Plan) error {
	if e.c.Scorer == nil {
		return nil
	}
	s := &e.scores
	s.places = s.places[:0]
	for i, id := range p.Requests {
		if p.Computed[i] >= p.Prefill[i] {
			continue // its prompt is computed
		}
		from := int(p.Computed[i])
		for pos := from; pos < min(from+int(p.Scheduled[i]), e.c.Scorer.Scored(id)); pos++ {
			s.places = append(s.places, scored{id, pos, p.InputsAt[i] + int32(pos-from)})
		}
	}
	if len(s.places) == 0 {
		return nil
	}
	piece := e.pieceOf()
	if s.logits == nil {
		var err error
		if s.logits, err = e.dev.AllocHost(piece * e.logitsBytes()); err != nil {
			return fmt.Errorf("logits of prompts: %w", err)
		}
	}
	for at := 0; at < len(s.places); at += piece {
		part := s.places[at:min(at+piece, len(s.places))]
		if err := e.scorePiece(ctx, part); err != nil {
			return fmt.Errorf("logits of prompts: %w", err)
		}
		e.inParallel(len(part), func(i int, scratch []float32) {
			n := e.logitsBytes()
			e.c.Scorer.Score(part[i].id, part[i].pos, widen(scratch, s.logits.Bytes()[i*n:][:n], e.act.logits.Type))
		})
	}
	return nil
}

// scorePiece leaves the logits of some places in host memory.
func (e *Executor) scorePiece(ctx context.Context, part []scored) error {
	s, n := &e.scores, len(part)
	words := intWords(s.rows.Bytes())
	for i, x := range part {
		words[i] = x.row
	}
	rows, logits := s.tokens.First(n), e.act.logits.First(n)
	var c ascendrt.Commands
	c.Copy(rows.View, s.rows.Slice(0, 4*n))
	op := func(o ascendrt.Op, args ...ascendrt.Tensor) { c.Op(o, e.set.Workspace(), args...) }
	if f := e.ops.fused; f != nil {
		op(f.head, e.act.hidden, e.act.near, e.w.norm, e.w.head, rows, logits)
	} else {
		last := e.act.last.First(n)
		op(e.ops.gather, e.act.x, rows, last)
		op(e.ops.head, last, e.w.head, logits)
	}
	size := n * e.logitsBytes()
	c.Copy(s.logits.Slice(0, size), e.act.logits.View.Slice(0, size))
	point, _, err := e.stream.Submit(&c)
	if err != nil {
		return err
	}
	return point.Wait(ctx)
}
