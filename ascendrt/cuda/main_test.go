//go:build cgo && linux

package cuda

import (
	"fmt"
	"os"
	"strings"
	"testing"

	emulation "github.com/sluice-serving/sluice/ascendrt/cuda/emulated"
)

// emulated tells that the tests run on the libraries of emu, since this machine
// has no driver.
var emulated bool

// TestMain builds the emulated libraries where there is no driver. A library is
// loaded once per process, so this stands before all tests.
func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	fusedOptions = strings.Fields(os.Getenv("SLUICE_CUDA_OPTIONS")) // -DEVERY_LANE under racecheck
	if os.Getenv("SLUICE_CUDA_EMU") != "" {                         // a child of a test: the parent chose
		emulated = os.Getenv("SLUICE_CUDA_EMU") == "1"
		return m.Run()
	}
	if os.Getenv("SLUICE_CUDA_LIB") == "" && !use2(libCUDA) {
		if err := emulation.Use(); err != nil {
			fmt.Fprintln(os.Stderr, "no driver and no emulation, tests that need a device skip:", err)
		} else {
			emulated = true
		}
	}
	if emulated {
		os.Setenv("SLUICE_CUDA_EMU", "1")
	} else {
		os.Setenv("SLUICE_CUDA_EMU", "0")
	}
	return m.Run()
}

// use2 looks for the driver without loading it for good.
func use2(l library) bool {
	var b loadedLibrary
	b.load(l, candidates(l))
	return b.OK
}
