package scheduler

import (
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
)

// step is what becomes of the request at the head of the queues.
type step uint8

const (
	admitted step = iota // it left the queues
	passOver             // it stays, and the next one is looked at
	stop                 // it stays, and nobody after it is looked at
)

// planWaiting admits waiting requests. Requests that are passed over keep
// their order and stand, after the plan, in the queue of those that are looked
// at first.
func (s *Scheduler) planWaiting(b *budget, p *Plan) {
	for {
		b.refused = false
		s.scanWaiting(b, p)
		if !b.refused || !s.stuck() {
			return
		}
		// Nobody fits although nothing else will make room: what is left is held
		// by loads that have ended and cannot run either. The last of them give
		// way until the first can, which goes before anyone takes the room again.
		for first := s.firstLoaded(); ; {
			if !s.dropLoaded(first) {
				return
			}
			if s.admitLoaded(b, p) {
				break
			}
		}
	}
}

func (s *Scheduler) scanWaiting(b *budget, p *Plan) {
	s.passed = s.passed[:0]
	for s.waiting.len()+s.skipped.len() > 0 && b.tokens > 0 && b.input > b.slots {
		if len(s.running)+s.idle >= s.cfg.MaxNumSeqs {
			break
		}
		r := s.head()
		q := s.queueOf(r.place)
		switch s.admit(r, b, p) {
		case admitted:
			continue
		case stop:
			if s.stuck() {
				b.refused = true
				break
			}
			s.putBack()
			return
		}
		q.remove(r)
		r.place = nowhere
		s.passed = append(s.passed, r)
	}
	s.putBack()
}

// putBack returns the requests that were passed over.
func (s *Scheduler) putBack() {
	for _, r := range s.passed {
		r.place = inSkipped
	}
	s.skipped.front(s.passed)
	s.passed = s.passed[:0]
}

// head is the request that is looked at next: of those passed over before, and
// of the others only if it comes strictly before them.
func (s *Scheduler) head() *request {
	w, k := s.waiting.peek(), s.skipped.peek()
	if k == nil || w != nil && s.waiting.less(w, k) {
		return w
	}
	return k
}

// stuck is true if nothing that happens by itself will free blocks: nobody
// runs, nothing is in flight, no load runs and no blocks are held for a
// connector. A request that finds no room must then not hide those behind it.
func (s *Scheduler) stuck() bool {
	return len(s.running) == 0 && len(s.flight) == 0 && len(s.rows) == 0 && s.timers.loads == 0 && s.timers.holds == 0
}

// willFree is true if blocks will return without anybody running.
func (s *Scheduler) willFree() bool {
	return len(s.flight) > 0 || s.timers.loads > 0 || s.timers.holds > 0 || len(s.fences) > 0
}

// eachLoaded calls f, in the order of the queues, for every waiting request
// that holds blocks and whose load has ended.
func (s *Scheduler) eachLoaded(f func(*request)) {
	visit := func(r *request) bool {
		if r.seq.Open() && !r.load.running {
			f(r)
		}
		return true
	}
	s.skipped.each(visit)
	s.waiting.each(visit)
}

// admitLoaded admits requests whose load has ended and that fit in what they
// hold and what is free, and reports whether there was one.
func (s *Scheduler) admitLoaded(b *budget, p *Plan) bool {
	var loaded []*request
	s.eachLoaded(func(r *request) { loaded = append(loaded, r) })
	s.passed = s.passed[:0]
	some := false
	for _, r := range loaded {
		if b.tokens > 0 && b.input > b.slots && len(s.running)+s.idle < s.cfg.MaxNumSeqs && s.admit(r, b, p) == admitted {
			some = true
		}
	}
	s.putBack()
	return some
}

// firstLoaded is the first waiting request that holds blocks, or nil.
func (s *Scheduler) firstLoaded() (first *request) {
	s.eachLoaded(func(r *request) {
		if first == nil {
			first = r
		}
	})
	return first
}

// dropLoaded takes the blocks of the last waiting request that holds some,
// other than keep. What it had stays cached until the blocks are needed.
func (s *Scheduler) dropLoaded(keep *request) bool {
	var last *request
	s.eachLoaded(func(r *request) {
		if r != keep {
			last = r
		}
	})
	if last == nil {
		return false
	}
	if last.load.done {
		s.takeLoad(last)
	}
	if last.seq.Open() {
		s.freeFenced(last)
	}
	last.computed, last.prefilling = 0, false
	s.stats.Dropped++
	return true
}

