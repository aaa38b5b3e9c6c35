package scheduler

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
)

// appendVerdict decides whether an append attempt is admitted. It is asked at
// the moment of scheduling, with the hit that the admission would use, before
// any call of a connector that has an effect. The first line that matches wins:
//
//	a  the rule is off, or the request is no append attempt      → native
//	b  it has output, or a token of it is in flight               → native
//	c  a connector holds recovery state for it                    → native (the lookup restores)
//	d  it has computed tokens already                             → native
//	e  the local hit is usable                                    → admit
//	f  otherwise                                                  → refuse
func (s *Scheduler) appendVerdict(r *request, hit int32) AppendDecision {
	if !s.isAppend(r) { // a
		return AppendDecision{}
	}
	d := s.judged(r, hit)
	switch {
	case r.outputs() > 0 || r.placeholders > 0 || r.stale > s.applied: // b
		d.Rule = RuleOutput
	case s.conn != nil && connector.HasRecovery(s.conn, r.id): // c
		d.Rule = RuleRecovery
	case r.computed > 0: // d
		d.Rule = RuleComputed
	default:
		if d.Reason = s.unusable(r, &d); d.Reason == NotRefused {
			d.Rule, d.Verdict = RuleUsable, AppendAdmit // e
		} else {
			d.Rule, d.Verdict = RuleUnusable, AppendRefuse // f
		}
	}
	return d
}

// isAppend is true for append attempts while the rule is on.
func (s *Scheduler) isAppend(r *request) bool {
	return s.cfg.Append.Enable && r.req.Route == AppendPrefill
}

// unusable says why a local hit does not make an attempt worth while, or
// NotRefused if it does. What it has looked at beside the hit goes to d.
func (s *Scheduler) unusable(r *request, d *AppendDecision) RefusalReason {
	c := &s.cfg.Append
	total, hit := r.total(), d.CachedTokens
	var takes time.Duration
	if c.Tier == RestoreFromTier && s.conn != nil && !s.appends.draining {
		// What a tier brings back counts as cached if that is faster than the
		// other route.
		n, t := connector.Restorable(s.conn, r.known(), int(hit))
		if n > 0 && (r.req.RemoteETA == 0 || t < r.req.RemoteETA) {
			d.RestorableTokens = int32(n)
			hit, takes = hit+int32(n), t
		}
	}
	switch {
	case s.appends.draining:
		return Draining
	case hit == 0:
		return NoPrefix
	case hit < int32(c.MinPrefixTokens) || float64(hit) < c.MinPrefixRatio*float64(total):
		return BelowMinPrefix
	case c.MaxSuffixTokens > 0 && total-hit > int32(c.MaxSuffixTokens):
		return SuffixTooLong
	case c.Overload == CompareRemote && r.req.RemoteETA > 0:
		d.LocalETA = takes + s.localETA(total-hit)
		if d.LocalETA > r.req.RemoteETA {
			return Busy
		}
	}
	return NotRefused
}

// belowThreshold is the request's own rule about its cached share, which holds
// on every route until it has output.
func (s *Scheduler) belowThreshold(r *request, found int) bool {
	t := r.req.CacheHitThreshold
	return t > 0 && r.outputs() == 0 && r.placeholders == 0 && r.stale <= s.applied && float64(found) < t*float64(r.total())
}

// refuse ends a request without a token, for the reason of the decision. It
// holds nothing.
func (s *Scheduler) refuse(r *request, d AppendDecision, p *Plan) {
	ref := Refusal{Reason: d.Reason, PromptTokens: r.prompt, CachedTokens: d.CachedTokens}
	p.Refused = add(s.alloc, p.Refused, r.id)
	p.Refusals = add(s.alloc, p.Refusals, ref)
	s.stats.Refused[d.Reason]++
	s.tellAppend(r, d)
	out := s.finish(r, FinishRefused)
	out.Refusal = ref
	s.early = append(s.early, earlyOutput{p.Seq, out})
}
