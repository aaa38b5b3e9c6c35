package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	outcome := map[string]string{"TestA": "pass", "TestA/x": "pass", "TestA/y": "fail", "TestB": "skip", "TestC/x/K=3": "pass"}
	require.Empty(t, judge("TestA/x", outcome))
	require.Equal(t, "fails", judge("TestA/y", outcome))
	require.Equal(t, "is skipped", judge("TestB", outcome))
	require.Equal(t, "does not exist", judge("TestD", outcome))
	require.Empty(t, judge("TestC/*/K=3", outcome))
	require.Contains(t, judge("TestA/*", outcome), "TestA/y")
	require.Equal(t, "matches nothing", judge("TestC/*/K=4", outcome))
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.MkdirAll("kvcache/publish", 0o755))
	file := filepath.Join(dir, "t.md")
	require.NoError(t, os.WriteFile(file, []byte("`TestNot` outside a table\n| A-1 | `kvcache` `TestX` and `TestY/sub`; `kvcache/publish` `FuzzZ` | `word` |\n"), 0o644))
	refs, err := read(file)
	require.NoError(t, err)
	require.Equal(t, []reference{{file, 2, "kvcache", "TestX"}, {file, 2, "kvcache", "TestY/sub"}, {file, 2, "kvcache/publish", "FuzzZ"}}, refs)
	require.NoError(t, os.WriteFile(file, []byte("| A-1 | `TestX` |\n"), 0o644))
	_, err = read(file)
	require.Error(t, err)
}
