package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

// preset gives a change that uses a preset, perhaps with other rules.
func preset(t *testing.T, name string, rules ...RefusalRule) func(*Config) {
	b, err := Preset(name)
	require.NoError(t, err)
	if rules != nil {
		b.Refusals = rules
	}
	b.Guard = route.Guard{}
	return func(c *Config) { c.Backend = b }
}

// A refusal is whatever the pool's rules say, in every form that an engine may
// choose; the turn then takes P/D once, and the client sees nothing of it.
func TestRefusalForms(t *testing.T) {
	events := func(list ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, e := range list {
				_, _ = io.WriteString(w, "data: "+e+"\n\n")
			}
		}
	}
	const empty = `{"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}`
	for _, c := range []struct {
		name   string
		change func(*Config)
		h      http.HandlerFunc
	}{
		{"stop reason", preset(t, "vllm-ascend"), events(roleEvent, `{"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","stop_reason":"append_prefill_miss:busy"}]}`, "[DONE]")},
		{"empty stop", preset(t, "vllm-ascend"), events(roleEvent, empty, "[DONE]")},
		{"empty stop with usage", preset(t, "vllm-ascend"), events(empty, `{"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":0}}`, "[DONE]")},
		{"412", preset(t, "vllm-ascend"), answering(412, `{}`)},
		{"409", preset(t, "vllm-ascend", RefusalRule{Status: 409}), answering(409, `no`)},
		{"503 of a kind", preset(t, "vllm-ascend", RefusalRule{Status: 503, ErrorCode: "kv_miss"}), answering(503, `{"error":{"message":"m","type":"t","code":"kv_miss"}}`)},
		{"error event", preset(t, "vllm-ascend", RefusalRule{ErrorType: "PrefixMiss"}), events(roleEvent, `{"error":{"message":"m","type":"PrefixMiss","code":400}}`)},
		{"pointer", preset(t, "vllm-ascend", RefusalRule{Pointer: "/choices/0/finish_reason", Equals: "rejected"}), events(`{"choices":[{"delta":{},"finish_reason":"rejected"}]}`)},
		{"threshold", preset(t, "cache-threshold"), events(`{"choices":[{"delta":{"content":""},"finish_reason":"cache_threshold"}]}`, "[DONE]")},
		{"whole threshold", preset(t, "llm-d"), answering(200, `{"choices":[{"message":{"content":""},"finish_reason":"cache_threshold"}],"usage":{"completion_tokens":0}}`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := start(t, setup{change: c.change})
			h := c.h
			cl.d[0].Hook = func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
				if rec.Params()["do_remote_prefill"] == true || rec.Leg == "p" {
					return false
				}
				h(w, r)
				return true
			}
			cl.post(chatPath, turnBody(1, streamTurn), "X-Session-ID", "s")
			cl.forget()
			r := cl.post(chatPath, turnBody(2, streamTurn), "X-Session-ID", "s")
			require.Equal(t, 200, r.status, r.body)
			require.Equal(t, backendtest.Text(4), textOf(t, r.body))
			require.Len(t, cl.d[0].Records(), 2)
			require.Len(t, cl.p[0].Records(), 1)
			line := cl.traces(2)[1]
			require.Equal(t, "fallback", line.Route)
			require.True(t, strings.HasPrefix(line.Reason, "refused:"), line.Reason)
		})
	}
}

// Rules match only while no output was seen: an answer with output that ends
// in the same words is an answer.
func TestNoRefusalAfterOutput(t *testing.T) {
	c := start(t, setup{change: preset(t, "vllm-ascend")})
	c.post(chatPath, turnBody(1, streamTurn), "X-Session-ID", "s")
	c.d[0].Set(func(b *backendtest.Backend) {
		b.Hook = on("local", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+tokenEvent+"\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\",\"stop_reason\":\"append_prefill_miss\"}]}\n\ndata: [DONE]\n\n")
		})
	})
	c.forget()
	r := c.post(chatPath, turnBody(2, streamTurn), "X-Session-ID", "s")
	require.Contains(t, r.body, "w0 ")
	require.Contains(t, r.body, "[DONE]")
	c.wantLegs(0, 1, 0)
}

