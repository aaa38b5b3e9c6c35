package scheduler_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// longRun multiplies the work of the property tests: SLUICE_LONG=20. A seeded
// fault has to show itself in less.
func longRun(checks int) int {
	if os.Getenv("SLUICE_MUTANT") != "" {
		return max(checks/2, 1)
	}
	if n, err := strconv.Atoi(os.Getenv("SLUICE_LONG")); err == nil && n > 0 {
		return checks * n
	}
	return checks
}

// setChecks makes rapid run about n histories, unless the caller chose a number.
func setChecks(t *testing.T, n int) {
	t.Helper()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "rapid.checks" })
	if !chosen {
		require.NoError(t, flag.Set("rapid.checks", strconv.Itoa(longRun(n))))
	}
}

func drawConfig(t *rapid.T) rigConfig {
	c := rigConfig{
		blocks:    rapid.IntRange(12, 40).Draw(t, "blocks"),
		blockSize: rapid.SampledFrom([]int{1, 2, 4, 7}).Draw(t, "blockSize"),
		connector: rapid.Bool().Draw(t, "connector"),
	}
	if rapid.IntRange(0, 9).Draw(t, "cachingOff") == 0 {
		c.caching = kvcache.CachingOff
	}
	c.MaxModelLen = 64
	c.MaxNumSeqs = rapid.IntRange(1, 6).Draw(t, "seqs")
	c.Drafts = rapid.SampledFrom([]int{0, 0, 1, 2, 4}).Draw(t, "drafts")
	c.MaxBatchedTokens = rapid.IntRange(c.Drafts+1, 24).Draw(t, "budget")
	c.LongPrefillThreshold = rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "threshold")
	c.Policy = rapid.SampledFrom([]scheduler.Policy{
		scheduler.FCFS, scheduler.FCFS, scheduler.Priority, scheduler.Priority, scheduler.ShortFirst, scheduler.EarliestDeadline, scheduler.FairShare,
	}).Draw(t, "policy")
	c.ShortPrompt, c.AgingAfter, c.Quantum = 8, 5, rapid.IntRange(1, 20).Draw(t, "quantum")
	c.Victim = rapid.SampledFrom([]scheduler.Victim{scheduler.VictimByPolicy, scheduler.VictimByRecompute}).Draw(t, "victim")
	if c.Drafts > 1 && rapid.Bool().Draw(t, "dynamic") {
		c.DynamicDrafts = []int{c.Drafts, c.Drafts, 1, 0}
	}
	c.Admission = rapid.SampledFrom([]scheduler.Admission{scheduler.WholeSequence, scheduler.FirstChunk}).Draw(t, "gate")
	c.LoadFailure = rapid.SampledFrom([]scheduler.LoadFailure{scheduler.RecomputeLoad, scheduler.FailRequest}).Draw(t, "loadFailure")
	c.HoldBack = rapid.SampledFrom([]int{0, 0, 2, 5}).Draw(t, "hold")
	c.graphs = rapid.Bool().Draw(t, "graphs")
	c.producer = c.connector && rapid.IntRange(0, 3).Draw(t, "producer") == 0
	c.Append.Enable = rapid.Bool().Draw(t, "append")
	if rapid.Bool().Draw(t, "async") {
		c.Scheduling = scheduler.Async
		c.InFlight = rapid.IntRange(1, 4).Draw(t, "inflight")
	} else if rapid.IntRange(0, 3).Draw(t, "pipelined") == 0 {
		c.InFlight = 3
	}
	return c
}

// drawGoverned has attempts that are bounded, compared and refused beside what drawConfig
// draws, which recorded failures are made of.
func drawGoverned(t *rapid.T) rigConfig {
	c := drawConfig(t)
	c.Append = scheduler.AppendConfig{
		Enable: true, MaxWait: time.Duration(rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(t, "maxWait")),
		Overload: rapid.SampledFrom([]scheduler.Overload{scheduler.IgnoreRemote, scheduler.CompareRemote}).Draw(t, "overload"),
		Governor: &scheduler.GovernorConfig{
			Quiet: rapid.SampledFrom([]int{0, 3, 12, 40}).Draw(t, "quiet"), FirstTokens: rapid.IntRange(1, 8).Draw(t, "firstTokens"), MinTokens: 2,
		},
	}
	return c
}

