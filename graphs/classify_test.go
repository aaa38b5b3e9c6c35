package graphs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Where K varies a padded tail has the shape of its step, if that has graphs.
func TestFewerDrafts(t *testing.T) {
	d, err := New(Config{MaxNumSeqs: 4, MaxNumBatchedTokens: 64, K: 4, Widths: []int{5, 3}})
	require.NoError(t, err)
	d.SetCaptureState(AllCaptured)
	rows := Rows{
		Scheduled: []int32{3, 3}, Drafts: []int32{2, 2}, Placeholders: []int32{0, 2}, Computed: []int32{7, 7}, Prefill: []int32{4, 8},
	}
	var verdicts [2]RowVerdict
	for _, c := range []struct {
		fewer int32
		mode  Mode
		tail  RowVerdict
	}{{2, Full, TailPadded}, {0, Piecewise, PrefillPartialPad}, {1, Piecewise, PrefillPartialPad}, {-1, Piecewise, PrefillPartialPad}} {
		got := d.Dispatch(rows, Step{FewerDrafts: c.fewer}, verdicts[:])
		require.Equal(t, c.mode, got.Mode, "%d fewer", c.fewer)
		require.Equal(t, [2]RowVerdict{Decode, c.tail}, verdicts, "%d fewer", c.fewer)
		require.Zero(t, testing.AllocsPerRun(10, func() { d.Dispatch(rows, Step{FewerDrafts: c.fewer}, verdicts[:]) }))
	}
}
