package scheduler

import (
	"fmt"
	"time"
)

// AppendDecision is what became of an append attempt when it was to be
// scheduled, and what that rests on.
type AppendDecision struct {
	Request RequestID
	ID      string // the caller's name of the request
	Rule    AppendRule
	Verdict AppendVerdict
	Reason  RefusalReason // NotRefused unless Verdict is AppendRefuse

	PromptTokens     int32
	CachedTokens     int32         // found in this cache
	RestorableTokens int32         // that a tier brings back behind them, fast enough; 0 if it was not asked
	LocalETA         time.Duration // predicted to the first token; 0 if it was not compared or nothing is known
	RemoteETA        time.Duration // of the other route, as the sender says; 0 if it does not
	Waited           time.Duration // since the attempt arrived
	Running          int           // requests that run
}

// AppendVerdict is the end of a decision.
type AppendVerdict uint8

const (
	AppendNative AppendVerdict = iota // the rule does not apply: ordinary scheduling
	AppendAdmit                       // it is prefilled here on top of what is cached
	AppendRefuse                      // it ends without a token
)

func (v AppendVerdict) String() string {
	switch v {
	case AppendNative:
		return "native"
	case AppendAdmit:
		return "admit"
	case AppendRefuse:
		return "refuse"
	}
	return fmt.Sprintf("AppendVerdict(%d)", uint8(v))
}

// AppendRule is the line that decided.
type AppendRule uint8

const (
	RuleNone      AppendRule = iota // a: the rule is off, or the request is no attempt
	RuleOutput                      // b: it has output, or a token of it is in flight
	RuleRecovery                    // c: a connector holds recovery state for it
	RuleComputed                    // d: it has computed tokens
	RuleUsable                      // e: what is cached is worth while
	RuleUnusable                    // f: it is not
	RuleWaited                      // it has waited as long as it may
	RuleThreshold                   // less is cached than the request itself asks for
	RuleGaveWay                     // it was preempted before its first token where requests are sent away
)

var ruleNames = [...]string{
	RuleNone: "none", RuleOutput: "output", RuleRecovery: "recovery", RuleComputed: "computed", RuleUsable: "usable", RuleUnusable: "unusable",
	RuleWaited: "waited", RuleThreshold: "threshold", RuleGaveWay: "gave_way",
}

func (r AppendRule) String() string {
	if int(r) < len(ruleNames) {
		return ruleNames[r]
	}
	return fmt.Sprintf("AppendRule(%d)", uint8(r))
}

// WithDecisions calls f for every append attempt that is admitted or refused,
// when that takes effect: an attempt that waits on is not told. The call comes
// from within Plan; f returns soon and does not call the scheduler. Nothing is
// allocated for it.
func WithDecisions(f func(AppendDecision)) Option { return func(s *Scheduler) { s.appends.tell = f } }

// judged is a decision about a request with its inputs and no end yet.
func (s *Scheduler) judged(r *request, hit int32) AppendDecision {
	return AppendDecision{
		Request: r.id, ID: r.req.ID, PromptTokens: r.total(), CachedTokens: hit, RemoteETA: r.req.RemoteETA,
		Waited: max(s.now.Sub(r.since), 0), Running: len(s.running),
	}
}

// tellAppend reports a decision about an append attempt that has taken effect.
func (s *Scheduler) tellAppend(r *request, d AppendDecision) {
	if s.appends.tell != nil && s.isAppend(r) {
		s.appends.tell(d)
	}
}