func drawRequest(t *rapid.T, r *rig, n int) (scheduler.Request, remote) {
	length := rapid.IntRange(1, min(r.s.MaxLen(), 40)).Draw(t, "length")
	prompt := make([]scheduler.Token, length)
	shared := rapid.IntRange(0, length).Draw(t, "shared")
	kind := rapid.IntRange(0, 2).Draw(t, "kind")
	for i := range prompt {
		prompt[i] = scheduler.Token(1000*kind + i + 10)
		if i >= shared {
			prompt[i] = scheduler.Token(10000 + 100*n + i)
		}
	}
	req := scheduler.Request{
		ID: fmt.Sprintf("r%d", n), Prompt: prompt, MaxTokens: rapid.IntRange(1, 12).Draw(t, "max"),
		Priority: rapid.IntRange(0, 2).Draw(t, "priority"), Arrival: scheduler.Time(n), EOS: []scheduler.Token{eos},
		Tenant: string(rune('a' + n%3)), Deadline: scheduler.Time(rapid.IntRange(0, 3).Draw(t, "due")),
	}
	req.MinTokens = rapid.IntRange(0, min(2, req.MaxTokens)).Draw(t, "min")
	if rapid.IntRange(0, 5).Draw(t, "route") == 0 {
		req.Route = scheduler.AppendPrefill
		req.RemoteETA = time.Duration(n*7%20) * time.Millisecond
	}
	var kv remote
	if r.conn != nil && rapid.Bool().Draw(t, "hasRemote") {
		kv = remote{
			tokens: rapid.IntRange(0, length).Draw(t, "remote"), sync: rapid.Bool().Draw(t, "sync"),
			pending: rapid.IntRange(0, 2).Draw(t, "pending"), send: rapid.Bool().Draw(t, "send"),
			always: rapid.Bool().Draw(t, "always"),
		}
	}
	return req, kv
}

// TestRandomHistories drives schedulers of random configurations through
// random histories. Whatever happens, every request that ends by itself has
// yielded exactly what the model says, every other one a part of it, and in
// the end no block is held.
func TestRandomHistories(t *testing.T) {
	setChecks(t, 400)
	randomHistories(t, drawConfig)
}

// So do they where attempts are governed.
func TestRandomHistoriesOfAttempts(t *testing.T) {
	setChecks(t, 200)
	randomHistories(t, drawGoverned)
}

