package scheduler

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// quiet is a connector that has nothing and does nothing.
type quiet struct{}

func (quiet) Added(*connector.Request)                                  {}
func (quiet) Lookup(*connector.Request, int) connector.Answer           { return connector.Answer{} }
func (quiet) Allocated(*connector.Request, connector.Tables, int, int)  {}
func (quiet) Preempting(*connector.Request, connector.Tables, int) bool { return false }
func (quiet) Finished(*connector.Request, connector.Tables, connector.End) (h connector.Hold) {
	return h
}
func (quiet) Completed(connector.Event)                       {}
func (quiet) Ops(_ uint64, dst []connector.Op) []connector.Op { return dst }

// keeper keeps the KV of preempted requests, and counts who asks for it. It
// also is a tier that can bring back so many tokens beyond the local ones.
type keeper struct {
	quiet
	has   bool
	asked int

	restores int
	takes    time.Duration
}

func (k *keeper) Recovering(connector.RequestID) bool { k.asked++; return k.has }

func (k *keeper) Restorable(*connector.Request, int) (int, time.Duration) {
	return k.restores, k.takes
}

// several is a connector of several.
type several struct {
	quiet
	parts []connector.Scheduler
}

func (s several) SubConnectors() []connector.Scheduler { return s.parts }

// learnt makes the scheduler compare attempts with the other route, and know
// what a step costs here.
func learnt(s *Scheduler) {
	s.cfg.Append.Overload = CompareRemote
	g, err := newGovernor(GovernorConfig{})
	if err != nil {
		panic(err)
	}
	teach(&g.fit, truth, 300, rand.New(rand.NewSource(1)), plain)
	s.appends.governor = g
}

// The rule for append attempts, line by line, in every combination of
// scheduling, recomputation and connectors.
func TestAppendRule(t *testing.T) {
	const here = 20250 * time.Microsecond // four tokens by the true model, alone
	lines := []struct {
		line string
		set  func(s *Scheduler, r *request, k *keeper)
		hit  int32
		rule AppendRule
		why  RefusalReason
		kept bool // holds only where a connector keeps KV; elsewhere nothing is usable
	}{
		{"a: off", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.Enable = false }, 0, RuleNone, NotRefused, false},
		{"a: no attempt", func(_ *Scheduler, r *request, _ *keeper) { r.req.Route = Local }, 0, RuleNone, NotRefused, false},
		{"a: from a Prefiller", func(_ *Scheduler, r *request, _ *keeper) { r.req.Route = RemotePrefill }, 0, RuleNone, NotRefused, false},
		{"b: has output", func(_ *Scheduler, r *request, _ *keeper) { r.tokens = append(r.tokens, 9) }, 0, RuleOutput, NotRefused, false},
		{"b: a token is in flight", func(_ *Scheduler, r *request, _ *keeper) { r.placeholders = 1 }, 0, RuleOutput, NotRefused, false},
		{"b: a late output is to come", func(s *Scheduler, r *request, _ *keeper) { r.stale = s.applied + 1 }, 0, RuleOutput, NotRefused, false},
		{"b: goes before draining", func(s *Scheduler, r *request, _ *keeper) { r.placeholders, s.appends.draining = 1, true }, 0, RuleOutput, NotRefused, false},
		{"c: saved", func(_ *Scheduler, _ *request, k *keeper) { k.has = true }, 0, RuleRecovery, NotRefused, true},
		{"d: has computed tokens", func(_ *Scheduler, r *request, _ *keeper) { r.computed = 4 }, 0, RuleComputed, NotRefused, false},
		{"e: usable", func(*Scheduler, *request, *keeper) {}, 8, RuleUsable, NotRefused, false},
		{"e: just enough", func(s *Scheduler, _ *request, _ *keeper) {
			c := &s.cfg.Append
			c.MinPrefixTokens, c.MinPrefixRatio, c.MaxSuffixTokens = 8, 0.5, 4
		}, 8, RuleUsable, NotRefused, false},
		{"e: sooner here", func(s *Scheduler, r *request, _ *keeper) { learnt(s); r.req.RemoteETA = here }, 8, RuleUsable, NotRefused, false},
		{"e: nothing known of the other route", func(s *Scheduler, _ *request, _ *keeper) { learnt(s) }, 8, RuleUsable, NotRefused, false},
		{"e: nothing learnt here", func(s *Scheduler, r *request, _ *keeper) { s.cfg.Append.Overload, r.req.RemoteETA = CompareRemote, 1 }, 8, RuleUsable, NotRefused, false},
		{"e: not compared", func(s *Scheduler, r *request, _ *keeper) {
			learnt(s)
			s.cfg.Append.Overload, r.req.RemoteETA = IgnoreRemote, 1
		}, 8, RuleUsable, NotRefused, false},
		{"e: a tier has it", func(s *Scheduler, _ *request, k *keeper) { s.cfg.Append.Tier, k.restores = RestoreFromTier, 8 }, 0, RuleUsable, NotRefused, true},
		{"e: a tier has it sooner than the other route", func(s *Scheduler, r *request, k *keeper) {
			s.cfg.Append.Tier, k.restores, k.takes, r.req.RemoteETA = RestoreFromTier, 8, time.Second, time.Second+1
		}, 0, RuleUsable, NotRefused, true},
		{"f: nothing", func(*Scheduler, *request, *keeper) {}, 0, RuleUnusable, NoPrefix, false},
		{"f: too little", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.MinPrefixTokens = 9 }, 8, RuleUnusable, BelowMinPrefix, false},
		{"f: too small a share", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.MinPrefixRatio = 0.9 }, 8, RuleUnusable, BelowMinPrefix, false},
		{"f: too much is left", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.MaxSuffixTokens = 3 }, 8, RuleUnusable, SuffixTooLong, false},
		{"f: sooner elsewhere", func(s *Scheduler, r *request, _ *keeper) { learnt(s); r.req.RemoteETA = here - time.Millisecond }, 8, RuleUnusable, Busy, false},
		{"f: draining", func(s *Scheduler, _ *request, _ *keeper) { s.appends.draining = true }, 8, RuleUnusable, Draining, false},
		{"f: a tier has it and is not used", func(_ *Scheduler, _ *request, k *keeper) { k.restores = 8 }, 0, RuleUnusable, NoPrefix, false},
		{"f: a tier is slower than the other route", func(s *Scheduler, r *request, k *keeper) {
			s.cfg.Append.Tier, k.restores, k.takes, r.req.RemoteETA = RestoreFromTier, 8, time.Second, time.Second
		}, 0, RuleUnusable, NoPrefix, false},
	}
	for _, mode := range []Scheduling{Sync, Async} {
		for _, again := range []Recompute{RecomputeHere, RecomputeAway} {
			for _, conn := range []string{"none", "pd", "multi"} {
				for _, l := range lines {
					if l.kept && conn != "multi" {
						l.rule, l.why = RuleUnusable, NoPrefix // nobody keeps anything
					}
					t.Run(fmt.Sprintf("%v/%v/%s/%s", mode, again, conn, l.line), func(t *testing.T) {
						k := &keeper{}
						var opts []Option
						switch conn {
						case "pd":
							opts = append(opts, WithConnector(quiet{}))
						case "multi":
							opts = append(opts, WithConnector(several{parts: []connector.Scheduler{quiet{}, k}}))
						}
						cache, err := kvcache.New(kvcache.Config{Blocks: 33, BlockSize: 4})
						require.NoError(t, err)
						cfg := Config{MaxModelLen: 256, Scheduling: mode, Append: AppendConfig{Enable: true}}
						if conn != "none" {
							cfg.Recompute = again
						}
						s, err := New(cfg, cache, opts...)
						require.NoError(t, err)
						id, err := s.Add(Request{ID: "a", Prompt: prompt(1, 12), MaxTokens: 4, Route: AppendPrefill})
						require.NoError(t, err)
						r := s.slots.get(id)
						l.set(s, r, k)
						d := s.appendVerdict(r, l.hit)
						require.Equal(t, l.rule, d.Rule)
						require.Equal(t, l.why, d.Reason)
						want := AppendNative
						switch l.rule {
						case RuleUsable:
							want = AppendAdmit
						case RuleUnusable:
							want = AppendRefuse
						}
						require.Equal(t, want, d.Verdict)
						if l.rule == RuleNone {
							require.Zero(t, d)
							return
						}
						require.Equal(t, []int32{r.total(), l.hit}, []int32{d.PromptTokens, d.CachedTokens})
						require.Equal(t, r.req.RemoteETA, d.RemoteETA)
					})
				}
			}
		}
	}
}

