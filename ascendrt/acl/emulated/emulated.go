// Package emulated builds the emulated Ascend libraries (ascendrt/acl/emu) for
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
	"slices"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt/internal/builds"
)

// Variable says to package acl where the runtime is.
const Variable = "SLUICE_ACL_LIB"

// Options choose a build of the libraries.
type Options struct {
	Flags []string // for the compiler, e.g. -fsanitize=thread
	Hide  []string // symbols that the libraries do not export, as older ones do not
}

// Build gives the folder of the libraries. Builds are kept in the user's cache
// by the hash of the sources and options. Its error says what is missing, e.g. a
// compiler; tests then skip. Sources that a compiler refuses without Flags are no reason to: it panics.
func Build(o Options) (string, error) {
	_, self, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the place of the sources is unknown")
	}
	dir := filepath.Join(filepath.Dir(filepath.Dir(self)), "emu")
	script := filepath.Join(dir, "build.sh")
	if _, err := os.Stat(script); err != nil {
		return "", fmt.Errorf("the sources of the emulated libraries are not here: %w", err)
	}
	cxx := os.Getenv("CXX")
	if cxx == "" {
		cxx = "c++"
	}
	if _, err := exec.LookPath(cxx); err != nil {
		return "", err
	}
	sum, err := hash(dir, append(slices.Clone(o.Flags), "hide "+strings.Join(o.Hide, " "), cxx))
	if err != nil {
		return "", err
	}
	return builds.Folder("ascend-emu-"+sum, func(to string) error {
		c := exec.Command("sh", append([]string{script, to}, o.Flags...)...)
		c.Env = append(os.Environ(), "HIDE="+strings.Join(o.Hide, " "))
		if len(o.Hide) > 0 { // another link of the same objects
			base, err := Build(Options{Flags: o.Flags})
			if err != nil {
				return err
			}
			c.Env = append(c.Env, "OBJ="+filepath.Join(base, "obj"))
		}
		out, err := c.CombinedOutput()
		if err == nil {
			return nil
		}
		err = fmt.Errorf("the emulated libraries do not compile: %w\n%s", err, out)
		if len(o.Flags) == 0 { // with some, the compiler may lack a sanitizer
			panic(err)
		}
		return err
	})
}

func hash(dir string, more []string) (string, error) {
	h := sha256.New()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return "", err
	}
	files = append(files, filepath.Join(filepath.Dir(dir), "abi.h"))
	for _, f := range files {
		if ext := filepath.Ext(f); ext != ".cc" && ext != ".h" && ext != ".sh" {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(f), len(data))
		h.Write(data)
	}
	fmt.Fprintf(h, "%q", more)
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// Library is the path to name in Variable, for a child process or before the
// first use of the backend in this one.
func Library(dir string) string { return filepath.Join(dir, "libascendcl.so") }

// Use builds the libraries and points this process at them, unless Variable is
// set already. It is called before the first use of the backend, from TestMain:
// a library is loaded once per process.
func Use() error {
	if os.Getenv(Variable) != "" {
		return nil
	}
	dir, err := Build(Options{})
	if err != nil {
		return err
	}
	return os.Setenv(Variable, Library(dir))
}
