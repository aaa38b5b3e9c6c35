// Package tests drives the built library as its users do: from C programs and
// from Python, linked with libsluice.so. It needs a C compiler. SLUICE_LIB names
// an installed library (make lib); without it the tests build one.
package tests

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// scratch is removed after the tests.
var scratch string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "libsluice")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratch = dir
	code := m.Run()
	_ = os.RemoveAll(dir) // nothing depends on it
	os.Exit(code)
}

// buildLibrary builds the shared library and says below which folder it is.
var buildLibrary = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SLUICE_LIB"); dir != "" {
		return filepath.Abs(dir)
	}
	dest := filepath.Join(scratch, "prefix")
	cmd := exec.Command("../build.sh", dest)
	cmd.Env = append(os.Environ(), "ONLY=shared", "CGO_ENABLED=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build.sh: %w\n%s", err, out)
	}
	return dest, nil
})

// library is the folder below which the library is installed.
func library(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"gcc", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here", tool)
		}
	}
	dir, err := buildLibrary()
	require.NoError(t, err)
	_, err = os.Stat(filepath.Join(dir, "lib", "libsluice.so")) // and go test learns what its results depend on
	require.NoError(t, err)
	return dir
}

// compile builds a C program against the library and returns its path.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	dir := library(t)
	out := filepath.Join(scratch, strings.TrimSuffix(filepath.Base(source), ".c")+fmt.Sprint(len(flags)))
	args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", dir + "/include", "-o", out, source}, flags...)
	args = append(args, "-L"+dir+"/lib", "-lsluice", "-Wl,-rpath,"+dir+"/lib")
	text, err := exec.Command("gcc", args...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// run runs a program and returns what it prints; its status must be 0.
func run(t *testing.T, env []string, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	require.NoError(t, err, "%s%s", out.String(), errs.String())
	return out.String()
}
