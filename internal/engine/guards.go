package engine

import (
	"time"

	"github.com/sluice-serving/sluice/scheduler"
)

// AppendGuards are the guards around append attempts, each for itself. A member
// that is absent is as the profile has it: off under plain, and under guarded
// as scheduler.Guarded says.
type AppendGuards struct {
	MinPrefixTokens *int     `json:"min_prefix_tokens"` // least cached tokens of a usable prefix
	MinPrefixRatio  *float64 `json:"min_prefix_ratio"`  // least share of the prompt that is cached, 0 to 1
	MaxSuffixTokens *int     `json:"max_suffix_tokens"` // most tokens that an attempt may have to compute here
	MaxWaitMillis   *float64 `json:"max_local_wait_ms"` // an attempt that has waited so long is refused as busy
	CompareRemote   *bool    `json:"compare_remote_eta"`

	Governor      *bool    `json:"governor"`                    // bounds what attempts add to the steps of decodes
	TargetMillis  *float64 `json:"target_tpot_ms"`              // mean step time to keep
	TargetRatio   *float64 `json:"target_tpot_ratio"`           // the same, as a multiple of a decode-only step; above 1
	DecodeSteps   *int     `json:"decode_steps_between_chunks"` // least steps without append tokens after one with some
	QuietSteps    *int     `json:"quiet_steps"`                 // steps for which attempts wait for those that decode to end
	MaxStepTokens *int     `json:"max_append_tokens_per_step"`  // of all attempts together
	RemoteShare   *float64 `json:"remote_share"`                // of a step's budget, left to requests whose KV comes from a Prefiller; 0 to below 1

	Leases     *bool    `json:"leases"`      // keep the KV of sessions between turns
	LeaseShare *float64 `json:"lease_share"` // of the pool that leases may cover, above 0 to 1
	HostTier   *bool    `json:"host_tier"`   // a prefix that a host tier brings back counts as cached; of guarded on where there is one
}

// set reports whether any member is given.
func (g AppendGuards) set() bool { return g != AppendGuards{} }

// appendGuards is the scheduler's configuration of append attempts: the
// profile with what is set beside it. Defaults are filled in.
func (c Config) appendGuards() scheduler.AppendConfig {
	out := scheduler.AppendConfig{Enable: true}
	if c.Additional.Scheduler.AppendProfile == AppendGuarded {
		out = scheduler.Guarded(c.MaxTokens)
		if c.hostTurns() {
			out.Tier = scheduler.RestoreFromTier
		}
	}
	g := &c.Additional.Scheduler.AppendGuards
	take(&out.MinPrefixTokens, g.MinPrefixTokens)
	take(&out.MinPrefixRatio, g.MinPrefixRatio)
	take(&out.MaxSuffixTokens, g.MaxSuffixTokens)
	take(&out.RemoteShare, g.RemoteShare)
	if ms := g.MaxWaitMillis; ms != nil {
		out.MaxWait = millis(*ms)
	}
	choose(&out.Overload, g.CompareRemote, scheduler.CompareRemote, scheduler.IgnoreRemote)
	choose(&out.Tier, g.HostTier, scheduler.RestoreFromTier, scheduler.DeviceOnly)
	choose(&out.Governor, g.Governor, &scheduler.GovernorConfig{}, nil)
	choose(&out.Lease, g.Leases, &scheduler.LeaseConfig{}, nil)
	if v := out.Governor; v != nil {
		take(&v.TargetRatio, g.TargetRatio)
		take(&v.MaxTokens, g.MaxStepTokens)
		take(&v.Quiet, g.QuietSteps)
		if ms := g.TargetMillis; ms != nil {
			v.TargetTPOT = millis(*ms)
		}
		if n := g.DecodeSteps; n != nil {
			v.Interval = *n
			if *n == 0 {
				v.Interval = scheduler.NoInterval
			}
			v.MaxInterval, v.Savings = max(7, *n), max(4, *n+1)
		}
	}
	return out
}

// hostTurns reports whether finished turns are kept in a host tier.
func (c Config) hostTurns() bool {
	p := c.KVTransfer.part(ConnectorOffload)
	return p != nil && p.Extra.ShareTurns
}

// leaseShare is the share of the pool that leases may cover; 0 is the cache's default.
func (c Config) leaseShare() float64 {
	if s := c.Additional.Scheduler.AppendGuards.LeaseShare; s != nil && c.appendPrefill() {
		return *s
	}
	return 0
}

// validate reports members out of range.
func (g *AppendGuards) validate(c *Config) []error {
	const in = "decoder_append_prefill_guards."
	var errs []error
	whole := func(name string, v *int, lo, hi int) {
		if v != nil && (*v < lo || *v > hi) {
			errs = append(errs, within(in+name, *v, lo, hi))
		}
	}
	whole("min_prefix_tokens", g.MinPrefixTokens, 0, c.MaxModelLen)
	whole("max_suffix_tokens", g.MaxSuffixTokens, 1, c.MaxModelLen)
	whole("decode_steps_between_chunks", g.DecodeSteps, 0, 999)
	whole("quiet_steps", g.QuietSteps, 0, 1000)
	whole("max_append_tokens_per_step", g.MaxStepTokens, 1, c.MaxTokens)
	for _, f := range []struct {
		name string
		v    *float64
		ok   func(float64) bool
		need string
	}{
		{"min_prefix_ratio", g.MinPrefixRatio, func(x float64) bool { return x >= 0 && x <= 1 }, "within 0 to 1"},
		{"max_local_wait_ms", g.MaxWaitMillis, positive, "above 0 and at most an hour"},
		{"target_tpot_ms", g.TargetMillis, positive, "above 0 and at most an hour"},
		{"target_tpot_ratio", g.TargetRatio, func(x float64) bool { return x > 1 && x <= 100 }, "above 1 and at most 100"},
		{"remote_share", g.RemoteShare, func(x float64) bool { return x >= 0 && x < 1 }, "within 0 to below 1"},
		{"lease_share", g.LeaseShare, func(x float64) bool { return x > 0 && x <= 1 }, "above 0 and at most 1"},
	} {
		if f.v != nil && !f.ok(*f.v) {
			errs = append(errs, &SettingError{in + f.name, *f.v, f.need})
		}
	}
	return errs
}

// positive reports whether a time in milliseconds is one that can be kept.
func positive(ms float64) bool { return ms > 0 && ms <= float64(time.Hour/time.Millisecond) }

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// take overwrites *to with what is given.
func take[T any](to, given *T) {
	if given != nil {
		*to = *given
	}
}

// choose is take for a switch: on and off are the two values.
func choose[T comparable](to *T, given *bool, on, off T) {
	switch {
	case given == nil:
	case !*given:
		*to = off
	case *to == off:
		*to = on
	}
}
