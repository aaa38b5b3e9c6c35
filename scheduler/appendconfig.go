package scheduler

import (
	"fmt"
	"time"
)

// AppendConfig configures append attempts. With Enable alone it admits every
// attempt that finds a prefix, bounds nothing and pins nothing; each of the
// other fields guards against one thing that may go wrong with that.
type AppendConfig struct {
	// Enable lets requests take the route AppendPrefill. Without it they are
	// treated as Local.
	Enable bool

	// MinPrefixTokens is the least number of cached tokens that makes a prefix
	// usable. 0: one block is enough.
	MinPrefixTokens int
	// MinPrefixRatio is the least share of the prompt that must be cached, in
	// [0, 1]. A system prompt that all sessions have in common is no reason to
	// prefill all the rest here.
	MinPrefixRatio float64
	// MaxSuffixTokens is the largest number of tokens that an attempt may have
	// to compute here. 0: no limit.
	MaxSuffixTokens int
	// MaxWait bounds how long an attempt waits for room before it is refused as
	// Busy. 0: it waits as long as any request.
	MaxWait time.Duration
	// Overload refuses an attempt as Busy when it is expected to take longer
	// here than Request.RemoteETA.
	Overload Overload

	// Governor bounds what attempts add to the steps of requests that decode.
	// Nil: they take what the budget has.
	Governor *GovernorConfig
	// Lease keeps the KV of sessions between their turns. Nil: nothing is kept.
	Lease *LeaseConfig
	// Tier lets a prefix that a connector can bring back from outside the device
	// count as cached.
	Tier TierUse
	// RemoteShare is the share of a step's budget, in [0, 1), that attempts
	// leave alone while requests whose KV comes from a Prefiller wait for it. It
	// is a bound of the Governor's; without one it has no effect.
	RemoteShare float64
}

// Overload says whether an attempt is compared with the other route.
type Overload uint8

const (
	IgnoreRemote  Overload = iota // an attempt that finds a prefix is admitted
	CompareRemote                 // if it is expected to be faster than RemoteETA
)

func (o Overload) String() string {
	switch o {
	case IgnoreRemote:
		return "ignore"
	case CompareRemote:
		return "compare"
	}
	return fmt.Sprintf("Overload(%d)", uint8(o))
}

// TierUse says whether append attempts use KV outside the device.
type TierUse uint8

const (
	DeviceOnly      TierUse = iota // only what is cached on the device counts
	RestoreFromTier                // what a connector.Tier brings back faster than the other route counts too
)

func (t TierUse) String() string {
	switch t {
	case DeviceOnly:
		return "device_only"
	case RestoreFromTier:
		return "restore"
	}
	return fmt.Sprintf("TierUse(%d)", uint8(t))
}

// Guarded is the profile for Decoders under load: all guards on.
func Guarded(maxBatchedTokens int) AppendConfig {
	return AppendConfig{
		Enable:          true,
		MinPrefixRatio:  0.5,
		MaxSuffixTokens: maxBatchedTokens,
		MaxWait:         2 * time.Second,
		Overload:        CompareRemote,
		Governor:        &GovernorConfig{},
		Lease:           &LeaseConfig{},
		RemoteShare:     0.25,
	}
}

func (c AppendConfig) validate(bad func(field, format string, args ...any)) {
	if c.MinPrefixTokens < 0 {
		bad("Append.MinPrefixTokens", "is %d, must not be negative", c.MinPrefixTokens)
	}
	if !(c.MinPrefixRatio >= 0 && c.MinPrefixRatio <= 1) {
		bad("Append.MinPrefixRatio", "is %v, must lie in [0, 1]", c.MinPrefixRatio)
	}
	if c.MaxSuffixTokens < 0 {
		bad("Append.MaxSuffixTokens", "is %d, must not be negative", c.MaxSuffixTokens)
	}
	if c.MaxWait < 0 {
		bad("Append.MaxWait", "is %v, must not be negative", c.MaxWait)
	}
	if c.Overload > CompareRemote {
		bad("Append.Overload", "has the unknown value %d", c.Overload)
	}
	if c.Tier > RestoreFromTier {
		bad("Append.Tier", "has the unknown value %d", c.Tier)
	}
	if !(c.RemoteShare >= 0 && c.RemoteShare < 1) {
		bad("Append.RemoteShare", "is %v, must lie in [0, 1)", c.RemoteShare)
	}
	if c.Lease != nil {
		c.Lease.validate(bad)
	}
	if c.Governor != nil {
		c.Governor.validate(bad)
	}
}
