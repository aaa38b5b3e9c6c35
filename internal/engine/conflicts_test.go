package engine

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/scheduler"
)

// faults are the typed errors inside a joined one.
func faults(err error) (conflicts []*ConflictError, settings []*SettingError) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			c, s := faults(e)
			conflicts, settings = append(conflicts, c...), append(settings, s...)
		}
		return conflicts, settings
	}
	var c *ConflictError
	var s *SettingError
	if errors.As(err, &c) {
		conflicts = append(conflicts, c)
	}
	if errors.As(err, &s) {
		settings = append(settings, s)
	}
	return conflicts, settings
}

// parsed is a configuration from what an operator writes.
func parsed(t *testing.T, transfer, additional string) Config {
	t.Helper()
	k, err := ParseKVTransfer(transfer)
	require.NoError(t, err, transfer)
	a, err := ParseAdditional(additional)
	require.NoError(t, err, additional)
	return Config{KVTransfer: k, Additional: a}
}

const (
	pdConsumer = `{"kv_connector":"pd","kv_role":"kv_consumer"}`
	pdBoth     = `{"kv_connector":"pd","kv_role":"kv_both"}`
	switchedOn = `"decoder_append_prefill_enable":true`
	aGuarded   = switchedOn + `,"decoder_append_prefill_profile":"guarded"`
	recomputes = `"recompute_scheduler_enable":true`
)

func sched(members string) string { return `{"scheduler_config":{` + members + `}}` }

func withGuards(members string) string {
	return sched(aGuarded + `,"decoder_append_prefill_guards":{` + members + `}`)
}

func offloading(extra string) string {
	return `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{` + extra + `}}`
}

