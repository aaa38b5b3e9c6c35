package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkScale is a fleet of 1,000 instances; one operation is one request of
// 2,048 tokens in and 100 out.
func BenchmarkScale(b *testing.B) {
	c, err := NewCluster(ScaleStudy(1000).Cluster(ProfilePD), NewSingles(b.N, float64(b.N)*0.06, 2048, 100))
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	r, err := c.Run()
	require.NoError(b, err)
	require.Len(b, r.Records, b.N)
	b.ReportMetric(float64(r.Prefill.Steps+r.Decode.Steps)/float64(b.N), "steps/op")
}

// watch checks what an observer is told of a run of so many requests.
func watch(t *testing.T, want int) func(done, all int) {
	seen := 0
	t.Cleanup(func() { require.Equal(t, want, seen) })
	return func(done, all int) {
		seen++
		require.Equal(t, seen, done)
		require.Equal(t, want, all)
	}
}

func TestScaleServesAll(t *testing.T) {
	fleet, err := Fleet(40, 500, watch(t, 500))
	require.NoError(t, err)
	require.Equal(t, 500, fleet.Requests)
	require.Equal(t, 500*101, fleet.Steps, "one for the prompt and one for each token behind the Prefiller's")
	crowd, err := Crowd(2000, watch(t, 4000))
	require.NoError(t, err)
	require.Equal(t, 4000, crowd.Requests)
	require.Equal(t, 2000, crowd.Hits+crowd.Fallbacks)
	require.Equal(t, 2000, crowd.LivePeak, "all are open before the first ends")
	again, err := Crowd(2000, watch(t, 4000))
	require.NoError(t, err)
	require.Equal(t, crowd, again)
	for _, r := range []*ScaleReport{fleet, crowd} {
		page := r.Page()
		require.Len(t, page.Table.Rows[0], len(page.Table.Columns))
	}
}