// What a tier takes counts with what is computed behind it.
func TestRestoringCountsAgainstTheOtherRoute(t *testing.T) {
	for _, c := range []struct {
		remote time.Duration
		why    RefusalReason
	}{{125 * time.Millisecond, NotRefused}, {115 * time.Millisecond, Busy}} {
		k := &keeper{restores: 8, takes: 100 * time.Millisecond}
		cache, err := kvcache.New(kvcache.Config{Blocks: 33, BlockSize: 4})
		require.NoError(t, err)
		s, err := New(Config{MaxModelLen: 256, Append: AppendConfig{Enable: true, Tier: RestoreFromTier}}, cache, WithConnector(k))
		require.NoError(t, err)
		learnt(s)
		id, err := s.Add(Request{ID: "a", Prompt: prompt(1, 12), MaxTokens: 4, Route: AppendPrefill, RemoteETA: c.remote})
		require.NoError(t, err)
		d := s.appendVerdict(s.slots.get(id), 0)
		require.Equal(t, c.why, d.Reason)
		require.EqualValues(t, 8, d.RestorableTokens)
		require.InEpsilon(t, 120*time.Millisecond, d.LocalETA, 0.02)
	}
}

// Ordinary admission never asks a connector for recovery state.
func TestOrdinaryAdmissionAsksForNoRecovery(t *testing.T) {
	for _, route := range []Route{Local, RemotePrefill, AppendPrefill} {
		k := &keeper{has: true}
		cache, err := kvcache.New(kvcache.Config{Blocks: 33, BlockSize: 4})
		require.NoError(t, err)
		s, err := New(Config{MaxModelLen: 256}, cache, WithConnector(several{parts: []connector.Scheduler{k}}))
		require.NoError(t, err)
		_, err = s.Add(Request{ID: "a", Prompt: prompt(1, 12), MaxTokens: 1, Route: route})
		require.NoError(t, err)
		require.Equal(t, 1, s.Plan(0).Rows())
		require.Zero(t, k.asked, route)
	}
}
