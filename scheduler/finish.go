package scheduler

import (
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// fence keeps the blocks of a request until the plan with this number is
// applied.
type fence struct {
	seq    uint64
	fence  kvcache.Fence
	blocks int
	id     RequestID
}

// earlyOutput is an output that does not come from a row: it is handed out by
// the Apply of its plan, or the next one if seq is 0, before the rows' outputs.
type earlyOutput struct {
	seq uint64
	out Output
}

// Abort ends a request in whatever state it is. A step in flight that has a
// row of it still runs, and its tokens are dropped; blocks that a step in
// flight writes, or a transfer touches, return when it is done. Nothing is
// output. An unknown or ended request is ErrUnknown.
func (s *Scheduler) Abort(id RequestID) error { return s.Finish(id, FinishAbort) }

// Finish ends a request for a reason that the caller found, e.g. a stop
// string. Tokens that were output before stay valid; nothing more is output.
func (s *Scheduler) Finish(id RequestID, reason FinishReason) error {
	_, err := s.FinishWith(id, reason)
	return err
}

// FinishWith is Finish and returns the connector's parameters for the
// response, nil if there are none.
func (s *Scheduler) FinishWith(id RequestID, reason FinishReason) (any, error) {
	r := s.slots.get(id)
	if r == nil || r.status == Finished {
		return nil, ErrUnknown
	}
	if reason == NotFinished || reason > FinishRecomputed {
		return nil, &RequestError{ID: r.req.ID, Field: "reason", Reason: "is none that ends a request"}
	}
	out := s.finish(r, reason)
	s.check()
	if s.rec != nil {
		s.rec.ended(id, reason)
	}
	return out.Params, nil
}

// finish ends a request and returns its last output, without tokens.
func (s *Scheduler) finish(r *request, reason FinishReason) Output {
	s.leave(r)
	if r.status == WaitingInput {
		s.idle--
	}
	out := Output{Request: r.id, ID: r.req.ID, Finish: reason, First: !r.started, Cached: r.cached, External: r.external}
	loading := r.load.running
	if !loading {
		s.unset(r)
	}
	delay := false
	if s.conn != nil {
		done := max(r.computed-r.inFlight, 0)
		if loading {
			done = 0
		}
		hold := s.conn.Finished(r.known(), s.computedTables(r, done), connector.End{
			Reason: reason.end(), Computed: int(done), Output: int(r.outputs()),
		})
		out.Params = hold.Params
		if delay = hold.Delay && !loading && r.seq.Open(); delay {
			s.wait(r, s.now.Add(orDefault(hold.Timeout, s.cfg.HoldTimeout)))
		}
	}
	r.placeholders, r.drafts = 0, 0
	s.leaseTurn(r, reason.end().Complete())
	r.status = Finished
	r.reason = reason
	s.news.finished(r.id, reason)
	s.stats.Finished[reason]++
	delete(s.names, r.req.ID)
	switch {
	case loading: // its blocks return with the end of the load
	case delay:
		s.timers.holds++
		r.acks.clear()
	default:
		s.release(r)
	}
	return out
}

// fail ends a request with an error that is output with the next Apply.
func (s *Scheduler) fail(r *request, err error) {
	out := s.finish(r, FinishError)
	out.Err = err
	s.early = append(s.early, earlyOutput{0, out})
}

// sendAway ends a preempted request so that its sender takes it elsewhere. An
// append attempt without a token, none in flight either, ends as a refusal: its
// sender then takes the other route from the start.
func (s *Scheduler) sendAway(r *request) {
	if s.isAppend(r) && r.outputs() == 0 && r.stale <= s.applied {
		ref := Refusal{Reason: Busy, PromptTokens: r.prompt}
		s.stats.Refused[Busy]++
		d := s.judged(r, 0)
		d.Rule, d.Verdict, d.Reason = RuleGaveWay, AppendRefuse, Busy
		s.tellAppend(r, d)
		out := s.finish(r, FinishRefused)
		out.Refusal = ref
		s.early = append(s.early, earlyOutput{0, out})
		return
	}
	s.early = append(s.early, earlyOutput{0, s.finish(r, FinishRecomputed)})
}

// release gives an ended request's blocks and slot back.
func (s *Scheduler) release(r *request) {
	if r.seq.Open() {
		if r.lastSeq > s.applied {
			s.freeFenced(r)
		} else {
			s.must(s.cache.Free(&r.seq))
		}
	}
	s.slots.drop(r)
	r.req, r.view, r.tokens, r.turns = Request{}, connector.Request{}, nil, nil
	s.recycled = append(s.recycled, r)
}

// freeFenced gives the request's blocks back once the newest plan that writes
// them is applied.
func (s *Scheduler) freeFenced(r *request) {
	if r.lastSeq <= s.applied {
		s.must(s.cache.Free(&r.seq))
		return
	}
	blocks := r.seq.Blocks()
	f, err := s.cache.FreeFenced(&r.seq)
	s.must(err)
	s.fences = append(s.fences, fence{seq: r.lastSeq, fence: f, blocks: blocks, id: r.id})
	s.fencedCount += blocks
}

// lift frees what was fenced by plans that are applied now.
func (s *Scheduler) lift() {
	kept := s.fences[:0]
	for _, f := range s.fences {
		if f.seq > s.applied {
			kept = append(kept, f)
			continue
		}
		s.must(s.cache.Lift(f.fence))
		s.fencedCount -= f.blocks
	}
	s.fences = kept
}
