package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a proxy in front of fake backends, all on loopback.
type cluster struct {
	t     *testing.T
	p     []*backendtest.Backend
	d     []*backendtest.Backend
	proxy *Proxy
	url   string
	trace string
	http  *http.Client
}

type setup struct {
	prefillers, decoders, ranks int
	change                      func(*Config)
	backend                     func(*backendtest.Backend)
	plain                       bool // without append-prefill
}

func start(t *testing.T, s setup) *cluster {
	t.Helper()
	c := &cluster{t: t, trace: filepath.Join(t.TempDir(), "trace.jsonl")}
	cfg := Config{Append: !s.plain, TraceFile: c.trace, RetryDelay: time.Millisecond}
	launch := func(n int) (list []*backendtest.Backend) {
		for range n {
			b := backendtest.New()
			b.Engine = "engine-1"
			if s.backend != nil {
				s.backend(b)
			}
			require.NoError(t, b.Start(""))
			t.Cleanup(b.Stop)
			list = append(list, b)
		}
		return list
	}
	c.p, c.d = launch(max(s.prefillers, 1)), launch(max(s.decoders, 1))
	for _, b := range c.p {
		cfg.Prefillers = append(cfg.Prefillers, b.Addr)
	}
	for _, b := range c.d {
		cfg.Decoders = append(cfg.Decoders, Decoder{Addr: b.Addr, Ranks: s.ranks})
	}
	if s.change != nil {
		s.change(&cfg)
	}
	c.serve(cfg)
	return c
}

func (c *cluster) serve(cfg Config) {
	c.t.Helper()
	p, err := New(cfg)
	require.NoError(c.t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, 5*time.Second) }()
	c.proxy, c.url = p, "http://"+l.Addr().String()
	tr := &http.Transport{DisableCompression: true}
	c.http = &http.Client{Transport: tr}
	c.t.Cleanup(func() {
		tr.CloseIdleConnections()
		cancel()
		require.NoError(c.t, <-done)
		s := p.Snapshot()
		require.Zero(c.t, s.OpenTurns)
		for _, d := range s.Decoders {
			for i, k := range d.Ranks {
				require.Zero(c.t, k.InFlight+k.LocalAttempts, "decoder %s rank %d", d.Name, i)
				require.Zero(c.t, k.Bytes)
			}
		}
		for _, q := range s.Prefillers {
			require.Zero(c.t, q.InFlight)
			require.Zero(c.t, q.Running+q.KV)
		}
	})
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) json(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.body), &m), r.body)
	return m
}

// errorOf asserts the OpenAI error shape and gives its error member.
func (r reply) errorOf(t *testing.T) map[string]any {
	t.Helper()
	e, ok := r.json(t)["error"].(map[string]any)
	require.True(t, ok, r.body)
	require.NotEmpty(t, e["message"])
	require.NotEmpty(t, e["type"])
	require.Contains(t, e, "param")
	require.Contains(t, e, "code")
	return e
}

func (c *cluster) post(path, body string, headers ...string) reply {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodPost, c.url+path, strings.NewReader(body))
	require.NoError(c.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.http.Do(req)
	require.NoError(c.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	return reply{resp.StatusCode, resp.Header, string(raw)}
}

const chatPath = "/v1/chat/completions"

// turnBody is a chat body of the n-th turn of a conversation.
func turnBody(n int, more string) string {
	var b strings.Builder
	b.WriteString(`{"model":"fake","messages":[{"role":"system","content":"be brief"}`)
	for i := range n {
		if i > 0 {
			b.WriteString(`,{"role":"assistant","content":"reply"}`)
		}
		b.WriteString(`,{"role":"user","content":"question"}`)
	}
	b.WriteString("]" + more + "}")
	return b.String()
}

// legsOf lists the legs that all backends received, in the order of the turn.
func (c *cluster) legs() (p, local, d int) {
	for _, b := range append(append([]*backendtest.Backend{}, c.p...), c.d...) {
		for _, r := range b.Records() {
			switch r.Leg {
			case "p":
				p++
			case "local":
				local++
			case "d":
				d++
			}
		}
	}
	return p, local, d
}

func (c *cluster) forget() {
	for _, b := range append(append([]*backendtest.Backend{}, c.p...), c.d...) {
		b.Forget()
	}
}

func (c *cluster) wantLegs(p, local, d int) {
	c.t.Helper()
	gp, gl, gd := c.legs()
	require.Equal(c.t, [3]int{p, local, d}, [3]int{gp, gl, gd}, "legs p, local, d")
}

// serving is the decoder that received the last d or local leg, with its rank.
func (c *cluster) serving() (int, int) {
	at, rank := -1, -1
	for i, b := range c.d {
		for _, r := range b.Records() {
			at, rank = i, r.Rank
		}
	}
	return at, rank
}

func (c *cluster) traces(n int) []RouteTrace {
	c.t.Helper()
	var out []RouteTrace
	require.Eventually(c.t, func() bool {
		raw, err := os.ReadFile(c.trace)
		require.NoError(c.t, err)
		out = nil
		for line := range bytes.Lines(raw) {
			var tr RouteTrace
			if json.Unmarshal(line, &tr) != nil {
				return false
			}
			out = append(out, tr)
		}
		return len(out) >= n
	}, 5*time.Second, 5*time.Millisecond)
	return out
}

func hashPlacement(c *Config) { c.Placement = route.PlaceHash }
