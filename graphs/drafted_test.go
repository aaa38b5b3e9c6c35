package graphs

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whole blocks of rows with drafts and impossible numbers get the verdicts that
// the rule gives each row alone, whatever stood before them.
func TestBlocksOfAnyRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 7))
	edge := []int32{0, 1, 2, 3, 4, 5, 8, 16, -1, -3, math.MaxInt32, math.MinInt32}
	any := func() int32 { return edge[min(rng.IntN(40), len(edge)-1)%len(edge)] }
	for _, k := range []int{0, 1, 3, 7} {
		for _, p := range []Policy{Strict, ConsumerOneToken, OneNewToken, OneNewTokenHardened, ShapeOnly} {
			d := newDispatcher(t, Config{K: k, Policy: p, MaxNumSeqs: 64, MaxNumBatchedTokens: 4096})
			seen := map[RowVerdict]bool{}
			for range 200 {
				var rows Rows
				for range 3*block + rng.IntN(block) {
					r := Row{Scheduled: int32(1 + rng.IntN(9)), Computed: int32(rng.IntN(4)), Prefill: int32(rng.IntN(12))}
					if rng.IntN(2) == 0 {
						r.Drafts = []int32{int32(k), r.Scheduled - 1, int32(rng.IntN(9))}[rng.IntN(3)]
						r.Placeholders = []int32{0, r.Drafts, int32(rng.IntN(9))}[rng.IntN(3)]
					}
					if rng.IntN(6) == 0 {
						r = Row{any(), any(), any(), any(), any()}
					}
					rows.Append(r)
				}
				got := make([]RowVerdict, rows.Len())
				d.Classify(rows, Step{}, got)
				for i, v := range got {
					r := rows.At(i)
					require.Equal(t, d.rows.row(r.Scheduled, r.Drafts, r.Placeholders, r.Computed, r.Prefill), v, "row %d: %+v, K = %d, %v", i, r, k, p)
					seen[v] = true
				}
			}
			require.Greater(t, len(seen), 4)
		}
	}
}
