package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base/basetest"
)

func TestCloseFindsAStreamBeingOpened(t *testing.T) {
	d, err := Backend{}.Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	basetest.StreamBeingOpened(t, d, &d.(*device).Core, func(s ascendrt.Stream) bool {
		select {
		case <-s.(*stream).ended:
			return true
		default:
			return false
		}
	})
}
