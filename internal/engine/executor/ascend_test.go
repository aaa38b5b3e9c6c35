package executor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/testkit/ascend"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
	"github.com/sluice-serving/sluice/scheduler"
)

func ascendConfig(mode graphs.ModeConfig, tokens, inFlight int) Config {
	return Config{
		Model: model.Builtin(), Type: ascendrt.BFloat16, Blocks: 40, BlockSize: 128, MaxSeqs: 6, MaxTokens: tokens, MaxLen: 256, InFlight: inFlight,
		Graphs: graphs.Config{Mode: mode, MaxNumSeqs: 6, MaxNumBatchedTokens: tokens},
	}
}

// On the emulated Ascend runtime the executor answers token by token as on the
// host with the same storage, eagerly and with graphs whose attention is issued
// again with the lengths of each step.
func TestAscendAnswersAsHost(t *testing.T) {
	const n = 16
	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	want := rigOn(t, dev, ascendConfig(graphs.ModeNone, 256, 1)).generate(prompts(), n, nil)
	for _, mode := range []graphs.ModeConfig{graphs.ModeNone, graphs.ModeFullDecodeOnly, graphs.ModePiecewise, graphs.ModeFullAndPiecewise, graphs.ModeFull} {
		for i, tokens := range stepSizes {
			t.Run(mode.String(), func(t *testing.T) {
				r := rigOn(t, ascend.Open(t), ascendConfig(mode, tokens, 1+i%2))
				require.Equal(t, want, r.generate(prompts(), n, nil), "%d tokens per step", tokens)
				require.Equal(t, len(r.exec.Dispatcher().Keys()), r.exec.Graphs())
			})
		}
	}

	// The control: overwritten keys and values change what is said.
	r := rigOn(t, ascend.Open(t), ascendConfig(graphs.ModeFullDecodeOnly, 64, 1))
	done := map[scheduler.RequestID]bool{}
	noisy := r.generate(prompts(), n, func(p *scheduler.Plan) {
		for i, id := range p.Requests {
			if p.Kinds[i] == scheduler.RowRunning && !done[id] {
				done[id] = true
				require.NoError(t, r.exec.Noise(t.Context(), r.exec.Blocks(id)[0], uint64(i)))
			}
		}
	})
	identity.Control(t, answers(want), answers(noisy))
}

// Connectors read and write the cache of a device that the CPU does not address.
func TestAscendRegions(t *testing.T) {
	r := rigOn(t, ascend.Open(t), ascendConfig(graphs.ModeNone, 64, 1))
	regions, err := r.exec.Regions()
	require.NoError(t, err)
	require.Len(t, regions, 2*model.Builtin().Layers)
	m := regions[1]
	_, mapped := m.Memory.(connector.HostMemory)
	require.False(t, mapped)
	require.NoError(t, r.exec.Noise(t.Context(), 3, 9))
	b := make([]byte, 2*m.BlockBytes)
	_, err = m.Memory.ReadAt(b, m.Offset(3))
	require.NoError(t, err)
	require.NotZero(t, b[1])
	require.Equal(t, make([]byte, m.BlockBytes), b[m.BlockBytes:])
	_, err = m.Memory.WriteAt(b[:m.BlockBytes], m.Offset(4))
	require.NoError(t, err)
	again := make([]byte, 2*m.BlockBytes)
	_, err = m.Memory.ReadAt(again, m.Offset(3))
	require.NoError(t, err)
	require.Equal(t, again[:m.BlockBytes], again[m.BlockBytes:])
}
