package load

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an OpenAI-compatible server that answers every request with the
// same few tokens and keeps what it was sent.
type fake struct {
	mu      sync.Mutex
	headers []http.Header
	chats   []openai.ChatRequest
	prompts [][]int32
	running int
	peak    int

	hold     time.Duration                                 // time between two events
	instead  func(w http.ResponseWriter, request int) bool // true: it has answered
	tokenIDs bool
}

func (f *fake) enter(h http.Header) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.headers = append(f.headers, h.Clone())
	f.running++
	f.peak = max(f.peak, f.running)
	return len(f.headers) - 1
}

func (f *fake) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
}

func (f *fake) start(t *testing.T) Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		openai.WriteJSON(w, 200, openai.NewModelList(openai.Model{ID: "fake-1"}))
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		n := f.enter(r.Header)
		leave := sync.OnceFunc(f.leave)
		defer leave()
		var req openai.ChatRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			openai.BadRequest("", "%v", err).Write(w)
			return
		}
		f.mu.Lock()
		f.chats = append(f.chats, req)
		f.mu.Unlock()
		if f.instead != nil && f.instead(w, n) {
			return
		}
		s := openai.NewStream(w)
		must(t, s.Data([]byte(`{"choices":[{"delta":{"role":"assistant","content":""}}]}`)))
		for i := range 3 {
			time.Sleep(f.hold)
			must(t, s.Data(fmt.Appendf(nil, `{"choices":[{"delta":{"content":"r%d"},"token_ids":[%d]}]}`, i, 10+i)))
		}
		must(t, s.Data([]byte(`{"choices":[{"delta":{},"finish_reason":"length"}]}`)))
		must(t, s.Data([]byte(`{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`)))
		leave() // the client may go on as soon as it has seen the end
		must(t, s.Done())
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		f.enter(r.Header)
		defer f.leave()
		var req openai.CompletionRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			openai.BadRequest("", "%v", err).Write(w)
			return
		}
		f.mu.Lock()
		f.prompts = append(f.prompts, slices.Concat(req.Prompt.Tokens...))
		f.mu.Unlock()
		ids := ""
		if f.tokenIDs && req.ReturnTokenIDs {
			ids = `,"token_ids":[7,8]`
		}
		s := openai.NewStream(w)
		must(t, s.Data([]byte(`{"choices":[{"text":"ab"`+ids+`,"finish_reason":"length"}]}`)))
		must(t, s.Data([]byte(`{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2}}`)))
		must(t, s.Done())
	})
	server := httptest.NewServer(mux)
	client := NewHTTPClient()
	t.Cleanup(func() { client.CloseIdleConnections(); server.Close() })
	return Server{URL: server.URL, Model: "fake-1", Client: client}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("write: %v", err)
	}
}

func chat(t *testing.T, sessions, turns int) *workload.Workload {
	t.Helper()
	w, err := (&workload.Conversations{Seed: 1, Sessions: sessions, Turns: turns, First: workload.Range{Low: 30, High: 30}, Next: workload.Range{Low: 10, High: 10}, MaxTokens: 5, System: "be brief"}).Generate()
	require.NoError(t, err)
	return w
}

func TestLaterTurnsCarryTheRepliesThatCame(t *testing.T) {
	f := &fake{}
	server := f.start(t)
	w := chat(t, 1, 3)
	var last Progress
	records, err := Run(t.Context(), w, Config{Server: server, Prefix: "arm-", CacheSalt: "salt", Observe: func(p Progress) { last = p }})
	require.NoError(t, err)
	require.Len(t, records, 3)
	require.Equal(t, Progress{Total: 3, Sent: 3, Done: 3}, last)

	for i := range f.chats {
		limit, named := f.chats[i].OutputLimit()
		require.True(t, named)
		require.Equal(t, 5, limit, "the turn's own limit")
	}
	third := f.chats[2]
	var roles []string
	for _, m := range third.Messages {
		roles = append(roles, m.Role)
	}
	require.Equal(t, []string{"system", "user", "assistant", "user", "assistant", "user"}, roles)
	require.Equal(t, openai.Content("r0r1r2"), third.Messages[2].Content)
	require.Equal(t, openai.Content(w.Sessions[0].Turns[2].Text), third.Messages[5].Content)
	require.Equal(t, "salt", third.CacheSalt)
	require.True(t, third.StreamOptions.IncludeUsage)
	require.Zero(t, *third.Temperature)
	require.Equal(t, "arm-s000", f.headers[2].Get("X-Session-ID"))
	require.Equal(t, "arm-s000-t2", f.headers[2].Get("X-Request-Id"))

	r := records[2]
	require.True(t, r.Valid(), r.Error)
	require.Equal(t, "r0r1r2", r.Text)
	require.Equal(t, []int32{10, 11, 12}, r.TokenIDs)
	require.Equal(t, 8, r.CachedTokens)
	require.Len(t, r.Gaps, 2, "a bare role delta and the usage are no output")
	require.Equal(t, r.Eligible, records[1].End)
	require.GreaterOrEqual(t, r.First, r.Sent)
}

