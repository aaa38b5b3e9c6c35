package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/demo"
	"github.com/sluice-serving/sluice/internal/bench/join"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/up"
)

// The test binary stands for the sluice binary when its first argument is a
// subcommand, so that a cluster of real processes needs no build.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// small is the comparison at a size for tests: nothing is a bottleneck, so the
// checks that speak of one are not expected to hold.
func small(t *testing.T) demo.Params {
	t.Helper()
	p := demo.Default()
	p.Dir, p.Cluster.Port = t.TempDir(), 0
	p.Conversations.Sessions, p.Conversations.Turns, p.Conversations.LongPauses = 4, 2, 0
	p.Conversations.First, p.Conversations.Arrival, p.Conversations.Think = workload.Range{Low: 150, High: 200}, 300*time.Millisecond, 10*time.Millisecond
	p.HitShare, p.MinFallbacks = 1, 0
	return p
}

func TestTheComparisonProvesItself(t *testing.T) {
	var out bytes.Buffer
	report, err := demo.Run(t.Context(), small(t), &out)
	require.NoError(t, err, out.String())
	depends := regexp.MustCompile(`^(queue peak falls|TTFT p50 falls|rank \d sees both)$`)
	for _, c := range report.Failed() {
		require.Regexp(t, depends, c.Name, c.Detail)
	}
	require.Equal(t, 4, report.Arms[1].Hits)
	require.Equal(t, report.Control.Answers, report.Control.Changed)
}

// cluster starts P, D with two ranks and the proxy, and gives the trace files'
// description for joining.
func cluster(t *testing.T, routing up.Routing, shape up.Cluster) *up.Running {
	t.Helper()
	log := new(lockedBuffer)
	s, err := up.New(up.Config{Log: up.NewLog(log)})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.StopAll(), log.String())
		if t.Failed() {
			t.Log(log.String())
		}
	})
	r, err := shape.Start(t.Context(), s, routing)
	require.NoError(t, err)
	return r
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// held is the number of blocks that an engine holds, waiting a while for it to
// reach zero: an answer may leave before its blocks are released.
func held(t *testing.T, engines ...*up.Child) float64 {
	t.Helper()
	sum := -1.0
	for deadline := time.Now().Add(10 * time.Second); sum != 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		sum = 0
		for _, e := range engines {
			page, err := scrape.Fetch(t.Context(), http.DefaultClient, e.URL()+"/metrics")
			require.NoError(t, err)
			sum += page.Sum("sluice_kv_blocks", map[string]string{"state": "held"})
		}
	}
	return sum
}

func TestUpPrintsCommandsThatWorkAndHit(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	out := new(lockedBuffer)
	done := make(chan error)
	shape := up.Cluster{Decoder: up.Engine{Ranks: 2}, TraceDir: dir}
	go func() { done <- up.Run(ctx, up.Options{Cluster: shape, Model: "builtin", Dir: dir}, out) }()
	for deadline := time.Now().Add(60 * time.Second); !strings.Contains(out.String(), "Ctrl-C"); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), out.String())
	}
	n := 0
	for command := range strings.SplitSeq(out.String(), "\n\n") {
		if !strings.HasPrefix(command, "curl ") {
			continue
		}
		n++
		answer, err := exec.Command("sh", "-c", command).Output()
		require.NoError(t, err)
		var chat struct {
			Choices []struct{ Message struct{ Content string } }
			Usage   struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		require.NoError(t, json.Unmarshal(answer, &chat), string(answer))
		require.NotEmpty(t, chat.Choices, string(answer))
		require.NotEmpty(t, chat.Choices[0].Message.Content)
		require.Positive(t, chat.Usage.Details.Cached, string(answer))
	}
	require.Equal(t, 2, n)
	cancel()
	require.NoError(t, <-done)

	traces, err := join.ReadFiles(shape.TraceFile("proxy"), shape.TraceFile("d0"), shape.TraceFile("p0"))
	require.NoError(t, err)
	require.Len(t, traces.Routes, 3)
	require.Equal(t, join.RoutePD, traces.Routes[0].Route)
	for _, r := range traces.Routes[1:] {
		require.Equal(t, join.RouteLocal, r.Route)
		require.Equal(t, traces.Routes[0].Rank, r.Rank)
	}
}