func randomHistories(t *testing.T, draw func(*rapid.T) rigConfig) {
	rapid.Check(t, func(t *rapid.T) {
		r, err := newRig(draw(t))
		require.NoError(t, err)
		if k := r.cfg.Drafts; k > 0 {
			r.propose(k, rapid.SampledFrom([]int{0, 50, 90, 100}).Draw(t, "guess"))
		}
		r.timed = r.cfg.Append.Governor != nil
		r.log = func(s string) { t.Log(s) }
		r.syncFails = func(_ string, first, last int) int {
			if rapid.IntRange(0, 3).Draw(t, "syncFails") > 0 {
				return -1
			}
			return rapid.IntRange(first, last).Draw(t, "syncFailsAt")
		}
		steps := rapid.IntRange(5, 80).Draw(t, "steps")
		added := 0
		for range steps {
			r.now++
			switch rapid.SampledFrom([]string{"add", "add", "plan", "plan", "plan", "apply", "apply", "abort", "received", "failed", "failstep", "reset", "pause"}).Draw(t, "do") {
			case "add":
				req, kv := drawRequest(t, r, added)
				added++
				require.NoError(t, r.add(req, kv))
			case "plan":
				if len(r.flight) < r.cfg.InFlight {
					_, err := r.plan(false)
					require.NoError(t, err)
				}
			case "failstep":
				if len(r.flight) < r.cfg.InFlight && rapid.IntRange(0, 2).Draw(t, "really") == 0 {
					_, err := r.plan(true)
					require.NoError(t, err)
				}
			case "apply":
				if len(r.flight) > 0 {
					_, err := r.apply()
					require.NoError(t, err)
				}
			case "abort":
				if added > 0 && rapid.IntRange(0, 2).Draw(t, "really") == 0 {
					_ = r.s.Abort(r.ids[fmt.Sprintf("r%d", rapid.IntRange(0, added-1).Draw(t, "whom"))]) // unknown ones are refused
					require.NoError(t, r.s.Check())
				}
			case "received":
				for _, name := range r.order {
					if _, ok := r.loads[r.ids[name]]; ok && rapid.Bool().Draw(t, "arrives") {
						require.NoError(t, r.received(name, 0))
						r.s.Deliver(scheduler.Event{Kind: connector.Received, Request: r.ids[name]}) // twice
					}
				}
			case "failed":
				for _, name := range r.order {
					if l, ok := r.loads[r.ids[name]]; ok && l.to > l.from && rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
						first := l.from / r.exec.blockSize
						at := rapid.IntRange(first, (l.to-1)/r.exec.blockSize).Draw(t, "at")
						require.NoError(t, r.loadFailed(name, []int{at}))
						break
					}
				}
			case "reset":
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					_ = r.s.ResetCache(scheduler.ResetPreempt) // refused while blocks are held
					require.NoError(t, r.s.Check())
				}
			case "pause":
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					r.s.SetPause(rapid.SampledFrom([]scheduler.Pause{scheduler.Unpaused, scheduler.PauseNew, scheduler.PauseAll}).Draw(t, "pauseState"))
				}
			}
		}
		r.s.SetPause(scheduler.Unpaused)
		require.NoError(t, r.quiesce(4000))
		require.Equal(t, r.cache.Usable(), r.s.Free(), "blocks are still held:\n%s", r.s.Dump())
		for _, name := range r.order {
			require.NoError(t, r.verify(name))
		}
		st := r.s.Stats()
		require.Zero(t, st.Running+st.Waiting+st.Skipped+st.Idle+st.Held)
		require.Equal(t, st.Added, uint64(added))
	})
}

// TestSyncAndAsyncAgree runs one workload in several modes: what each request
// yields does not depend on the mode.
func TestSyncAndAsyncAgree(t *testing.T) {
	setChecks(t, 100)
	rapid.Check(t, func(t *rapid.T) {
		base := drawConfig(t)
		base.connector, base.producer = false, false
		base.Append.Enable = false
		type planned struct {
			req scheduler.Request
			at  int
		}
		var work []planned
		probe, err := newRig(base)
		require.NoError(t, err)
		for i := range rapid.IntRange(1, 8).Draw(t, "requests") {
			req, _ := drawRequest(t, probe, i)
			work = append(work, planned{req, rapid.IntRange(0, 20).Draw(t, "when")})
		}
		var first map[string][]scheduler.Token
		for _, inFlight := range []int{0, 1, 2, 3} {
			c := base
			c.Scheduling, c.InFlight = scheduler.Async, inFlight
			if inFlight == 0 {
				c.Scheduling, c.InFlight = scheduler.Sync, 1
			}
			r, err := newRig(c)
			require.NoError(t, err)
			r.log = func(s string) { t.Log(s) }
			if k := r.cfg.Drafts; k > 0 {
				r.propose(k, 60)
			}
			for step := range 21 {
				for _, w := range work {
					if w.at == step {
						w.req.Prompt = slices.Clone(w.req.Prompt)
						require.NoError(t, r.add(w.req, remote{}))
					}
				}
				if len(r.flight) >= r.cfg.InFlight {
					_, err := r.apply()
					require.NoError(t, err)
				}
				_, err := r.plan(false)
				require.NoError(t, err)
			}
			require.NoError(t, r.quiesce(4000))
			for _, name := range r.order {
				require.NoError(t, r.verify(name))
			}
			if first == nil {
				first = r.got
			}
			require.Equal(t, first, r.got, "with %d plans in flight", inFlight)
		}
	})
}
