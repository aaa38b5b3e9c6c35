// Package device chooses the device of tests that hold on any: the one that
// SLUICE_DEVICE names, e.g. cuda or ascend:1, or else the emulated CUDA libraries.
package device

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/backends"
	"github.com/sluice-serving/sluice/ascendrt/cuda/emulated"
)

// Variable names the device as the flag --device does.
const Variable = "SLUICE_DEVICE"

// noEmulation says why there are no emulated libraries; nil if there are.
var noEmulation error

// Prepare is called from TestMain, before anything asks for a device.
func Prepare() {
	if os.Getenv(Variable) == "" {
		noEmulation = emulated.Use()
	}
}

// Chosen is the device under test.
type Chosen struct {
	Name  string // for --device
	Asked bool   // the variable names it
	Real  bool   // a GPU or NPU, where there is time for more
	Same  bool   // its named operations give the host's bits
	Gives bool   // its memory is given to other processes
}

// Choose skips the test where there is none, and fails it where the one that was
// asked for does not open.
func Choose(t testing.TB) Chosen {
	t.Helper()
	c := Chosen{Name: os.Getenv(Variable), Asked: true}
	if c.Name == "" {
		if noEmulation != nil {
			t.Skipf("%s names no device, and none is emulated: %v", Variable, noEmulation)
		}
		c = Chosen{Name: "cuda"}
	}
	d := c.Open(t)
	c.Same, c.Gives = d.Caps().DeterministicReduce, d.Caps().IPCMemory
	c.Real = c.Asked && d.Caps().Backend != "host" && !strings.Contains(d.Info().Name, "emulated")
	t.Logf("on %s, %s", c.Name, d.Info().Name)
	require.NoError(t, d.Close(context.Background()))
	return c
}

// Open opens the device, which is the caller's to close.
func (c Chosen) Open(t testing.TB) ascendrt.Device {
	t.Helper()
	b, ordinal, err := backends.Find(c.Name)
	require.NoError(t, err, "%s", Variable)
	d, err := b.Open(ordinal, ascendrt.OpenOptions{})
	require.NoError(t, err, "%s is %q", Variable, os.Getenv(Variable))
	return d
}

// Count is how many devices of that kind there are.
func (c Chosen) Count(t testing.TB) int {
	t.Helper()
	b, _, err := backends.Find(c.Name)
	require.NoError(t, err)
	r, err := b.Probe(context.Background())
	require.NoError(t, err)
	return len(r.Devices)
}
