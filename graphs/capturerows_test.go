package graphs

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCaptureRows(t *testing.T) {
	require.Equal(t, []int32{3, 3}, CaptureRows(Key{Mode: Full, Tokens: 6, Reqs: 2, Uniform: 3}, 8))
	require.Equal(t, []int32{3, 3, 4}, CaptureRows(Key{Mode: Full, Tokens: 10, Reqs: 3}, 8))
	require.Equal(t, []int32{2, 2, 2, 2, 2, 3, 3}, CaptureRows(Key{Mode: Piecewise, Tokens: 16}, 7))
	for _, c := range []Config{width3, {MaxNumSeqs: 8, MaxNumBatchedTokens: 512, Mode: ModeFull}, {K: 3, Trim: AdaptiveDrafts, MaxNumSeqs: 8, MaxNumBatchedTokens: 512}} {
		for _, k := range newDispatcher(t, c).Keys() {
			rows := CaptureRows(k, c.MaxNumSeqs)
			var sum int32
			for _, n := range rows {
				sum += n
			}
			require.Equal(t, k.Tokens, sum)
			require.Positive(t, slices.Min(rows))
			if bound := QueryBound(k); bound > 0 {
				require.LessOrEqual(t, slices.Max(rows), bound, k)
			}
		}
	}
	require.Zero(t, QueryBound(Key{Mode: Piecewise, Tokens: 4}))
	require.Equal(t, int32(16), QueryBound(Key{Mode: Full, Tokens: 16, Reqs: 8}))
}
