package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

const exampleBody = `{
    "model": "your-model",
    "messages": [
      {"role": "system", "content": "You are helpful."},
      {"role": "user", "content": "Analyze this report: ..."},
      {"role": "assistant", "content": "It is fine."},
      {"role": "user", "content": "Suggest three improvements."}
    ]
  }`

// R40, R42, R43: the header example; the first turn takes P/D, later ones are
// attempted on the owner, R4 and R5 on the same Decoder and rank.
func TestSessionByHeader(t *testing.T) {
	c := start(t, setup{decoders: 4, ranks: 2})
	r := c.post(chatPath, exampleBody, "X-Session-ID", "conversation-001")
	require.Equal(t, 200, r.status, r.body)
	c.wantLegs(1, 0, 1)
	at, rank := c.serving()
	require.GreaterOrEqual(t, rank, 0)
	for turn := 2; turn <= 5; turn++ {
		c.forget()
		r = c.post(chatPath, exampleBody, "X-Session-ID", "conversation-001")
		require.Equal(t, 200, r.status, r.body)
		c.wantLegs(0, 1, 0)
		a, k := c.serving()
		require.Equal(t, [2]int{at, rank}, [2]int{a, k}, "turn %d", turn)
	}
	lines := c.traces(5)
	require.Equal(t, "pd", lines[0].Route)
	require.Equal(t, "no_owner", lines[0].Reason)
	require.Equal(t, "local", lines[4].Route)
	require.Equal(t, "hit", lines[4].Reason)
	require.Equal(t, "conversation-001", lines[4].Session)
	require.Len(t, lines[0].Legs, 2)
	require.Equal(t, lines[0].RequestID+"-p", lines[0].Legs[0].RequestID)
	require.Equal(t, lines[0].RequestID+"-d", lines[0].Legs[1].RequestID)
	require.Equal(t, lines[4].RequestID+"-local", lines[4].Legs[0].RequestID)
}

// R41: the id in the body and no header; R28.
func TestSessionByBody(t *testing.T) {
	c := start(t, setup{})
	body := strings.Replace(exampleBody, "{", `{"conversation_id": "conversation-001",`, 1)
	require.Equal(t, 200, c.post(chatPath, body).status)
	c.wantLegs(1, 0, 1)
	require.Equal(t, 200, c.post(chatPath, body).status)
	c.wantLegs(1, 1, 1)
}

// R25: without the option session ids are ignored.
func TestOffByDefault(t *testing.T) {
	c := start(t, setup{plain: true, ranks: 2})
	for range 3 {
		require.Equal(t, 200, c.post(chatPath, exampleBody, "X-Session-ID", "s").status)
	}
	c.wantLegs(3, 0, 3)
	require.Equal(t, "disabled", c.traces(3)[2].Reason)
}

// R26 and R29: a changed id is another session, and the header wins.
func TestSessionIdentity(t *testing.T) {
	c := start(t, setup{decoders: 2})
	a := turnBody(1, `,"conversation_id":"B"`)
	c.post(chatPath, a, "X-Session-ID", "A")
	c.wantLegs(1, 0, 1)
	c.post(chatPath, a, "X-Session-ID", "A2")
	c.wantLegs(2, 0, 2)
	c.post(chatPath, a) // session B, which the header hid
	c.wantLegs(3, 0, 3)
	c.post(chatPath, a, "X-Session-ID", "A")
	c.wantLegs(3, 1, 3)
	// The same id under another key is another tenant's session.
	c.post(chatPath, a, "X-Session-ID", "A", "Authorization", "Bearer other")
	c.wantLegs(4, 1, 4)
}

