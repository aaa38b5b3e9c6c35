// Package backendtest is a fake Prefiller or Decoder for tests and
// measurements of the proxy: an HTTP server that answers in the shape of a
// vLLM server, records what it was sent, and fails in the ways that it is
// told to. It computes nothing; which sessions are resident on which rank is a
// table that tests read and write.
package backendtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Record is one request that a fake backend received.
type Record struct {
	Leg       string // local, p or d; end: a session that is over
	Path      string
	Header    http.Header
	Body      []byte
	Rank      int // of the rank header; -1 without one
	Cancelled bool
}

// JSON decodes the recorded body.
func (r Record) JSON() map[string]any {
	var m map[string]any
	if err := json.Unmarshal(r.Body, &m); err != nil {
		return nil
	}
	return m
}

// Params is the kv_transfer_params member of the recorded body; nil when there is none.
func (r Record) Params() map[string]any {
	m, _ := r.JSON()["kv_transfer_params"].(map[string]any)
	return m
}

// Backend is one fake instance. The exported fields are set before the first
// request; later changes go through Set.
type Backend struct {
	Addr   string // host:port
	Engine string // value of X-Sluice-Engine without the rank; empty sends none
	Tokens int    // output tokens of an answer, where max_tokens allows
	Cached int    // prefix cache hit that a Prefiller reports; -1 reports none
	// Prompt is the prompt_tokens that usage reports.
	Prompt int
	// PerToken and Prefill are the pace of a stream and the time before the first token.
	PerToken, Prefill time.Duration
	// Metrics is the answer of /metrics.
	Metrics string
	// GiveUp, when above 0, makes a Decoder give an answer up after so many
	// output tokens, with the stop reason "recomputed"; BreakOff cuts the
	// connection instead.
	GiveUp, BreakOff int
	// InBand makes a Decoder refuse within a 200 answer instead of with 412.
	InBand bool
	// Hook, when not nil, may answer a request itself by giving true.
	Hook func(w http.ResponseWriter, r *http.Request, rec Record) bool

	mu       sync.Mutex
	records  []Record
	resident map[string]bool
	active   int
	peak     int

	srv      *http.Server
	listener net.Listener
	done     chan struct{}
}

// New makes a fake that is not started.
func New() *Backend {
	return &Backend{Tokens: 4, Cached: -1, Prompt: 100, resident: map[string]bool{}}
}

// Start listens on a free loopback port, or on addr when it is not empty.
func (b *Backend) Start(addr string) error {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if b.Addr != l.Addr().String() { // answers of an earlier life may still read it
		b.Addr = l.Addr().String()
	}
	b.listener, b.done = l, make(chan struct{})
	b.srv = &http.Server{Handler: http.HandlerFunc(b.serve)}
	go func() {
		defer close(b.done)
		_ = b.srv.Serve(l) // ends with ErrServerClosed
	}()
	return nil
}

// Stop closes the listener and every connection.
func (b *Backend) Stop() {
	if b.srv != nil {
		_ = b.srv.Close()
		<-b.done
		b.srv = nil
	}
}

// Set changes fields while requests may be running.
func (b *Backend) Set(change func(b *Backend)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// Evict forgets what is resident of a session on all ranks.
func (b *Backend) Evict(session string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range b.resident {
		if strings.HasSuffix(k, "/"+session) {
			delete(b.resident, k)
		}
	}
}

// Records copies what was received so far.
func (b *Backend) Records() []Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Record(nil), b.records...)
}

// Forget drops the records.
func (b *Backend) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = nil
}

// Active is the number of requests under way, Peak the most there were.
func (b *Backend) Active() (active, peak int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.active, b.peak
}