// What attempts and prefill legs carry, by preset.
func TestPresetLegs(t *testing.T) {
	for name, want := range map[string]struct{ attempt, prefill string }{
		"cache-threshold": {`"cache_hit_threshold":0.5`, ``},
		"llm-d":           {`"cache_hit_threshold":0.5`, `"cache_hit_threshold":0`},
		"plain":           {``, ``},
	} {
		c := start(t, setup{change: preset(t, name)})
		for range 2 {
			require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
		}
		require.Contains(t, string(c.p[0].Records()[0].Body), want.prefill)
		records := c.d[0].Records()
		require.Len(t, records, 2)
		attempt := records[1]
		require.NotContains(t, attempt.JSON(), "kv_transfer_params")
		require.Empty(t, attempt.Header.Get("Prefer"))
		require.Contains(t, string(attempt.Body), want.attempt)
		if want.prefill == "" {
			require.NotContains(t, c.p[0].Records()[0].JSON(), "cache_hit_threshold")
		}
		require.Equal(t, "local", c.traces(2)[1].Route)
	}
}

// Pools of one proxy are asked each in its own way.
func TestPools(t *testing.T) {
	plain, err := Preset("plain")
	require.NoError(t, err)
	c := start(t, setup{decoders: 2, change: func(c *Config) {
		c.Pools = map[string]Backend{"old": plain}
		c.Decoders[1].Pool = "old"
	}})
	for i := range 4 {
		for range 2 {
			c.post(chatPath, turnBody(1, ""), "X-Session-ID", fmt.Sprint(i))
		}
	}
	marked := func(b *backendtest.Backend) (n int) {
		for _, r := range b.Records() {
			if r.Leg == "local" {
				n++
			}
		}
		return n
	}
	require.Equal(t, 2, marked(c.d[0]))
	require.Zero(t, marked(c.d[1]))
	require.Len(t, c.d[1].Records(), 4)
}

// A Decoder that answers attempts from nothing is noticed by its answers.
func TestBackendThatDoesNotRefuse(t *testing.T) {
	var log strings.Builder
	var mu sync.Mutex
	c := start(t, setup{change: func(c *Config) {
		c.Backend, _ = Preset("plain")
		c.Logger = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil))
	}, backend: func(b *backendtest.Backend) {
		b.Prompt = 3000
		b.Hook = func(w http.ResponseWriter, _ *http.Request, rec backendtest.Record) bool {
			if rec.Leg != "d" || rec.Params()["do_remote_prefill"] == true {
				return false
			}
			answering(200, `{"id":"x","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3000,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}`)(w, nil)
			return true
		}
	}})
	body := func(n int) string { return turnBody(1, fmt.Sprintf(`,"pad":"%s"`, strings.Repeat("x", 9000+n))) }
	c.post(chatPath, body(0), "X-Session-ID", "s")
	for range 3 {
		c.post(chatPath, body(1), "X-Session-ID", "s")
	}
	require.Equal(t, "local", c.traces(4)[3].Route)
	c.post(chatPath, body(1), "X-Session-ID", "s")
	require.Equal(t, "not_refusing", c.traces(5)[4].Reason)
	require.Contains(t, c.get("/metrics").body, "sluice_proxy_not_refusing_total 1")
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, log.String(), "decoder_append_prefill_enable", "what to set")
}

// The usage that an attempt is asked for stays inside unless the client asked.
func TestUsageOfAttempts(t *testing.T) {
	c := start(t, setup{})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	for more, shown := range map[string]bool{
		`,"stream":true`: false, `,"stream":true,"stream_options":null`: false, `,"stream":true,"stream_options":{"x":1}`: false,
		`,"stream":true,"stream_options":{"include_usage":true}`: true,
	} {
		r := c.post(chatPath, turnBody(1, more), "X-Session-ID", "s")
		require.Equal(t, shown, strings.Contains(r.body, "usage"), r.body)
		require.Equal(t, 5+map[bool]int{true: 1}[shown], strings.Count(r.body, `"id"`))
	}
	for _, line := range c.traces(5)[1:] {
		require.Equal(t, 96, line.Cached)
		require.Equal(t, 4, line.Legs[0].Output)
	}
}

func TestPresetErrors(t *testing.T) {
	_, err := Preset("x")
	require.ErrorIs(t, err, ErrPreset)
	for _, name := range Presets() {
		b, err := Preset(name)
		require.NoError(t, err)
		require.NoError(t, b.Validate())
	}
	for want, b := range map[string]Backend{
		"params":           {Params: json.RawMessage("[]")},
		"not valid JSON":   {Members: map[string]json.RawMessage{"a": json.RawMessage("x")}},
		"the proxy's own":  {Members: map[string]json.RawMessage{"stream": json.RawMessage("true")}},
		"not fit":          {Headers: map[string]string{"a": "b\r\nc: d"}},
		"match everything": {Refusals: []RefusalRule{{}}},
		"ordinary answer":  {Refusals: []RefusalRule{{Status: 200}}},
		"status 99":        {Refusals: []RefusalRule{{Status: 99}}},
		"slash":            {Refusals: []RefusalRule{{Pointer: "a"}}},
		"without":          {Refusals: []RefusalRule{{Equals: "a", Status: 412}}},
		"max local attempts is -1, must not be negative": {Guard: route.Guard{MaxLocalAttempts: -1}},
		"tpot target is -1ns, must not be negative":      {Guard: route.Guard{PaceTarget: -1}},
	} {
		require.ErrorContains(t, b.Validate(), want)
	}
}

