package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/overlap"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/up"
)

// The overlap of append-prefill and offload at a size for tests, with the
// second generation of executors; the long runs have the whole workload.
func TestOverlap(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes and generates some thousand tokens")
	}
	p := overlap.Default()
	p.Dir, p.Runner, p.Control = t.TempDir(), 2, 3
	p.Conversations.Sessions, p.Conversations.Turns, p.Conversations.MaxTokens, p.Conversations.Think = 16, 4, 140, time.Millisecond
	p.Conversations.First, p.Conversations.Arrival = workload.Range{Low: 100, High: 130}, time.Millisecond
	p.Cluster.Decoder.Ranks, p.Cluster.Decoder.Blocks, p.Cluster.Decoder.MaxLen = 1, 260, 1000 // a third of what all of them take
	var out bytes.Buffer
	report, err := overlap.Run(t.Context(), p, &out)
	require.NoError(t, err, out.String())
	require.Empty(t, report.Failed(), out.String())
	require.Equal(t, 64, report.Correct)
}

func TestOverlapSaysWhatFails(t *testing.T) {
	require.Len(t, new(overlap.Report).Failed(), 5)
	whole := overlap.Report{Requests: 2, Correct: 2, Appends: 1, Restore: 1, Chains: []string{"a"}, Controlled: 20, Changed: 19}
	require.Empty(t, whole.Failed())
	for want, r := range map[string]overlap.Report{
		"1 of 2 answers": {Requests: 2, Correct: 1, Appends: 1, Restore: 1, Chains: []string{"a"}, Controlled: 20, Changed: 19},
		"are held":       {Requests: 2, Correct: 2, Appends: 1, Restore: 1, Chains: []string{"a"}, Controlled: 20, Changed: 19, HeldAfter: 1},
		"18 of 20":       {Requests: 2, Correct: 2, Appends: 1, Restore: 1, Chains: []string{"a"}, Controlled: 20, Changed: 18},
	} {
		require.Len(t, r.Failed(), 1)
		require.Contains(t, r.Failed()[0], want)
	}
}

func TestOverlapOnDevices(t *testing.T) {
	pool := func(backend string, devices int) up.Engine {
		p := overlap.Default()
		p.On(backend, backend+":1", devices)
		require.Equal(t, backend+":1", p.Cluster.Device)
		return p.Cluster.Decoder
	}
	require.Equal(t, overlap.Default().Cluster.Decoder, pool("host", 1))
	require.Equal(t, overlap.Default().Cluster.Decoder, pool("cuda", 2))
	one := pool("cuda", 1)
	require.Equal(t, []int{1, 840, 32}, []int{one.Ranks, one.Blocks, one.MaxSeqs})
	ascend := pool("ascend", 8)
	require.Equal(t, []int{2, 52, 128}, []int{ascend.Ranks, ascend.Blocks, ascend.BlockSize})
}
