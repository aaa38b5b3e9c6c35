package scheduler

import "slices"

// Apply takes the result of the oldest plan in flight and returns what the
// requests have gained, in the order of the plan's rows: first the ends that
// are not a row's, such as refusals. The outputs are valid until the next
// Apply. An error changes nothing, and the plan stays in flight.
//
// Order of effects: blocks that the plan kept from reuse return; tokens are
// appended one by one, each followed by the stop rules, and what comes after
// an end is dropped; requests that ended give their blocks back.
func (s *Scheduler) Apply(p *Plan, res Result) ([]Output, error) {
	if err := s.checkResult(p, &res); err != nil {
		return nil, err
	}
	s.flight = append(s.flight[:0], s.flight[1:]...)
	p.state = planApplied
	s.applied = p.Seq
	s.events = p.events
	s.lift()
	for _, i := range s.rare {
		s.outs[:cap(s.outs)][i] = Output{}
	}
	s.outs, s.rare = s.outs[:0], s.rare[:0]
	s.flushEarly(p.Seq)
	if res.Outcome == Failed {
		s.failStep(p)
	}
	s.observe(p, &res)
	s.applyRows(p, &res)
	s.flushEarly(0)
	s.stats.Steps++
	s.dirty = s.dirty || p.Rows() > 0 || len(s.outs) > 0
	s.spare = append(s.spare, p)
	s.check()
	if s.rec != nil {
		s.rec.applied(p.Seq, res, s.outs)
	}
	return s.outs, nil
}

// flushEarly hands out the outputs that belong to no row: those of plans up to
// seq, or those that wait for no plan if seq is 0.
func (s *Scheduler) flushEarly(seq uint64) {
	kept := s.early[:0]
	for _, e := range s.early {
		if (seq == 0) == (e.seq == 0) && e.seq <= seq {
			s.rare = append(s.rare, int32(len(s.outs)))
			s.outs = append(s.outs, e.out)
		} else {
			kept = append(kept, e)
		}
	}
	clear(s.early[len(kept):])
	s.early = kept
}

// checkResult refuses a plan or a result that does not fit.
func (s *Scheduler) checkResult(p *Plan, res *Result) error {
	switch {
	case p == nil || p.owner != s:
		return ErrForeignPlan
	case p.state != planInFlight:
		return ErrStalePlan
	case s.flight[0] != p:
		return ErrPlanOrder
	case res.Outcome > Failed:
		return &ResultError{p.Seq, -1, "unknown outcome"}
	case res.Outcome == Failed:
		return nil
	}
	rows := p.Rows()
	if res.Counts != nil && len(res.Counts) != rows {
		return &ResultError{p.Seq, -1, "Counts does not have an entry per row"}
	}
	if res.DraftCounts != nil && len(res.DraftCounts) != rows {
		return &ResultError{p.Seq, -1, "DraftCounts does not have an entry per row"}
	}
	tokens := 0
	if res.Counts == nil {
		for _, n := range p.Samples {
			tokens += int(n)
		}
	} else {
		for i, n := range res.Counts {
			if n < int32(p.Samples[i]) || n > 0 && (p.Samples[i] == 0 || n > p.Drafts[i]+1) {
				return &ResultError{p.Seq, i, "a number of tokens that the row cannot have"}
			}
			tokens += int(n)
		}
	}
	if tokens != len(res.Tokens) {
		return &ResultError{p.Seq, -1, "Tokens does not have as many entries as the rows need"}
	}
	if i := outOfVocabulary(res.Tokens, s.cfg.VocabSize); i >= 0 {
		return &ResultError{p.Seq, -1, "a token is outside the vocabulary"}
	}
	drafts := 0
	for i, n := range res.DraftCounts {
		if n < 0 || int(n) > s.cfg.Drafts {
			return &ResultError{p.Seq, i, "a number of drafts that is not configured"}
		}
		drafts += int(n)
	}
	if drafts != len(res.Drafts) {
		return &ResultError{p.Seq, -1, "Drafts does not have as many entries as DraftCounts says"}
	}
	if i := outOfVocabulary(res.Drafts, s.cfg.VocabSize); i >= 0 {
		return &ResultError{p.Seq, -1, "a draft is outside the vocabulary"}
	}
	for _, i := range res.GrammarErrors {
		if i < 0 || int(i) >= rows {
			return &ResultError{p.Seq, int(i), "GrammarErrors names no row"}
		}
	}
	return nil
}

