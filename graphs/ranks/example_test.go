package ranks_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/graphs/ranks"
)

// Two ranks of one process: the second has a prompt in its batch, so neither
// replays a FULL graph in this step.
func Example() {
	d, err := graphs.New(graphs.Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 256})
	if err != nil {
		fmt.Println(err)
		return
	}
	d.SetCaptureState(graphs.AllCaptured)
	batches := []graphs.Batch{
		{Reqs: 3, Tokens: 3, MaxQuery: 1, Uniform: 1, Bound: 1},
		{Reqs: 2, Tokens: 9, MaxQuery: 8, Bound: 8, Obstacle: graphs.ReasonPrefillRow},
	}
	ends := ranks.Local(len(batches))
	said := make([]string, len(batches))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // a rank that does not vote ends the group
	defer cancel()
	var wg sync.WaitGroup
	for r, b := range batches {
		wg.Go(func() {
			dec, _, err := ranks.Run(ctx, ends[r], 1, d, b)
			said[r] = fmt.Sprintf("rank %d: %v, %v, %v", r, dec.Key, dec.Reason, err)
		})
	}
	wg.Wait()
	for _, s := range said {
		fmt.Println(s)
	}
	// Output:
	// rank 0: PIECEWISE t=16, dp_peer, <nil>
	// rank 1: PIECEWISE t=16, prefill_row, <nil>
}
