package host_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/conformance"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Suite{
		Open: func(t *testing.T, o ascendrt.OpenOptions) ascendrt.Device {
			d, err := host.Backend{}.Open(0, o)
			require.NoError(t, err)
			return d
		},
		Lose: func(d ascendrt.Device) { d.(interface{ Lose(string) }).Lose("test") },
	})
}
