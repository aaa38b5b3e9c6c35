package scheduler

import "github.com/sluice-serving/sluice/connector"

// appendVerdict is what the rule for append attempts makes of a request that
// is about to be admitted.
type appendVerdict uint8

const (
	appendNative appendVerdict = iota // the rule does not apply
	appendAdmit                       // a usable prefix is here
	appendWait                        // its saved KV is not ready to be asked for
	appendRefuse
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
func (s *Scheduler) appendVerdict(r *request, hit int) (appendVerdict, RefusalReason) {
	switch {
	case !s.cfg.Append.Enable || r.req.Route != AppendPrefill: // a
		return appendNative, NotRefused
	case r.outputs() > 0 || r.placeholders > 0 || r.stale > s.applied: // b
		return appendNative, NotRefused
	case s.conn != nil && connector.HasRecovery(s.conn, r.id): // c
		return appendNative, NotRefused
	case r.computed > 0: // d
		return appendNative, NotRefused
	case hit > 0: // e
		return appendAdmit, NotRefused
	}
	return appendRefuse, NoPrefix // f
}

// refuse ends an append attempt without a token. It holds nothing.
func (s *Scheduler) refuse(r *request, why RefusalReason, hit int32, p *Plan) {
	ref := Refusal{Reason: why, PromptTokens: r.prompt, CachedTokens: hit}
	p.Refused = append(p.Refused, r.id)
	p.Refusals = append(p.Refusals, ref)
	s.stats.Refused[why]++
	out := s.finish(r, FinishRefused)
	out.Refusal = ref
	s.early = append(s.early, earlyOutput{p.Seq, out})
}
