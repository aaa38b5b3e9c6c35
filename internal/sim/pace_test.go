package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// plainSteps is a cluster without ways between its parts, whose steps take what they take
// whatever is in them.
func plainSteps(prefill, decode float64) ClusterConfig {
	cfg := PublishedCluster(100)
	cfg.Ranks, cfg.Hop, cfg.TransferAt, cfg.Transfer = 1, 0, 0, 0
	cfg.Prefill.Cost, cfg.Decode.Cost = Linear{Base: prefill}, Linear{Base: decode}
	return cfg
}

func starting(output int, starts ...float64) *Conversations {
	return &Conversations{Count: len(starts), Rounds: 1, Starts: starts, PromptMin: 16, PromptMax: 16, AddMin: 1, AddMax: 1, OutMin: output, OutMax: output, Seed: 3}
}

// firstAndLast are the times of each session's first and last token.
func firstAndLast(r *Result) (out [][2]float64) {
	out = make([][2]float64, len(r.Records))
	for _, rec := range r.Records {
		out[rec.Session] = [2]float64{float64(rec.First) / 1e9, float64(rec.Last) / 1e9}
	}
	return out
}

// On one device a step of a second and a prompt of four slow each other down while
// both run, and only then.
func TestOneDeviceForBoth(t *testing.T) {
	for share, want := range map[float64][][2]float64{
		0:   {{5, 7}, {9.5, 11.5}},
		1:   {{5, 7}, {9.5, 11.5}},
		0.5: {{5.5, 9.5}, {12, 14}},
		0.8: {{5.125, 7.625}, {10.125, 12.125}},
	} {
		cfg := plainSteps(4, 1)
		cfg.Share = share
		r := run(t, cfg, starting(3, 0, 4.5))
		for i, got := range firstAndLast(r) {
			require.InDeltaSlice(t, want[i][:], got[:], 1e-6, "%v: session %d", share, i)
		}
		require.InDelta(t, 6+want[0][1]-7, r.Decode.Seconds, 1e-6)
		require.InDelta(t, 8+want[0][1]-7, r.Prefill.Seconds, 1e-6)
	}
	both := plainSteps(4, 1)
	both.Share, both.Gaps = 0.5, true
	gaps := run(t, both, starting(3, 0, 4.5)).Gaps
	require.Len(t, gaps, 4)
	for i, want := range []Gap{{2, 2}, {2, 2}, {1, 0}, {1, 0}} { // from 4.5 s to 11 the second prompt is computed
		require.InDelta(t, want.Took, gaps[i].Took, 1e-6)
		require.InDelta(t, want.Beside, gaps[i].Beside, 1e-6)
	}
	// Of three each has a third. The prompts of two end at 13 s, and the first of them
	// that arrives is alone in its step.
	cfg := plainSteps(4, 1)
	cfg.Prefillers, cfg.Share = 2, 0.5
	r := run(t, cfg, starting(1, 0, 4, 4))
	for i, want := range []float64{7, 14, 15} {
		require.InDelta(t, want, float64(r.Records[i].Last)/1e9, 1e-6)
	}
}

// Whatever arrives, each side loses as much as the other: at half the speed the
// device does a second of work a second.
func TestWorkOnOneDeviceIsConserved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		prefill, decode := rapid.Float64Range(0.01, 2).Draw(rt, "prefill"), rapid.Float64Range(0.01, 0.5).Draw(rt, "decode")
		share := rapid.Float64Range(0.2, 0.99).Draw(rt, "share")
		starts := make([]float64, rapid.IntRange(1, 12).Draw(rt, "sessions"))
		for i := range starts[1:] {
			starts[i+1] = starts[i] + rapid.Float64Range(0, 2).Draw(rt, "gap")
		}
		load := starting(rapid.IntRange(1, 9).Draw(rt, "output"), starts...)
		cfg := plainSteps(prefill, decode)
		if rapid.Bool().Draw(rt, "async") {
			cfg = Asynchronous(cfg)
		}
		cfg.Share = share
		r := run(t, cfg, load)
		require.Equal(rt, r, run(t, cfg, load))
		lost := r.Prefill.Seconds - float64(r.Prefill.Steps)*prefill
		require.InDelta(rt, lost, r.Decode.Seconds-float64(r.Decode.Steps)*decode, 1e-5)
		require.GreaterOrEqual(rt, lost, -1e-6)
		require.LessOrEqual(rt, share*r.Decode.Seconds, float64(r.Decode.Steps)*decode+1e-5)
		require.LessOrEqual(rt, share*r.Prefill.Seconds, float64(r.Prefill.Steps)*prefill+1e-5)
	})
}

