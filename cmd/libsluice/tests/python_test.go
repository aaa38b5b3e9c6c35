package tests

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// python is the interpreter, and what it needs to find package and library.
func python(t *testing.T) (string, []string) {
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	sources, err := filepath.Abs("../python")
	require.NoError(t, err)
	return path, []string{"PYTHONPATH=" + sources, "SLUICE_LIB=" + library(t), "PYTHONDONTWRITEBYTECODE=1"}
}

// TestPythonPackage runs the package's own tests, the scheduler of vLLM's shape
// among them.
func TestPythonPackage(t *testing.T) {
	path, env := python(t)
	run(t, env, path, "-W", "error", "-m", "unittest", "discover", "-s", "../python", "-t", "../python")
}

// TestPythonExample: the toy engine in Python gives the answers of an engine
// without a cache, in as many steps as the one in C.
func TestPythonExample(t *testing.T) {
	path, env := python(t)
	out := run(t, env, path, "../examples/loop.py")
	require.Contains(t, out, "24 of 24 answers equal")
	require.Equal(t, run(t, nil, compile(t, "../examples/loop.c")), out)
}
