package tails

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
)

const seeds = 8

// Under Strict every step that admits a request is lost: arrivals less those
// that share a step. Under the policies that admit tails none is, and the share
// is what the arrival rate and the time per token predict.
func TestShareOfLostSteps(t *testing.T) {
	for _, rate := range Rates() {
		for seed := range uint64(4) {
			for _, p := range graphs.Policies() {
				c := Published(rate, seed)
				c.Graphs.Policy = p
				r, err := Run(c)
				require.NoError(t, err)
				lost := r.Counts.Steps() - r.Counts.Modes[graphs.Full]
				require.Equal(t, r.Arrivals*c.Output, r.Tokens)
				require.LessOrEqual(t, r.Admissions, r.Arrivals)
				if p == graphs.Strict {
					require.Equal(t, uint64(r.Admissions), lost, "rate %v", rate)
					require.Equal(t, lost, r.Counts.Reasons[graphs.ReasonPrefillRow])
					require.InDelta(t, Predicted(rate, r.MeanTPOT), r.NonFullShare(), 0.005, "rate %v", rate)
					continue
				}
				require.Zero(t, lost, "rate %v under %v", rate, p)
				if p != graphs.ShapeOnly {
					require.Equal(t, uint64(r.Arrivals), r.Counts.Tails)
				}
			}
		}
	}
}

// An engine that is no consumer loses its tails under ConsumerOneToken, and so
// does any with speculation.
func TestConsumerOneTokenConditions(t *testing.T) {
	for name, set := range map[string]func(*Config){
		"kv_both":           func(c *Config) { c.Graphs.KV.Role = graphs.RoleBoth },
		"unknown connector": func(c *Config) { c.Graphs.KV.Connector = "other" },
		"colocated":         func(c *Config) { c.Graphs.KV = graphs.KVTransfer{} },
		"speculation":       func(c *Config) { c.Graphs.K = 3 },
	} {
		c := Published(16, 1)
		c.Graphs.Policy = graphs.ConsumerOneToken
		set(&c)
		r, err := Run(c)
		require.NoError(t, err)
		require.Equal(t, uint64(r.Admissions), r.Counts.Steps()-r.Counts.Modes[graphs.Full], name)
		c.Graphs.Policy = graphs.OneNewTokenHardened
		r, err = Run(c)
		require.NoError(t, err)
		require.Equal(t, r.Counts.Steps(), r.Counts.Modes[graphs.Full], name)
	}
}

// The published step counts, within 5 %. The one exception is the FULL steps
// after the change at 4 req/s: the published run did 3.8 % more steps than its
// baseline although it saved a third of a second of its 30, so its load was not
// the baseline's; there the bound is 7 %.
func TestPublishedCounts(t *testing.T) {
	for _, tc := range []struct {
		rate                 float64
		before, lost, after  float64
		toleranceOfTheChange float64
	}{
		{4, 16451, 120, 17193, 0.07},
		{8, 19525, 238, 20217, 0.05},
		{16, 19179, 476, 20406, 0.05},
		{32, 15276, 937, 18335, 0.05},
	} {
		strict, err := Mean(tc.rate, seeds, func(c *Config) { c.Graphs.Policy = graphs.Strict })
		require.NoError(t, err)
		ours, err := Mean(tc.rate, seeds, nil)
		require.NoError(t, err)
		near := func(want, got, tolerance float64, what string) {
			require.LessOrEqual(t, math.Abs(got-want)/want, tolerance, "%s at %v req/s: %.0f, published %.0f", what, tc.rate, got, want)
		}
		near(tc.before, strict.Full, 0.05, "FULL before")
		near(tc.lost, strict.NonFull, 0.05, "non-FULL before")
		near(tc.after, ours.Full, tc.toleranceOfTheChange, "FULL after")
		require.Zero(t, ours.NonFull)

		// The tail of the gaps moves only where more than one step in a hundred is lost.
		if strict.Share > 0.01 {
			require.Less(t, ours.P99ITL, 0.6*strict.P99ITL)
		}
		require.Less(t, ours.TPOT, strict.TPOT)
	}
}