// A step takes longer while a finished turn is saved, and only as long as that lasts.
func TestCopiesSlowStepsDown(t *testing.T) {
	for slowed, want := range map[float64][2]float64{0: {5, 7}, 1: {5.9, 7.9}, 0.5: {5.5, 7.6}} {
		cfg := plainSteps(1, 1)
		cfg.Decode.Host, cfg.Decode.Save, cfg.Decode.Slowed = 1000, 0.1, slowed
		got := firstAndLast(run(t, cfg, starting(3, 0, 2.5)))
		require.InDeltaSlice(t, []float64{2, 4}, got[0][:], 1e-6)
		require.InDeltaSlice(t, want[:], got[1][:], 1e-6, "%v: 18 tokens are saved from 4 s to 5.8", slowed)
	}
}

// Where nothing slows a step down it takes what it takes where nothing could.
func TestPaceOfUndisturbedSteps(t *testing.T) {
	for _, async := range []bool{false, true} {
		cfg := withAppend(PublishedCluster(900))
		if async {
			cfg = Asynchronous(cfg)
		}
		want := run(t, cfg, PublishedWorkload())
		cfg.Decode.Slowed = 1 // there are no copies
		require.Equal(t, want, run(t, cfg, PublishedWorkload()))

		cfg = tiered(0) // there are none that take time
		cfg.Decode.Restore = 0
		if async {
			cfg = Asynchronous(cfg)
		}
		want = run(t, cfg, PublishedWorkload())
		cfg.Decode.Slowed = 1
		require.Equal(t, want.Records, run(t, cfg, PublishedWorkload()).Records)
	}
}

// Saves of preempted requests slow the step down that runs meanwhile, not the one
// that waits for them; with faults on one device everything is answered too.
func TestPaceWithPreemptionsAndFaults(t *testing.T) {
	load := &Conversations{Count: 24, Rounds: 2, Window: 5, ThinkTime: 1, PromptMin: 400, PromptMax: 600, AddMin: 20, AddMax: 60, OutMin: 200, OutMax: 400, Seed: 7}
	for _, async := range []bool{false, true} {
		cfg := withAppend(PublishedCluster(40))
		cfg.Decode.Host, cfg.Decode.Save, cfg.Decode.Restore = HostTier()
		cfg.Decode.Save *= 1e3
		if async {
			cfg = Asynchronous(cfg)
		}
		free := run(t, cfg, load)
		cfg.Decode.Slowed = 0.5
		slow := run(t, cfg, load)
		checkAnswers(t, slow, load)
		require.Greater(t, slow.Decode.Seconds/float64(slow.Decode.Steps), free.Decode.Seconds/float64(free.Decode.Steps))
	}
	cfg := withAppend(PublishedCluster(900))
	cfg.Share = 0.5
	cfg.Faults = []Fault{{Kind: DecoderRestart, At: 60, For: 20}}
	r := run(t, cfg, PublishedWorkload())
	require.Len(t, r.Records, 270)
	require.Equal(t, r, run(t, cfg, PublishedWorkload()))

	cfg.Share, cfg.Decode.Slowed = 1.5, -1
	require.ErrorContains(t, cfg.Validate(), "the share of a device is 1.5, must be 0.01 to 1, or 0")
	require.ErrorContains(t, cfg.Validate(), "copies make steps longer by a share of -1")
}

// An attempt is longer on its way than other requests, and the times between tokens are
// kept if they are asked for.
func TestAttemptsOnTheirWayAndGaps(t *testing.T) {
	cfg := withAppend(plainSteps(4, 1))
	cfg.Hop, cfg.Late, cfg.Attempt = 0.25, 0.5, 0.125
	load := starting(3, 0)
	load.Rounds, load.PromptMin, load.PromptMax = 2, 256, 256
	r := run(t, cfg, load)
	require.Nil(t, r.Gaps)
	require.Equal(t, Hit, r.Records[1].Route)
	require.InDelta(t, 0.25+0.125+1+0.25+0.5, r.Records[1].TTFT(), 1e-9)
	require.InDelta(t, 0.25+4+2*0.25+1+0.5, r.Records[0].TTFT(), 1e-9)
	cfg.Gaps = true
	for i, want := range []float64{0.5, 1, 0.5, 1} {
		require.Equal(t, Gap{Took: want}, run(t, cfg, load).Gaps[i])
	}
}
