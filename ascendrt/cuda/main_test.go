//go:build cgo && linux

package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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
	if os.Getenv("SLUICE_CUDA_EMU") != "" { // a child of a test: the parent chose
		emulated = os.Getenv("SLUICE_CUDA_EMU") == "1"
		return m.Run()
	}
	if os.Getenv("SLUICE_CUDA_LIB") == "" && !use2(libCUDA) {
		dir, err := os.MkdirTemp("", "sluice-cuda-emu")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if err := buildEmulation(dir); err != nil {
			fmt.Fprintln(os.Stderr, "no driver and no emulation, tests that need a device skip:", err)
		} else {
			os.Setenv("SLUICE_CUDA_LIB", filepath.Join(dir, "libcuda.so.1"))
			os.Setenv("SLUICE_NVRTC_LIB", filepath.Join(dir, "libnvrtc.so"))
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
	return b.ok
}

func buildEmulation(dir string) error {
	cxx, err := exec.LookPath("c++")
	if err != nil {
		return err
	}
	if _, err := os.Stat("emu/driver.cc"); err != nil {
		return err
	}
	flags := []string{"-std=c++17", "-O2", "-g", "-ffp-contract=off", "-fPIC", "-shared"}
	if s := os.Getenv("SLUICE_EMU_CXXFLAGS"); s != "" {
		flags = append(flags, s)
	}
	for lib, sources := range map[string][]string{
		"libcuda.so.1": {"emu/driver.cc", "emu/run.cc", "emu/kernels.cc"},
		"libnvrtc.so":  {"emu/nvrtc.cc"},
	} {
		args := append(append([]string{}, flags...), sources...)
		args = append(args, "-o", filepath.Join(dir, lib), "-lpthread", "-ldl")
		if out, err := exec.Command(cxx, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", lib, err, out)
		}
	}
	return nil
}
