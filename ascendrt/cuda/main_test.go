//go:build cgo && linux

package cuda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	fusedOptions = strings.Fields(os.Getenv("SLUICE_CUDA_OPTIONS")) // -DEVERY_LANE under racecheck
	if os.Getenv("SLUICE_CUDA_EMU") != "" { // a child of a test: the parent chose
		emulated = os.Getenv("SLUICE_CUDA_EMU") == "1"
		return m.Run()
	}
	if os.Getenv("SLUICE_CUDA_LIB") == "" && !use2(libCUDA) {
		if dir, err := buildEmulation(); err != nil {
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

// buildEmulation gives the folder of the emulated libraries. It is kept in the
// user's cache, by the hash of the sources.
func buildEmulation() (string, error) {
	cxx, err := exec.LookPath("c++")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	h := sha256.New()
	sources, _ := filepath.Glob("emu/*")
	for _, f := range append(sources, "kernels.cu", "abi.h", "main_test.go") {
		data, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	final := filepath.Join(cache, "sluice", fmt.Sprintf("cuda-emu-%x", h.Sum(nil)[:8]))
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(final), "building-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	flags := []string{"-std=c++17", "-O2", "-g", "-ffp-contract=off", "-fPIC", "-shared"}
	for lib, sources := range map[string][]string{
		"libcuda.so.1": {"emu/driver.cc", "emu/run.cc", "emu/kernels.cc"},
		"libnvrtc.so":  {"emu/nvrtc.cc"},
	} {
		args := append(append([]string{}, flags...), sources...)
		args = append(args, "-o", filepath.Join(dir, lib), "-lpthread", "-ldl")
		if out, err := exec.Command(cxx, args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w\n%s", lib, err, out)
		}
	}
	if err := os.Rename(dir, final); err != nil {
		if _, serr := os.Stat(final); serr != nil { // another process may have been first
			return "", err
		}
	}
	return final, nil
}
