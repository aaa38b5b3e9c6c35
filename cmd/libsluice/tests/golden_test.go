package tests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/golden"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// TestHistories replays every recorded history through a C program that is
// linked with the library: every decision is the recorded one, line for line.
func TestHistories(t *testing.T) {
	dir := os.Getenv("SLUICE_REFERENCE")
	if dir == "" {
		t.Skip("SLUICE_REFERENCE names no folder with recorded histories")
	}
	files, err := filepath.Glob(filepath.Join(dir, "oracle", "newer-017e9f4", "*.jsonl.gz"))
	require.NoError(t, err)
	require.Len(t, files, 34)
	program := compile(t, "testdata/serve.c")
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			h, err := golden.Read(f)
			require.NoError(t, err)
			d, err := golden.ReplayOn(h, func(cfg scheduler.Config, cache kvcache.Config, conn golden.Connector) (golden.Core, error) {
				return startRemote(t, program, cfg, cache, conn)
			})
			require.NoError(t, err)
			if d != nil {
				t.Fatal(d)
			}
		})
	}
}
