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

// Pipeline stages choose for themselves, agree on the smallest mode and choose
// again under it: a stage without the graph takes the others along.
func ExampleStageConsensus() {
	stage := func(state graphs.CaptureState) *graphs.Dispatcher {
		d, err := graphs.New(graphs.Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 2048})
		if err != nil {
			panic(err)
		}
		d.SetCaptureState(state)
		return d
	}
	stages := []*graphs.Dispatcher{stage(graphs.AllCaptured), stage(graphs.NothingCaptured)}
	batch := graphs.Batch{Tokens: 4, Reqs: 4, MaxQuery: 1, Uniform: 1}
	var modes []graphs.Mode
	for _, d := range stages {
		modes = append(modes, d.Select(batch).Mode)
	}
	fmt.Println(modes)
	for _, d := range stages {
		dec := d.SelectStage(batch, graphs.StageConsensus(modes))
		fmt.Println(dec.Key, "-", dec.Reason)
	}
	// Output:
	// [FULL NONE]
	// NONE t=0 - pp_peer
	// NONE t=0 - not_captured
}

// An engine that compiles for some sizes asks whether a step ever has them.
func ExampleLadder_CheckCompileSizes() {
	d, err := graphs.New(graphs.Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 2048})
	if err != nil {
		panic(err)
	}
	fmt.Println(d.Ladder().CheckCompileSizes([]int{4, 8}))
	fmt.Println(d.Ladder().CheckCompileSizes([]int{7}))
	// Output:
	// <nil>
	// graphs: compile_sizes: 7 is padded to 8 before it runs
}

// Where not all drafts of a row fit, the scheduler takes none.
func ExampleWholeDrafts() {
	fmt.Println(graphs.WholeDrafts(3, 8), graphs.WholeDrafts(3, 2))
	// Output: 3 0
}
