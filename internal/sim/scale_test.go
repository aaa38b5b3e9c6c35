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

func TestScaleServesAll(t *testing.T) {
	r := run(t, ScaleStudy(40).Cluster(ProfilePD), NewSingles(500, 60, 2048, 20))
	require.Len(t, r.Records, 500)
	require.Equal(t, 500*20, r.OutputTokens)
	require.Equal(t, 500, r.PrefillCalls)
}
