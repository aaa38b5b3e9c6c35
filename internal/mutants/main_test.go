package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFaultsFit checks that every fault still fits the code. That each turns a
// test red takes minutes and is what the command is for.
func TestFaultsFit(t *testing.T) {
	t.Chdir("../..")
	files, err := filepath.Glob("internal/mutants/faults/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 40)
	for _, path := range files {
		f, err := read(path)
		require.NoError(t, err)
		text, err := os.ReadFile(f.file)
		require.NoError(t, err)
		changed, err := f.mutate(string(text))
		require.NoError(t, err, path)
		require.NotEqual(t, string(text), changed, path)
	}
}

func TestReadRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.txt")
	for _, text := range []string{"", "words\nfile: a.go\n-- old\na\n", "file: a.go\ntest: b\n-- old\na\n-- new\nb\n", "words\ntest: b\n-- old\na\n-- new\nb\n"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := read(path)
		require.Error(t, err)
	}
	require.NoError(t, os.WriteFile(path, []byte("words\nfile: a.go\ntest: b c\n-- old\nx\n-- new\ny\n"), 0o600))
	f, err := read(path)
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c"}, f.pkgs)
	_, err = f.mutate("x\nx\n")
	require.ErrorContains(t, err, "2 times")
	got, err := f.mutate("w\nx\nz\n")
	require.NoError(t, err)
	require.Equal(t, "w\ny\nz\n", got)
}
