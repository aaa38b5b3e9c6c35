package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/measure"
)

func TestThePlanFollowsFromTheSeed(t *testing.T) {
	a, b := NewPlan(7, 500, 12), NewPlan(7, 500, 12)
	require.Equal(t, a, b)
	require.Equal(t, a.Hash(), b.Hash())
	other := NewPlan(8, 500, 12)
	require.NotEqual(t, a.Hash(), other.Hash())
	require.Equal(t, 500, a.Requests())
	require.Len(t, a.Kills, 12)
	last, leave := -1, 0
	for _, k := range a.Kills {
		require.Greater(t, k.After, last, "in order, no two after one request")
		require.Less(t, k.After, 470, "requests follow the last one")
		require.Less(t, k.Who, engines)
		last = k.After
	}
	for _, s := range a.Sessions {
		require.NotEmpty(t, s)
		for _, ask := range s {
			require.LessOrEqual(t, ask.MaxTokens, 16)
			if ask.Leave > 0 {
				leave++
			}
		}
	}
	require.InDelta(t, 50, leave, 30)
	for _, size := range [][2]int{{1, 1}, {3, 2}, {2000, 50}} {
		p := NewPlan(1, size[0], size[1])
		require.Equal(t, size[0], p.Requests())
		require.Len(t, p.Kills, size[1])
	}
}

// Every rule of the report can fail.
func TestBrokenReports(t *testing.T) {
	whole := Report{Requests: 10, Right: 5, Kills: 10, Hit: 2, Recovered: 3, Recovery: 3}
	require.Empty(t, whole.Broken())
	for text, change := range map[string]func(*Report){
		"neither the right answer":   func(r *Report) { r.Wrong = []string{"c-1-0: status 0"} },
		"less than half":             func(r *Report) { r.Right = 4 },
		"less than a fifth":          func(r *Report) { r.Hit = 1 },
		"requests after the last":    func(r *Report) { r.Recovered = 2 },
		"not at rest: d0.1: 1 lease": func(r *Report) { r.Restless = []string{"d0.1: 1 leases"} },
	} {
		r := whole
		change(&r)
		require.Len(t, r.Broken(), 1, text)
		require.Contains(t, r.Broken()[0], text)
	}
}

func TestWhatCountsAsAClearError(t *testing.T) {
	for text, c := range map[string]struct {
		rec measure.Record
		ok  bool
	}{
		"a status with a body":  {measure.Record{Status: 503, Error: "no decoder can take the request (upstream_error, status 503)"}, true},
		"an event in a stream":  {measure.Record{Status: 200, Error: "the connection to the decoder broke (upstream_error, status 200)"}, true},
		"no answer at all":      {measure.Record{Error: "connection refused"}, false},
		"a stream that stops":   {measure.Record{Status: 200, Error: "the stream ended without its end marker"}, false},
		"a stream that is torn": {measure.Record{Status: 200, Error: "read stream: unexpected EOF"}, false},
	} {
		require.Equal(t, c.ok, clear(&c.rec), text)
	}
	require.True(t, begins([]int32{1, 2, 3}, nil))
	require.True(t, begins([]int32{1, 2, 3}, []int32{1, 2}))
	require.False(t, begins([]int32{1, 2, 3}, []int32{1, 3}))
	require.False(t, begins([]int32{1}, []int32{1, 2}))
	require.Equal(t, 12, Params{}.withDefaults().Kills)
	require.Equal(t, 30*time.Second, Params{}.withDefaults().Timeout)
}
