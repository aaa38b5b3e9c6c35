package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func run(t *testing.T, cfg ClusterConfig, load Workload) *Result {
	t.Helper()
	c, err := NewCluster(cfg, load)
	require.NoError(t, err)
	r, err := c.Run()
	require.NoError(t, err)
	return r
}

func withAppend(cfg ClusterConfig) ClusterConfig {
	cfg.Route.Append = true
	cfg.Decode.Scheduler.Append.Enable = true
	return cfg
}

// The ordinary P/D arm of the published experiment comes out of one constant
// service time of the Prefiller.
func TestPublishedOrdinaryRun(t *testing.T) {
	r := run(t, PublishedCluster(4000), PublishedWorkload())
	require.Len(t, r.Records, 270)
	require.Equal(t, 2408, r.OutputTokens)
	require.InEpsilon(t, 295.2, r.Total, 0.05)
	ttft := r.Values((*Record).TTFT)
	require.InEpsilon(t, 45.9, Percentile(ttft, 50), 0.05)
	require.InEpsilon(t, 68.0, Percentile(ttft, 95), 0.05)
	require.InEpsilon(t, 60, r.QueuePeak, 0.15)
	require.Equal(t, 270, r.PrefillCalls)
	require.Zero(t, r.Hits+r.Fallbacks)
}

func TestFollowUpsAddUp(t *testing.T) {
	for _, sessions := range []int{2, 9, 12, 40} {
		r := run(t, withAppend(PublishedCluster(97*sessions)), PublishedWorkload())
		require.Equal(t, 180, r.Hits+r.Fallbacks+r.Skipped)
		require.Equal(t, 90+r.Fallbacks+r.Skipped, r.PrefillCalls)
		if sessions == 40 {
			require.Equal(t, 180, r.Hits, "a pool that holds every session misses nothing")
		}
		if sessions == 2 {
			require.NotZero(t, r.Fallbacks)
		}
	}
}

func TestRunsAreDeterministic(t *testing.T) {
	for _, depth := range []int{1, 2} {
		cfg := withAppend(PublishedCluster(900))
		if depth == 2 {
			cfg = Asynchronous(cfg)
		}
		a, b := run(t, cfg, PublishedWorkload()), run(t, cfg, PublishedWorkload())
		require.Equal(t, a, b)
	}
}

func TestCalendarKeepsOrder(t *testing.T) {
	var c calendar
	for i := range 1000 {
		c.push(Time(mix(uint64(i))%50), eventWake, int32(i), 0, 0)
	}
	last := event{at: -1}
	for c.len() > 0 {
		e := c.pop()
		require.True(t, last.at < e.at || last.at == e.at && last.a < e.a)
		last = e
	}
}

func TestBadClusterNamesEveryFault(t *testing.T) {
	_, err := NewCluster(ClusterConfig{Hop: -1}, PublishedWorkload())
	require.ErrorContains(t, err, "prefillers is 0")
	require.ErrorContains(t, err, "hop is -1 s")
	require.ErrorContains(t, err, "cost model is missing")
	require.ErrorContains(t, (&Conversations{Count: 2, Rounds: 1, PromptMin: 1, PromptMax: 1, AddMin: 1, AddMax: 1, OutMin: 1, OutMax: 1, Starts: []float64{2, 1}}).Validate(), "2 starts of 2 sessions, must be one for each, ascending")
	require.Equal(t, Seconds(1.5), (&Conversations{Count: 2, Starts: []float64{1, 1.5}}).Start(1))
	bad := &Conversations{PromptMin: 5, PromptMax: 4, SharedPrompt: 9}
	require.ErrorContains(t, bad.Validate(), "sessions is 0")
	require.ErrorContains(t, bad.Validate(), "shared prompt is 9 tokens")
}
