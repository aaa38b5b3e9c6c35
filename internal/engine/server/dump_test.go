package server

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/scheduler"
)

// The quit signal writes the last steps of each rank, and the engine serves on.
// While nothing was dropped they can be made again.
func TestQuitDumpsTheLastSteps(t *testing.T) {
	dir := t.TempDir()
	cfg := engine.Config{DumpDir: dir, MaxSeqs: 8, DataParallel: 2, KVTransfer: transferConfig(t, offloadAlone), BlockSize: 8, KVBlocks: 55, MaxModelLen: 440}
	url, stop := running(t, cfg, RunOptions{})
	n := &node{t: t, url: url, client: client(t)}
	for i := range 4 {
		n.complete(m{"prompt": words(100 + i), "max_tokens": 20, "ignore_eos": true})
	}
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGQUIT))
	var files []string
	require.Eventually(t, func() bool {
		files, _ = filepath.Glob(filepath.Join(dir, "sluice-*.steps.jsonl"))
		return len(files) == 2
	}, waitFor, tick)
	n.complete(m{"prompt": "still here", "max_tokens": 2, "ignore_eos": true})
	require.NoError(t, stop())
	plans := 0
	for _, file := range files {
		f, err := os.Open(file)
		require.NoError(t, err)
		sum, err := scheduler.Replay(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Nil(t, sum.Divergence, "%v", sum.Divergence)
		plans += sum.Plans
	}
	require.Greater(t, plans, 4*20)
}

// A dump of an engine that has run for long says how much is missing.
func TestOldStepsAreDropped(t *testing.T) {
	dir := t.TempDir()
	n := start(t, engine.Config{DumpDir: dir, StepLines: 10}, Options{})
	n.complete(m{"prompt": words(50), "max_tokens": 30, "ignore_eos": true})
	files, err := n.engine.DumpSteps()
	require.NoError(t, err)
	require.Len(t, files, 1)
	f, err := os.Open(files[0])
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), `{"op":"cut","value":`)
	rest := 0
	for lines.Scan() {
		rest++
	}
	require.Equal(t, 10, rest)

	off := start(t, engine.Config{DumpDir: dir, StepLines: -1}, Options{})
	files, err = off.engine.DumpSteps()
	require.NoError(t, err)
	require.Empty(t, files)
	gone := filepath.Join(dir, "gone")
	require.NoError(t, os.Mkdir(gone, 0o700))
	nowhere := start(t, engine.Config{DumpDir: gone}, Options{})
	require.NoError(t, os.Remove(gone))
	_, err = nowhere.engine.DumpSteps()
	require.ErrorContains(t, err, "no such file")
}

// A rank that fails for any reason but the loss of its device leaves its last
// steps behind.
func TestFailedRankDumpsItsSteps(t *testing.T) {
	dir := t.TempDir()
	failing := func(int) (ascendrt.Device, error) {
		return (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1, Faults: "error@submit:200"})
	}
	url, stop := running(t, engine.Config{Eager: true, DumpDir: dir}, RunOptions{Open: failing})
	res, err := client(t).Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"hello","max_tokens":400,"ignore_eos":true}`))
	if err == nil {
		res.Body.Close()
	}
	require.Error(t, stop())
	files, err := filepath.Glob(filepath.Join(dir, "sluice-*.steps.jsonl"))
	require.NoError(t, err)
	require.Len(t, files, 1)
}
