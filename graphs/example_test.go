package graphs_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/graphs"
)

// Two requests decode, a third one arrives whose prompt is computed but for its
// last token. Under the default policy the batch stays on a FULL graph; a
// one-token prompt without context takes it off.
func Example() {
	d, err := graphs.New(graphs.Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 2048})
	if err != nil {
		panic(err)
	}
	d.SetCaptureState(graphs.AllCaptured)

	rows := graphs.MakeRows([]graphs.Row{
		{Scheduled: 1, Computed: 200, Prefill: 128},
		{Scheduled: 1, Computed: 310, Prefill: 300},
		{Scheduled: 1, Computed: 128, Prefill: 129},
	})
	verdicts := make([]graphs.RowVerdict, 8)
	dec := d.Dispatch(rows, graphs.Step{}, verdicts)
	fmt.Println(dec.Key, "-", dec.Reason)
	fmt.Println(verdicts[2])

	rows.Append(graphs.Row{Scheduled: 1, Computed: 0, Prefill: 1})
	dec = d.Dispatch(rows, graphs.Step{}, verdicts)
	fmt.Println(dec.Key, "-", dec.Reason)
	fmt.Println(verdicts[3])
	// Output:
	// FULL t=4 r=4 uniform=1 - full
	// tail: one prompt token over context
	// PIECEWISE t=4 - fresh_one_token
	// prefill: one-token prompt without context
}
