package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// A device that places nothing in a row takes buffers one by one, and keeps none where
// they do not all fit.
func TestAllocRowWithoutRows(t *testing.T) {
	dev, err := Backend{}.Open(0, ascendrt.OpenOptions{MemoryBytes: 4 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(t.Context())) }()
	row, err := ascendrt.AllocRow(dev, 4, 1<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	require.Len(t, row, 4)
	for _, b := range row {
		require.Equal(t, 1<<20, b.Len())
		require.NoError(t, b.FreeAfter(ascendrt.Point{}))
	}
	_, err = ascendrt.AllocRow(dev, 5, 1<<20, ascendrt.PlaceDefault)
	require.ErrorIs(t, err, ascendrt.ErrOutOfMemory)
	require.Zero(t, dev.Live().Buffers)
}
