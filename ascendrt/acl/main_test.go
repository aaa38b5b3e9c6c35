//go:build cgo && linux

package acl

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/acl/emulated"
	"github.com/sluice-serving/sluice/ascendrt/conformance"
	"github.com/sluice-serving/sluice/ascendrt/internal/base/basetest"
)

// TestMain points the process at the emulated libraries, unless the
// environment names others. A library is loaded once per process, so this
// stands before all tests.
func TestMain(m *testing.M) {
	if os.Getenv(basetest.ChildVariable) == "" {
		if err := emulated.Use(); err != nil {
			fmt.Fprintln(os.Stderr, "no emulated libraries, tests that need a device skip:", err)
		}
	}
	os.Exit(m.Run())
}

func openDevice(t testing.TB, o ascendrt.OpenOptions) ascendrt.Device {
	t.Helper()
	if b := use(libACL); !b.OK {
		t.Skip("no Ascend runtime: ", b.Problem)
	}
	if emulation() {
		_, err := injectFaults("") // repairs what a test before this one broke
		require.NoError(t, err)
	}
	d, err := Backend{}.Open(0, o)
	require.NoError(t, err)
	return d
}

// emulation tells that the libraries are those of emu.
func emulation() bool {
	return use(libACL).OK && strings.HasSuffix(describe(0).Name, "-emulated")
}

func TestConformance(t *testing.T) {
	s := conformance.Suite{Open: func(t *testing.T, o ascendrt.OpenOptions) ascendrt.Device { return openDevice(t, o) }, Tolerance: 1e-2, BlockSize: 128, Lacks: lacks}
	if emulation() {
		s.Busy = 48
		s.Lose = func(ascendrt.Device) {
			_, err := injectFaults("lost=507015")
			require.NoError(t, err)
		}
	}
	conformance.Run(t, s)
}

// lacks names what the operators of this runtime do not take.
func lacks(spec ascendrt.OpSpec) bool {
	switch at := spec.Attr.(type) {
	case ascendrt.AttentionAttr, ascendrt.ScatterAttr:
		return spec.Type != ascendrt.BFloat16
	case ascendrt.MatmulAttr:
		return at.OutType != 0 && at.OutType != spec.Type
	}
	return false
}

func TestSeveralDevices(t *testing.T) { conformance.Several(t, Backend{}) }

func BenchmarkSubmit(b *testing.B) {
	basetest.BenchmarkSubmit(b, openDevice(b, ascendrt.OpenOptions{}))
}
