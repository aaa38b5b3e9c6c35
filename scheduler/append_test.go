package scheduler

import (
	"fmt"
	"testing"

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

// keeper keeps the KV of preempted requests, and counts who asks for it.
type keeper struct {
	quiet
	has   bool
	asked int
}

func (k *keeper) Recovering(connector.RequestID) bool { k.asked++; return k.has }

// several is a connector of several.
type several struct {
	quiet
	parts []connector.Scheduler
}

func (s several) SubConnectors() []connector.Scheduler { return s.parts }

// The rule for append attempts, line by line, in every combination of
// scheduling, recomputation and connectors.
func TestAppendRule(t *testing.T) {
	lines := []struct {
		line string
		set  func(s *Scheduler, r *request, k *keeper)
		hit  int32
		want appendVerdict
		why  RefusalReason
		kept bool // holds only where a connector keeps KV
	}{
		{"a: off", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.Enable = false }, 0, appendNative, NotRefused, false},
		{"a: no attempt", func(_ *Scheduler, r *request, _ *keeper) { r.req.Route = Local }, 0, appendNative, NotRefused, false},
		{"a: from a Prefiller", func(_ *Scheduler, r *request, _ *keeper) { r.req.Route = RemotePrefill }, 0, appendNative, NotRefused, false},
		{"b: has output", func(_ *Scheduler, r *request, _ *keeper) { r.tokens = append(r.tokens, 9) }, 0, appendNative, NotRefused, false},
		{"b: a token is in flight", func(_ *Scheduler, r *request, _ *keeper) { r.placeholders = 1 }, 0, appendNative, NotRefused, false},
		{"b: a late output is to come", func(s *Scheduler, r *request, _ *keeper) { r.stale = s.applied + 1 }, 0, appendNative, NotRefused, false},
		{"c: saved", func(_ *Scheduler, _ *request, k *keeper) { k.has = true }, 0, appendNative, NotRefused, true},
		{"d: has computed tokens", func(_ *Scheduler, r *request, _ *keeper) { r.computed = 4 }, 0, appendNative, NotRefused, false},
		{"e: usable", func(*Scheduler, *request, *keeper) {}, 8, appendAdmit, NotRefused, false},
		{"f: nothing", func(*Scheduler, *request, *keeper) {}, 0, appendRefuse, NoPrefix, false},
		{"f: too little", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.MinPrefixTokens = 12 }, 8, appendRefuse, BelowMinPrefix, false},
		{"f: too small a share", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.MinPrefixRatio = 0.9 }, 8, appendRefuse, BelowMinPrefix, false},
		{"f: too much is left", func(s *Scheduler, _ *request, _ *keeper) { s.cfg.Append.MaxSuffixTokens = 3 }, 8, appendRefuse, SuffixTooLong, false},
		{"f: draining", func(s *Scheduler, _ *request, _ *keeper) { s.appends.draining = true }, 8, appendRefuse, Draining, false},
	}
	for _, mode := range []Scheduling{Sync, Async} {
		for _, again := range []Recompute{RecomputeHere, RecomputeAway} {
			for _, conn := range []string{"none", "pd", "multi"} {
				for _, l := range lines {
					if l.kept && conn != "multi" {
						l.want, l.why = appendRefuse, NoPrefix // nobody keeps anything
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
						got, why := s.appendVerdict(r, l.hit)
						require.Equal(t, l.want, got)
						require.Equal(t, l.why, why)
					})
				}
			}
		}
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
