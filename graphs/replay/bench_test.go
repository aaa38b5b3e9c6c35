package replay

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
)

// BenchmarkLaunch is one decode step of eight rows over two small layers, from
// the decision to the result, in each mode.
func BenchmarkLaunch(b *testing.B) {
	for _, mode := range []graphs.ModeConfig{graphs.ModeNone, graphs.ModePiecewise, graphs.ModeFullDecodeOnly} {
		b.Run(mode.String(), func(b *testing.B) {
			e := newEngine(b, arm{mode: mode, kinds: architectures["attention"]})
			defer e.close()
			ctx := context.Background()
			var (
				batch    Batch
				rows     graphs.Rows
				verdicts = make([]graphs.RowVerdict, armSeqs)
			)
			for i := range int32(armSeqs) {
				rows.Append(graphs.Row{Scheduled: 1, Computed: 30, Prefill: 20})
				batch.IDs = append(batch.IDs, i)
				batch.Positions = append(batch.Positions, 30)
				batch.Slots = append(batch.Slots, (i*8+7)*blockSize+2)
				batch.Query = append(batch.Query, 1)
				batch.Lens = append(batch.Lens, 31)
				table := make([]int32, 8)
				for j := range table {
					table[j] = i*8 + int32(j)
				}
				batch.Tables = append(batch.Tables, table)
			}
			b.ReportAllocs()
			for b.Loop() {
				dec := e.d.Dispatch(rows, graphs.Step{}, verdicts)
				staged, err := e.m.static.Stage(batch, dec)
				require.NoError(b, err)
				res, err := e.set.Launch(ctx, Step{Decision: dec, Verdicts: verdicts, Inputs: staged.Upload, Lengths: staged.Lengths, Starts: staged.Starts})
				require.NoError(b, err)
				staged.Submitted(res.Point)
				require.NoError(b, res.Point.Wait(ctx))
				require.NoError(b, res.Release())
				e.last = res.Point
			}
		})
	}
}
