// Package emulated builds the emulated Transfer Engine (connector/transport/
// mooncake/emu) for tests.
package emulated

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Variable says to package mooncake where the library is.
const Variable = "SLUICE_MOONCAKE_LIB"

// Build gives the path of the library. Builds are kept in the user's cache by
// the hash of the sources. Its error says what is missing, e.g. a compiler;
// tests then skip. Sources that a compiler refuses are no reason to: it panics.
func Build() (string, error) {
	_, self, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the place of the sources is unknown")
	}
	dir := filepath.Dir(filepath.Dir(self))
	source := filepath.Join(dir, "emu", "transfer_engine.c")
	h := sha256.New()
	for _, f := range []string{source, filepath.Join(dir, "abi.h"), self} {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("the sources of the emulated library are not here: %w", err)
		}
		h.Write(b)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	final := filepath.Join(cache, "sluice", fmt.Sprintf("mooncake-emu-%x.so", h.Sum(nil)[:8]))
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", err
	}
	tmp := fmt.Sprintf("%s.%d", final, os.Getpid())
	defer os.Remove(tmp)
	c := exec.Command(cc, "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-shared", source, "-o", tmp, "-lpthread")
	if out, err := c.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("the emulated library does not compile: %v\n%s", err, out))
	}
	return final, os.Rename(tmp, final)
}