// Every pair of the table of conflicts, as an operator comes to it: the error
// names both settings and says why.
func TestEveryConflictNamesBoth(t *testing.T) {
	rows := []struct {
		a, b                 string
		transfer, additional string
		change               func(*Config)
		own                  bool
	}{
		{a: "decoder_append_prefill_enable", b: `kv_role ""`, additional: sched(switchedOn)},
		{a: "decoder_append_prefill_enable", b: `kv_role "kv_both"`, transfer: pdBoth, additional: sched(switchedOn)},
		{a: "decoder_append_prefill_enable", b: "no-enable-prefix-caching", transfer: pdConsumer, additional: sched(switchedOn), change: func(c *Config) { c.NoPrefix = true }},
		{a: "decoder_append_prefill_enable", b: "a scheduler of the caller's own", transfer: pdConsumer, additional: sched(switchedOn), own: true},
		{a: "decoder_append_prefill_enable", b: "enable_balance_scheduling", transfer: pdConsumer, additional: sched(switchedOn + `,"enable_balance_scheduling":true`)},
		{a: "decoder_append_prefill_enable", b: "short_request_first_config", transfer: pdConsumer, additional: sched(switchedOn + `,"short_request_first_config":{"long_max_wait_ms":1}`)},
		{a: "decoder_append_prefill_enable", b: "profiling_chunk_config", transfer: pdConsumer, additional: sched(switchedOn + `,"profiling_chunk_config":{"enabled":true}`)},
		{a: "decoder_append_prefill_enable", b: "batch_job_sched_config", transfer: pdConsumer, additional: sched(switchedOn + `,"batch_job_sched_config":{"enabled":true}`)},
		{a: "decoder_append_prefill_enable", b: "dyntra_lb_config", transfer: pdConsumer, additional: sched(switchedOn + `,"dyntra_lb_config":{"enabled":true}`)},
		{a: "recompute_scheduler_enable", b: `kv_role ""`, additional: sched(recomputes)},
		{a: "recompute_scheduler_enable", b: `kv_role "kv_both"`, transfer: pdBoth, additional: sched(recomputes)},
		{a: "recompute_scheduler_enable", b: "enable_balance_scheduling", transfer: pdConsumer, additional: sched(recomputes + `,"enable_balance_scheduling":true`)},
		{a: "recompute_scheduler_enable", b: "short_request_first_config", transfer: pdConsumer, additional: sched(recomputes + `,"short_request_first_config":{"long_max_wait_ms":1}`)},
		{a: "recompute_scheduler_enable", b: "profiling_chunk_config", transfer: pdConsumer, additional: sched(recomputes + `,"profiling_chunk_config":{"enabled":true}`)},
		{a: "recompute_scheduler_enable", b: "batch_job_sched_config", transfer: pdConsumer, additional: sched(recomputes + `,"batch_job_sched_config":{"enabled":true}`)},
		{a: "decoder_append_prefill_profile", b: "decoder_append_prefill_enable off", transfer: pdConsumer, additional: sched(`"decoder_append_prefill_profile":"plain"`)},
		{a: "decoder_append_prefill_guards", b: "decoder_append_prefill_enable off", transfer: pdConsumer, additional: sched(`"decoder_append_prefill_guards":{"min_prefix_tokens":1}`)},
		{a: "target_tpot_ms", b: "target_tpot_ratio", transfer: pdConsumer, additional: withGuards(`"target_tpot_ms":30,"target_tpot_ratio":1.1`)},
		{a: "target_tpot_ms", b: "governor off", transfer: pdConsumer, additional: sched(switchedOn + `,"decoder_append_prefill_guards":{"target_tpot_ms":30}`)},
		{a: "target_tpot_ratio", b: "governor off", transfer: pdConsumer, additional: withGuards(`"governor":false,"compare_remote_eta":false,"target_tpot_ratio":1.1`)},
		{a: "decode_steps_between_chunks", b: "governor off", transfer: pdConsumer, additional: withGuards(`"governor":false,"compare_remote_eta":false,"decode_steps_between_chunks":2`)},
		{a: "quiet_steps", b: "governor off", transfer: pdConsumer, additional: withGuards(`"governor":false,"compare_remote_eta":false,"quiet_steps":4`)},
		{a: "max_append_tokens_per_step", b: "governor off", transfer: pdConsumer, additional: withGuards(`"governor":false,"compare_remote_eta":false,"max_append_tokens_per_step":64`)},
		{a: "remote_share", b: "governor off", transfer: pdConsumer, additional: sched(switchedOn + `,"decoder_append_prefill_guards":{"remote_share":0.5}`)},
		{a: "compare_remote_eta", b: "governor off", transfer: pdConsumer, additional: withGuards(`"governor":false`)},
		{a: "lease_share", b: "leases off", transfer: pdConsumer, additional: withGuards(`"leases":false,"lease_share":0.3`)},
		{a: "host_tier", b: "no enable_offload_prefix_caching", transfer: pdConsumer, additional: withGuards(`"host_tier":true`)},
		{a: "tls", b: "transport other than tcp", transfer: `{"kv_connector":"pd","kv_role":"kv_consumer","kv_connector_extra_config":{"transport":"ucx","tls":{"cert":"a","key":"b","ca":"c"}}}`},
		{a: "file_path", b: "no enable_offload_prefix_caching", transfer: offloading(`"file_path":"/x","file_bytes":9`)},
		{a: "file_bytes", b: "no file_path", transfer: offloading(`"file_bytes":9`)},
		{a: "file_full_every", b: "no file_path", transfer: offloading(`"file_full_every":9`)},
		{a: "dtype float32", b: "device ascend", change: func(c *Config) { c.DType, c.Device = "float32", "ascend" }},
	}
	tested := map[[2]string]bool{}
	for _, r := range rows {
		t.Run(r.a+" with "+r.b, func(t *testing.T) {
			c := parsed(t, r.transfer, r.additional)
			if r.change != nil {
				r.change(&c)
			}
			err := (&choices{c, r.own}).validate()
			found, _ := faults(err)
			require.Len(t, found, 1, "%v", err)
			require.Equal(t, [2]string{r.a, r.b}, [2]string{found[0].A, found[0].B})
			require.NotEmpty(t, found[0].Reason)
			for _, part := range []string{r.a, r.b, found[0].Reason} {
				require.ErrorContains(t, err, part)
			}
		})
		require.False(t, tested[[2]string{r.a, r.b}], "twice")
		tested[[2]string{r.a, r.b}] = true
	}
	for _, p := range conflicts {
		require.True(t, tested[[2]string{p.a.name, p.b.name}], "%s with %s has no row here", p.a.name, p.b.name)
	}
	require.Len(t, rows, len(conflicts))
}

