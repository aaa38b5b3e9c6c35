package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/testkit/device"
)

func TestMain(m *testing.M) {
	device.Prepare()
	m.Run()
}

// The clock around the stream of steps changes nothing of them, on a device whose
// library is its own, and what it notes is a part of Submit.
func TestClockedDecodes(t *testing.T) {
	d := device.Choose(t)
	dev := d.Open(t)
	defer func() { require.NoError(t, dev.Close(t.Context())) }()
	shape := model.Config{
		Name: "small", Vocab: 64, Hidden: 64, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 64, RopeTheta: 1e4, NormEps: 1e-6, MaxPositions: 512, Tied: true,
	}
	o := options{device: d.Name, context: 40, steps: 44, block: 16, repeat: 1}
	r, err := newRig(t.Context(), dev, o, shape, 0, []int{2}, 2, 64, 256)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.exec.Close()) }()
	for _, limit := range []int{2, 1} {
		r.limit = limit
		s, err := r.decodes(t.Context(), o, 2, "x")
		require.NoError(t, err)
		require.Positive(t, s.ms)
		require.Positive(t, s.middle)
		require.GreaterOrEqual(t, s.most, s.middle)
		require.GreaterOrEqual(t, s.host[1], s.driver, "Submit has more than the driver")
	}
}
