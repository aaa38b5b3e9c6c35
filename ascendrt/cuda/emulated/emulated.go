// Package emulated builds the emulated CUDA libraries (ascendrt/cuda/emu) for
// tests, and points this process at them.
package emulated

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/sluice-serving/sluice/ascendrt/internal/builds"
)

// The variables say to package cuda where the libraries are.
const (
	Driver   = "SLUICE_CUDA_LIB"
	Compiler = "SLUICE_NVRTC_LIB"
)

// Build gives the folder of the libraries. It is kept in the user's cache by the
// hash of the sources. Its error says what is missing, e.g. a compiler; tests
// then skip. Sources that a compiler refuses are no reason to: it panics.
func Build() (string, error) {
	_, self, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the place of the sources is unknown")
	}
	root := filepath.Dir(filepath.Dir(self))
	sources, err := filepath.Glob(filepath.Join(root, "emu", "*"))
	if err != nil || len(sources) == 0 {
		return "", errors.Join(fmt.Errorf("the sources of the emulated libraries are not in %s", root), err)
	}
	cxx, err := exec.LookPath("c++")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range append(sources, filepath.Join(root, "kernels.cu"), filepath.Join(root, "copylist.cu"), filepath.Join(root, "abi.h"), self) {
		data, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	return builds.Folder(fmt.Sprintf("cuda-emu-%x", h.Sum(nil)[:8]), func(dir string) error {
		flags := []string{"-std=c++17", "-O2", "-g", "-ffp-contract=off", "-fPIC", "-shared"}
		for lib, parts := range map[string][]string{
			driverName:   {"driver.cc", "run.cc", "kernels.cc"},
			compilerName: {"nvrtc.cc"},
		} {
			args := append([]string{}, flags...)
			for _, p := range parts {
				args = append(args, filepath.Join(root, "emu", p))
			}
			args = append(args, "-o", filepath.Join(dir, lib), "-lpthread", "-ldl")
			if out, err := exec.Command(cxx, args...).CombinedOutput(); err != nil {
				panic(fmt.Sprintf("the emulated %s does not compile: %v\n%s", lib, err, out))
			}
		}
		return nil
	})
}

const (
	driverName   = "libcuda.so.1"
	compilerName = "libnvrtc.so"
)

// Use builds the libraries and points this process at them, unless Driver is set
// already. It is called before the first use of the backend, from TestMain: a
// library is loaded once per process.
func Use() error {
	if os.Getenv(Driver) != "" {
		return nil
	}
	dir, err := Build()
	if err != nil {
		return err
	}
	return errors.Join(os.Setenv(Driver, filepath.Join(dir, driverName)), os.Setenv(Compiler, filepath.Join(dir, compilerName)))
}
