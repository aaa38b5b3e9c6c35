package scheduler

import "fmt"

// continueSession takes the next turn of a session in, or its end.
func (s *Scheduler) continueSession(r *request, req Request) (RequestID, error) {
	if !req.Resumable {
		if r.status == WaitingInput {
			s.finish(r, FinishAbort)
		} else {
			r.turns = append(r.turns, req)
		}
		s.dirty = true
		return r.id, nil
	}
	bad := func(field, reason string) error { return &RequestError{ID: req.ID, Field: field, Reason: reason} }
	length := len(r.tokens) + len(req.Prompt)
	for i := range r.turns {
		if !r.turns[i].Resumable {
			return 0, bad("Resumable", "the session's end is queued already")
		}
		length += len(r.turns[i].Prompt)
	}
	switch {
	case len(req.Prompt) == 0:
		return 0, bad("Prompt", "is empty")
	case req.MaxTokens < 1:
		return 0, bad("MaxTokens", fmt.Sprintf("is %d, must be at least 1", req.MaxTokens))
	case req.MinTokens < 0 || req.MinTokens > req.MaxTokens:
		return 0, bad("MinTokens", fmt.Sprintf("is %d, must lie in [0, MaxTokens=%d]", req.MinTokens, req.MaxTokens))
	case length > int(s.maxLen):
		return 0, &TooLongError{ID: req.ID, Prompt: length, Limit: int(s.maxLen)}
	}
	if i := outOfVocabulary(req.Prompt, s.cfg.VocabSize); i >= 0 {
		return 0, bad("Prompt", fmt.Sprintf("token %d at position %d is outside the vocabulary", req.Prompt[i], i))
	}
	s.dirty = true
	if r.status == WaitingInput {
		s.idle--
		s.unwait(r)
		s.startTurn(r, req)
	} else {
		r.turns = append(r.turns, req)
	}
	return r.id, nil
}

// endTurn is the end of a session's turn: the next one begins, or the session
// waits for it with its blocks. It reports whether the running list holds a
// request less.
func (s *Scheduler) endTurn(r *request) bool {
	running := r.place == inRunning
	if running {
		r.place = nowhere
	} else {
		s.leave(r)
	}
	// Results under way are of a turn that has ended. What they compute behind
	// the turn's last token is written again.
	if r.lastSeq > s.applied {
		r.void = r.lastSeq
	}
	// A turn's last token has no KV and is left out of the next turn, also where
	// a draft has computed it or a preemption has lost more. It was handed out a
	// moment ago, so its memory is not reused.
	kept := r.total() - 1
	r.tokens = r.tokens[:kept:kept]
	r.computed = min(max(r.computed-r.inFlight, 0), kept)
	r.placeholders, r.drafts, r.chunk = 0, 0, false
	r.draftTokens = r.draftTokens[:0]
	r.prefilling = false
	if len(r.turns) > 0 {
		turn := r.turns[0]
		r.turns = append(r.turns[:0], r.turns[1:]...)
		if turn.Resumable {
			s.startTurn(r, turn)
		} else {
			s.finish(r, FinishAbort)
		}
		return running
	}
	r.status = WaitingInput
	s.idle++
	s.wait(r, s.now.Add(s.cfg.InputTimeout))
	return running
}

// startTurn makes a turn's prompt the continuation of what the session has
// computed, all of which counts as prompt from now on.
func (s *Scheduler) startTurn(r *request, turn Request) {
	r.tokens = append(r.tokens, turn.Prompt...)
	turn.Namespace, turn.Route, turn.Session = r.req.Namespace, r.req.Route, r.req.Session
	r.req = turn
	r.setLimits(s.maxLen)
	r.view.Params = turn.Params
	r.started = false
	r.status = Waiting
	if r.preemptions > 0 && !r.seq.Open() {
		r.status = Preempted
	}
	if r.grammar && turn.Grammar != GrammarReady {
		r.status = WaitingGrammar
		s.wait(r, s.now.Add(s.cfg.GrammarTimeout))
		s.enqueue(r, inSkipped)
		return
	}
	s.enqueue(r, inWaiting)
}
