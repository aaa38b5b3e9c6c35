//go:build cgo && linux

package acl

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt/acl/emulated"
)

// drive compiles and runs the programs of the C side against a build of the
// emulated libraries, with the compilers of the environment (CC, CXX), under a
// command if there is one: drive.c (the runtime) and operators.c.
func drive(t *testing.T, under []string, flags ...string) {
	t.Helper()
	dir, err := emulated.Build(emulated.Options{Flags: flags})
	if err != nil {
		t.Skip("no such build here: ", err)
	}
	for _, program := range []string{"drive", "operators"} {
		driveOne(t, dir, program, under, flags)
	}
}

func driveOne(t *testing.T, dir, program string, under, flags []string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), program)
	args := append([]string{"-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"}, flags...)
	args = append(args, "testdata/"+program+".c", "loader.c", "shim.c", "replay.c", "aclnn.c", "hccl.c", "-o", bin, "-lpthread", "-ldl")
	cc := cmp.Or(os.Getenv("CC"), "cc")
	out, err := exec.Command(cc, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	line := append(slices.Clone(under), bin)
	run := exec.Command(line[0], append(line[1:], filepath.Join(dir, "libascendcl.so"), filepath.Join(dir, "libnnopbase.so"), filepath.Join(dir, "libopapi.so"))...)
	// What the loader keeps open for the life of a process is no leak.
	run.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1", "LSAN_OPTIONS=suppressions=testdata/lsan.txt:print_suppressions=0")
	out, err = run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}

// The emulation refuses what the real runtime and its operators refuse, and the
// shim works on it from eight threads, outside Go.
func TestCSide(t *testing.T) {
	needEmulation(t)
	drive(t, nil)
}

// The same under the sanitizers; they compile the libraries anew.
func TestCSideUnderSanitizers(t *testing.T) {
	if os.Getenv("SLUICE_SANITIZE") == "" {
		t.Skip("SLUICE_SANITIZE is not set: compiles C++ for a minute")
	}
	for _, flags := range [][]string{{"-fsanitize=thread", "-g"}, {"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"}} {
		t.Run(strings.TrimPrefix(flags[0], "-fsanitize="), func(t *testing.T) { drive(t, nil, flags...) })
	}
}

// And on aarch64, by emulation of the processor.
func TestCSideOnARM(t *testing.T) {
	if os.Getenv("SLUICE_ARM64") == "" {
		t.Skip("SLUICE_ARM64 is not set: compiles C++ for a minute")
	}
	for _, tool := range []string{"aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err, "install gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu and qemu-user")
	}
	t.Setenv("CC", "aarch64-linux-gnu-gcc")
	t.Setenv("CXX", "aarch64-linux-gnu-g++")
	drive(t, []string{"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"})
}

// abi.h stands alone, as C11 and as C++17, and with the shim and the emulation
// it compiles for aarch64 where its compiler is installed.
func TestCompilesAloneAndForARM(t *testing.T) {
	warn := []string{"-Wall", "-Wextra", "-Werror", "-fsyntax-only"}
	tried := 0
	compile := func(compiler string, args ...string) {
		if _, err := exec.LookPath(compiler); err != nil {
			t.Logf("%s is not here", compiler)
			return
		}
		tried++
		out, err := exec.Command(compiler, append(append([]string{}, warn...), args...)...).CombinedOutput()
		require.NoError(t, err, "%s %v: %s", compiler, args, out)
	}
	compile("cc", "-std=c11", "-pedantic-errors", "-x", "c", "abi.h")
	compile("c++", "-std=c++17", "-x", "c++", "abi.h")
	compile("aarch64-linux-gnu-gcc", "-std=c11", "-x", "c", "abi.h")
	compile("aarch64-linux-gnu-g++", "-std=c++17", "-x", "c++", "abi.h")
	for _, f := range []string{"loader.c", "shim.c", "replay.c", "aclnn.c", "hccl.c"} {
		compile("aarch64-linux-gnu-gcc", "-std=gnu11", f)
	}
	sources, err := filepath.Glob("emu/*.cc")
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	for _, f := range sources {
		compile("aarch64-linux-gnu-g++", "-std=c++17", "-ffp-contract=off", f)
	}
	if tried == 0 {
		t.Skip("no compiler")
	}
}
