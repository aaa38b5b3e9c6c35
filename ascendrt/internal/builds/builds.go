// Package builds keeps builds of the emulated libraries in the user's cache.
package builds

import (
	"os"
	"path/filepath"
)

// Folder gives the folder of the build of that name, which says all that the build
// depends on. If there is none yet, build makes it in an empty folder; other
// processes wait meanwhile. A build that fails leaves nothing.
func Folder(name string, build func(dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	final := filepath.Join(cache, "sluice", name)
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(final + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(final); err == nil { // built while we waited
		return final, nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(final), "building-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		return "", err
	}
	if err := os.Rename(dir, final); err != nil {
		if _, serr := os.Stat(final); serr != nil { // without locks another process may have been first
			return "", err
		}
	}
	return final, nil
}