// Every bad request gets the OpenAI error shape and a status that the client
// can act on, ends no process and leaves no block held.
func TestBadRequestsThroughTheWholeCluster(t *testing.T) {
	r := cluster(t, up.AppendPrefill, up.Cluster{Decoder: up.Engine{Ranks: 2, MaxLen: 512}, Prefiller: up.Engine{MaxLen: 512}})
	long := strings.Repeat("x", 600)
	for _, tc := range []struct {
		name, path, body string
		status           int
	}{
		{"malformed JSON", "/v1/chat/completions", `{"model":`, 400},
		{"not an object", "/v1/chat/completions", `[1]`, 400},
		{"no messages", "/v1/chat/completions", `{"model":"builtin","messages":[]}`, 400},
		{"empty prompt", "/v1/completions", `{"model":"builtin","prompt":""}`, 400},
		{"prompt of a wrong type", "/v1/completions", `{"model":"builtin","prompt":{"a":1}}`, 400},
		{"token outside the vocabulary", "/v1/completions", `{"model":"builtin","prompt":[1,99999999]}`, 400},
		{"negative max_tokens", "/v1/completions", `{"model":"builtin","prompt":"a","max_tokens":-1}`, 400},
		{"huge max_tokens", "/v1/completions", `{"model":"builtin","prompt":"a","max_tokens":1000000000}`, 400},
		{"prompt longer than the model", "/v1/completions", `{"model":"builtin","prompt":"` + long + `"}`, 400},
		{"chat longer than the model", "/v1/chat/completions", `{"model":"builtin","messages":[{"role":"user","content":"` + long + `"}]}`, 400},
		{"unknown model", "/v1/completions", `{"model":"other","prompt":"a"}`, 404},
		{"unknown path", "/v1/embeddings", `{"model":"builtin","input":"a"}`, 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := post(t, r.Proxy.URL()+tc.path, tc.body)
			require.Equal(t, tc.status, status, body)
			var e struct {
				Error *struct{ Message, Type string }
			}
			require.NoError(t, json.Unmarshal([]byte(body), &e), body)
			require.NotNil(t, e.Error, body)
			require.NotEmpty(t, e.Error.Message)
			require.NotEmpty(t, e.Error.Type)
		})
	}
	// A conversation_id of a wrong type is no session, and no error.
	for _, id := range []string{`7`, `null`, `[]`, `{"a":1}`, `""`, `true`} {
		status, body := post(t, r.Proxy.URL()+"/v1/chat/completions", `{"model":"builtin","max_tokens":2,"conversation_id":`+id+`,"messages":[{"role":"user","content":"hello there, all"}]}`)
		require.Equal(t, 200, status, body)
	}
	require.Zero(t, held(t, r.Prefiller, r.Decoder))
	http.DefaultClient.CloseIdleConnections()
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func TestBenchAgainstOneEngine(t *testing.T) {
	s, err := up.New(up.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.StopAll()) }()
	shape := up.Cluster{}
	engine, err := s.Start(t.Context(), shape.AloneCommand("alone", up.Engine{}))
	require.NoError(t, err)
	for name, args := range map[string][]string{
		"random":      {"--dataset", "random", "--input-len", "40", "--output-len", "6", "--num-prompts", "5", "--request-rate", "50", "--ignore-eos", "--repeat", "2", "--watch", engine.URL() + "/metrics"},
		"chat":        {"--sessions", "2", "--turns", "2", "--first-len", "40", "--arrival", "20ms", "--think", "5ms", "--max-tokens", "4"},
		"completions": {"--endpoint", "completions", "--sessions", "2", "--turns", "3", "--first-len", "40", "--arrival", "20ms", "--think", "5ms", "--max-tokens", "4"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "result.json")
			var out bytes.Buffer
			root := newRootCmd()
			root.SetOut(&out)
			root.SetArgs(append([]string{"bench", "--url", engine.URL(), "--json", file, "--records"}, args...))
			require.NoError(t, root.ExecuteContext(t.Context()), out.String())
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var res struct {
				Model string
				Runs  []struct{ Summary struct{ Requests, Valid int } }
			}
			require.NoError(t, json.Unmarshal(text, &res))
			require.Equal(t, "builtin", res.Model)
			for _, run := range res.Runs {
				require.Equal(t, run.Summary.Requests, run.Summary.Valid)
			}
		})
	}
}

