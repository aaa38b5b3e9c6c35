package engine

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/scheduler"
)

// SettingError reports a setting with a value that it cannot have.
type SettingError struct {
	Name  string // as the operator writes it
	Value any
	Need  string // what it must be
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("%s is %v, must be %s", e.Name, e.Value, e.Need)
}

func within[T any](name string, v, lo, hi T) *SettingError {
	return &SettingError{name, v, fmt.Sprintf("within %v to %v", lo, hi)}
}

// ConflictError reports two settings that exclude each other.
type ConflictError struct {
	A, B   string // the settings, as the operator writes them
	Reason string
}

func (e *ConflictError) Error() string { return fmt.Sprintf("%s with %s: %s", e.A, e.B, e.Reason) }

// choices is a configuration with its defaults, and what comes with it.
type choices struct {
	Config
	own bool // Options.Scheduler is set
}

// setting is a choice that others may exclude.
type setting struct {
	name string
	on   func(c *choices) bool
}

// The switches, their guards, and what they may meet. On a prefiller the
// switches have no effect, which is a warning and no conflict.
var (
	appendOn  = setting{"decoder_append_prefill_enable", func(c *choices) bool { return c.Additional.Scheduler.DecoderAppendPrefill && !c.producer() }}
	appendOff = setting{"decoder_append_prefill_enable off", func(c *choices) bool { return !c.Additional.Scheduler.DecoderAppendPrefill && !c.producer() }}
	recompute = setting{"recompute_scheduler_enable", func(c *choices) bool { return c.Additional.Scheduler.Recompute && !c.producer() }}
	roleNone  = setting{`kv_role ""`, func(c *choices) bool { return c.KVTransfer.Role == RoleNone }}
	roleBoth  = setting{`kv_role "kv_both"`, func(c *choices) bool { return c.KVTransfer.Role == RoleBoth }}
	noPrefix  = setting{"no-enable-prefix-caching", func(c *choices) bool { return c.NoPrefix }}

	ownScheduler   = setting{"a scheduler of the caller's own", func(c *choices) bool { return c.own }}
	balance        = setting{"enable_balance_scheduling", func(c *choices) bool { return c.Additional.Scheduler.Balance }}
	shortFirst     = setting{"short_request_first_config", func(c *choices) bool { return given(c.Additional.Scheduler.ShortFirst) }}
	profilingChunk = setting{"profiling_chunk_config", func(c *choices) bool { return given(c.Additional.Scheduler.ProfilingChunk) }}
	batchJob       = setting{"batch_job_sched_config", func(c *choices) bool { return given(c.Additional.Scheduler.BatchJob) }}
	dyntraLB       = setting{"dyntra_lb_config", func(c *choices) bool { return given(c.Additional.Scheduler.DyntraLB) }}

	profile       = setting{"decoder_append_prefill_profile", func(c *choices) bool { return c.Additional.Scheduler.AppendProfile != "" }}
	guards        = setting{"decoder_append_prefill_guards", guard(AppendGuards.set)}
	targetMillis  = setting{"target_tpot_ms", guard(func(g AppendGuards) bool { return g.TargetMillis != nil })}
	targetRatio   = setting{"target_tpot_ratio", guard(func(g AppendGuards) bool { return g.TargetRatio != nil })}
	decodeSteps   = setting{"decode_steps_between_chunks", guard(func(g AppendGuards) bool { return g.DecodeSteps != nil })}
	quietSteps    = setting{"quiet_steps", guard(func(g AppendGuards) bool { return g.QuietSteps != nil && *g.QuietSteps != 0 })}
	maxStepTokens = setting{"max_append_tokens_per_step", guard(func(g AppendGuards) bool { return g.MaxStepTokens != nil })}
	remoteShare   = setting{"remote_share", guard(func(g AppendGuards) bool { return g.RemoteShare != nil && *g.RemoteShare != 0 })}
	leaseShare    = setting{"lease_share", guard(func(g AppendGuards) bool { return g.LeaseShare != nil })}
	compareRemote = setting{"compare_remote_eta", guarded(func(a scheduler.AppendConfig) bool { return a.Overload == scheduler.CompareRemote })}
	governorOff   = setting{"governor off", guarded(func(a scheduler.AppendConfig) bool { return a.Governor == nil })}
	leasesOff     = setting{"leases off", guarded(func(a scheduler.AppendConfig) bool { return a.Lease == nil })}
	hostTier      = setting{"host_tier", guarded(func(a scheduler.AppendConfig) bool { return a.Tier == scheduler.RestoreFromTier })}
	noHostTurns   = setting{"no enable_offload_prefix_caching", func(c *choices) bool { return !c.hostTurns() }}
)

// Settings of devices and connectors. There is one connector of each kind.
var (
	float32Type   = setting{"dtype float32", func(c *choices) bool { return c.DType == "float32" }}
	onAscend      = setting{"device ascend", func(c *choices) bool { return c.ascend() }}
	tls           = setting{"tls", extra(func(x *ConnectorExtra) bool { return x.TLS != nil })}
	otherThanTCP  = setting{"transport other than tcp", extra(func(x *ConnectorExtra) bool { return x.Transport != "" && x.Transport != TransportTCP })}
	filePath      = setting{"file_path", extra(func(x *ConnectorExtra) bool { return x.FileDir != "" })}
	fileBytes     = setting{"file_bytes", extra(func(x *ConnectorExtra) bool { return x.FileBytes != 0 })}
	fileFullEvery = setting{"file_full_every", extra(func(x *ConnectorExtra) bool { return x.FileFullEvery != 0 })}
	noFilePath    = setting{"no file_path", func(c *choices) bool { return !filePath.on(c) }}
)

