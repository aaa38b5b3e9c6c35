package engine

import (
	"errors"
	"time"

	"github.com/sluice-serving/sluice/scheduler"
)

// What a rank does with a request, from its coming to its end. All of it is of the
// rank's goroutine.

// add takes a request in; on the rank's goroutine.
func (r *rank) add(s *Stream, req scheduler.Request) error {
	if req.Session != "" && !r.cfg.NoPrefix {
		s.digest, s.history, s.expected = r.histories.begin(req.Session, req.Prompt)
		if req.SkipCacheRead {
			s.expected = 0
		}
	}
	id, err := r.sched.Add(req)
	if err != nil {
		r.live.Add(-1)
		return err
	}
	s.id = id
	r.streams[id] = s
	return nil
}

// output passes one output to its stream.
func (r *rank) output(o *scheduler.Output, now time.Time) {
	s := r.streams[o.Request]
	if s == nil {
		return // aborted before
	}
	probs, scores := s.sampler.Take(s.count, len(o.Tokens)), r.scores(s, o)
	s.count += len(o.Tokens)
	if s.digest != nil {
		s.digest.add(o.Tokens)
	}
	if r.cfg.Speculative.on() {
		s.known = append(s.known, o.Tokens...)
	}
	r.metrics.output(s, o, now)
	resident, until := 0, time.Time{}
	if o.Finish != scheduler.NotFinished {
		resident, until = r.resident(s, o), r.residentUntil(s)
		r.trace.add(finishLine{"finish", s.req.TraceID, r.index, s.count, o.Finish.String()})
		r.forget(s)
		if s.digest != nil && resident > 0 {
			r.histories.end(s.req.Session, s.digest)
		}
		if s.req.EndSession && s.req.Session != "" {
			r.endSession(s.req.Session)
		}
	}
	s.push(o, probs, scores, resident, until)
}

// resident is how much of a request that has ended stays matchable: the full
// blocks of its prompt and output. The last token has no KV.
func (r *rank) resident(s *Stream, o *scheduler.Output) int {
	switch {
	case r.cfg.NoPrefix || s.count == 0:
		return 0
	case o.Finish == scheduler.FinishError || o.Finish == scheduler.FinishAbort:
		return 0
	}
	return (s.prompt + s.count - 1) / r.cfg.BlockSize * r.cfg.BlockSize
}

// residentUntil is until when the prefix of a turn that has ended is kept for
// its session; zero if it is not.
func (r *rank) residentUntil(s *Stream) time.Time {
	if s.req.Session == "" || s.req.EndSession {
		return time.Time{}
	}
	until, tokens := r.sched.LeasedUntil(s.req.Session)
	if tokens == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(until))
}

// ErrNaN ends a request whose logits held no number.
var ErrNaN = errors.New("the model gave NaN for this request")

// dropNaN ends the requests for which the device found no token: alone, the
// others of the step go on.
func (r *rank) dropNaN(p *scheduler.Plan, counts []int32) {
	at := -1
	for i, id := range p.Requests {
		if counts[i] == 0 {
			continue
		}
		at += int(counts[i]) // the last one of the row: drafts before it are tokens
		if r.tokens[at] < 0 {
			r.tokens[at] = 0 // of nobody any more
			if s := r.streams[id]; s != nil {
				r.endNaN(s, p.Seq)
			}
		}
	}
	if r.noNumber.Swap(false) { // behind a token of a prompt
		for _, s := range r.streams {
			if s.noNumber.Load() {
				r.endNaN(s, p.Seq)
			}
		}
	}
}

func (r *rank) endNaN(s *Stream, step uint64) {
	r.log.Error("NaN in the logits", "request", s.req.TraceID, "step", step)
	r.abort(s)
	s.fail(ErrNaN)
}

// stop ends a request by its caller's own stop rule.
func (r *rank) stop(s *Stream) {
	params, err := r.sched.FinishWith(s.id, scheduler.FinishStop)
	if err != nil {
		return // it has ended by itself, and its last output is on the way
	}
	r.flushOps()
	r.output(&scheduler.Output{Request: s.id, Finish: scheduler.FinishStop, Stop: scheduler.StopCaller, Params: params}, time.Now())
}

// abort ends a request whose caller has gone.
func (r *rank) abort(s *Stream) {
	if err := r.sched.Abort(s.id); err != nil && !errors.Is(err, scheduler.ErrUnknown) {
		r.log.Error("abort", "request", s.req.TraceID, "error", err)
	}
	r.metrics.aborted(s)
	r.trace.add(finishLine{"finish", s.req.TraceID, r.index, s.count, scheduler.FinishAbort.String()})
	r.forget(s)
}

func (r *rank) forget(s *Stream) {
	delete(r.streams, s.id)
	r.live.Add(-1)
}

// endTurn tells the scheduler what a session's client does next.
func (r *rank) endTurn(session string, end scheduler.TurnEnd) {
	if err := r.sched.EndTurn(session, end); err != nil && !errors.Is(err, scheduler.ErrUnknown) {
		r.log.Error("end of a turn", "end", end, "error", err)
	}
}

// endSession gives up what is kept for a session.
func (r *rank) endSession(session string) {
	r.histories.forget(session)
	r.endTurn(session, scheduler.EndOfSession)
	if r.links.pd != nil {
		r.links.pd.EndSession(session)
		r.flushOps()
	}
}
