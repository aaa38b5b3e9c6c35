package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func server(t *testing.T, fail func(request int64) bool) load.Server {
	t.Helper()
	var n atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		openai.WriteJSON(w, 200, openai.NewModelList(openai.Model{ID: "m1"}))
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\"} 3\n")
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		var req openai.CompletionRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || !req.IgnoreEOS || req.Model != "m1" {
			openai.BadRequest("", "unexpected request").Write(w)
			return
		}
		if fail(n.Add(1)) {
			openai.Internal("device lost").Write(w)
			return
		}
		s := openai.NewStream(w)
		for _, e := range []string{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"b","finish_reason":"length"}]}`, `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}`, openai.Done} {
			if err := s.Data([]byte(e)); err != nil {
				t.Errorf("write: %v", err)
			}
		}
	})
	s := httptest.NewServer(mux)
	client := load.NewHTTPClient()
	t.Cleanup(func() { client.CloseIdleConnections(); s.Close() })
	return load.Server{URL: s.URL, Client: client}
}

func TestRandomPromptsRepeated(t *testing.T) {
	w, err := (&workload.RandomPrompts{Content: workload.Tokens, Requests: 6, InputLen: 5, OutputLen: 2}).Generate()
	require.NoError(t, err)
	s := server(t, func(int64) bool { return false })
	var out bytes.Buffer
	res, err := Run(t.Context(), Options{
		Workload: w, Repeat: 3, Records: true, Watch: s.URL + "/metrics",
		Load: load.Config{Server: s, Endpoint: load.Completions, EOS: load.IgnoreEOS},
	}, &out)
	require.NoError(t, err)
	require.Equal(t, "m1", res.Model)
	require.Len(t, res.Runs, 3)
	require.Zero(t, res.Invalid(), out.String())
	require.Equal(t, "3-r00005-t0", res.Runs[2].Records[5].RequestID)
	require.InDelta(t, 3, *res.Runs[0].QueuePeak, 0)
	require.Positive(t, res.Median.OutputThroughput)
	require.Contains(t, out.String(), "run 2 of 3")
	require.Contains(t, out.String(), "valid 6 of 6")

	path := filepath.Join(t.TempDir(), "r.json")
	require.NoError(t, res.WriteFile(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var back Result
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, w.Hash(), back.WorkloadHash)
}

func TestFailuresAreCountedAndShown(t *testing.T) {
	w, err := (&workload.RandomPrompts{Content: workload.Tokens, Requests: 4, InputLen: 5, OutputLen: 2}).Generate()
	require.NoError(t, err)
	var out bytes.Buffer
	res, err := Run(t.Context(), Options{
		Workload: w, Load: load.Config{Server: server(t, func(n int64) bool { return n == 2 }), Endpoint: load.Completions, EOS: load.IgnoreEOS, MaxConcurrency: 1},
	}, &out)
	require.NoError(t, err)
	require.Equal(t, 1, res.Invalid())
	require.Contains(t, out.String(), "first failure")
	require.Contains(t, out.String(), "device lost")
}

func TestAServerThatIsNotThere(t *testing.T) {
	w, err := (&workload.RandomPrompts{Content: workload.Tokens, Requests: 1, InputLen: 5, OutputLen: 2}).Generate()
	require.NoError(t, err)
	client := load.NewHTTPClient()
	defer client.CloseIdleConnections()
	_, err = Run(t.Context(), Options{Workload: w, Load: load.Config{Server: load.Server{URL: "http://127.0.0.1:1", Client: client}}}, &bytes.Buffer{})
	require.ErrorContains(t, err, "list models")
}