// Reasons that several pairs have.
const (
	alone       = "needs kv_role kv_consumer, not %s: only a Decoder has Prefillers that take what it does not"
	replaces    = "each replaces the order in which the scheduler admits, and one of the two would be lost"
	needsSwitch = "it has no effect without decoder_append_prefill_enable"
	ofGovernor  = "it is the governor's, which is off"
)

// conflicts are all pairs of settings that exclude each other. What is not
// here works together.
var conflicts = []struct {
	a, b   setting
	reason string
}{
	{appendOn, roleNone, fmt.Sprintf("decoder_append_prefill_enable "+alone, `""`)},
	{appendOn, roleBoth, fmt.Sprintf("decoder_append_prefill_enable "+alone, `"kv_both"`)},
	{appendOn, noPrefix, "decoder_append_prefill_enable needs prefix caching: without it no attempt finds a prefix"},
	{appendOn, ownScheduler, "the check of attempts is a part of this engine's scheduler, and another may schedule around it"},
	{appendOn, balance, replaces},
	{appendOn, shortFirst, replaces},
	{appendOn, profilingChunk, "the chunks of attempts are the governor's to choose, and each would undo the other's choice"},
	{appendOn, batchJob, replaces},
	{appendOn, dyntraLB, "it pauses requests that keep their KV, which attempts do not know of"},

	{recompute, roleNone, fmt.Sprintf("recompute_scheduler_enable "+alone, `""`)},
	{recompute, roleBoth, fmt.Sprintf("recompute_scheduler_enable "+alone, `"kv_both"`)},
	{recompute, balance, replaces},
	{recompute, shortFirst, replaces},
	{recompute, profilingChunk, replaces},
	{recompute, batchJob, replaces},

	{profile, appendOff, needsSwitch},
	{guards, appendOff, needsSwitch},
	{targetMillis, targetRatio, "both say how long a step may take; give one"},
	{targetMillis, governorOff, ofGovernor},
	{targetRatio, governorOff, ofGovernor},
	{decodeSteps, governorOff, ofGovernor},
	{quietSteps, governorOff, ofGovernor},
	{maxStepTokens, governorOff, ofGovernor},
	{remoteShare, governorOff, ofGovernor},
	{compareRemote, governorOff, "what an attempt takes here is predicted by the governor, which is off"},
	{leaseShare, leasesOff, "no lease is granted"},
	{hostTier, noHostTurns, "it needs an offload connector with enable_offload_prefix_caching, which keeps finished turns"},

	{tls, otherThanTCP, "tls needs the transport tcp"},
	{filePath, noHostTurns, "file_path keeps finished turns: it needs enable_offload_prefix_caching"},
	{fileBytes, noFilePath, "file_bytes needs a file_path"},
	{fileFullEvery, noFilePath, "file_full_every needs a file_path"},
	{float32Type, onAscend, "attention on Ascend takes bfloat16"},
}

// conflicts are the pairs that the choices have.
func (c *choices) conflicts() []error {
	var errs []error
	for _, p := range conflicts {
		if p.a.on(c) && p.b.on(c) {
			errs = append(errs, &ConflictError{p.a.name, p.b.name, p.reason})
		}
	}
	return errs
}

// foreign are schedulers that configurations of vllm-ascend may name and that
// this engine does not have.
var foreign = []setting{balance, shortFirst, profilingChunk, batchJob, dyntraLB}

func (c *choices) foreign() []error {
	var errs []error
	for _, s := range foreign {
		if s.on(c) {
			errs = append(errs, &SettingError{s.name, "on", "off: this engine has no such scheduler"})
		}
	}
	return errs
}

func (c *choices) producer() bool { return c.KVTransfer.Role == RoleProducer }

// guard is a setting of the guards as they are given.
func guard(on func(AppendGuards) bool) func(*choices) bool {
	return func(c *choices) bool { return !c.producer() && on(c.Additional.Scheduler.AppendGuards) }
}

// guarded is one of the guards as they are in force.
func guarded(on func(scheduler.AppendConfig) bool) func(*choices) bool {
	return func(c *choices) bool { return !c.producer() && on(c.appendGuards()) }
}

// extra is a setting of a connector's own members.
func extra(on func(*ConnectorExtra) bool) func(*choices) bool {
	return func(c *choices) bool {
		return slices.ContainsFunc(c.KVTransfer.parts(), func(k KVTransfer) bool { return on(&k.Extra) })
	}
}

// given reports whether a member of the configuration switches something on. Off
// are null, false, an empty object and, as vllm-ascend writes it, one that says
// "enabled": false.
func given(raw json.RawMessage) bool {
	var member any
	if len(raw) == 0 || json.Unmarshal(raw, &member) != nil {
		return len(raw) > 0
	}
	switch m := member.(type) {
	case nil:
		return false
	case bool:
		return m
	case map[string]any:
		return len(m) > 0 && m["enabled"] != false
	}
	return true
}
