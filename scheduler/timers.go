package scheduler

import (
	"github.com/google/btree"

	"github.com/sluice-serving/sluice/kvcache"
)

// timers are the deadlines of waits, earliest first.
type timers struct {
	tree  *btree.BTreeG[timer]
	loads int // asynchronous loads under way, those of ended requests included
	holds int // ended requests whose blocks a connector keeps
}

type timer struct {
	at  Time
	id  RequestID
	why timed
}

// timed says what a timer bounds: a request's status, or the lookups that a
// connector leaves pending for it. A request may have one of each.
type timed uint8

const (
	timedStatus timed = iota
	timedLookup
)

func timerLess(a, b timer) bool {
	switch {
	case a.at != b.at:
		return a.at < b.at
	case a.id != b.id:
		return a.id < b.id
	}
	return a.why < b.why
}

// set moves one of the request's timers, whose present time is *old.
func (s *Scheduler) set(r *request, why timed, old *Time, at Time) {
	if s.timers.tree == nil {
		s.timers.tree = btree.NewG(16, timerLess)
	}
	if *old != Never {
		s.timers.tree.Delete(timer{*old, r.id, why})
	}
	if *old = at; at != Never {
		s.timers.tree.ReplaceOrInsert(timer{at, r.id, why})
	}
}

// wait sets the deadline of what the request waits for.
func (s *Scheduler) wait(r *request, at Time) { s.set(r, timedStatus, &r.deadline, at) }

// waitLookup sets the deadline of the request's pending lookups.
func (s *Scheduler) waitLookup(r *request, at Time) { s.set(r, timedLookup, &r.lookupBy, at) }

// unset takes the request's deadlines away.
func (s *Scheduler) unset(r *request) {
	if r.deadline != Never {
		s.wait(r, Never)
	}
	if r.lookupBy != Never {
		s.waitLookup(r, Never)
	}
}

// unwait ends whatever the request waits for.
func (s *Scheduler) unwait(r *request) {
	s.unset(r)
	if r.load.running {
		r.load.running = false
		s.timers.loads--
		if r.load.fence != (kvcache.Fence{}) {
			s.must(s.cache.Lift(r.load.fence))
			r.load.fence = kvcache.Fence{}
		}
	}
}

// NextDeadline is when Plan must be called although nothing arrives: a wait
// ends then. It is false if nobody waits for anything with a deadline.
func (s *Scheduler) NextDeadline() (Time, bool) {
	if s.timers.tree == nil {
		return 0, false
	}
	t, ok := s.timers.tree.Min()
	return t.at, ok
}

// expire ends the waits whose deadline has passed.
func (s *Scheduler) expire() {
	for s.timers.tree != nil {
		t, ok := s.timers.tree.Min()
		if !ok || t.at > s.now {
			return
		}
		s.timers.tree.DeleteMin()
		r := s.slots.get(t.id)
		// A lookup's time stays in the past, by which ask sees that the request
		// has waited long enough.
		if r != nil && t.why == timedStatus && r.deadline == t.at {
			r.deadline = Never
			s.expired(r)
		}
	}
}

// expired ends one wait. The request's timer is gone already.
func (s *Scheduler) expired(r *request) {
	switch r.status {
	case WaitingKV:
		s.stats.Timeouts++
		s.unwait(r)
		r.load.done, r.load.failed = true, true
		r.computed = 0
		if s.cfg.LoadFailure == FailRequest {
			s.fail(r, ErrLoadTimeout)
		}
	case WaitingGrammar:
		s.stats.Timeouts++
		s.fail(r, ErrGrammarTimeout)
	case WaitingInput:
		s.stats.Timeouts++
		s.fail(r, ErrInputTimeout)
	case Finished:
		s.stats.Timeouts++
		s.settle(r)
	case Waiting:
		s.tooLong(r)
	}
}

// settle ends the hold of an ended request and gives its blocks back.
func (s *Scheduler) settle(r *request) {
	if r.load.running {
		s.unwait(r)
	} else {
		s.unset(r)
		s.timers.holds--
	}
	s.news.released(r.id)
	s.release(r)
}
