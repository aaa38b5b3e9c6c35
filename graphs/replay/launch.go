package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

// Step is one step to run.
type Step struct {
	Decision graphs.Decision
	Verdicts []graphs.RowVerdict // of the real rows
	// Inputs appends what writes the static inputs, at their usual addresses;
	// nil if they are in place.
	Inputs func(*ascendrt.Commands)
	// Lengths are the KV lengths of the padded rows, Starts their first tokens
	// and the end of the last one; needed only where operations take them from
	// the host.
	Lengths, Starts []int64
	// After appends what uses the result, in the same submission; nil for none.
	After func(c *ascendrt.Commands, result ascendrt.Tensor)
	// Views are the inputs by address, compared where addresses are checked.
	Views []ascendrt.View
}

// resultSlot is a place for one result.
type resultSlot struct {
	tensor     ascendrt.Tensor
	generation uint64
	held       bool
}

// Result is the result of one launch. No later launch touches it until it is
// released.
type Result struct {
	Point ascendrt.Point // when it is there

	set        *Set
	slot       int
	generation uint64
	rows       int
}

// Tensor is the result's rows, to be read behind Point or on the same stream.
func (r Result) Tensor() (ascendrt.Tensor, error) {
	if !r.valid() {
		return ascendrt.Tensor{}, ErrReleased
	}
	return r.set.slots[r.slot].tensor.First(r.rows), nil
}

func (r Result) valid() bool {
	return r.set != nil && r.set.slots[r.slot].held && r.set.slots[r.slot].generation == r.generation
}

// Release gives the place back. Work that reads the result must be submitted
// to the stream of the steps before.
func (r Result) Release() error {
	if !r.valid() {
		return ErrReleased
	}
	r.set.slots[r.slot].held = false
	return nil
}

// Launch runs one step as its decision says, in one submission, and does not
// wait for it. The context bounds the wait for an earlier launch that some
// runtimes need before values are replaced. After an error of the device the
// step may have run in part; it has no result, and the caller runs it again or
// gives it up.
func (s *Set) Launch(ctx context.Context, step Step) (Result, error) {
	dec := step.Decision
	if int(dec.Reqs) != len(step.Verdicts) {
		return Result{}, fmt.Errorf("%w: %d verdicts for %d rows", ErrShape, len(step.Verdicts), dec.Reqs)
	}
	slot := slices.IndexFunc(s.slots, func(r resultSlot) bool { return !r.held })
	if slot < 0 {
		return Result{}, ErrHeld
	}
	shape := Shape{Tokens: int(dec.PaddedTokens), Reqs: int(dec.PaddedReqs), Key: dec.Key}
	if shape.Tokens < 1 || shape.Reqs < 1 || shape.Tokens > s.cfg.MaxTokens || shape.Reqs > s.cfg.MaxReqs {
		return Result{}, fmt.Errorf("%w: %d tokens in %d rows; at most %d and %d", ErrShape, shape.Tokens, shape.Reqs, s.cfg.MaxTokens, s.cfg.MaxReqs)
	}
	if s.lengths != nil {
		if len(step.Lengths) != shape.Reqs || len(step.Starts) != shape.Reqs+1 {
			return Result{}, fmt.Errorf("%w: %d lengths and %d starts for %d padded rows", ErrShape, len(step.Lengths), len(step.Starts), shape.Reqs)
		}
		copy(s.lengths, step.Lengths)
		copy(s.starts, step.Starts)
	}
	e, err := s.find(dec, step)
	if err != nil {
		return Result{}, err
	}
	s.cmd.Reset()
	if step.Inputs != nil {
		step.Inputs(&s.cmd)
	}
	if err := s.append(ctx, dec, shape, e); err != nil {
		return Result{}, err
	}
	rows := s.cfg.Program.ResultRows(shape)
	place := s.slots[slot].tensor.First(rows)
	s.cmd.Copy(part(place), part(s.result.First(rows)))
	if step.After != nil {
		step.After(&s.cmd, place)
	}
	if e != nil && len(e.updates) > 0 {
		if err := s.updater.check(); err != nil {
			return Result{}, err
		}
	}
	p, _, err := s.cfg.Stream.Submit(&s.cmd)
	if err != nil {
		return Result{}, fmt.Errorf("launch %v: %w", dec.Key, err)
	}
	s.updater.submitted(p)
	r := &s.slots[slot]
	r.held = true
	r.generation++
	return Result{Point: p, set: s, slot: slot, generation: r.generation, rows: rows}, nil
}

// part is the view of exactly the tensor's bytes.
func part(t ascendrt.Tensor) ascendrt.View { return t.View.Slice(0, t.Bytes()) }

// find gives the graphs of a decision, nil for an eager step.
func (s *Set) find(dec graphs.Decision, step Step) (*entry, error) {
	if dec.Mode == graphs.None {
		return nil, nil
	}
	if dec.KeyID < 0 || int(dec.KeyID) >= len(s.entries) || s.entries[dec.KeyID] == nil || s.cfg.Dispatcher.Keys()[dec.KeyID] != dec.Key {
		return nil, &MissingKeyError{Key: dec.Key}
	}
	if err := graphs.CheckRows(dec.Key, step.Verdicts); err != nil {
		return nil, err
	}
	e := s.entries[dec.KeyID]
	if e.inputs != nil {
		for i, v := range e.inputs {
			if i >= len(step.Views) || step.Views[i].Addr != v.Addr {
				return nil, fmt.Errorf("%w: input %d of %v", ErrMoved, i, dec.Key)
			}
		}
	}
	return e, nil
}

// append adds the pass itself.
func (s *Set) append(ctx context.Context, dec graphs.Decision, shape Shape, e *entry) error {
	if e == nil {
		return s.record(&Pass{set: s, kind: passEager, shape: shape, cmd: &s.cmd, lengths: s.lengths, starts: s.starts})
	}
	if len(e.updates) > 0 {
		if err := s.updater.begin(ctx); err != nil {
			return err
		}
		s.slotBuf = s.slotBuf[:0]
		for _, ref := range e.updates {
			s.slotBuf = append(s.slotBuf, ascendrt.Slot{Op: ref, I64: s.lengths[:shape.Reqs]},
				ascendrt.Slot{Op: ref, Slot: 1, I64: s.starts[:shape.Reqs+1]})
		}
		if err := s.updater.update(e.segments[0].graph, s.slotBuf); err != nil {
			return err
		}
	}
	for _, g := range e.segments {
		if g.graph != nil {
			s.cmd.Graph(g.graph)
			continue
		}
		p := &Pass{set: s, kind: passEager, shape: shape, cmd: &s.cmd, lengths: s.lengths, starts: s.starts}
		if err := p.runBreak(g.eager); err != nil {
			return err
		}
	}
	return nil
}