// What is not in the table goes together, and on a prefiller the switches are
// without effect, which is said.
func TestSettingsThatGoTogether(t *testing.T) {
	const multi = `{"kv_connector":"multi","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[{"kv_connector":"pd"},
		{"kv_connector":"offload","kv_connector_extra_config":{"enable_offload_prefix_caching":true,"file_path":"/x","file_bytes":9}}]}}`
	all := `"min_prefix_tokens":16,"min_prefix_ratio":0,"max_suffix_tokens":64,"max_local_wait_ms":0.5,"compare_remote_eta":true,"governor":true,"target_tpot_ms":30,
		"decode_steps_between_chunks":0,"quiet_steps":8,"max_append_tokens_per_step":32,"remote_share":0.5,"leases":true,"lease_share":1,"host_tier":true`
	for _, additional := range []string{
		sched(switchedOn), sched(aGuarded), sched(aGuarded + "," + recomputes), withGuards(all), sched(switchedOn + `,"decoder_append_prefill_guards":{` + all + `}`),
		withGuards(`"governor":false,"compare_remote_eta":false,"leases":false,"host_tier":false`), sched(recomputes),
		sched(switchedOn + `,"enable_balance_scheduling":false,"short_request_first_config":null,"profiling_chunk_config":{},"dyntra_lb_config":false`),
		sched(switchedOn + `,"short_request_first_config": { "enabled": false, "threshold": 256 },"batch_job_sched_config":{"enabled":false},"profiling_chunk_config": { }`),
	} {
		require.NoError(t, parsed(t, multi, additional).Validate(), additional)
	}
	own := &choices{parsed(t, multi, sched(recomputes)), true}
	require.NoError(t, own.validate(), "with the switch off a caller's own scheduler is left alone")
	p := parsed(t, `{"kv_connector":"pd","kv_role":"kv_producer"}`, withGuards(`"governor":false,"target_tpot_ms":3`))
	p.NoPrefix = true
	require.NoError(t, p.Validate())
	require.Len(t, p.Warnings(), 2)
}

// Values out of range, targets of zero among them, and schedulers that are not
// there.
func TestSettingsOutOfRange(t *testing.T) {
	for _, c := range []struct{ members, name, text string }{
		{`"min_prefix_tokens":-1`, "min_prefix_tokens", "is -1, must be within 0 to 4096"},
		{`"min_prefix_tokens":4097`, "min_prefix_tokens", "is 4097"},
		{`"min_prefix_ratio":1.01`, "min_prefix_ratio", "is 1.01, must be within 0 to 1"},
		{`"min_prefix_ratio":-0.1`, "min_prefix_ratio", "is -0.1"},
		{`"max_suffix_tokens":0`, "max_suffix_tokens", "is 0, must be within 1 to 4096"},
		{`"max_local_wait_ms":0`, "max_local_wait_ms", "is 0, must be above 0"},
		{`"max_local_wait_ms":3600001`, "max_local_wait_ms", "at most an hour"},
		{`"target_tpot_ms":0`, "target_tpot_ms", "is 0, must be above 0"},
		{`"target_tpot_ms":-5`, "target_tpot_ms", "is -5"},
		{`"target_tpot_ratio":0`, "target_tpot_ratio", "is 0, must be above 1"},
		{`"target_tpot_ratio":1`, "target_tpot_ratio", "is 1, must be above 1"},
		{`"decode_steps_between_chunks":-1`, "decode_steps_between_chunks", "is -1"},
		{`"quiet_steps":1001`, "quiet_steps", "is 1001"},
		{`"max_append_tokens_per_step":0`, "max_append_tokens_per_step", "is 0, must be within 1 to 512"},
		{`"max_append_tokens_per_step":513`, "max_append_tokens_per_step", "is 513"},
		{`"remote_share":1`, "remote_share", "is 1, must be within 0 to below 1"},
		{`"lease_share":0`, "lease_share", "is 0, must be above 0"},
		{`"lease_share":1.5`, "lease_share", "is 1.5"},
	} {
		err := parsed(t, pdConsumer, withGuards(c.members)).Validate()
		_, found := faults(err)
		require.Len(t, found, 1, "%s: %v", c.members, err)
		require.Equal(t, "decoder_append_prefill_guards."+c.name, found[0].Name)
		require.ErrorContains(t, err, c.text)
	}
	_, found := faults(Config{CacheHitThreshold: 1.5, BlockSize: -1}.Validate())
	require.Len(t, found, 2)
	_, found = faults(parsed(t, "", sched(`"enable_balance_scheduling":true,"dyntra_lb_config":{"x":1}`)).Validate())
	require.Equal(t, []*SettingError{
		{"enable_balance_scheduling", "on", "off: this engine has no such scheduler"}, {"dyntra_lb_config", "on", "off: this engine has no such scheduler"},
	}, found)
	for _, wrong := range []string{`"decoder_append_prefill_guards":{"target_tpot":1}`, `"decoder_append_prefill_guards":{"governor":"on"}`, `"decoder_append_prefill_enable":"yes"`} {
		_, err := ParseAdditional(sched(wrong))
		require.ErrorContains(t, err, "additional-config", wrong)
	}
	var typ *json.UnmarshalTypeError
	_, err := ParseAdditional(sched(`"decoder_append_prefill_enable":1`))
	require.ErrorAs(t, err, &typ)
}

