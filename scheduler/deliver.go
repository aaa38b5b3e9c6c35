package scheduler

import (
	"github.com/sluice-serving/sluice/connector"
)

// Event is what a connector's worker reports.
type Event = connector.Event

// Deliver hands over what happened to transfers, in order, at any time between
// two other calls. Events are idempotent; one that fits no wait is ignored and
// counted in Stats.Ignored. What they end is output by the next Apply.
//
// Failed blocks count as never computed, for every request that uses them:
// each is cut back to its last good block, and the results of plans in flight
// for it are dropped. Under FailRequest those requests end.
func (s *Scheduler) Deliver(events ...Event) {
	for i := range events {
		ev := &events[i]
		if s.conn != nil {
			s.conn.Completed(*ev)
		}
		s.dirty = true
		switch ev.Kind {
		case connector.Received:
			s.received(ev)
		case connector.Sent:
			s.sent(ev)
		case connector.Failed:
			s.failedBlocks(ev)
		}
	}
	s.check()
	if s.rec != nil {
		s.rec.delivered(events)
	}
}

// report counts a worker's report; it is true with the last worker's.
func (s *Scheduler) report(r *request, worker int) bool {
	if worker < 0 || worker >= s.cfg.Workers || !r.acks.add(worker) {
		s.stats.Ignored++
		return false
	}
	return r.acks.n >= s.cfg.Workers
}

func (s *Scheduler) received(ev *Event) {
	r := s.slots.get(ev.Request)
	if r == nil || !r.load.running {
		s.stats.Ignored++
		return
	}
	if !s.report(r, ev.Worker) {
		return
	}
	if r.status == Finished {
		s.settle(r)
		return
	}
	s.unwait(r)
	r.load.done = true
}

func (s *Scheduler) sent(ev *Event) {
	r := s.slots.get(ev.Request)
	if r == nil || r.status != Finished || r.load.running {
		s.stats.Ignored++
		return
	}
	if s.report(r, ev.Worker) {
		s.settle(r)
	}
}