// applyRows gives every row its tokens.
func (s *Scheduler) applyRows(p *Plan, res *Result) {
	tokens, drafts := res.Tokens, res.Drafts
	failed := res.Outcome == Failed
	ended := 0
	for i, id := range p.Requests {
		n := 0
		if !failed {
			n = int(p.Samples[i])
			if res.Counts != nil {
				n = int(res.Counts[i])
			}
		}
		got := tokens[:n]
		tokens = tokens[n:]
		var proposed []Token
		if res.DraftCounts != nil && !failed {
			k := res.DraftCounts[i]
			proposed, drafts = drafts[:k], drafts[k:]
		}
		r := s.slots.get(id)
		if r == nil {
			continue
		}
		r.inFlight -= p.Scheduled[i]
		if failed || p.Seq <= r.void || r.status == Finished {
			continue
		}
		stale := p.Seq <= r.stale
		if stale && r.dropStale {
			continue
		}
		if s.applyRow(p, i, r, got, proposed, stale, res) {
			ended++
		}
	}
	if ended > 0 {
		s.compactRunning()
	}
}

// applyRow gives a row its tokens and reports whether a running request ended.
func (s *Scheduler) applyRow(p *Plan, i int, r *request, got, proposed []Token, stale bool, res *Result) bool {
	async := s.cfg.Scheduling == Async
	if d := p.Drafts[i]; d > 0 && len(got) > 0 {
		accepted := int32(len(got) - 1)
		s.stats.drafted(p, i, accepted)
		if !stale {
			r.computed -= d - accepted
			if async {
				r.placeholders -= d - accepted
			}
		}
	}
	if len(got) == 0 {
		return false
	}
	first := r.total()
	reason, why := NotFinished, StopNone
	for _, t := range got {
		s.push(r, t)
		if reason, why = r.ended(t); reason != NotFinished {
			break
		}
	}
	kept := r.total() - first
	s.stats.Generated += uint64(kept)
	if async && !stale {
		r.placeholders -= kept
		if known := r.computed - r.placeholders; r.status == Running && known >= r.quiet {
			s.must(s.cache.Publish(&r.seq, r.tokens, int(min(known, r.total()))))
			s.tabled(r)
		}
	}
	out := s.output()
	out.Request, out.ID, out.Tokens = r.id, r.name, r.tokens[first:r.total():r.total()]
	out.Finish, out.Stop, out.StopToken = reason, why, 0
	out.First, out.Cached, out.External = false, 0, 0
	if !r.started {
		r.started = true
		out.First, out.Cached, out.External = true, r.cached, r.external
	}
	if reason == NotFinished && len(res.GrammarErrors) > 0 && slices.Contains(res.GrammarErrors, int32(i)) {
		reason = FinishError
		out.Finish, out.Err = reason, ErrGrammar
		r.req.Resumable = false
	}
	if reason == NotFinished {
		if len(proposed) > 0 && !r.chunk && !stale {
			r.draftTokens = append(r.draftTokens[:0], proposed...)
			r.drafts = int32(len(proposed))
		}
		return false
	}
	s.rare = append(s.rare, int32(len(s.outs)-1))
	if why == StopID {
		out.StopToken = r.last
	}
	if r.req.Resumable {
		return s.endTurn(r)
	}
	running := r.place == inRunning
	if running {
		r.place = nowhere // taken out of the list by compactRunning
	}
	out.Params = s.finish(r, reason).Params
	return running
}

// output is one more output of this Apply. What only last outputs have is
// empty, the rest is that of an earlier one.
func (s *Scheduler) output() *Output {
	n := len(s.outs)
	if n == cap(s.outs) {
		s.outs = append(s.outs, Output{})
	} else {
		s.outs = s.outs[:n+1]
	}
	return &s.outs[n]
}

// push appends a token to the request's own. Room grows by steps, and never
// beyond what the request may reach.
func (s *Scheduler) push(r *request, t Token) {
	n := len(r.tokens)
	if n == cap(r.tokens) {
		room := min(int(r.limit)-n, max(256, n/8))
		grown := make([]Token, n, n+max(room, 1))
		copy(grown, r.tokens)
		r.tokens = grown
	}
	r.tokens = r.tokens[:n+1]
	r.tokens[n] = t
	r.last = t
}

// compactRunning takes requests out of the running list that have left it.
func (s *Scheduler) compactRunning() {
	kept := s.running[:0]
	for _, r := range s.running {
		if r.place == inRunning {
			kept = append(kept, r)
		}
	}
	clear(s.running[len(kept):])
	s.running = kept
}