// What the members come to.
func TestGuardsInForce(t *testing.T) {
	in := func(additional string) scheduler.AppendConfig {
		return parsed(t, pdConsumer, additional).withDefaults().appendGuards()
	}
	require.Equal(t, scheduler.AppendConfig{Enable: true}, in(sched(switchedOn)))
	require.Equal(t, scheduler.Guarded(512), in(sched(aGuarded)))
	got := in(withGuards(`"min_prefix_tokens":16,"min_prefix_ratio":0.25,"max_suffix_tokens":64,"max_local_wait_ms":0.5,"compare_remote_eta":false,"target_tpot_ms":30,
		"decode_steps_between_chunks":12,"max_append_tokens_per_step":32,"remote_share":0,"leases":false`))
	require.Equal(t, scheduler.AppendConfig{
		Enable: true, MinPrefixTokens: 16, MinPrefixRatio: 0.25, MaxSuffixTokens: 64, MaxWait: 500 * time.Microsecond,
		Governor: &scheduler.GovernorConfig{TargetTPOT: 30 * time.Millisecond, Interval: 12, MaxInterval: 12, Savings: 13, MaxTokens: 32},
	}, got)
	require.NoError(t, scheduler.Config{MaxModelLen: 64, Append: got}.Validate())
	got = in(sched(switchedOn + `,"decoder_append_prefill_guards":{"governor":true,"decode_steps_between_chunks":0,"leases":true,"compare_remote_eta":true}`))
	require.Equal(t, scheduler.AppendConfig{
		Enable: true, Overload: scheduler.CompareRemote, Lease: &scheduler.LeaseConfig{},
		Governor: &scheduler.GovernorConfig{Interval: scheduler.NoInterval, MaxInterval: 7, Savings: 4},
	}, got)
	const tier = `{"kv_connector":"multi","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[{"kv_connector":"pd"},
		{"kv_connector":"offload","kv_connector_extra_config":{"enable_offload_prefix_caching":true}}]}}`
	require.Equal(t, scheduler.RestoreFromTier, parsed(t, tier, sched(aGuarded)).appendGuards().Tier, "where turns are kept in a host tier they count")
	require.Equal(t, scheduler.DeviceOnly, parsed(t, tier, sched(switchedOn)).appendGuards().Tier)
	require.Equal(t, scheduler.DeviceOnly, parsed(t, tier, withGuards(`"host_tier":false`)).appendGuards().Tier)
	require.Equal(t, 0.3, parsed(t, pdConsumer, withGuards(`"lease_share":0.3`)).leaseShare())
	require.Zero(t, Config{}.leaseShare())
}

// counting is a caller's own scheduler.
type counting struct {
	Scheduler
	added, plans, applied int
}

func (c *counting) Add(r scheduler.Request) (scheduler.RequestID, error) {
	c.added++
	return c.Scheduler.Add(r)
}

func (c *counting) Plan(now scheduler.Time) *scheduler.Plan {
	c.plans++
	return c.Scheduler.Plan(now)
}

func (c *counting) Apply(p *scheduler.Plan, res scheduler.Result) ([]scheduler.Output, error) {
	c.applied++
	return c.Scheduler.Apply(p, res)
}

// With the switch off a caller's own scheduler decides, and the engine gives
// what it gives with its own; with the switch on it does not start.
func TestCallersOwnScheduler(t *testing.T) {
	cfg := Config{KVBlocks: 64, MaxModelLen: 256, Eager: true}
	answer := func(o Options) []scheduler.Token {
		e, err := New(t.Context(), cfg, o)
		require.NoError(t, err)
		defer func() { require.NoError(t, e.Close()) }()
		s, err := e.Submit(t.Context(), Request{ID: "a", Prompt: []scheduler.Token{5, 6, 7}, MaxTokens: 6, IgnoreEOS: true, Append: true})
		require.NoError(t, err)
		var out []scheduler.Token
		for {
			d, err := s.Next(t.Context())
			require.NoError(t, err)
			out = append(out, d.Tokens...)
			if d.Finish != scheduler.NotFinished {
				return out
			}
		}
	}
	want := answer(Options{})
	require.Len(t, want, 6)
	var mine *counting
	own := func(_ int, s *scheduler.Scheduler) Scheduler {
		mine = &counting{Scheduler: s}
		return mine
	}
	require.Equal(t, want, answer(Options{Scheduler: own}))
	require.Equal(t, 1, mine.added)
	require.GreaterOrEqual(t, mine.plans, mine.applied)
	require.GreaterOrEqual(t, mine.applied, 6)

	on := parsed(t, pdConsumer, sched(switchedOn))
	on.KVBlocks = 64
	_, err := New(context.Background(), on, Options{Scheduler: own})
	var c *ConflictError
	require.ErrorAs(t, err, &c)
	require.Equal(t, ownScheduler.name, c.B)
}
