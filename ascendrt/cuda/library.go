//go:build cgo && linux

package cuda

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// loadedLibrary is one vendor library.
type loadedLibrary struct {
	base.Library
	number int // its version, as it gives it
}

var libraries [4]loadedLibrary

// sonames in the order of preference, and the variable that overrides them.
var sonames = [4][]string{
	libCUDA:     {"libcuda.so.1"},
	libNVRTC:    {"libnvrtc.so.13", "libnvrtc.so.12"},
	libCUBLASLt: {"libcublasLt.so.13", "libcublasLt.so.12"},
	libNCCL:     {"libnccl.so.2"},
}

var overrides = [4]string{"SLUICE_CUDA_LIB", "SLUICE_NVRTC_LIB", "SLUICE_CUBLASLT_LIB", "SLUICE_NCCL_LIB"}

func candidates(l library) []string {
	var out []string
	if p := os.Getenv(overrides[l]); p != "" {
		return []string{p}
	}
	out = append(out, sonames[l]...)
	if l == libCUDA {
		return out
	}
	var dirs []string
	if h := os.Getenv("CUDA_HOME"); h != "" {
		dirs = append(dirs, filepath.Join(h, "lib64"), filepath.Join(h, "lib"))
	}
	targets, _ := filepath.Glob("/usr/local/cuda/targets/*/lib")
	sort.Strings(targets)
	dirs = append(append(dirs, targets...), "/usr/local/cuda/lib64")
	for _, d := range dirs {
		for _, s := range sonames[l] {
			out = append(out, filepath.Join(d, s))
		}
	}
	return out
}

// use opens the library, once.
func use(l library) *loadedLibrary {
	b := &libraries[l]
	b.Once.Do(func() { b.load(l, candidates(l)) })
	return b
}

// advice is what to do about a missing library.
func advice(l library) string {
	switch l {
	case libCUDA:
		return "install the NVIDIA driver, or set " + overrides[l] + " to its libcuda.so.1"
	case libNVRTC:
		return "named operations and CUDA sources need it: install the CUDA toolkit's NVRTC, or set CUDA_HOME or " + overrides[l]
	case libCUBLASLt:
		return "matmul with SumFree needs it: install cuBLAS, or set " + overrides[l]
	}
	return "collectives need it: install NCCL, or set " + overrides[l]
}

func versionText(l library, v int) string {
	switch {
	case v == 0:
		return ""
	case l == libNCCL || l == libCUBLASLt:
		return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
	}
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

// Probe opens the libraries and asks the driver for its devices; it creates no
// context.
func (Backend) Probe(context.Context) (ascendrt.Report, error) {
	var r ascendrt.Report
	for l := libCUDA; l <= libNCCL; l++ {
		var without string
		if l != libCUDA {
			without = fmt.Sprintf("%v: %s", l, advice(l))
		}
		use(l).Report(&r, sonames[l][0], without)
	}
	if b := use(libCUDA); !b.OK {
		r.Problem = fmt.Sprintf("%s: %s", b.Problem, advice(libCUDA))
		return r, nil
	}
	n, driver, err := countDevices()
	if err != nil {
		r.Problem = err.Error()
		return r, nil
	}
	if n == 0 {
		r.Problem = "the driver sees no device: check nvidia-smi and CUDA_VISIBLE_DEVICES"
	}
	for i := range n {
		d, err := describe(i)
		if err != nil {
			r.Problem = err.Error()
			return r, nil
		}
		d.info.RuntimeVersion = versionText(libCUDA, driver)
		d.info.Arch = fmt.Sprintf("sm_%d", d.cc)
		d.info.Note = d.pci
		r.Devices = append(r.Devices, d.info)
	}
	return r, nil
}