type request struct {
	MaxTokens     *int `json:"max_tokens"`
	MaxCompletion *int `json:"max_completion_tokens"`
	Stream        bool `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Params   map[string]any  `json:"kv_transfer_params"`
	TokenIDs bool            `json:"return_token_ids"`
	Prompt   json.RawMessage `json:"prompt"`
}

func (b *Backend) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
		return
	case "/metrics":
		b.mu.Lock()
		text := b.Metrics
		b.mu.Unlock()
		_, _ = io.WriteString(w, text)
		return
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"fake","object":"model","created":1,"owned_by":"test"}]}`)
		return
	}
	if r.Method == http.MethodDelete {
		b.mu.Lock()
		b.records = append(b.records, Record{Leg: "end", Path: r.URL.EscapedPath(), Header: r.Header.Clone(), Rank: -1})
		b.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	rec := Record{Path: r.URL.Path, Header: r.Header.Clone(), Body: body, Rank: -1}
	if n, err := strconv.Atoi(r.Header.Get("X-data-parallel-rank")); err == nil {
		rec.Rank = n
	}
	var q request
	_ = json.Unmarshal(body, &q) // a body that does not fit is answered as an empty one
	switch {
	case q.Params["decoder_append_prefill"] == true || r.Header.Get("Prefer") == "if-available":
		rec.Leg = "local"
	case q.Params["do_remote_decode"] == true:
		rec.Leg = "p"
	default:
		rec.Leg = "d"
	}
	b.mu.Lock()
	at := len(b.records)
	b.records = append(b.records, rec)
	b.active++
	b.peak = max(b.peak, b.active)
	hook, engine := b.Hook, b.Engine
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.active--
		if r.Context().Err() != nil && at < len(b.records) {
			b.records[at].Cancelled = true
		}
		b.mu.Unlock()
	}()
	if engine != "" {
		w.Header().Set("X-Sluice-Engine", fmt.Sprintf("%s_dp%d", engine, max(rec.Rank, 0)))
	}
	if hook != nil && hook(w, r, rec) {
		return
	}
	if r.URL.Path == "/reset_prefix_cache" {
		b.Set(func(b *Backend) { b.resident = map[string]bool{} })
		return
	}
	if rec.Leg == "p" {
		b.prefill(w, r, rec)
		return
	}
	b.decode(w, r, rec, q)
}

func (b *Backend) prefill(w http.ResponseWriter, r *http.Request, rec Record) {
	if !pause(r, b.Prefill) {
		return
	}
	id := rec.Header.Get("X-Request-Id")
	cached := ""
	if b.Cached >= 0 {
		cached = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, b.Cached)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"cmpl-%s","object":"text_completion","created":1,"model":"fake","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":1%s},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"p-%s","remote_request_id":"cmpl-%s-0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}`,
		id, b.Prompt, b.Prompt+1, cached, b.Addr, id)
}

func pause(r *http.Request, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (b *Backend) decode(w http.ResponseWriter, r *http.Request, rec Record, q request) {
	key := fmt.Sprintf("%d/%s", max(rec.Rank, 0), rec.Header.Get("X-Session-Id"))
	b.mu.Lock()
	known, inBand, tokens, perToken, wait, prompt := b.resident[key], b.InBand, b.Tokens, b.PerToken, b.Prefill, b.Prompt
	giveUp, breakOff := b.GiveUp, b.BreakOff
	b.mu.Unlock()
	if q.MaxCompletion != nil {
		q.MaxTokens = q.MaxCompletion
	}
	if q.MaxTokens != nil {
		tokens = min(tokens, *q.MaxTokens)
	}
	a := answer{w: w, chat: strings.Contains(r.URL.Path, "chat"), id: rec.Header.Get("X-Request-Id"), stream: q.Stream, prompt: prompt}
	a.ids, a.giveUp, a.breakOff = q.TokenIDs, giveUp, breakOff
	var ids []int
	if json.Unmarshal(q.Prompt, &ids) == nil && len(ids) > promptTokens {
		a.from = len(ids) - promptTokens // it continues an answer
		tokens = b.Tokens - a.from
		if q.MaxTokens != nil {
			tokens = min(tokens, *q.MaxTokens)
		}
	}
	a.usage = q.StreamOptions != nil && q.StreamOptions.IncludeUsage
	if rec.Leg == "local" && !known {
		if inBand {
			a.refuse()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusPreconditionFailed)
		fmt.Fprintf(w, `{"error":{"type":"append_prefill_miss","code":"no_prefix","message":"nothing cached","prompt_tokens":%d,"cached_tokens":0}}`, prompt)
		return
	}
	if rec.Leg == "local" {
		a.cached = prompt - 4
	} else {
		a.cached = prompt - 1
		wait = 0
	}
	if !pause(r, wait) {
		return
	}
	if a.send(r, tokens, perToken) {
		b.mu.Lock()
		b.resident[key] = true
		b.mu.Unlock()
	}
}
