package sim

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFaultsByName(t *testing.T) {
	for _, s := range []string{"decoder-restart@60+15", "prefiller-loss:1@60", "prefiller-loss@0.5+3", "burst@60+20x5"} {
		f, err := ParseFault(s)
		require.NoError(t, err, s)
		require.Equal(t, s, f.String())
	}
	for s, want := range map[string]string{
		"":                                     "has no time",
		"flood@3":                              "kind is unknown",
		"decoder-restart@x":                    "time is no number",
		"decoder-restart@3":                    "needs a duration",
		"decoder-restart@3+x":                  "duration is no number",
		"decoder-restart:x@3+1":                "instance is no number",
		"prefiller-loss:-1@3":                  "instance -1 is not one",
		"prefiller-loss@-3":                    "not negative",
		"burst@3+4":                            "factor must be finite and above 1",
		"burst@3+4xmany":                       "factor is no number",
		"burst@3x5":                            "needs a duration",
		"decoder-restart@Inf+1":                "must be finite",
		"decoder-restart@NaN+1":                "must be finite",
		"prefiller-loss@1+-1":                  "not negative",
		"burst@1+2x0.5":                        "above 1",
		"burst:1@1+2x2":                        "instance 1 is not one of 1",
		"decoder-restart@3+1+2":                "duration is no number",
		"prefiller-loss:1:2@3":                 "instance is no number",
		"decoder-restart@3+1x5":                "duration is no number",
		"Decoder-Restart@3+1":                  "kind is unknown",
		"prefiller-loss":                       "has no time",
		"prefiller-loss@":                      "time is no number",
		"prefiller-loss:9999999999999999999@1": "instance is no number",
	} {
		_, err := ParseFault(s)
		require.ErrorContains(t, err, want, s)
	}
	cfg := faultsCluster()
	cfg.Faults = []Fault{{Kind: DecoderRestart, At: 1, For: 1, Instance: 2}}
	_, err := NewCluster(cfg, faultsWorkload())
	require.ErrorContains(t, err, "instance 2 is not one of 2")
}

func TestABurstKeepsTheOrder(t *testing.T) {
	load := &Conversations{Count: 100, Rounds: 1, Window: 100}
	w := warped{load, Seconds(20), Seconds(4), 5}
	for s := 1; s < 100; s++ {
		require.Greater(t, w.Start(s), w.Start(s-1))
	}
	require.Equal(t, Seconds(20), w.Start(20))
	require.Equal(t, Seconds(22), w.Start(30), "five times as dense")
	require.Equal(t, Seconds(24), w.Start(40))
	require.Equal(t, Seconds(44), w.Start(60), "then as before")
}

// checkAnswers: every turn was answered once, with its full length, in its
// session's order, unless its client gave up.
func checkAnswers(t *testing.T, r *Result, load Workload) {
	t.Helper()
	next := make([]int, load.Sessions())
	failed := 0
	for i := range r.Records {
		rec := &r.Records[i]
		require.EqualValues(t, next[rec.Session], rec.Turn, "session %d", rec.Session)
		next[rec.Session]++
		if rec.Failed {
			failed += load.Turns(int(rec.Session)) - int(rec.Turn)
			next[rec.Session] = load.Turns(int(rec.Session))
			continue
		}
		require.EqualValues(t, load.Output(int(rec.Session), int(rec.Turn)), rec.Out)
		require.GreaterOrEqual(t, rec.First, rec.Eligible)
		require.GreaterOrEqual(t, rec.Last, rec.First)
	}
	for s, n := range next {
		require.Equal(t, load.Turns(s), n, "session %d", s)
	}
	require.Equal(t, r.Faults.GivenUp+r.Faults.NotSent, failed)
}

func guardedWith(faults ...Fault) ClusterConfig {
	cfg := Guard(withAppend(faultsCluster()))
	cfg.Faults = faults
	return cfg
}

// Each fault hits a cluster that serves, at many moments: every request ends,
// none is answered twice, and nothing is left behind on any rank.
func TestEveryRequestEndsInSpiteOfFaults(t *testing.T) {
	load := faultsWorkload()
	load.Count, load.Rounds, load.Window = 16, 3, 20
	for mode := range 3 { // steps one by one, ahead, and of instances that slow each other down
		for at := 10.0; at < 30; at += 4.1 {
			for _, f := range []Fault{
				{Kind: DecoderRestart, At: at, For: 9, Instance: 1},
				{Kind: PrefillerLoss, At: at},
				{Kind: PrefillerLoss, At: at, For: 4, Instance: 1},
				{Kind: Burst, At: at - 10, For: 3, Times: 5},
			} {
				cfg := guardedWith(f)
				cfg.Decode.Host, cfg.Decode.Save, cfg.Decode.Restore = HostTier()
				cfg.Reverse = ReversePull
				if mode > 0 {
					cfg = Asynchronous(cfg)
				}
				if mode > 1 {
					cfg.Share, cfg.Decode.Slowed, cfg.Gaps = 0.8, 0.5, true
				}
				r := run(t, cfg, load)
				checkAnswers(t, r, load)
				require.Zero(t, r.Faults.GivenUp, f)
				require.Equal(t, r, run(t, cfg, load))
			}
		}
	}
}