func TestTokenHistoryIsExact(t *testing.T) {
	f := &fake{tokenIDs: true}
	server := f.start(t)
	w, err := (&workload.Conversations{Seed: 1, Content: workload.Tokens, Sessions: 1, Turns: 2, First: workload.Range{Low: 4, High: 4}, Next: workload.Range{Low: 2, High: 2}, MaxTokens: 5}).Generate()
	require.NoError(t, err)
	records, err := Run(t.Context(), w, Config{Server: server, Endpoint: Completions})
	require.NoError(t, err)
	require.True(t, records[1].Valid(), records[1].Error)
	s := w.Sessions[0]
	require.Equal(t, slices.Concat(s.Turns[0].Tokens, []int32{7, 8}, s.Turns[1].Tokens), f.prompts[1])

	without := &fake{}
	records, err = Run(t.Context(), w, Config{Server: without.start(t), Endpoint: Completions})
	require.NoError(t, err)
	require.ErrorContains(t, fmt.Errorf("%s", records[0].Error), "no token ids")
	require.Contains(t, records[1].Error, "not sent")
}

func TestThinkTimeAndArrivalDecideEligibility(t *testing.T) {
	f := &fake{}
	w := chat(t, 2, 2)
	w.Sessions[1].Arrival = 30 * time.Millisecond
	w.Sessions[0].Turns[1].Think = 20 * time.Millisecond
	server := f.start(t)
	records, err := Run(t.Context(), w, Config{Server: server})
	require.NoError(t, err)
	require.Equal(t, 30*time.Millisecond, records[2].Eligible)
	require.GreaterOrEqual(t, records[2].Sent, records[2].Eligible)
	require.Equal(t, records[0].End+20*time.Millisecond, records[1].Eligible)

	records, err = Run(t.Context(), w, Config{Server: server, TimeScale: 0.5})
	require.NoError(t, err)
	require.Equal(t, 15*time.Millisecond, records[2].Eligible)
	require.Equal(t, records[0].End+10*time.Millisecond, records[1].Eligible)

	records, err = Run(t.Context(), w, Config{Server: server, Pace: Flat})
	require.NoError(t, err)
	require.Zero(t, records[2].Eligible)
	require.Equal(t, records[0].End, records[1].Eligible)
}

func TestACallMayBeChangedBeforeItIsSent(t *testing.T) {
	f := &fake{}
	_, err := Run(t.Context(), chat(t, 1, 2), Config{Server: f.start(t), Prepare: func(session string, turn int, call *Call) {
		call.Header.Set("X-Turn", fmt.Sprint(session, turn))
		if turn == 1 {
			call.Body.(*openai.ChatRequest).CacheSalt = "other"
		}
	}})
	require.NoError(t, err)
	require.Equal(t, "s0001", f.headers[1].Get("X-Turn"))
	require.Empty(t, f.chats[0].CacheSalt)
	require.Equal(t, "other", f.chats[1].CacheSalt)
}

func TestConcurrencyLimit(t *testing.T) {
	f := &fake{hold: time.Millisecond}
	records, err := Run(t.Context(), chat(t, 8, 1), Config{Server: f.start(t), MaxConcurrency: 2})
	require.NoError(t, err)
	require.Len(t, records, 8)
	require.LessOrEqual(t, f.peak, 2)
}

func TestFailuresAreRecordedAndEndTheirSession(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(w http.ResponseWriter) error
		status int
		want   string
	}{
		"error status": {func(w http.ResponseWriter) error { openai.Unavailable(1, "no decoder is healthy").Write(w); return nil }, 503, "no decoder is healthy"},
		"plain status": {func(w http.ResponseWriter) error { http.Error(w, "gone", http.StatusGone); return nil }, http.StatusGone, "gone"},
		"cut stream": {func(w http.ResponseWriter) error {
			return openai.NewStream(w).Data([]byte(`{"choices":[{"delta":{"content":"x"}}]}`))
		}, 200, "without its end marker"},
		"error event": {func(w http.ResponseWriter) error { return openai.NewStream(w).Fail(openai.Internal("device lost")) }, 200, "device lost"},
		"no JSON":     {func(w http.ResponseWriter) error { return openai.NewStream(w).Data([]byte(`{`)) }, 200, "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			f.instead = func(w http.ResponseWriter, n int) bool {
				if n == 0 {
					must(t, tc.answer(w))
				}
				return n == 0
			}
			records, err := Run(t.Context(), chat(t, 1, 3), Config{Server: f.start(t)})
			require.NoError(t, err)
			require.Equal(t, tc.status, records[0].Status)
			require.Contains(t, records[0].Error, tc.want)
			require.False(t, records[0].Valid())
			require.Contains(t, records[1].Error, "not sent")
			require.Contains(t, records[2].Error, "not sent")
			require.Equal(t, 2, measureNotSent(records))
		})
	}
}