func TestBadFlagsAreErrors(t *testing.T) {
	for want, args := range map[string][]string{
		"unknown flag: --colour":       {"bench", "--colour"},
		"at least one of the flags":    {"bench"},
		"unknown preset":               {"bench", "--preset", "other"},
		"neither chat nor completions": {"bench", "--url", "http://127.0.0.1:1", "--endpoint", "embeddings"},
		"is neither sessions":          {"bench", "--url", "http://127.0.0.1:1", "--dataset", "other"},
		"not of the form low-high":     {"bench", "--url", "http://127.0.0.1:1", "--first-len", "many"},
		"no such file":                 {"bench", "--url", "http://127.0.0.1:1", "--workload", "/nonexistent"},
		"unknown command":              {"levitate"},
	} {
		root := newRootCmd()
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs(args)
		require.ErrorContains(t, root.ExecuteContext(t.Context()), want)
	}
}

// A client that goes away in the middle of a stream, on either route, leaves
// nothing held on either engine.
func TestAClientThatGoesAwayReleasesEverything(t *testing.T) {
	r := cluster(t, up.AppendPrefill, up.Cluster{Decoder: up.Engine{Ranks: 2}})
	text := strings.Repeat("the pumps ran all night and nobody looked. ", 8)
	for turn := range 3 { // the first takes the P/D route, the others are local
		ctx, cancel := context.WithCancel(t.Context())
		body := `{"model":"builtin","stream":true,"ignore_eos":true,"max_tokens":2000,"conversation_id":"leaver","messages":[{"role":"user","content":"` + text + `"}]}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Proxy.URL()+"/v1/chat/completions", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		_, err = io.ReadFull(resp.Body, make([]byte, 400))
		require.NoError(t, err)
		cancel()
		_, err = io.Copy(io.Discard, resp.Body)
		require.ErrorIs(t, err, context.Canceled, "turn %d", turn)
		require.NoError(t, resp.Body.Close())
		require.Zero(t, held(t, r.Prefiller, r.Decoder), "turn %d", turn)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Without a Prefiller a new conversation gets an error that says so, a known
// one still hits, and nothing stays held.
func TestALostPrefiller(t *testing.T) {
	r := cluster(t, up.AppendPrefill, up.Cluster{Decoder: up.Engine{Ranks: 2}})
	body := func(session string) string {
		return `{"model":"builtin","max_tokens":4,"conversation_id":"` + session + `","messages":[{"role":"user","content":"` + session + strings.Repeat(" and on it goes", 6) + `"}]}`
	}
	status, answer := post(t, r.Proxy.URL()+"/v1/chat/completions", body("known"))
	require.Equal(t, 200, status, answer)
	process, err := os.FindProcess(r.Prefiller.PID())
	require.NoError(t, err)
	require.NoError(t, process.Kill())

	status, answer = post(t, r.Proxy.URL()+"/v1/chat/completions", body("known"))
	require.Equal(t, 200, status, answer)
	status, answer = post(t, r.Proxy.URL()+"/v1/chat/completions", body("new"))
	require.Contains(t, []int{502, 503}, status, answer)
	require.Contains(t, answer, `"error"`)
	require.Zero(t, held(t, r.Decoder))
	http.DefaultClient.CloseIdleConnections()
}