// R30: without a usable id nothing is attempted locally.
func TestNoSession(t *testing.T) {
	for _, id := range []string{``, `,"conversation_id":""`, `,"conversation_id":7`, `,"conversation_id":null`, `,"conversation_id":["s"]`, `,"conversation_id":{"s":1}`, `,"conversation_id":true`} {
		t.Run(id, func(t *testing.T) {
			c := start(t, setup{})
			for range 3 {
				require.Equal(t, 200, c.post(chatPath, turnBody(2, id), "X-Session-ID", "").status)
			}
			c.wantLegs(3, 0, 3)
			require.Equal(t, "no_session", c.traces(3)[2].Reason)
		})
	}
}

// R31: a shorter prompt than the turn before is only another prompt.
func TestShorterHistory(t *testing.T) {
	c := start(t, setup{})
	c.post(chatPath, turnBody(5, ""), "X-Session-ID", "s")
	require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
	c.wantLegs(1, 1, 1)
}

// R2, R8, R39, R44: a refusal is followed by exactly one Prefiller call and one
// Decoder call, in that order, with the client's body; then the session is
// attempted again.
func TestFallback(t *testing.T) {
	for _, inBand := range []bool{false, true} {
		for _, stream := range []string{"false", "true"} {
			t.Run(fmt.Sprintf("in band %v stream %s", inBand, stream), func(t *testing.T) {
				c := start(t, setup{ranks: 2, backend: func(b *backendtest.Backend) { b.InBand = inBand }})
				more := `,"stream":` + stream + `,"max_tokens":3,"seed":1.50,"z":{"b":1,"a":2}`
				c.post(chatPath, turnBody(1, more), "X-Session-ID", "s")
				c.d[0].Evict("s")
				c.forget()
				r := c.post(chatPath, turnBody(2, more), "X-Session-ID", "s")
				require.Equal(t, 200, r.status)
				require.NotContains(t, r.body, "append_prefill_miss")
				require.Contains(t, r.body, "w2 ")
				c.wantLegs(1, 1, 1)
				seen := c.d[0].Records()
				require.Equal(t, []string{"local", "d"}, []string{seen[0].Leg, seen[1].Leg})
				require.Equal(t, true, seen[1].Params()["do_remote_prefill"])
				require.NotContains(t, seen[1].Params(), "decoder_append_prefill")
				require.Contains(t, string(seen[1].Body), `"seed":1.50,"z":{"b":1,"a":2}`)
				require.NotEqual(t, seen[0].Header.Get("X-Request-Id"), seen[1].Header.Get("X-Request-Id"))
				line := c.traces(2)[1]
				require.Equal(t, "fallback", line.Route)
				require.Equal(t, "refused:no_prefix", line.Reason)
				require.Zero(t, line.Legs[0].Output)
				c.forget()
				c.post(chatPath, turnBody(3, more), "X-Session-ID", "s")
				c.wantLegs(0, 1, 0)
			})
		}
	}
}

// The legs in pull mode carry what the wire says and nothing of the client's
// own transfer parameters or headers.
func TestLegs(t *testing.T) {
	c := start(t, setup{ranks: 2, change: func(c *Config) { c.APIKey = "secret" }})
	body := `{"model":"m","prompt":"hello","stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":9,"unknown":1e2,"kv_transfer_params":{"remote_host":"evil"},"cache_hit_threshold":0.5,"return_token_ids":true,"conversation_id":"s"}`
	r := c.post("/v1/completions", body, "Authorization", "Bearer client", "Cookie", "c=1", "X-Request-Id", "abc")
	require.Equal(t, 200, r.status)
	require.Equal(t, "abc", r.header.Get("X-Request-Id"))
	p := c.p[0].Records()[0]
	require.Equal(t, `{"model":"m","prompt":"hello","stream":false,"max_completion_tokens":1,"unknown":1e2,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},"conversation_id":"s","max_tokens":1,"min_tokens":1}`, string(p.Body))
	require.Equal(t, "Bearer secret", p.Header.Get("Authorization"))
	require.Empty(t, p.Header.Get("Cookie"))
	require.Equal(t, "abc-p", p.Header.Get("X-Request-Id"))
	require.Equal(t, -1, p.Rank)
	d := c.d[0].Records()[0]
	require.Equal(t, "abc-d", d.Header.Get("X-Request-Id"))
	require.Equal(t, "cmpl-abc-p-0", d.Params()["remote_request_id"])
	require.Equal(t, true, d.JSON()["stream"])
	require.InDelta(t, 9, d.JSON()["max_completion_tokens"], 0)
	require.NotContains(t, d.JSON(), "max_tokens")
	require.Equal(t, true, d.JSON()["return_token_ids"], "no client sees a Prefiller's answer, but this one")
	require.GreaterOrEqual(t, d.Rank, 0)
	c.forget()
	c.post("/v1/completions", body, "Authorization", "Bearer client")
	l := c.d[0].Records()[0]
	require.Equal(t, "local", l.Leg)
	require.Equal(t, "if-available", l.Header.Get("Prefer"))
	require.Equal(t, map[string]any{"decoder_append_prefill": true, "do_remote_prefill": false, "do_remote_decode": false}, l.Params())
	require.Equal(t, d.Rank, l.Rank)
}

