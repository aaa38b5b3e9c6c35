package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/scheduler"
)

// Delta is what a request has gained since the last look.
type Delta struct {
	Tokens []scheduler.Token // new, in order; the receiver's
	// Logprobs has an entry per token where the request asks for log
	// probabilities, else it is nil.
	Logprobs []sample.Logprobs
	// Scores are those of the prompt's tokens, with the first token, where the
	// request asks for them.
	Scores []sample.Score
	// Cached and External are the prompt tokens that were found in this engine's
	// cache and through its connector. Known from the first delta on.
	Cached, External int
	// Finish is set on the last delta.
	Finish    scheduler.FinishReason
	Stop      scheduler.Stop
	StopToken scheduler.Token
	Refusal   scheduler.Refusal
	Params    any // of the connector, on the last delta
	Resident  int // on the last delta: tokens of prompt and output that stay cached here
	// ResidentUntil is, on the last delta, until when a lease keeps them; zero
	// without one.
	ResidentUntil time.Time
	Err           error // set if Finish is FinishError
}

// Stream is the output of one request. One goroutine reads it with Next; it
// must read to the end or call Cancel.
type Stream struct {
	rank *rank
	id   scheduler.RequestID // written by the rank before the stream is handed out

	// Of the rank's goroutine.
	req      Request // without its prompt, which the scheduler has
	route    scheduler.Route
	sampler  *sample.Sampler
	known    []scheduler.Token // prompt and tokens given out; where drafts are proposed from them
	prompt   int               // tokens
	count    int               // tokens given out
	local    int               // prompt tokens found in the cache at the first admission
	external int               // prompt tokens that the connector brought
	noisy    bool              // its KV was overwritten since its last admission
	noNumber atomic.Bool       // the logits behind a token of its prompt held a NaN
	times    times

	preempted bool // and has not run since

	digest   *digest // of a session's turn; else nil
	history  history
	expected int // tokens of the turn before that stayed cached

	mu    sync.Mutex
	delta Delta // gathered and not yet read
	fresh bool
	ended bool
	wake  chan struct{} // holds a token when there is something to read
}

func newStream(r *rank, req Request, sampler *sample.Sampler) *Stream {
	s := &Stream{rank: r, req: req, sampler: sampler, prompt: len(req.Prompt), wake: make(chan struct{}, 1)}
	if r.cfg.Speculative.on() {
		s.known = append(make([]scheduler.Token, 0, len(req.Prompt)+req.MaxTokens), req.Prompt...)
	}
	s.req.Prompt = nil
	s.times.arrived = time.Now()
	return s
}

// times are the moments of a request's life; zero before they come.
type times struct{ arrived, scheduled, first, last time.Time }

// Rank is the data-parallel rank that runs the request.
func (s *Stream) Rank() int { return s.rank.index }

// Next blocks until there is something new, or until ctx ends. After a delta
// with Finish there is nothing more.
func (s *Stream) Next(ctx context.Context) (Delta, error) {
	for {
		s.mu.Lock()
		if s.fresh {
			d := s.delta
			s.delta.Tokens, s.delta.Logprobs, s.delta.Scores, s.fresh = nil, nil, nil, false
			s.mu.Unlock()
			return d, nil
		}
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Delta{}, ctx.Err()
		}
	}
}

// Finish ends the request because the caller's own stop rule applies. The last
// delta still comes; tokens that come with or before it lie behind the stop.
func (s *Stream) Finish() {
	s.rank.post(func() {
		if s.rank.streams[s.id] == s {
			s.rank.stop(s)
		}
	})
}

// EndInTool says, after the last delta, that the answer calls a tool: the next
// turn comes sooner than after an answer that a person reads. It gives until when
// the session's lease keeps the turn now; zero without one.
func (s *Stream) EndInTool(ctx context.Context) (until time.Time, err error) {
	err = s.rank.call(ctx, func() {
		if session := s.req.Session; session != "" && !s.req.EndSession {
			s.rank.endTurn(session, scheduler.EndInTool)
			until = s.rank.residentUntil(s)
		}
	})
	return until, err
}

// Cancel aborts the request. Nothing comes any more.
func (s *Stream) Cancel() {
	s.rank.post(func() {
		if s.rank.streams[s.id] == s {
			s.rank.abort(s)
		}
	})
}

// push adds an output; called by the rank's goroutine.
func (s *Stream) push(o *scheduler.Output, probs []sample.Logprobs, scores []sample.Score, resident int, until time.Time) {
	s.mu.Lock()
	if scores != nil {
		s.delta.Scores = scores
	}
	if o.First {
		s.delta.Cached, s.delta.External = int(o.Cached), int(o.External)
	}
	s.delta.Tokens = append(s.delta.Tokens, o.Tokens...)
	s.delta.Logprobs = append(s.delta.Logprobs, probs...)
	if o.Finish != scheduler.NotFinished {
		d := &s.delta
		d.Finish, d.Stop, d.StopToken, d.Refusal, d.Params, d.Err = o.Finish, o.Stop, o.StopToken, o.Refusal, o.Params, o.Err
		d.Resident, d.ResidentUntil = resident, until
		s.ended = true
	}
	s.fresh = true
	s.mu.Unlock()
	s.signal()
}

// fail ends the stream with an error that is not of the scheduler.
func (s *Stream) fail(err error) {
	s.mu.Lock()
	if !s.ended {
		s.delta.Finish, s.delta.Err = scheduler.FinishError, err
		s.ended, s.fresh = true, true
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
