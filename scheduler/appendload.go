package scheduler

import (
	"math"
	"time"

	"github.com/sluice-serving/sluice/kvcache"
)

// appendState is what the scheduler keeps for append attempts beside their
// requests.
type appendState struct {
	governor *governor // nil: attempts are not bounded
	agreed   bool      // next holds for the next plan
	next     Agreement
	draining bool
	sessions *sessions  // nil: nothing is leased
	late     []*request // attempts that have waited as long as they may
	tell     func(AppendDecision)
}

// governs is true for requests whose prefill is bounded by the governor.
func (s *Scheduler) governs(r *request) bool {
	return s.appends.governor != nil && r.req.Route == AppendPrefill
}

// start sets the parts up that are configured.
func (a *appendState) start(c AppendConfig) error {
	if !c.Enable {
		return nil
	}
	if c.Lease != nil {
		a.sessions = newSessions(*c.Lease)
	}
	if c.Governor == nil {
		return nil
	}
	var err error
	a.governor, err = newGovernor(*c.Governor)
	return err
}

// Drain refuses every append attempt that is not admitted yet, from the next
// plan on, with the reason Draining. What runs goes on.
func (s *Scheduler) Drain() {
	s.appends.draining = true
	s.dirty = true
	if s.rec != nil {
		s.rec.switched("drain", 0)
	}
}

// Propose says what this rank asks of the next step, for ranks that step
// together: each calls Propose, Agree joins the answers, and each is given the
// agreement by SetAgreement before its next Plan. A scheduler that is given
// none goes by its own proposal. Propose changes nothing.
func (s *Scheduler) Propose() Proposal {
	p, _ := s.propose()
	return p
}

// propose is what Propose says, and whether it holds attempts back for a step in
// which nobody decodes.
func (s *Scheduler) propose() (Proposal, bool) {
	g := s.appends.governor
	if g == nil {
		return Proposal{Cap: math.MaxInt32}, false
	}
	decodes, left, ahead, context := s.appendLoad()
	wants := WantsNothing
	if ahead > 0 {
		wants = WantsAppend
	}
	look, hold := 1, g.waits(left)
	if hold {
		look = s.cfg.MaxNumSeqs // those before an attempt may wait for something else than room
	}
	for _, q := range [...]queue{s.waiting, s.skipped} {
		if r := s.firstAppend(q, look); r != nil {
			wants = WantsAppend
			context = max(context, int(r.total()))
		}
	}
	if hold && wants == WantsAppend {
		return Proposal{Wants: wants}, true
	}
	return Proposal{Cap: g.cap(decodes, context), Wants: wants}, false
}

// firstAppend is the first attempt among so many requests of a queue, or nil. No tenant's
// turn moves on for it.
func (s *Scheduler) firstAppend(q queue, most int) (first *request) {
	if q.len() == 0 {
		return nil
	}
	q.each(func(r *request) bool {
		if s.isAppend(r) {
			first = r
		}
		most--
		return first == nil && most > 0
	})
	return first
}

// SetAgreement binds the next plan to what the ranks of a group have agreed on.
func (s *Scheduler) SetAgreement(a Agreement) {
	s.appends.next, s.appends.agreed = a, true
	if s.rec != nil {
		s.rec.agreed(a)
	}
}

// beginAppends refuses the attempts that have waited too long, and sets the
// plan's bound on append tokens.
func (s *Scheduler) beginAppends(b *budget, p *Plan) Agreement {
	for _, r := range s.appends.late {
		if r.status == Waiting && r.computed == 0 {
			d := s.judged(r, int32(s.lookup(r).Tokens))
			d.Rule, d.Verdict, d.Reason = RuleWaited, AppendRefuse, Busy
			s.refuse(r, d, p)
		}
	}
	s.appends.late = s.appends.late[:0]
	if s.appends.sessions != nil {
		s.appends.sessions.lapsed(s.cache.ExpireLeases(kvcache.Time(s.now)))
	}
	b.appends = math.MaxInt32
	if s.appends.governor == nil {
		return Agreement{Cap: math.MaxInt32}
	}
	own, hold := s.propose()
	a := s.appends.next
	if !s.appends.agreed {
		a = Agreement{Cap: own.Cap}
	}
	s.appends.agreed = false
	if share := s.cfg.Append.RemoteShare; share > 0 && s.timers.loads > 0 {
		a.Cap = min(a.Cap, int32(float64(b.tokens)*(1-share)))
	}
	b.appends, b.hold = a.Cap, hold
	return a
}

