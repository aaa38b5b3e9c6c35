package executor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// Llama's shape, without head norms, with its own output projection and scaled
// rotary frequencies, answers as the reference model does.
func TestLlamaShape(t *testing.T) {
	c := model.Builtin()
	c.HeadNorm, c.Tied = false, false
	c.RopeScaling = model.Scaling{Kind: model.ScalingLlama3, Factor: 8, Low: 1, High: 4, Original: 64}
	w := model.Generate(c, model.BuiltinScales(), 7, func(int) bool { return true })
	var want [][]int
	for _, p := range prompts() {
		want = append(want, model.NewReference(c, w).Greedy(p, 12))
	}
	r := newRigWith(t, w, graphs.ModeFullAndPiecewise, 32, 2, func(x *Config) { x.Model = c })
	require.Equal(t, want, r.generate(prompts(), 12, nil))
}

func TestPoolFromFreeMemory(t *testing.T) {
	dev, err := (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(context.Background())) }()
	free, total, err := dev.MemInfo()
	require.NoError(t, err)
	c := Config{
		Model: model.Builtin(), BlockSize: 4, MaxSeqs: 1, MaxTokens: 8, MaxLen: 16,
		Graphs: graphs.Config{Mode: graphs.ModeNone, MaxNumSeqs: 1, MaxNumBatchedTokens: 8},
	}
	require.NoError(t, c.Validate())
	e := &Executor{c: c, dev: room{dev, spareBytes + total/30 + uint64(100*c.BlockBytes()), total}}
	n, err := e.fitBlocks()
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.Positive(t, free)

	e.dev = room{dev, spareBytes + total/30 + uint64(4*c.BlockBytes()), total}
	_, err = e.fitBlocks()
	var none *NoRoomError
	require.ErrorAs(t, err, &none)
	require.Equal(t, NoRoomError{MaxLen: 16, Need: 5, Have: 4, BlockBytes: c.BlockBytes(), Free: none.Free}, *none)
	require.ErrorIs(t, err, ascendrt.ErrOutOfMemory)
	require.ErrorContains(t, err, "a sequence of 16 tokens needs 5 kv blocks")
}

// room is a device with that much free memory.
type room struct {
	ascendrt.Device
	free, total uint64
}

func (r room) MemInfo() (free, total uint64, err error) { return r.free, r.total, nil }
