//go:build cgo && linux

package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The shim runs under the sanitizers on the emulated driver, outside Go.
func TestCSideUnderSanitizers(t *testing.T) {
	if os.Getenv("SLUICE_SANITIZE") == "" {
		t.Skip("SLUICE_SANITIZE is not set: compiles C++ for a minute")
	}
	for _, flags := range [][]string{{"-fsanitize=thread"}, {"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}} {
		t.Run(flags[0], func(t *testing.T) {
			dir := t.TempDir()
			common := append([]string{"-g", "-O1", "-fPIC"}, flags...)
			lib, bin := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "threads")
			cc := func(args ...string) {
				t.Helper()
				out, err := exec.Command(args[0], append(common, args[1:]...)...).CombinedOutput()
				if err != nil {
					t.Skipf("no sanitizer here: %v\n%s", err, out)
				}
			}
			cc("c++", "-std=c++17", "-ffp-contract=off", "-shared", "emu/driver.cc", "emu/run.cc", "-o", lib, "-lpthread", "-ldl")
			cc("cc", "-std=gnu11", "testdata/threads.c", "loader.c", "shim.c", "replay.c", "libs.c", "-o", bin, "-lpthread", "-ldl")
			run := exec.Command(bin, lib)
			// The emulation keeps what a queue may still name.
			run.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
			out, err := run.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, "ok\n", string(out))
		})
	}
}

// abi.h stands alone, as C11 and as C++17, here and on aarch64.
func TestABIHeaderCompilesAlone(t *testing.T) {
	for _, c := range [][]string{
		{"cc", "-std=c11", "-pedantic-errors", "-x", "c"}, {"c++", "-std=c++17", "-x", "c++"},
		{"aarch64-linux-gnu-gcc", "-std=c11", "-x", "c"}, {"aarch64-linux-gnu-g++", "-std=c++17", "-x", "c++"},
	} {
		if _, err := exec.LookPath(c[0]); err != nil {
			t.Logf("%s is not here", c[0])
			continue
		}
		out, err := exec.Command(c[0], append(c[1:], "-Wall", "-Werror", "-fsyntax-only", "abi.h")...).CombinedOutput()
		require.NoError(t, err, "%v: %s", c, out)
		if c[0] == "aarch64-linux-gnu-gcc" {
			for _, f := range []string{"loader.c", "shim.c", "replay.c", "libs.c"} {
				out, err := exec.Command(c[0], "-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", f).CombinedOutput()
				require.NoError(t, err, "%s: %s", f, out)
			}
		}
	}
}
