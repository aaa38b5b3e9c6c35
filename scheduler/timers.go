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
	at Time
	id RequestID
}

func timerLess(a, b timer) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	return a.id < b.id
}

// wait sets the deadline of what the request waits for.
func (s *Scheduler) wait(r *request, at Time) {
	s.unset(r)
	r.deadline = at
	if at == Never {
		return
	}
	if s.timers.tree == nil {
		s.timers.tree = btree.NewG(16, timerLess)
	}
	s.timers.tree.ReplaceOrInsert(timer{at, r.id})
}

// unset takes the request's deadline away.
func (s *Scheduler) unset(r *request) {
	if r.deadline != Never && s.timers.tree != nil {
		s.timers.tree.Delete(timer{r.deadline, r.id})
	}
	r.deadline = Never
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
		if r == nil || r.deadline != t.at {
			continue
		}
		s.expired(r)
	}
}

// expired ends one wait. The request's timer is gone already; a lookup that
// stays pending keeps its deadline in the past, by which ask sees that it has
// waited long enough.
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
		r.deadline = Never
		s.fail(r, ErrGrammarTimeout)
	case WaitingInput:
		s.stats.Timeouts++
		r.deadline = Never
		s.fail(r, ErrInputTimeout)
	case Finished:
		s.stats.Timeouts++
		s.settle(r)
	case Waiting:
		r.deadline = Never
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
