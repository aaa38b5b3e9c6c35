package scheduler

import (
	"fmt"
	"strings"
)

// Queues are the caller's IDs of the requests in each list, in its order.
type Queues struct {
	Running []string
	Waiting []string
	Skipped []string // waiting for something else than room, or passed over
	Idle    []string // sessions between two turns
	Held    []string // ended, blocks kept
}

// Queues lists who is where, for tests and for people.
func (s *Scheduler) Queues() Queues {
	var q Queues
	for _, r := range s.running {
		q.Running = append(q.Running, r.req.ID)
	}
	s.waiting.each(func(r *request) bool { q.Waiting = append(q.Waiting, r.req.ID); return true })
	s.skipped.each(func(r *request) bool { q.Skipped = append(q.Skipped, r.req.ID); return true })
	for _, r := range s.slots.at {
		switch {
		case r == nil:
		case r.status == WaitingInput:
			q.Idle = append(q.Idle, r.req.ID)
		case r.status == Finished:
			q.Held = append(q.Held, r.req.ID)
		}
	}
	return q
}

// Dump writes the state of every request as text, a line each.
func (s *Scheduler) Dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan %d, applied %d, free %d of %d\n", s.seq, s.applied, s.cache.Available(), s.cache.Usable())
	line := func(r *request) bool {
		fmt.Fprintf(&b, "%s %s %s: tokens %d (prompt %d), computed %d, in flight %d", r.req.ID, r.id, r.status, r.total(), r.prompt, r.computed, r.inFlight)
		if r.placeholders > 0 {
			fmt.Fprintf(&b, ", placeholders %d", r.placeholders)
		}
		if r.drafts > 0 {
			fmt.Fprintf(&b, ", drafts %d", r.drafts)
		}
		if r.seq.Open() {
			fmt.Fprintf(&b, ", blocks %d", r.seq.Blocks())
		}
		if r.preemptions > 0 {
			fmt.Fprintf(&b, ", preempted %d times", r.preemptions)
		}
		b.WriteByte('\n')
		return true
	}
	for _, r := range s.running {
		line(r)
	}
	s.waiting.each(line)
	s.skipped.each(line)
	for _, r := range s.slots.at {
		if r != nil && (r.status == WaitingInput || r.status == Finished) {
			line(r)
		}
	}
	return b.String()
}
