// Package ascend opens the Ascend runtime for tests that compare it with the
// host bit by bit: the emulated one.
package ascend

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/acl"
	"github.com/sluice-serving/sluice/ascendrt/acl/emulated"
)

// missing says why there is no emulated runtime; nil if there is one.
var missing error

// Prepare is called from TestMain, before anything asks for a device.
func Prepare() { missing = emulated.Use() }

// Open gives the first device, which is the caller's to close. It skips the test
// where there is none, or where it is a real one, whose sums have another order.
func Open(t testing.TB) ascendrt.Device {
	t.Helper()
	if missing != nil {
		t.Skip("no Ascend runtime: ", missing)
	}
	d, err := acl.Backend{}.Open(0, ascendrt.OpenOptions{})
	if errors.Is(err, ascendrt.ErrUnavailable) {
		t.Skip("no Ascend runtime: ", err)
	}
	require.NoError(t, err)
	if !d.Caps().DeterministicReduce {
		require.NoError(t, d.Close(context.Background()))
		t.Skip("a real device sums in an order of its own")
	}
	return d
}
