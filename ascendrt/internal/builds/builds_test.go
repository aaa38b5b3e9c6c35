package builds

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFolder(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir()) // where another system has its cache
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	odd := errors.New("odd")
	_, err = Folder("one", func(dir string) error {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "half"), nil, 0o644))
		return odd
	})
	require.Equal(t, odd, err)
	left, err := filepath.Glob(filepath.Join(cache, "sluice", "*"))
	require.NoError(t, err)
	require.LessOrEqual(t, len(left), 1, "the lock alone: %v", left)

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		built []string
	)
	for range 4 {
		wg.Go(func() {
			dir, err := Folder("one", func(dir string) error {
				mu.Lock()
				built = append(built, dir)
				mu.Unlock()
				return os.WriteFile(filepath.Join(dir, "lib"), []byte("whole"), 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := os.ReadFile(filepath.Join(dir, "lib")); string(data) != "whole" {
				t.Error(string(data), err)
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, built)
	for _, dir := range built {
		require.NoDirExists(t, dir, "it was moved into place, or is gone")
	}
	before := len(built)
	_, err = Folder("one", func(string) error { return odd })
	require.NoError(t, err)
	require.Len(t, built, before)
}