// admit decides about the request at the head of the queues.
func (s *Scheduler) admit(r *request, b *budget, p *Plan) step {
	if !s.ready(r) {
		return passOver
	}
	if r.status == Finished {
		return admitted // its grammar failed: it left the queues
	}
	if r.stale > s.applied && !r.dropStale {
		return passOver // its late output comes first
	}
	if !s.fitsLoRA(r) {
		return passOver
	}
	var hit kvcache.Match
	var ext connector.Answer
	var judged AppendDecision
	if r.computed == 0 {
		hit = s.lookup(r)
		if judged = s.appendVerdict(r, int32(hit.Tokens)); judged.Verdict == AppendRefuse {
			s.refuse(r, judged, p)
			return admitted
		}
		if s.conn != nil {
			ext = s.ask(r, hit.Tokens)
			if ext.Pending {
				p.Pending = add(s.alloc, p.Pending, r.id)
				return passOver
			}
		}
		if s.belowThreshold(r, hit.Tokens+ext.Tokens) {
			judged = s.judged(r, int32(hit.Tokens))
			judged.Rule, judged.Verdict, judged.Reason = RuleThreshold, AppendRefuse, BelowThreshold
			s.refuse(r, judged, p)
			return admitted
		}
	}
	total := r.total()
	have := r.computed + int32(hit.Tokens) + int32(ext.Tokens)
	load := ext.Tokens > 0 && ext.Async
	var n, pad int32
	if !load {
		if b.throttled && have < total-1 {
			return stop
		}
		n, pad = s.admissionTokens(r, total-have, have, b)
		if n <= 0 {
			return stop
		}
		if s.governs(r) && b.appends < n {
			b.held = b.held || b.hold
			if n, pad = min(n-pad, b.appends), 0; n <= 0 {
				return passOver // others may go on; its turn comes
			}
		}
	}
	if !s.allocate(r, hit, ext, n, load, p) {
		return stop
	}
	if s.conn != nil {
		s.conn.Allocated(r.known(), s.tablesOf(r), hit.Tokens, ext.Tokens)
	}
	if judged.Rule != RuleNone {
		s.tellAppend(r, judged)
	}
	s.recordLookup(r, hit.Tokens, ext.Tokens)
	s.sessionHolds(r)
	s.waiting.charge(r)
	s.queueOf(r.place).remove(r)
	r.place = nowhere
	r.computed = have
	s.unwait(r)
	if load {
		s.startLoad(r, int32(hit.Tokens), int32(ext.Tokens), ext.Timeout, p)
		return admitted
	}
	if ext.Tokens > 0 {
		s.addLoad(r, int32(hit.Tokens), have, false, p)
	}
	kind := RowNew
	if r.status == Preempted && s.cfg.Executor == CachedResume {
		kind = RowResumed
	}
	r.status = Running
	r.place = inRunning
	s.running = append(s.running, r)
	r.prefill = total
	r.admittedAt = r.outputs()
	r.prefilling = have+n < total
	if n-pad > 1 {
		b.wide++
	} else if have > 0 {
		b.tails++
	} else {
		b.fresh++
	}
	b.take(n)
	if s.governs(r) {
		b.appends -= n
	}
	s.rows = append(s.rows, rowDraft{
		r: r, n: n, drafts: pad, placeholders: pad, kind: kind, grown: true, local: int32(hit.Tokens), external: int32(ext.Tokens),
	})
	s.addLoRA(r)
	return admitted
}

// ready is false while the request waits for something else than room. What
// has arrived meanwhile is taken up here.
func (s *Scheduler) ready(r *request) bool {
	switch r.status {
	case WaitingKV:
		if !r.load.done {
			return false
		}
		s.takeLoad(r)
	case WaitingGrammar:
		switch r.req.Grammar {
		case GrammarReady:
			s.unwait(r)
			r.status = Waiting
		case GrammarFailed:
			s.fail(r, ErrGrammar)
		default:
			return false
		}
	}
	return true
}

// takeLoad makes what an asynchronous load brought usable. All of it is
// matchable from now on. A prompt that is there whole has its last token
// computed again, in place, because the step must yield a token.
func (s *Scheduler) takeLoad(r *request) {
	r.load.done = false
	s.unwait(r)
	r.status = Waiting
	if r.preemptions > 0 {
		r.status = Preempted
	}
	if r.load.failed && r.computed == 0 {
		if r.seq.Open() {
			s.must(s.cache.Free(&r.seq))
		}
		r.prefilling = false
	} else {
		s.must(s.cache.Publish(&r.seq, r.tokens, int(r.computed)))
		if r.computed == r.total() {
			r.computed--
		}
	}
	r.load.failed = false
}

