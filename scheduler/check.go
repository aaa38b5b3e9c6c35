package scheduler

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/internal/invariants"
	"github.com/sluice-serving/sluice/kvcache"
)

// check panics on a broken invariant, in builds that look for them.
func (s *Scheduler) check() {
	if invariants.Enabled {
		if err := s.Check(); err != nil {
			panic("scheduler: broken invariant: " + err.Error() + "\n" + s.Dump())
		}
	}
}

// Check reports every invariant that does not hold, by its number in the
// package comment. It touches every request and every block.
func (s *Scheduler) Check() error {
	var errs []error
	broken := func(rule string, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", rule, fmt.Sprintf(format, args...)))
	}
	seen := map[*request]string{}
	visit := func(r *request, in string, where place) {
		if old, ok := seen[r]; ok {
			broken("S1", "request %s is in %s and in %s", r.req.ID, old, in)
		}
		seen[r] = in
		if r.place != where {
			broken("S1", "request %s is in %s and believes to be elsewhere", r.req.ID, in)
		}
		if s.slots.get(r.id) != r {
			broken("S1", "request %s in %s is not live", r.req.ID, in)
		}
	}
	for _, r := range s.running {
		visit(r, "the running list", inRunning)
		if r.status != Running {
			broken("S1", "running request %s has status %s", r.req.ID, r.status)
		}
	}
	s.waiting.each(func(r *request) bool { visit(r, "the waiting queue", inWaiting); return true })
	s.skipped.each(func(r *request) bool { visit(r, "the skipped queue", inSkipped); return true })
	idle, loads, holds := 0, 0, 0
	for _, r := range s.slots.at {
		if r == nil {
			continue
		}
		s.checkRequest(r, broken)
		if r.load.running {
			loads++
		}
		switch r.status {
		case WaitingInput:
			idle++
			visit(r, "the idle sessions", nowhere)
		case Finished:
			if !r.load.running {
				holds++
			}
			visit(r, "the held requests", nowhere)
		}
		if _, ok := seen[r]; !ok {
			broken("S1", "request %s with status %s is nowhere", r.req.ID, r.status)
		}
		if named := s.names[r.req.ID] == r; named == (r.status == Finished) {
			broken("S1", "request %s with status %s and its name do not fit", r.req.ID, r.status)
		}
	}
	if len(seen) != s.slots.live {
		broken("S1", "%d requests are live, %d found", s.slots.live, len(seen))
	}
	if idle != s.idle || loads != s.timers.loads || holds != s.timers.holds {
		broken("S1", "counted idle %d, loads %d, holds %d; found %d, %d, %d", s.idle, s.timers.loads, s.timers.holds, idle, loads, holds)
	}
	if len(s.running) > s.cfg.MaxNumSeqs {
		broken("S2", "%d requests run, %d may", len(s.running), s.cfg.MaxNumSeqs)
	}
	for _, p := range s.flight {
		if int(p.Total) > s.cfg.MaxScheduledTokens || p.Rows() > s.cfg.MaxNumSeqs {
			broken("S2", "plan %d has %d tokens in %d rows", p.Seq, p.Total, p.Rows())
		}
	}
	if g := s.appends.governor; g != nil && g.held > g.cfg.Quiet {
		broken("S8", "attempts were held back for %d steps, Quiet is %d", g.held, g.cfg.Quiet)
	}
	s.checkBlocks(broken)
	return errors.Join(errs...)
}

func (s *Scheduler) checkRequest(r *request, broken func(string, string, ...any)) {
	known := r.total() + r.placeholders
	if s.cfg.Scheduling == Sync && r.lastSeq > s.applied {
		known += int32(s.cfg.Drafts)
	}
	if r.computed < 0 || r.status != Finished && r.computed > known {
		broken("S3", "request %s has %d tokens computed, %d known or in flight", r.req.ID, r.computed, known)
	}
	if r.status == Running && r.total()+r.placeholders+r.drafts <= r.computed && r.lastSeq <= s.applied {
		broken("S3", "running request %s has nothing left to compute", r.req.ID)
	}
	if r.placeholders < 0 || r.inFlight < 0 {
		broken("S4", "request %s has %d placeholders and %d tokens in flight", r.req.ID, r.placeholders, r.inFlight)
	}
	if r.lastSeq <= s.applied && (r.placeholders != 0 || r.inFlight != 0) {
		broken("S4", "request %s is in no plan in flight and has %d placeholders, %d tokens in flight", r.req.ID, r.placeholders, r.inFlight)
	}
	if r.seq.Open() && r.status != Running && r.status != WaitingKV && r.status != WaitingInput && r.status != Finished &&
		r.computed == 0 {
		broken("S5", "request %s with status %s holds blocks", r.req.ID, r.status)
	}
	if !r.seq.Open() && r.computed > 0 {
		broken("S5", "request %s with status %s has %d tokens computed and no blocks", r.req.ID, r.status, r.computed)
	}
	waits := r.status == WaitingKV && !r.load.done || r.status == WaitingGrammar || r.status == WaitingInput || r.status == Finished
	if waits && r.deadline == Never {
		broken("S7", "request %s with status %s waits without a deadline", r.req.ID, r.status)
	}
}

// checkBlocks compares the blocks in use with those that requests and fences
// keep.
func (s *Scheduler) checkBlocks(broken func(string, string, ...any)) {
	used := map[kvcache.BlockID]bool{}
	for _, r := range s.slots.at {
		if r == nil || !r.seq.Open() {
			continue
		}
		for g := range int(s.groups) {
			for _, b := range r.seq.Table(g) {
				if b != kvcache.NullBlock {
					used[b] = true
				}
			}
		}
	}
	inUse := s.cache.Usable() - s.cache.Available()
	fenced := s.fencedCount
	for _, r := range s.slots.at {
		if r != nil && r.load.fence != (kvcache.Fence{}) {
			fenced += s.cache.Usable() // its size is not known here
		}
	}
	if inUse < len(used) || inUse > len(used)+fenced {
		broken("S6", "%d blocks are in use, requests hold %d and fences up to %d", inUse, len(used), fenced)
	}
	if len(s.fences) == 0 && s.fencedCount != 0 {
		broken("S6", "no fence, but %d blocks counted", s.fencedCount)
	}
}
