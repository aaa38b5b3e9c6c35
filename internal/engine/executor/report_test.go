package executor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// What New says it took is what the device has given, part by part.
func TestReport(t *testing.T) {
	var told [][2]int
	r := newRig(t, graphs.ModeFullAndPiecewise, 16, 2, func(c *Config) {
		c.Capturing = func(done, all int) { told = append(told, [2]int{done, all}) }
	})
	m := r.exec.Report()
	c := model.Builtin()
	params := len(c.RopeTable(r.exec.c.MaxLen)) // loaded with them
	params += c.Vocab * c.Hidden                // the head is the embedding, laid out for the host
	for _, p := range c.Tensors() {
		params += p.Len()
	}
	require.Equal(t, 4*params, m.Weights)
	require.Equal(t, 400, m.Blocks)
	require.Equal(t, 400*r.exec.c.BlockBytes(), m.KV)
	require.Positive(t, m.Activations)
	require.Positive(t, m.Inputs)
	require.Equal(t, r.dev.Live().Bytes, m.Weights+m.Activations+m.Inputs+m.KV+m.Graphs, "nothing is left out")
	require.Equal(t, m.Total-m.Free, uint64(r.dev.Live().Bytes))
	require.Equal(t, m.Keys, m.Captured)
	require.Len(t, told, m.Keys)
	for i, x := range told {
		require.Equal(t, [2]int{i + 1, m.Keys}, x)
	}
}
