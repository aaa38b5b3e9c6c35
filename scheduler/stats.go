package scheduler

// Stats are counters since the start, and what is there now. They are kept as
// things happen; reading them touches no request.
type Stats struct {
	// Now.

	Running int // requests that run
	Waiting int // in the queue for room
	Skipped int // waiting for something else
	Idle    int // sessions between two turns
	Held    int // ended, blocks kept for a connector or a load

	// Since the start.

	Added        uint64
	Finished     [FinishRecomputed + 1]uint64
	Refused      [BelowThreshold + 1]uint64
	Steps        uint64 // plans applied
	Rows         uint64
	Tokens       uint64 // scheduled
	Generated    uint64
	Preemptions  uint64
	Loads        uint64 // asynchronous
	Leases       uint64 // of sessions' prefixes, granted at the end of a turn
	Dropped      uint64 // loads that gave way before they could run
	Timeouts     uint64 // waits that ended by their deadline
	Ignored      uint64 // events that fit no wait
	FailedBlocks uint64
	FailedSteps  uint64

	// Prefix lookups of admissions. Those of preempted requests are apart.

	Prefix    PrefixStats
	Resumed   PrefixStats
	Connector PrefixStats

	// Prompt tokens of first admissions by where their KV came from.

	PromptTokens   uint64
	PromptLocal    uint64
	PromptExternal uint64

	// Drafts, by rows that had some.

	DraftRows      uint64
	DraftTokens    uint64
	DraftsAccepted uint64
	// DraftsAcceptedAt counts rows that accepted the draft at a position.
	DraftsAcceptedAt []uint64
}

// PrefixStats counts lookups in tokens.
type PrefixStats struct {
	Requests uint64
	Queries  uint64
	Hits     uint64
}

func (p *PrefixStats) add(queries, hits int) {
	p.Requests++
	p.Queries += uint64(queries)
	p.Hits += uint64(hits)
}

// Stats returns the counters as they are now.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.Running = len(s.running)
	st.Waiting = s.waiting.len()
	st.Skipped = s.skipped.len()
	st.Idle = s.idle
	st.Held = s.slots.live - len(s.names)
	st.DraftsAcceptedAt = append([]uint64(nil), s.stats.DraftsAcceptedAt...)
	return st
}

func (st *Stats) planned(p *Plan) {
	st.Rows += uint64(p.Rows())
	st.Tokens += uint64(p.Total)
}

// drafted counts the fate of a row's drafts.
func (st *Stats) drafted(p *Plan, row int, accepted int32) {
	st.DraftRows++
	st.DraftTokens += uint64(p.Drafts[row] - p.Placeholders[row])
	st.DraftsAccepted += uint64(accepted)
	for len(st.DraftsAcceptedAt) < int(p.Drafts[row]) {
		st.DraftsAcceptedAt = append(st.DraftsAcceptedAt, 0)
	}
	for i := range accepted {
		st.DraftsAcceptedAt[i]++
	}
}

// recordLookup counts the lookups of an admission, and what a request's first
// one found.
func (s *Scheduler) recordLookup(r *request, local, external int) {
	if r.computed > 0 {
		return // no lookup was made
	}
	total := len(r.tokens)
	if s.cache.Caching() == 0 && !r.req.SkipCacheRead {
		p := &s.stats.Prefix
		if r.preemptions > 0 {
			p = &s.stats.Resumed
		}
		p.add(total, local)
	}
	if s.conn != nil {
		s.stats.Connector.add(total-local, external)
	}
	if r.preemptions == 0 {
		r.cached, r.external = int32(local), int32(external)
		s.stats.PromptTokens += uint64(r.prompt)
		s.stats.PromptLocal += uint64(min(local, int(r.prompt)))
		s.stats.PromptExternal += uint64(external)
	}
}
