package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// sanitized builds with the address and undefined-behaviour sanitizers.
func sanitized(t *testing.T, source string) string {
	probe := filepath.Join(t.TempDir(), "probe.c")
	require.NoError(t, os.WriteFile(probe, []byte("int main(void) { return 0; }\n"), 0o644))
	if err := exec.Command("gcc", "-fsanitize=address,undefined", "-o", probe+".out", probe).Run(); err != nil {
		t.Skip("this gcc has no sanitizers")
	}
	return compile(t, source, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
}

// TestExample: the toy engine in C gives the answers of an engine without a
// cache, and leaks and oversteps nothing.
func TestExample(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		require.Contains(t, run(t, nil, compile(t, "../examples/loop.c")), "24 of 24 answers equal")
	})
	t.Run("sanitizers", func(t *testing.T) {
		require.Contains(t, run(t, nil, sanitized(t, "../examples/loop.c")), "24 of 24 answers equal")
	})
	t.Run("static", func(t *testing.T) {
		dir := library(t)
		archive := filepath.Join(dir, "lib", "libsluice.a")
		if _, err := os.Stat(archive); err != nil {
			t.Skip("no archive was built: ", archive)
		}
		program := filepath.Join(t.TempDir(), "loop")
		out, err := exec.Command("gcc", "-std=c99", "-I", dir+"/include", "-o", program, "../examples/loop.c", archive, "-lpthread").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, run(t, nil, program), "24 of 24 answers equal")
	})
}

// TestMisuse: every wrong call gives its status and a text, and nothing else
// happens: NULLs, wrong lengths and sizes, faulty configurations, handles that
// are none, unknown requests, plans that are not applied or applied twice.
func TestMisuse(t *testing.T) {
	require.Contains(t, run(t, nil, sanitized(t, "testdata/abuse.c")), " calls, 0 wrong")
}

// TestThreads: eight threads with a scheduler each make equal plans; one handle
// under two threads and use after fork are reported.
func TestThreads(t *testing.T) {
	out := run(t, nil, compile(t, "testdata/threads.c"))
	require.Contains(t, out, "8 threads with a scheduler each: equal")
	require.Contains(t, out, "one handle, two threads: reported")
	require.Contains(t, out, "child of fork: reported")
}

// TestMemory: memory does not grow with requests that come and go. With
// SLUICE_LONG it is a million of them.
func TestMemory(t *testing.T) {
	n := "30000"
	if os.Getenv("SLUICE_LONG") != "" {
		n = "1000000"
	}
	t.Log(run(t, nil, compile(t, "testdata/cycles.c"), n))
}

// TestContext: what a step hands over does not grow with the context.
func TestContext(t *testing.T) {
	t.Log(run(t, nil, compile(t, "testdata/context.c")))
}
