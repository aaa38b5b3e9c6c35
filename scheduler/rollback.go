package scheduler

import (
	"slices"

	"github.com/sluice-serving/sluice/kvcache"
)

// failedBlocks acts on blocks that did not arrive.
func (s *Scheduler) failedBlocks(ev *Event) {
	blocks := ev.Blocks
	if len(blocks) == 0 { // all of the request's load
		r := s.slots.get(ev.Request)
		if r == nil || !r.load.running || !r.seq.Open() {
			s.stats.Ignored++
			return
		}
		blocks = nil
		for g := range int(s.groups) {
			for _, b := range r.seq.Table(g)[r.seq.Published():] {
				if b != kvcache.NullBlock {
					blocks = append(blocks, b)
				}
			}
		}
	}
	for _, b := range blocks {
		if b <= kvcache.NullBlock || int(b) > s.cache.Usable() {
			s.stats.Ignored++
			return
		}
	}
	s.stats.FailedBlocks += uint64(len(blocks))
	for _, r := range s.uncache(blocks) {
		if r.status == Finished {
			continue
		}
		if s.cfg.LoadFailure == FailRequest {
			s.fail(r, ErrLoadFailed)
		}
	}
}

// uncache takes back blocks whose KV is not there and cuts every request that
// uses one back to its last good block. It returns those requests, oldest
// first.
func (s *Scheduler) uncache(blocks []kvcache.BlockID) []*request {
	// Output under way of a request that was preempted may rest on them too;
	// its table is gone, so it is not known. It is sampled again.
	for _, r := range s.slots.at {
		if r != nil && r.stale > s.applied {
			r.void = max(r.void, r.stale)
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	var hit []*request
	s.parkedLoads(func(r *request) {
		// The cache cuts the table of a request that shares a bad block. A
		// load that still runs may write to the rest of that table, so the
		// table goes behind a fence that ends with the load.
		for g := range int(s.groups) {
			if slices.ContainsFunc(r.seq.Table(g)[:r.seq.Published()], func(b kvcache.BlockID) bool { return slices.Contains(blocks, b) }) {
				f, err := s.cache.FreeFenced(&r.seq)
				s.must(err)
				r.load.fence = f
				r.load.failed = true
				r.computed, r.prefilling = 0, false
				hit = append(hit, r)
				return
			}
		}
	})
	var err error
	s.holders, err = s.cache.Uncache(blocks, s.holders[:0])
	s.must(err)
	for _, h := range s.holders {
		if r := s.ownerOf(h.Seq); r != nil {
			s.cut(r, int32(h.Tokens))
			hit = append(hit, r)
		}
	}
	return hit
}

// parkedLoads calls f for every request whose load runs and that has a table.
func (s *Scheduler) parkedLoads(f func(*request)) {
	if s.timers.loads == 0 {
		return
	}
	for _, r := range s.slots.at {
		if r != nil && r.load.running && r.seq.Open() {
			f(r)
		}
	}
}

// ownerOf is the live request that a sequence belongs to.
func (s *Scheduler) ownerOf(q *kvcache.Seq) *request {
	for _, r := range s.slots.at {
		if r != nil && &r.seq == q {
			return r
		}
	}
	return nil
}

// cut makes the first n tokens all that a request has computed. Results that
// plans in flight bring for it are void.
func (s *Scheduler) cut(r *request, n int32) {
	if r.status == Finished {
		return
	}
	if r.seq.Open() {
		s.tabled(r) // it may have lost blocks that it shared
	}
	if r.status == WaitingKV {
		r.load.failed = true
		r.computed = min(r.computed, n)
		return
	}
	if n >= r.computed {
		return
	}
	r.computed = n
	if r.status != Running {
		if n == 0 { // nothing is left to wait with
			s.freeFenced(r)
			r.prefilling = false
		}
		return
	}
	if r.lastSeq > s.applied {
		r.void, r.cutAt = r.lastSeq, n
	}
	r.placeholders, r.drafts = 0, 0
	r.draftTokens = r.draftTokens[:0]
	r.prefill = r.total()
	r.prefilling, r.chunk = true, true
}

// failStep rolls back everything that a plan was to compute.
func (s *Scheduler) failStep(p *Plan) {
	s.stats.FailedSteps++
	// Blocks of these requests that were made matchable by this plan or a later
	// one hold tokens that were not computed. A plan in flight keeps its blocks
	// from reuse, so their ids still mean the same.
	var bad []kvcache.BlockID
	for _, q := range append([]*Plan{p}, s.flight...) {
		for _, pub := range q.published {
			if slices.Contains(p.Requests, pub.by) {
				bad = append(bad, pub.block)
			}
		}
	}
	for i, id := range p.Requests {
		r := s.slots.get(id)
		if r == nil || r.status == Finished || p.Seq <= r.stale {
			continue
		}
		if p.Seq <= r.void { // cut while the plan was in flight, perhaps not far enough
			if from := p.Computed[i] - p.ExternalHits[i]; from < r.cutAt {
				s.cut(r, from)
			}
			continue
		}
		// Earlier plans are applied, so all that is in flight begins here.
		s.cut(r, r.computed-r.inFlight-p.ExternalHits[i])
	}
	s.uncache(bad)
}
