package scheduler

// Pause says what a scheduler leaves alone.
type Pause uint8

const (
	Unpaused Pause = iota
	PauseNew       // nobody is admitted; running requests go on
	PauseAll       // no rows at all; plans still carry the connector's work
)

// SetPause changes the pause state from the next plan on.
func (s *Scheduler) SetPause(p Pause) {
	s.paused = p
	s.dirty = true
	if s.rec != nil {
		s.rec.switched("pause", int(p))
	}
}

// Reset says what ResetCache does about running requests.
type Reset uint8

const (
	ResetIdle    Reset = iota // ErrBusy if a request holds blocks
	ResetPreempt              // running requests are preempted first; output in flight is dropped
)

// ResetCache forgets every cached prefix, e.g. after a change of the weights.
func (s *Scheduler) ResetCache(mode Reset) error {
	if s.rec != nil {
		defer s.rec.switched("reset", int(mode))
	}
	if mode == ResetPreempt {
		for len(s.running) > 0 {
			r := s.running[len(s.running)-1]
			s.running = s.running[:len(s.running)-1]
			r.place = nowhere
			s.preempt(r, true)
		}
		s.dirty = true
	}
	if err := s.cache.Reset(); err != nil {
		return ErrBusy
	}
	return nil
}

// SetGrammar reports what became of a request's grammar.
func (s *Scheduler) SetGrammar(id RequestID, g GrammarState) error {
	r := s.slots.get(id)
	if r == nil || r.status == Finished {
		return ErrUnknown
	}
	r.req.Grammar = g
	s.dirty = true
	if s.rec != nil {
		s.rec.grammar(id, g)
	}
	return nil
}

// waits says what a plan without rows waits for.
func (s *Scheduler) waits(p *Plan) Wait {
	switch {
	case len(s.names) == 0:
		return NoWait
	case s.paused == PauseAll || s.paused == PauseNew && len(s.running) == 0:
		return ForResume
	case len(s.flight) > 0:
		return ForStep
	case s.timers.loads > 0:
		return ForLoad
	case len(p.Pending) > 0:
		return ForLookup
	case s.timers.holds > 0 && s.waiting.len()+s.skipped.len() > 0:
		return ForRelease
	}
	wait := NoWait
	s.skipped.each(func(r *request) bool {
		if r.status == WaitingGrammar {
			wait = ForGrammar
		}
		return wait == NoWait
	})
	if wait == NoWait && s.idle > 0 {
		wait = ForInput
	}
	return wait
}
