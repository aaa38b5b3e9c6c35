//go:build cgo && linux

package acl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// loadedLibrary is one vendor library.
type loadedLibrary struct{ base.Library }

var libraries [libraryCount]loadedLibrary

// sonames in the order of preference, and the variable that overrides them.
var sonames = [libraryCount][]string{
	libACL:   {"libascendcl.so", "libacl_rt.so"},
	libNNOP:  {"libnnopbase.so"},
	libOPAPI: {"libopapi.so"},
	libHCCL:  {"libhccl.so"},
}

var overrides = [libraryCount]string{"SLUICE_ACL_LIB", "SLUICE_NNOPBASE_LIB", "SLUICE_OPAPI_LIB", "SLUICE_HCCL_LIB"}

// folders are the places behind the loader's own, best first: beside the
// library that SLUICE_ACL_LIB names, then those of an installation.
func folders() []string {
	var dirs []string
	// As for the loader, a name with a slash is a path.
	if p := os.Getenv(overrides[libACL]); strings.ContainsRune(p, '/') {
		if p, err := filepath.Abs(p); err == nil { // an error: there is no working folder
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	for _, v := range []string{"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"} {
		if h := os.Getenv(v); h != "" {
			dirs = append(dirs, filepath.Join(h, "lib64"))
		}
	}
	return append(dirs, "/usr/local/Ascend/cann/lib64", "/usr/local/Ascend/ascend-toolkit/latest/lib64")
}

// candidates lists what to try; all: every one of them is wanted.
func candidates(l library) (list []string, all bool) {
	if p := os.Getenv(overrides[l]); p != "" {
		return []string{p}, false
	}
	dirs := folders()
	own := os.Getenv(overrides[libACL]) != ""
	if l == libOPAPI {
		for _, d := range dirs {
			// The operators of newer releases are split; the split files and the old
			// one must not meet in a process.
			if split, _ := filepath.Glob(filepath.Join(d, "libopapi_*.so")); len(split) > 0 {
				slices.Sort(split)
				if c := filepath.Join(d, "libcust_opapi.so"); fileExists(c) {
					split = append([]string{c}, split...)
				}
				return split, true
			}
		}
	}
	if own { // the libraries of one installation belong together
		for _, s := range sonames[l] {
			list = append(list, filepath.Join(dirs[0], s))
		}
	}
	list = append(list, sonames[l]...)
	for _, d := range dirs {
		for _, s := range sonames[l] {
			list = append(list, filepath.Join(d, s))
		}
	}
	return list, false
}

func fileExists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}

// use opens the library, once, and what it needs before it.
func use(l library) *loadedLibrary {
	b := &libraries[l]
	b.Once.Do(func() {
		if l != libACL {
			if a := use(libACL); !a.OK {
				b.Problem = libACL.String() + " is not there"
				return
			}
		}
		list, all := candidates(l)
		b.load(l, list, all)
	})
	return b
}

// advice is what to do about a missing library.
func advice(l library) string {
	switch l {
	case libACL:
		return "install CANN 8.1 or newer with the driver and source its set_env.sh, or set " + overrides[l] + " to its libascendcl.so"
	case libNNOP, libOPAPI:
		return "named operations need it: install CANN's operator package, or set ASCEND_HOME_PATH or " + overrides[l]
	}
	return "collectives need it: install CANN's HCCL, or set ASCEND_HOME_PATH or " + overrides[l]
}

// Probe opens the libraries and asks the runtime for its devices; it creates no
// context.
func (Backend) Probe(context.Context) (ascendrt.Report, error) {
	var r ascendrt.Report
	for l := libACL; l < libraryCount; l++ {
		var without string
		if l != libACL {
			without = fmt.Sprintf("%v: %s", l, advice(l))
		}
		use(l).Report(&r, sonames[l][0], without)
	}
	if b := use(libACL); !b.OK {
		r.Problem = fmt.Sprintf("%s: %s", b.Problem, advice(libACL))
		return r, nil
	}
	n, err := countDevices()
	if err != nil {
		r.Problem = err.Error()
		var e *ascendrt.Error
		if errors.As(err, &e) {
			if a := adviceFor(e.Code); a != "" {
				r.Problem += ": " + a
			}
		}
		return r, nil
	}
	if n == 0 {
		r.Problem = "the runtime sees no device: check npu-smi info and ASCEND_RT_VISIBLE_DEVICES"
	}
	for i := range n {
		r.Devices = append(r.Devices, describe(i))
	}
	return r, nil
}