// With speculation a padded tail keeps every step on FULL; an unpadded one
// costs one step per admission.
func TestPaddedTails(t *testing.T) {
	for _, k := range []int{1, 3, 7} {
		for _, p := range []graphs.Policy{graphs.OneNewToken, graphs.OneNewTokenHardened} {
			c := Published(16, 2)
			c.Graphs.K, c.Graphs.Policy = k, p
			r, err := Run(c)
			require.NoError(t, err)
			require.Equal(t, r.Counts.Steps(), r.Counts.Modes[graphs.Full])
			require.Equal(t, uint64(r.Arrivals), r.Counts.PaddedTails)

			c.Padding = LeaveTails
			r, err = Run(c)
			require.NoError(t, err)
			require.Equal(t, uint64(r.Admissions), r.Counts.Steps()-r.Counts.Modes[graphs.Full])
			require.Equal(t, uint64(r.Admissions), r.Counts.Reasons[graphs.ReasonNonUniform]+r.Counts.Reasons[graphs.ReasonNoWidth])
		}
	}
}

// A remainder of two tokens leaves FULL; spread over two steps it does not,
// which wins for everybody while such a step costs more than a further FULL
// one, and loses time to the first token where it does not.
func TestHoldBack(t *testing.T) {
	run := func(hold int32, nonFull float64) Result {
		c := Published(16, 4)
		c.Left, c.Hold, c.NonFull = 2, hold, nonFull
		r, err := Run(c)
		require.NoError(t, err)
		return r
	}
	plain, held := run(0, 2.8e-3), run(2, 2.8e-3)
	require.Equal(t, plain.Tokens, held.Tokens)
	require.Equal(t, uint64(plain.Admissions), plain.Counts.Steps()-plain.Counts.Modes[graphs.Full])
	// Alone in a step a prompt keeps nobody uniform and is not held back.
	require.Less(t, held.NonFullShare(), 0.1*plain.NonFullShare())
	require.Less(t, held.MeanTPOT, plain.MeanTPOT)
	require.Less(t, held.P99ITL, plain.P99ITL)
	require.Less(t, held.TTFT, plain.TTFT)

	plain, held = run(0, 0.2e-3), run(2, 0.2e-3)
	require.Greater(t, held.TTFT, plain.TTFT)
}

// A policy changes nothing but the time of steps: where a step that is not FULL
// costs no more, all policies give the same run.
func TestPoliciesChangeTimeAlone(t *testing.T) {
	var first Result
	for i, p := range graphs.Policies() {
		c := Published(32, 3)
		c.Graphs.Policy, c.NonFull = p, 0
		r, err := Run(c)
		require.NoError(t, err)
		r.Counts = graphs.Counters{}
		if i == 0 {
			first = r
		}
		require.Equal(t, first, r, p)
	}
}

func TestValidate(t *testing.T) {
	_, err := Run(Config{})
	for _, what := range []string{"rate", "duration", "step", "prompts", "MaxNumSeqs"} {
		require.ErrorContains(t, err, what)
	}
	c := Published(4, 0)
	c.NonFull = -1
	require.Error(t, c.Validate())
	c = Published(1e9, 0)
	require.Error(t, c.Validate())
	_, err = Mean(-1, 1, nil)
	require.Error(t, err)
}

func TestTable(t *testing.T) {
	points, err := Table(1)
	require.NoError(t, err)
	require.Len(t, points, 4*5+6+2)
	text := Text(points)
	require.Contains(t, text, "strict")
	require.Equal(t, len(points)+1, strings.Count(text, "\n"))
	for _, p := range points {
		require.Equal(t, p.Policy == graphs.Strict || p.K > 0 && !p.Padded || p.Left > 1, p.NonFull > 0, "%+v", p)
	}
}
