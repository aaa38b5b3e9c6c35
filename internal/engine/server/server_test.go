package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/ascend"
	"github.com/sluice-serving/sluice/internal/testkit/device"
	"github.com/sluice-serving/sluice/scheduler"
)

// TestMain points the process at the emulated Ascend runtime before anything asks for one.
func TestMain(m *testing.M) {
	ascend.Prepare()
	device.Prepare()
	if config := os.Getenv(childEnv); config != "" {
		if err := child(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// node is one engine behind HTTP.
type node struct {
	t      *testing.T
	engine *engine.Engine
	url    string
	client *http.Client
}

func start(t *testing.T, cfg engine.Config, o Options) *node {
	t.Helper()
	return startTraced(t, cfg, o, nil)
}

const (
	waitFor = 10 * time.Second
	tick    = 5 * time.Millisecond
)

// startTraced takes the trace over.
func startTraced(t *testing.T, cfg engine.Config, o Options, trace *engine.Trace) *node {
	t.Helper()
	return startWith(t, cfg, o, engine.Options{Trace: trace})
}

// startWith takes the trace over.
func startWith(t *testing.T, cfg engine.Config, o Options, with engine.Options) *node {
	t.Helper()
	if cfg.MaxSeqs == 0 {
		cfg.MaxSeqs = 16 // fewer graphs to capture
	}
	if cfg.KVBlocks == 0 {
		cfg.KVBlocks = 1024
	}
	if cfg.DeviceWorkers == 0 {
		cfg.DeviceWorkers = 1
	}
	e, err := engine.New(t.Context(), cfg, with)
	require.NoError(t, err)
	srv := httptest.NewServer(New(e, o))
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		srv.Close()
		require.NoError(t, e.Close())
		require.NoError(t, with.Trace.Close())
	})
	return &node{t: t, engine: e, url: srv.URL, client: client}
}

// post sends a JSON body and gives the whole answer.
func (n *node) post(path string, body any, headers ...string) (*http.Response, []byte) {
	n.t.Helper()
	var raw []byte
	if s, ok := body.(string); ok {
		raw = []byte(s)
	} else {
		var err error
		raw, err = json.Marshal(body)
		require.NoError(n.t, err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, n.url+path, bytes.NewReader(raw))
	require.NoError(n.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := n.client.Do(req)
	require.NoError(n.t, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	return res, out
}

// m is a JSON object.
type m = map[string]any

func (n *node) complete(body m, headers ...string) openai.CompletionResponse {
	n.t.Helper()
	res, raw := n.post("/v1/completions", body, headers...)
	require.Equal(n.t, http.StatusOK, res.StatusCode, "%s", raw)
	var out openai.CompletionResponse
	require.NoError(n.t, json.Unmarshal(raw, &out))
	return out
}

func words(n int) string {
	return strings.Repeat("the report of the engine reads block 42 and not the cache ", n/58+1)[:n]
}

func TestCompletion(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	out := n.complete(m{"prompt": words(400), "max_tokens": 32, "ignore_eos": true, "return_token_ids": true})
	t.Logf("%q", out.Choices[0].Text)
	require.Len(t, out.Choices[0].TokenIDs, 32)
}

type token = scheduler.Token