const exampleFile = `
listen: 127.0.0.1:9000
append_prefill: true
prefillers: [127.0.0.1:8100, "[::1]:8101"]
decoders:
  - instances: [127.0.0.1:8200, {addr: 127.0.0.1:8201, ranks: 4}]
    ranks: 2
  - pool: ascend
    backend: vllm-ascend
    instances: [10.0.0.7:8000]
    attempt: {headers: {X-Mode: append}, params: {mark: true}, members: {flag: 1.5}}
    prefill: {members: {flag: 0}}
    refusals: [{status: 409}, {pointer: /choices/0/stop_reason, equals: miss}]
    guard: {max_suffix_tokens: 100, tpot_target: 50ms}
sessions: {sources: [prompt_cache_key, X-Session-ID], ttl: 10m, max: 5000, placement: hash, unknown_followups: pd}
limits: {concurrency_per_tenant: 4, queue_per_tenant: 8, queue_timeout: 2s}
timeouts: {idle: 90s}
breaker: {failures: 5}
`

func TestFile(t *testing.T) {
	f, err := ReadFile(strings.NewReader(exampleFile))
	require.NoError(t, err)
	c, err := f.Config()
	require.NoError(t, err)
	require.Equal(t, []Decoder{{Addr: "127.0.0.1:8200", Ranks: 2}, {Addr: "127.0.0.1:8201", Ranks: 4}, {Addr: "10.0.0.7:8000", Pool: "ascend"}}, c.Decoders)
	require.Equal(t, route.PlaceHash, c.Placement)
	require.Equal(t, UnknownPD, c.Unknown)
	require.Equal(t, 90*time.Second, c.IdleTimeout)
	b := c.Pools["ascend"]
	require.Equal(t, 100, b.Guard.MaxSuffixTokens)
	require.Equal(t, 8192, b.Guard.MaxAppendTokensInFlight, "the preset's")
	require.Equal(t, 50*time.Millisecond, b.Guard.PaceTarget)
	require.JSONEq(t, `{"mark":true}`, string(b.Params))
	require.Equal(t, "1.5", string(b.Members["flag"]))
	require.Equal(t, []RefusalRule{{Status: 409}, {Pointer: "/choices/0/stop_reason", Equals: "miss"}}, b.Refusals)

	// What --check prints says the same again.
	text, err := Effective(c, f.Listen)
	require.NoError(t, err)
	again, err := ReadFile(bytes.NewReader(text))
	require.NoError(t, err, string(text))
	c2, err := again.Config()
	require.NoError(t, err)
	text2, err := Effective(c2, again.Listen)
	require.NoError(t, err)
	require.Equal(t, string(text), string(text2))

	for bad, want := range map[string]string{
		"":                              "empty",
		"nonsense: 1":                   "nonsense",
		"listen: a\n---\nlisten: b":     "one document",
		"timeouts: {idle: 5}":           "no duration",
		"append_prefill: maybe":         "cannot unmarshal",
		"decoders: [{instances: [[]]}]": "instance is an address",
		"decoders: [{instances: [{addr: a, x: 1}]}]":                                  `no "x"`,
		"prefillers: [a:1]\ndecoders: [{backend: zzz, instances: [b:1]}]":             "unknown backend preset",
		"prefillers: [a:1]\ndecoders: [{instances: [b:1]}, {instances: [c:1]}]":       "there twice",
		"prefillers: [a:1]\ndecoders: [{instances: [b:1], refusals: [{}]}]":           "match everything",
		"prefillers: [a:1]\ndecoders: [{instances: [b:1]}]\nsessions: {sources: [x]}": "unknown session source",
		"prefillers: [a:1]\ndecoders: [{instances: [b:1]}]\nsessions: {placement: x}": "placement",
	} {
		f, err := ReadFile(strings.NewReader(bad))
		if err == nil {
			_, err = f.Config()
		}
		require.ErrorContains(t, err, want, bad)
	}
}