func measureNotSent(records []measure.Record) int {
	n := 0
	for _, r := range records {
		if strings.HasPrefix(r.Error, "not sent") {
			n++
		}
	}
	return n
}

func TestTimeoutAndCancellation(t *testing.T) {
	block := make(chan struct{})
	slow := &fake{instead: func(http.ResponseWriter, int) bool { <-block; return true }}
	records, err := Run(t.Context(), chat(t, 1, 1), Config{Server: slow.start(t), Timeout: 10 * time.Millisecond})
	require.NoError(t, err)
	require.Contains(t, records[0].Error, "no answer within 10ms")

	ctx, cancel := context.WithCancel(t.Context())
	gone := &fake{instead: func(http.ResponseWriter, int) bool { cancel(); <-block; return true }}
	_, err = Run(ctx, chat(t, 3, 2), Config{Server: gone.start(t)})
	require.ErrorIs(t, err, context.Canceled)
	close(block)
}

func TestWorkloadsThatTheEndpointCannotCarry(t *testing.T) {
	_, err := Run(t.Context(), chat(t, 1, 2), Config{Endpoint: Completions})
	require.ErrorContains(t, err, "need token ids")
	w, err := (&workload.RandomPrompts{Content: workload.Tokens, Requests: 1, InputLen: 3, OutputLen: 2}).Generate()
	require.NoError(t, err)
	_, err = Run(t.Context(), w, Config{Endpoint: Chat})
	require.ErrorContains(t, err, "does not take")
	_, err = ParseEndpoint("embeddings")
	require.Error(t, err)
}

func TestFirstModel(t *testing.T) {
	server := (&fake{}).start(t)
	server.URL += "/v1/"
	id, err := server.FirstModel(t.Context())
	require.NoError(t, err)
	require.Equal(t, "fake-1", id)

	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":[]}`) }))
	defer broken.Close()
	server.URL = broken.URL
	_, err = server.FirstModel(t.Context())
	require.ErrorContains(t, err, "serves none")
}

// Turns that say how much of the prompt before them stays are sent as they say,
// whatever the replies were.
func TestWholePromptsAreSentAsTheyAre(t *testing.T) {
	f := &fake{} // without token ids in its answers: nobody needs them
	server := f.start(t)
	keep := func(n int) *int { return &n }
	w := &workload.Workload{Version: workload.Version, Sessions: []workload.Session{{ID: "child", Parent: "main", Turns: []workload.Turn{
		{Keep: keep(0), Tokens: []int32{1, 2, 3}, MaxTokens: 2},
		{Keep: keep(3), Tokens: []int32{4}, MaxTokens: 2},
		{Keep: keep(2), MaxTokens: 2},
		{Keep: keep(1), Tokens: []int32{9, 9}, MaxTokens: 2},
	}}}}
	records, err := Run(t.Context(), w, Config{Server: server, Endpoint: Completions, Prefix: "run-"})
	require.NoError(t, err)
	for i := range records {
		require.Empty(t, records[i].Error)
	}
	require.Equal(t, [][]int32{{1, 2, 3}, {1, 2, 3, 4}, {1, 2}, {1, 9, 9}}, f.prompts)
	require.Equal(t, "run-main", f.headers[0].Get("X-Parent-Session-ID"))
}

// A server may speak TLS, of which HTTP/1.1 is taken though it offers more, and the times are
// still the connection's; redirects and compressed answers are failures, not followed.
func TestServersOfOtherWays(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.ProtoMajor != 1:
			t.Errorf("asked in %s", r.Proto)
		case r.Header.Get("X-Way") == "away":
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		case r.Header.Get("X-Way") == "gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, strings.Join(answerEvents(0, 2), ""))
			must(t, z.Close())
		default:
			must(t, openai.NewStream(w).Raw([]byte(strings.Join(answerEvents(3, 2), ""))))
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	client := NewHTTPClient()
	client.Transport.(*http.Transport).TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	t.Cleanup(func() { client.CloseIdleConnections(); s.Close() })
	server := Server{URL: s.URL, Client: client}
	for way, want := range map[string]string{"": "", "away": "status 307", "gzip": `with "gzip"`} {
		var rec measure.Record
		server.Do(t.Context(), &Call{Header: http.Header{"X-Way": {way}}, Body: struct{}{}}, time.Now(), &rec)
		if want != "" {
			require.ErrorContains(t, errors.New(rec.Error), want)
			continue
		}
		require.Empty(t, rec.Error)
		require.Len(t, rec.TokenIDs, 2)
	}
	came := arrival{start: time.Now()}
	req, err := http.NewRequestWithContext(came.trace(t.Context()), http.MethodPost, s.URL, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotNil(t, came.conn.Load())
}
