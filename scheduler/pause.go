package scheduler

import "github.com/sluice-serving/sluice/connector"

// Pause says what a scheduler leaves alone.
type Pause uint8

const (
	Unpaused Pause = iota // the scheduler works
	PauseNew              // nobody is admitted; running requests go on
	PauseAll              // no rows at all; plans still carry the connector's work
)

// SetPause changes the pause state from the next plan on.
func (s *Scheduler) SetPause(p Pause) {
	s.paused = p
	s.dirty = true
	if s.rec != nil {
		s.rec.switched("pause", int(p))
	}
}

// Throttle says whether prompts hold back so that ranks that step together
// stay in step.
type Throttle uint8

const (
	NoThrottle       Throttle = iota // prompts run whenever there is budget
	ThrottlePrefills                 // prompts wait while somebody decodes
)

// SetThrottle holds prompts back from the next plan on: neither admitted, nor
// continued where they are under way, as long as a running request decodes. A
// request with one token left is no prompt. A scheduler that had to leave
// requests waiting in its last plan without the throttle does not hold back:
// it has fallen behind.
func (s *Scheduler) SetThrottle(t Throttle) {
	s.throttle = t
	s.dirty = true
	if s.rec != nil {
		s.rec.switched("throttle", int(t))
	}
}

// throttled is true if a plan that begins now leaves prompts alone.
func (s *Scheduler) throttled() bool {
	if s.throttle != ThrottlePrefills || s.behind {
		return false
	}
	for _, r := range s.running {
		if !r.chunk {
			return true
		}
	}
	return false
}

// Reset says what ResetCache does about running requests.
type Reset uint8

const (
	ResetIdle    Reset = iota // ErrBusy if a request holds blocks
	ResetPreempt              // running requests are preempted first; output in flight is dropped
)

// ResetCache forgets every cached prefix, e.g. after a change of the weights,
// and has the connector forget what it keeps. With ResetPreempt running
// requests are preempted also if the answer is ErrBusy, because plans in flight
// still write their blocks: it is to be called again when they are applied.
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
	if c, ok := s.conn.(connector.Resetter); ok && !c.ResetCache() {
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