// A fault that the run does not reach is an error that names it and the end, not
// a run without it; one that comes at the last moment counts.
func TestAFaultBeyondTheRunIsAnError(t *testing.T) {
	load := faultsWorkload()
	load.Count, load.Rounds, load.Window = 12, 2, 20
	end := 0.0
	for _, rec := range run(t, guardedWith(), load).Records {
		end = max(end, float64(rec.Last)/1e9)
	}
	for _, f := range []Fault{{Kind: DecoderRestart, At: end + 0.001, For: 5}, {Kind: PrefillerLoss, At: 9000}} {
		for _, faults := range [][]Fault{{f}, {{Kind: PrefillerLoss, At: 5, For: 1}, f}} {
			_, err := runOnce(guardedWith(faults...), load)
			require.ErrorContains(t, err, fmt.Sprintf("fault %v: the run ended before it, at ", f))
		}
	}
	last := float64(load.Start(load.Sessions()-1)) / 1e9
	_, err := runOnce(guardedWith(Fault{Kind: Burst, At: last, For: 5, Times: 2}), load)
	require.ErrorContains(t, err, "x2: no session starts after")
	run(t, guardedWith(Fault{Kind: PrefillerLoss, At: end - 0.001}, Fault{Kind: Burst, At: last - 0.001, For: 5, Times: 2}), load)
}

// A Decoder that restarts costs the sessions that it held one hit each: the
// next turn of each takes the ordinary route and the one after that hits again.
func TestHitsReturnAfterARestart(t *testing.T) {
	load := faultsWorkload()
	calm := run(t, guardedWith(), load)
	r := run(t, guardedWith(Fault{Kind: DecoderRestart, At: 100.5, For: 15}), load)
	checkAnswers(t, r, load)
	f := &r.Faults
	require.NotZero(t, f.Cut, "answers were under way")
	require.NotZero(t, f.LostTokens)
	require.NotZero(t, f.Again)
	require.Zero(t, f.GivenUp)
	require.Equal(t, calm.Faults.Before.Hits+calm.Faults.Before.FollowUps, 2*calm.Faults.Before.FollowUps, "undisturbed, every follow-up hits")
	require.InDelta(t, 1, f.Before.Share(), 1e-9)
	require.Less(t, f.Across.Share(), 0.75)
	require.Greater(t, f.After.Share(), 0.95)
}

// A lost Prefiller takes the prompts that it had with it; the other one
// computes them again and does the rest. The Decoders keep what they hold.
func TestALostPrefillerCostsNoHits(t *testing.T) {
	load := faultsWorkload()
	r := run(t, guardedWith(Fault{Kind: PrefillerLoss, At: 100.5}), load)
	checkAnswers(t, r, load)
	require.NotZero(t, r.Faults.Broken)
	require.Zero(t, r.Faults.GivenUp)
	require.Zero(t, r.Faults.Cut)
	require.InDelta(t, 1, r.Faults.After.Share(), 1e-9)
}

// An instance is back when the last of the faults that keep it away has ended.
func TestFaultsThatOverlap(t *testing.T) {
	load := faultsWorkload()
	load.Count, load.Rounds, load.Window = 12, 2, 20
	once := guardedWith(Fault{Kind: PrefillerLoss, At: 5, For: 10})
	twice := guardedWith(once.Faults[0], Fault{Kind: PrefillerLoss, At: 6, For: 2})
	a, b := run(t, once, load), run(t, twice, load)
	checkAnswers(t, b, load)
	require.Equal(t, a.Records, b.Records)
}

// Where no Prefiller is left, clients of new sessions give up after a while,
// and sessions that a Decoder holds go on.
func TestWithoutAnyPrefiller(t *testing.T) {
	load := faultsWorkload()
	r := run(t, guardedWith(Fault{Kind: PrefillerLoss, At: 100.5}, Fault{Kind: PrefillerLoss, At: 100.5, Instance: 1}), load)
	checkAnswers(t, r, load)
	require.NotZero(t, r.Faults.GivenUp)
	require.NotZero(t, r.Faults.After.Hits)
	for i := range r.Records {
		if rec := &r.Records[i]; rec.Failed {
			require.EqualValues(t, maxTries, rec.Tries)
			require.False(t, DefaultGoodput.Good(rec))
		}
	}
}

// KV on its way is lost with its Prefiller: the Decoder computes it.
func TestKVThatIsLostOnItsWay(t *testing.T) {
	load := faultsWorkload()
	load.Count, load.Rounds, load.Window = 12, 2, 20
	cfg := guardedWith()
	cfg.TransferAt = 1 // the transfers take long enough to be met
	lost := 0
	for at := 5.0; at < 8; at += 0.5 {
		cfg.Faults = []Fault{{Kind: PrefillerLoss, At: at}}
		r := run(t, cfg, load)
		checkAnswers(t, r, load)
		lost += r.Faults.LostKV
	}
	require.NotZero(t, lost)
}

func TestFaultsPreset(t *testing.T) {
	rep, err := Faults()
	require.NoError(t, err)
	require.Len(t, rep.Rows, 8)
	page := rep.Page()
	documented(t, page.Table)
	require.Len(t, page.Table.Rows, 8)
	for _, row := range page.Table.Rows {
		require.Len(t, row, len(page.Table.Columns))
	}
	for i := range rep.Rows {
		w := &rep.Rows[i]
		require.Equal(t, rep.Requests, w.Requests-w.Faults.GivenUp)
		if w.Fault == "burst@100.5+30x5" {
			require.Greater(t, w.Faults.QueueAfter, w.Faults.QueueBefore)
		}
	}
}
