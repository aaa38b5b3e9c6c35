package server

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/internal/engine"
)

// running starts Run and gives its address, and a function that stops it and
// returns its error.
func running(t *testing.T, cfg engine.Config, o RunOptions) (url string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	o.Out = in
	cfg.DeviceWorkers = 1
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg, o) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "listening on http://"), line)
	return strings.TrimSpace(strings.TrimPrefix(line, "listening on ")), func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(30 * time.Second):
			t.Fatal("the server does not end")
			return nil
		}
	}
}

func client(t *testing.T) *http.Client {
	c := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// A stop lets what runs end, refuses what is new, and then the server is gone.
func TestRunDrains(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	url, stop := running(t, engine.Config{}, RunOptions{TraceFile: trace})
	c := client(t)
	res, err := c.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"hello","max_tokens":400,"ignore_eos":true,"stream":true}`))
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, 100))
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(body), "data: [DONE]\n\n"), "the running answer is whole")
	require.Contains(t, string(body), `"finish_reason":"length"`)
	require.NoError(t, <-stopped)
	_, err = c.Get(url + "/health")
	require.Error(t, err)
	lines, err := os.ReadFile(trace)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(lines), "\n"))
}

// What does not end within the drain time is cut off.
func TestRunCutsOff(t *testing.T) {
	url, stop := running(t, engine.Config{DrainTimeout: 50 * time.Millisecond}, RunOptions{})
	res, err := client(t).Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"hello","max_tokens":4000,"ignore_eos":true,"stream":true}`))
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, 100))
	require.NoError(t, err)
	begin := time.Now()
	require.NoError(t, stop())
	require.Less(t, time.Since(begin), 10*time.Second)
	body, err := io.ReadAll(res.Body)
	require.False(t, err == nil && strings.HasSuffix(string(body), "data: [DONE]\n\n"), "an answer that was cut off does not look whole")
}

func TestRunRefusesToStart(t *testing.T) {
	ctx := t.Context()
	require.ErrorContains(t, Run(ctx, engine.Config{Model: "x"}, RunOptions{Out: io.Discard}), "unknown model")
	require.ErrorContains(t, Run(ctx, engine.Config{}, RunOptions{Host: "256.0.0.1", Out: io.Discard}), "listen")
	require.ErrorContains(t, Run(ctx, engine.Config{}, RunOptions{TraceFile: filepath.Join(t.TempDir(), "no", "file"), Out: io.Discard}), "trace")
	url, stop := running(t, engine.Config{}, RunOptions{})
	port := url[strings.LastIndex(url, ":")+1:]
	n := 0
	for _, c := range port {
		n = n*10 + int(c-'0')
	}
	require.ErrorContains(t, Run(ctx, engine.Config{}, RunOptions{Port: n, Out: io.Discard}), "address already in use")
	require.NoError(t, stop())
}

// A device that is lost while it serves: every request ends with an error that
// says so in time, nothing hangs, and the process learns why.
func TestRunLosesItsDevice(t *testing.T) {
	lost := func(int) (ascendrt.Device, error) {
		return (host.Backend{}).Open(0, ascendrt.OpenOptions{Workers: 1, Faults: "lost@submit:400"})
	}
	url, stop := running(t, engine.Config{Eager: true}, RunOptions{Open: lost})
	c := client(t)
	failed := 0
	for range 20 {
		res, err := c.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"hello","max_tokens":100,"ignore_eos":true}`))
		if err != nil {
			failed++
			break // the server is gone
		}
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, "%s", body)
			failed++
		}
	}
	require.Positive(t, failed)
	require.ErrorIs(t, stop(), ascendrt.ErrDeviceLost)
}
