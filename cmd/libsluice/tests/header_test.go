package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeaderCompiles: as C99 and as C++17, with every warning an error.
func TestHeaderCompiles(t *testing.T) {
	include := filepath.Join(library(t), "include")
	source := filepath.Join(t.TempDir(), "header.c")
	require.NoError(t, os.WriteFile(source, []byte("#include \"sluice.h\"\n#include \"sluice.h\"\nsluice_plan_t plan;\nint main(void) { return sluice_abi_version() == SLUICE_ABI_VERSION ? 0 : 1; }\n"), 0o644))
	for _, c := range [][]string{
		{"gcc", "-std=c99", "-x", "c"},
		{"gcc", "-std=c11", "-x", "c"},
		{"g++", "-std=c++17", "-x", "c++"},
	} {
		t.Run(c[1], func(t *testing.T) {
			if _, err := exec.LookPath(c[0]); err != nil {
				t.Skipf("no %s here", c[0])
			}
			args := append(slices.Clone(c[1:]), "-Wall", "-Wextra", "-pedantic", "-Werror", "-I", include, "-c", "-o", os.DevNull, source)
			out, err := exec.Command(c[0], args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}

// declared are the functions of the header.
func declared(t *testing.T) []string {
	text, err := os.ReadFile("../include/sluice.h")
	require.NoError(t, err)
	text = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAll(text, nil)
	var names []string
	for _, m := range regexp.MustCompile(`\b(sluice_[a-z_]+)\(`).FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	slices.Sort(names)
	require.Greater(t, len(names), 30)
	require.Len(t, slices.Compact(slices.Clone(names)), len(names), "a function is declared twice")
	return names
}

// exports are the symbols that a library defines for others.
func exports(t *testing.T, args ...string) []string {
	if _, err := exec.LookPath("nm"); err != nil {
		t.Skip("no nm here")
	}
	out, err := exec.Command("nm", args...).Output()
	require.NoError(t, err)
	var names []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 {
			names = append(names, f[2])
		}
	}
	slices.Sort(names)
	return names
}

// TestSymbols: the libraries export the functions of the header and nothing else.
func TestSymbols(t *testing.T) {
	dir := library(t)
	want := declared(t)
	require.Equal(t, want, exports(t, "-D", "--defined-only", filepath.Join(dir, "lib", "libsluice.so")))
	archive := filepath.Join(dir, "lib", "libsluice.a")
	if _, err := os.Stat(archive); err != nil {
		t.Log("no archive was built: ", archive)
		return
	}
	require.Equal(t, want, exports(t, "-g", "--defined-only", archive))
}

// TestPackageConfig: the flags that pkg-config gives build and link the example.
func TestPackageConfig(t *testing.T) {
	dir := library(t)
	if _, err := exec.LookPath("pkg-config"); err != nil {
		t.Skip("no pkg-config here")
	}
	cmd := exec.Command("pkg-config", "--cflags", "--libs", "sluice")
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(dir, "lib", "pkgconfig"))
	out, err := cmd.Output()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "loop")
	args := append([]string{"-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-o", program, "../examples/loop.c"}, strings.Fields(string(out))...)
	text, err := exec.Command("gcc", args...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Contains(t, run(t, []string{"LD_LIBRARY_PATH=" + filepath.Join(dir, "lib")}, program), "24 of 24 answers equal")
}
