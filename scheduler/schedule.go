package scheduler

import (
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// budget is what a plan may still hand out.
type budget struct {
	tokens int32 // scheduled tokens left
	input  int32 // scheduled tokens and drafter slots left
	slots  int32 // drafter slots per row
	drafts int32 // K of this plan

	preempted bool // somebody was preempted: nobody is admitted
	starved   bool // blocks will return, and nobody takes the free ones before
	stalled   bool // the only running request lacks blocks that finished loads hold
	rows      int  // rows of running requests
	wide      int  // rows that prefill, other than one token
	tails     int  // admissions of one token over context
	fresh     int  // admissions of one token without
	refused   bool // an admission found no room
	throttled bool // prompts are left alone

	appends int32 // tokens left for append attempts
	hold    bool  // attempts wait for a step in which nobody decodes
	held    bool  // and one did so
}

func (b *budget) take(n int32) {
	b.tokens -= n
	b.input -= n + b.slots
}

func (b *budget) giveBack(n int32) {
	b.tokens += n
	b.input += n + b.slots
}

// room is the number of tokens that one more row may have.
func (b *budget) room() int32 { return min(b.tokens, b.input-b.slots) }

// rowDraft is a row while the plan is being made.
type rowDraft struct {
	r            *request
	n            int32
	drafts       int32
	placeholders int32
	from         int32 // first position of the block table that is reported
	local        int32
	external     int32
	kind         RowKind
	grown        bool // the table has grown
	gone         bool // taken back
}

// Plan makes the next step. It returns nil if as many plans are in flight as
// Config.InFlight allows. now is the caller's clock; a value before that of
// the previous call counts as equal to it.
//
// First it acts on deadlines that have passed. Then running requests get their
// tokens, in the order of their admission; one that finds no block preempts
// another. If nobody was preempted, waiting requests are admitted while budget,
// slots and blocks last.
func (s *Scheduler) Plan(now Time) *Plan {
	if len(s.flight) >= s.cfg.InFlight {
		return nil
	}
	s.now = max(s.now, now)
	s.cache.Tick(kvcache.Time(s.now))
	s.expire()
	p := s.nextPlan()
	b := budget{
		tokens: int32(s.cfg.MaxScheduledTokens), input: int32(s.cfg.MaxBatchedTokens),
		slots: int32(s.cfg.DraftSlots), drafts: s.draftWidth(),
	}
	if s.paused == PauseAll {
		b.tokens = 0
	}
	agreed := s.beginAppends(&b, p)
	b.throttled = s.throttled()
	s.rows = s.rows[:0]
	s.loras = s.loras[:0]
	for {
		s.planRunning(&b, p)
		if !b.stalled {
			break
		}
		b.stalled = false
		if s.admitLoaded(&b, p) || !s.dropLoaded(nil) {
			break
		}
		b.starved = false
	}
	if !b.preempted && !b.starved && s.paused == Unpaused {
		s.planWaiting(&b, p)
	}
	if !b.throttled {
		s.behind = s.waiting.len() > 0
	}
	s.endAppends(agreed, &b)
	s.fill(p, &b)
	s.news.moveTo(p, s.alloc)
	p.Free = int32(s.cache.Available())
	if p.Rows() == 0 {
		p.Waits = s.waits(p)
		// With nothing to wait for, somebody was preempted: the next plan goes on.
		s.dirty = p.Waits == NoWait && s.waiting.len()+s.skipped.len() > 0
	}
	s.stats.planned(p)
	p.state = planInFlight
	p.events = s.cache.EventMark()
	s.flight = append(s.flight, p)
	s.check()
	if s.rec != nil {
		s.rec.planned(now, p)
	}
	return p
}

// nextPlan is an empty plan with the next number.
func (s *Scheduler) nextPlan() *Plan {
	var p *Plan
	if n := len(s.spare); n > 0 {
		p = s.spare[n-1]
		s.spare = s.spare[:n-1]
	} else {
		p = &Plan{owner: s, Groups: s.groups}
	}
	p.reset(s.alloc)
	s.seq++
	p.Seq, p.Now, p.Applied = s.seq, s.now, s.applied
	return p
}

// draftWidth is the K of a plan.
func (s *Scheduler) draftWidth() int32 {
	if d := s.cfg.DynamicDrafts; len(d) > 0 {
		return int32(d[min(len(s.running), len(d)-1)])
	}
	return int32(s.cfg.Drafts)
}

// planRunning gives running requests their tokens.
func (s *Scheduler) planRunning(b *budget, p *Plan) {
	limit := int32(s.cfg.LongPrefillThreshold)
	for i := 0; i < len(s.running) && b.tokens > 0 && b.input > b.slots; i++ {
		r := s.running[i]
		if b.throttled && r.chunk {
			continue
		}
		// An earlier plan in flight brings it to its end, even if every draft
		// is rejected.
		if r.placeholders > 0 && r.computed+2-r.placeholders >= r.limit {
			continue
		}
		total := r.total()
		n := total + min(r.drafts, b.drafts) + r.placeholders - r.computed
		if r.chunk {
			n = s.holdBack(n, r.computed, b)
		}
		if limit > 0 {
			n = min(n, limit)
		}
		// A sampled token needs a place too, unless all that is left is known.
		n = min(n, b.room(), max(s.maxLen-r.computed-1, total-r.computed))
		governed := r.chunk && s.governs(r)
		if governed && b.appends < n {
			n = b.appends
			b.held = b.held || b.hold
		}
		if n <= 0 {
			continue
		}
		from, grown := r.table, false
		if end := r.computed + n; (end+s.lookahead > r.room || min(end, total) >= r.quiet) && !r.seq.Covers(int(end), int(s.lookahead)) {
			if b.starved {
				continue
			}
			kept := i
			if !s.makeRoom(r, n, &kept, b, p) {
				switch {
				case b.starved:
				case s.cfg.Victim != VictimByRecompute:
					return // as the reference does
				default: // what it gave up may be enough for those behind it
					i = kept - 1
				}
				continue
			}
			i, grown = kept, true
		}
		b.take(n)
		b.rows++
		if s.breaksShape(r, n) {
			b.wide++
		}
		if governed {
			b.appends -= n
		}
		drafts := max(n+r.computed-total-r.placeholders, 0)
		s.rows = append(s.rows, rowDraft{r: r, n: n, drafts: drafts, from: from, kind: RowRunning, grown: grown})
		if r.adapter {
			s.addLoRA(r)
		}
	}
}

// breaksShape reports whether a row of n tokens of a running request has another
// shape than the decodes beside it. A prompt that is held back has theirs.
func (s *Scheduler) breaksShape(r *request, n int32) bool {
	return r.chunk && (n > 1 || s.cfg.HoldBack < 2)
}

// makeRoom allocates what a running request needs for n more tokens, and
// preempts others until it can. at is the request's index among the running
// ones, which moves if one before it is preempted. It is false if the request
// does not run in this plan: it was preempted itself, or b.starved is set.
func (s *Scheduler) makeRoom(r *request, n int32, at *int, b *budget, p *Plan) bool {
	if end := r.computed + n; !s.windowed && int(end+s.lookahead) <= r.seq.Capacity() {
		// There is room; a block becomes full.
		before := r.seq.Published()
		s.must(s.cache.Publish(&r.seq, r.tokens, int(min(end, r.total()))))
		s.tabled(r)
		s.notePublished(r, before, p)
		return true
	}
	a := kvcache.Alloc{
		Tokens: r.tokens, Computed: int(r.computed), New: int(n), Lookahead: int(s.lookahead),
		MaxTokens: int(s.maxLen), InFlight: int(r.inFlight),
	}
	for {
		before := r.seq.Published()
		g, err := s.cache.Allocate(&r.seq, &a)
		s.must(err)
		if g.OK {
			s.tabled(r)
			s.notePublished(r, before, p)
			return true
		}
		if s.fencedCount > 0 && g.Need.New <= s.cache.Available()+s.fencedCount {
			b.starved = true
			return false
		}
		v := s.victim()
		self := s.running[v] == r
		if self && len(s.running) == 1 && r.outputs() == r.admittedAt && (s.firstLoaded() != nil || s.willFree()) {
			// Alone, it has gained nothing since its admission, and would come
			// back to gain nothing again. It keeps what it has.
			b.starved = true
			b.stalled = s.firstLoaded() != nil
			return false
		}
		s.preemptAt(v, b, p)
		if self {
			return false
		}
		if v < *at {
			*at--
		}
	}
}

// notePublished remembers which blocks the plan has made matchable before they
// are computed.
func (s *Scheduler) notePublished(r *request, before int, p *Plan) {
	upto := r.seq.Published()
	if upto <= before {
		return
	}
	for g := range int(s.groups) {
		for _, b := range r.seq.Table(g)[before:upto] {
			if b != kvcache.NullBlock {
				p.published = append(p.published, publication{b, r.id})
			}
		}
	}
}

// victim is the index of the running request that gives way.
func (s *Scheduler) victim() int {
	last := len(s.running) - 1
	if s.cfg.Policy != Priority {
		if s.cfg.Victim == VictimByRecompute {
			return s.cheapest(1, func(*request) bool { return true })
		}
		return last
	}
	// The least urgent; the last of several that are equal by priority and
	// arrival is not distinguished from the first.
	worst := 0
	for i, r := range s.running {
		w := s.running[worst]
		if r.req.Priority > w.req.Priority || r.req.Priority == w.req.Priority && r.req.Arrival > w.req.Arrival {
			worst = i
		}
	}
	if s.cfg.Victim == VictimByRecompute {
		urgency := s.running[worst].req.Priority
		return s.cheapest(0, func(r *request) bool { return r.req.Priority == urgency })
	}
	return worst
}

// cheapest is the running request, from an index on and among those that
// qualify, whose preemption costs the fewest tokens to compute again; of equal
// ones the last admitted. With one request there is no choice.
func (s *Scheduler) cheapest(from int, qualifies func(*request) bool) int {
	best := -1
	for i := min(from, len(s.running)-1); i < len(s.running); i++ {
		if r := s.running[i]; qualifies(r) && (best < 0 || r.computed <= s.running[best].computed) {
			best = i
		}
	}
	return best
}

// preemptAt takes the running request at an index out, and its row if the plan
// has one.
func (s *Scheduler) preemptAt(i int, b *budget, p *Plan) {
	r := s.running[i]
	for j := range s.rows {
		if d := &s.rows[j]; d.r == r && !d.gone {
			d.gone = true
			b.giveBack(d.n)
			b.rows--
			if s.breaksShape(r, d.n) {
				b.wide--
			}
			if r.chunk && s.governs(r) {
				b.appends += d.n
			}
			p.RolledBack = add(s.alloc, p.RolledBack, r.id)
			s.dropLoRA()
			// What the row was to compute is matchable already.
			var err error
			s.holders, err = s.cache.Retract(&r.seq, int(r.computed), s.holders[:0])
			s.must(err)
		}
	}
	b.preempted = true
	s.running = append(s.running[:i], s.running[i+1:]...)
	r.place = nowhere
	s.preempt(r, s.dropStale)
}

// preempt takes a running request's blocks away and queues it again.
func (s *Scheduler) preempt(r *request, drop bool) {
	saved := s.conn != nil && s.conn.Preempting(r.known(), s.tablesOf(r), int(max(r.computed-r.inFlight, 0)))
	s.freeFenced(r)
	s.news.preempted(r.id, saved)
	s.stats.Preemptions++
	r.preemptions++
	undrained := r.stale > s.applied && r.dropStale
	if r.lastSeq > s.applied {
		r.stale = r.lastSeq
		r.dropStale = drop || undrained
	}
	r.computed, r.placeholders, r.drafts = 0, 0, 0
	r.draftTokens = r.draftTokens[:0]
	r.prefilling, r.chunk = false, false
	if s.cfg.Recompute == RecomputeAway && !saved && s.conn != nil {
		s.sendAway(r)
		return
	}
	r.status = Preempted
	r.place = inWaiting
	s.waiting.front([]*request{r})
}

// tablesOf is the request's block table; nil before it has one.
func (s *Scheduler) tablesOf(r *request) connector.Tables {
	if !r.seq.Open() {
		return nil
	}
	for g := range s.tables {
		s.tables[g] = r.seq.Table(g)
	}
	return s.tables
}

// computedTables is tablesOf, cut to the blocks of the first n tokens.
func (s *Scheduler) computedTables(r *request, n int32) connector.Tables {
	t := s.tablesOf(r)
	blocks := int((n + s.blockSize - 1) / s.blockSize)
	for g := range t {
		t[g] = t[g][:min(blocks, len(t[g]))]
	}
	return t
}

// must panics on an error of the cache: the scheduler keeps its rules, so one
// is a broken invariant.
func (s *Scheduler) must(err error) {
	if err != nil {
		panic("scheduler: " + err.Error())
	}
}

// addLoRA counts the request's adapter among those of the plan.
func (s *Scheduler) addLoRA(r *request) {
	if !r.adapter {
		return
	}
	id := r.req.Namespace.LoRA
	for _, have := range s.loras {
		if have == id {
			return
		}
	}
	s.loras = append(s.loras, id)
}

// dropLoRA recounts the adapters after a row was taken back.
func (s *Scheduler) dropLoRA() {
	s.loras = s.loras[:0]
	for i := range s.rows {
		if !s.rows[i].gone {
			s.addLoRA(s.rows[i].r)
		}
	}
}

// fitsLoRA is false if the request's adapter would be one too many.
func (s *Scheduler) fitsLoRA(r *request) bool {
	id := r.req.Namespace.LoRA
	if s.cfg.MaxLoRAs == 0 || !r.adapter || len(s.loras) < s.cfg.MaxLoRAs {
		return true
	}
	for _, have := range s.loras {
		if have == id {
			return true
		}
	}
	return false
}
