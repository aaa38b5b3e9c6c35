package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/connector/transport/ipc"
)

// BenchmarkPullParts pulls prompts of 12,288 tokens in the shape of Qwen3-0.6B, but with
// blocks of 64 bytes in place of 32 KiB, from another process by an emulated device: with
// tickets and copies ahead of the answer, with tickets alone, and with the lease claimed and
// confirmed by itself, in turn. Metrics are
// milliseconds beside the copies, medians of the pulls.
func BenchmarkPullParts(b *testing.B) {
	if noDriver != nil {
		b.Skip(noDriver)
	}
	dev, err := open("cuda:0")
	require.NoError(b, err)
	p, err := newPool(dev, kvShape{layers: 28, block: 16, blocks: 768, bytes: 64})
	require.NoError(b, err)
	child, err := startOther("cuda:0", p.kvShape, 1)
	require.NoError(b, err)
	x := &pullRun{p: p, child: child, r: newRand()}
	arms := []*puller{
		{pullVariant: pullVariant{name: "ahead"}},
		{pullVariant: pullVariant{name: "tickets", answers: true}},
		{pullVariant: pullVariant{name: "claims", claims: true}},
	}
	for _, a := range arms {
		a.how = ipc.Options{By: ascendrt.CopyByEngine}
		a.side, err = newSide(p, "d-"+a.name, pd.Consumer, a.pullVariant)
		require.NoError(b, err)
		_, err = x.first(b.Context(), a)
		require.NoError(b, err)
	}
	for i := uint64(1); b.Loop(); i++ {
		for _, a := range arms {
			require.NoError(b, x.one(b.Context(), a, 1, i, i+1))
		}
	}
	for _, a := range arms {
		f := &a.orders[1]
		b.ReportMetric(f.lease.median(), "lease-ms/"+a.name)
		b.ReportMetric(f.answer.median(), "answer-ms/"+a.name)
		b.ReportMetric(f.behind.median(), "behind-ms/"+a.name)
		require.NoError(b, a.w.Close())
	}
	b.ReportMetric(0, "ns/op") // mostly the emulated copies
	require.NoError(b, child.end())
	require.NoError(b, p.close())
	require.NoError(b, dev.Close(b.Context()))
}