// endAppends tells the governor whether the step has append tokens.
func (s *Scheduler) endAppends(a Agreement, b *budget) {
	if g := s.appends.governor; g != nil {
		a.Chunk = a.Chunk || b.appends < a.Cap
		g.stepped(a, b.held)
	}
}

// observe shows the governor a measured step.
func (s *Scheduler) observe(p *Plan, res *Result) {
	if g := s.appends.governor; g != nil && res.Elapsed > 0 && res.Outcome == Computed {
		g.observe(WorkOf(p), res.Elapsed)
	}
}

// IsDecode tells whether a row costs what a decode costs: one token, drafts
// aside, over computed context.
func (p *Plan) IsDecode(row int) bool {
	return p.Scheduled[row]-p.Drafts[row] == 1 && p.Computed[row] > 0
}

// WorkOf is what a plan asks of the device, in the terms of a step model.
func WorkOf(p *Plan) StepWork {
	var w StepWork
	for i, n := range p.Scheduled {
		c := p.Computed[i]
		if p.IsDecode(i) {
			w.Decodes++
			continue
		}
		w.Prefill += int(n)
		w.Context += float64(n) * (float64(c) + float64(n+1)/2)
	}
	return w
}

// localETA predicts how long an attempt would take to its first token here:
// the append tokens that are under way and its own, in chunks as the governor
// allows them now. It is 0 while too little is known.
func (s *Scheduler) localETA(suffix int32) time.Duration {
	g := s.appends.governor
	if g == nil {
		return 0
	}
	decodes, left, ahead, context := s.appendLoad()
	return g.takes(ahead+int(suffix), decodes, left, context)
}

// appendLoad is the number of running requests that decode and the most steps that one
// of them may have left, and the append tokens that are under way with the longest
// context that they attend to.
func (s *Scheduler) appendLoad() (decodes, left, ahead, context int) {
	for _, r := range s.running {
		chunk := r.chunk
		if s.appends.governor.cfg.Quiet > 0 {
			chunk = r.computed < r.prefill // who is admitted in the same step does not decode in it
		}
		switch {
		case !chunk:
			if n := s.stepsLeft(r); n > 0 { // not all of it is planned
				decodes++
				left = max(left, n)
			}
		case s.governs(r):
			ahead += int(r.total() - r.computed)
			context = max(context, int(r.computed))
		}
	}
	return decodes, left, ahead, context
}

// stepsLeft is the number of plans until no more is needed of a request that decodes, if
// every draft is rejected and nothing ends it sooner.
func (s *Scheduler) stepsLeft(r *request) int {
	// Each plan in flight brings a token and what is accepted of its drafts.
	sure := (int(r.placeholders) + s.cfg.Drafts) / (1 + s.cfg.Drafts)
	n := int(r.limit-r.total()) - sure
	if s.cfg.Scheduling == Sync {
		n *= s.cfg.InFlight // it is in one of them at a time
	}
	return n
}

// boundWait sets the deadline of an append attempt that has just come.
func (s *Scheduler) boundWait(r *request) {
	if d := s.cfg.Append.MaxWait; d > 0 && s.isAppend(r) {
		s.wait(r, max(s.now, r.req.Arrival).Add(d))
	}
}

// tooLong marks an append attempt that has waited as long as it may; the plan
// that is being made refuses it.
func (s *Scheduler) tooLong(r *request) {
	if s.isAppend(r) {
		s.stats.Timeouts++
		s.appends.late = append(s.appends.late, r)
	}
}