// The rank header goes only to instances with more than one rank.
func TestNoRankHeader(t *testing.T) {
	c := start(t, setup{ranks: 1})
	for range 2 {
		c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	}
	for _, r := range c.d[0].Records() {
		require.Equal(t, -1, r.Rank)
	}
}

// One client-visible response id whichever leg answers; the Prefiller's cached
// tokens on the P/D route, the Decoder's on a hit; no transfer parameters.
func TestClientView(t *testing.T) {
	for _, cached := range []int{-1, 0, 64} {
		c := start(t, setup{backend: func(b *backendtest.Backend) { b.Cached = cached }})
		for turn, want := range []int{max(cached, 0), 96} {
			r := c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s", "X-Request-Id", "id-7")
			m := r.json(t)
			require.Equal(t, "chatcmpl-id-7", m["id"])
			require.NotContains(t, m, "kv_transfer_params")
			details := m["usage"].(map[string]any)["prompt_tokens_details"].(map[string]any)
			require.InDelta(t, want, details["cached_tokens"], 0, "turn %d", turn)
			require.Equal(t, "application/json", r.header.Get("Content-Type"))
		}
		r := c.post(chatPath, turnBody(1, `,"stream":true,"stream_options":{"include_usage":true}`), "X-Request-Id", "id-8")
		require.Equal(t, "text/event-stream; charset=utf-8", r.header.Get("Content-Type"))
		require.Contains(t, r.body, fmt.Sprintf(`"cached_tokens":%d}`, max(cached, 0)))
		require.NotContains(t, r.body, "id-8-d")
		require.Equal(t, 6, strings.Count(r.body, `"id":"chatcmpl-id-8"`))
		require.True(t, strings.HasSuffix(r.body, "data: [DONE]\n\n"))
	}
}

// The Decoder that serves a session's last turn is told that it is the last one,
// on whichever route, and nobody of any other turn.
func TestTheEndOfASessionIsTold(t *testing.T) {
	c := start(t, setup{})
	say := func(turn int, session string, headers ...string) {
		t.Helper()
		require.Equal(t, 200, c.post(chatPath, turnBody(turn, ""), append(headers, "X-Session-ID", session)...).status)
	}
	say(1, "s")
	say(2, "s", "X-Session-End", "false")
	say(3, "s", "X-Session-End", "true")   // a local attempt
	say(1, "one", "X-Session-End", "True") // by way of the Prefiller
	say(1, "", "X-Session-End", "true")    // of no session
	told := map[string]int{}
	for _, b := range append(append([]*backendtest.Backend{}, c.p...), c.d...) {
		for _, r := range b.Records() {
			if v := r.Header.Get("X-Session-End"); v != "" {
				require.Equal(t, "true", v)
				told[r.Leg]++
			}
		}
	}
	require.Equal(t, map[string]int{"local": 1, "d": 1}, told)
}