// lookup is the request's local hit. The last token is always computed, since
// a step must yield a token for it.
func (s *Scheduler) lookup(r *request) kvcache.Match {
	if r.req.SkipCacheRead {
		return kvcache.Match{}
	}
	return s.cache.Match(r.req.Namespace, r.tokens, len(r.tokens)-1)
}

// ask is the connector's answer beyond a local hit, cut to what the prompt can
// use: tokens that come into this step leave one to compute.
func (s *Scheduler) ask(r *request, local int) connector.Answer {
	ext := s.conn.Lookup(r.known(), local)
	if ext.Pending {
		if r.lookupBy == Never {
			s.waitLookup(r, s.now.Add(orDefault(ext.Timeout, s.cfg.LookupTimeout)))
		}
		if r.lookupBy > s.now {
			return ext
		}
		return connector.Answer{} // it has waited long enough
	}
	most := len(r.tokens) - local
	if !ext.Async || most == 1 {
		most-- // the last token is computed here anyway
	}
	ext.Tokens = min(max(ext.Tokens, 0), most)
	return ext
}

// admissionTokens is the number of tokens of an admission's first row, of them
// pad placeholder drafts; 0 if it must wait for a larger budget.
func (s *Scheduler) admissionTokens(r *request, left, have int32, b *budget) (n, pad int32) {
	n = left
	room := b.room()
	t := int32(s.cfg.LongPrefillThreshold)
	if n == 1 && b.drafts > 0 && (b.rows > 0 || s.cfg.TailPadding == PadAlways) && b.wide == 0 {
		// The others verify drafts. With as many placeholders this row has
		// their shape, and the batch keeps it; narrower it would break it.
		full := 1 + b.drafts
		switch {
		case have+full > s.maxLen || t > 0 && t < full: // cannot have the shape
		case full > room:
			return 0, 0
		default:
			return full, b.drafts
		}
	}
	n = s.holdBack(n, have, b)
	if t > 0 {
		n = min(n, t)
	}
	if n > room && s.cfg.Chunking == WholePrefill {
		return 0, 0
	}
	return min(n, room), 0
}

// holdBack is how many of the tokens that are left of a prompt run in this step.
func (s *Scheduler) holdBack(left, have int32, b *budget) int32 {
	if s.cfg.HoldBack < 2 || b.drafts > 0 {
		return left
	}
	return graphs.HoldBack(graphs.HoldInput{
		Left: left, Computed: have, Most: int32(s.cfg.HoldBack), Decodes: int32(b.rows + b.tails), Others: int32(b.wide + b.fresh),
	})
}

// allocate takes the blocks of an admission, all or nothing.
func (s *Scheduler) allocate(r *request, hit kvcache.Match, ext connector.Answer, n int32, load bool, p *Plan) bool {
	fresh := !r.seq.Open()
	if fresh {
		s.must(s.cache.Attach(&r.seq, r.req.Namespace))
	}
	a := kvcache.Alloc{
		Tokens: r.tokens, Hit: hit, Computed: int(r.computed), External: ext.Tokens, New: int(n), Lookahead: int(s.lookahead),
		MaxTokens: int(s.maxLen), InFlight: int(r.inFlight),
	}
	if s.cfg.Admission == WholeSequence {
		a.WholeSequence = len(r.tokens)
	}
	if len(s.running) > 0 {
		a.Watermark = int(s.cfg.Watermark * float64(s.cache.Usable()+1))
	}
	if load {
		a.Lookahead = 0
		a.Publish = kvcache.PublishLater
		a.Reserve = s.reserved()
	}
	before := max(r.seq.Published(), hit.Tokens/int(s.blockSize))
	g, err := s.cache.Allocate(&r.seq, &a)
	s.must(err)
	if !g.OK && fresh {
		s.must(s.cache.Free(&r.seq))
	}
	if g.OK {
		s.tabled(r)
		s.notePublished(r, before, p)
	}
	return g.OK
}

// reserved is the number of blocks that prefills under way still need for
// their whole sequences. Only loads leave them alone.
func (s *Scheduler) reserved() int {
	n := 0
	need := func(r *request) bool {
		if r.prefilling {
			blocks := (int(min(r.total(), s.maxLen)) + int(s.blockSize) - 1) / int(s.blockSize)
			for g := range s.groups {
				n += max(blocks-len(r.seq.Table(int(g))), 0)
			}
		}
		return true
	}
	for _, r := range s.running {
		need(r)
	}
	for _, r := range s.passed {
		need(r)
	}
	s.skipped.each(need)
	s.waiting.each(need)
	return n
}
