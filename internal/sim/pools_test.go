package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Targets that hold wherever in the range the pool lies, and for every seed;
// that of the time to a first token holds on average.
func TestPoolsAndSeeds(t *testing.T) {
	seen := 0
	rep, err := Pools(900, 1000, 50, 3, func(done, all int) {
		seen++
		require.Equal(t, seen, done)
		require.Equal(t, 27, all)
	})
	require.NoError(t, err)
	require.Equal(t, 27, seen)
	require.Len(t, rep.Rows, 3)
	for _, r := range rep.Rows {
		require.Equal(t, 3, r.Seeds)
		require.GreaterOrEqual(t, r.Hits.Min, float64(targetHits), r.Blocks)
		require.LessOrEqual(t, r.TotalS.Max, targetTotal, r.Blocks)
		require.LessOrEqual(t, r.TTFTp95S.Mean, targetTTFT, r.Blocks)
		require.LessOrEqual(t, r.TPOTRatio.Max, targetTPOT, r.Blocks)
		require.Less(t, r.PlainHits.Max, r.Hits.Min, r.Blocks)
	}
	page := rep.Page()
	require.Len(t, page.Table.Rows, 3)
	require.Len(t, page.Plots[0].Labels, 3)
}
