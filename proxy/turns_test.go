package proxy

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

// ending answers as a Decoder that keeps the turn's blocks under that name;
// without one as a Decoder that does not.
func ending(name string) http.HandlerFunc {
	params := ""
	if name != "" {
		params = fmt.Sprintf(`,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":%q,"remote_num_tokens":40}`, name)
	}
	return answering(200, `{"id":"chatcmpl-x","object":"chat.completion","created":1,"model":"fake","choices":[{"index":0,"message":{"role":"assistant","content":"w0 "},"finish_reason":"stop"}],"usage":{"prompt_tokens":48,"completion_tokens":1,"total_tokens":49}`+params+`}`)
}

// readingBack is a proxy that never asks the owner, and so always the Prefiller.
func readingBack(c *Config) {
	c.Backend, _ = Preset("sluice")
	c.Backend.Bidirectional, c.Backend.Guard.MaxSuffixTokens = true, 1
}

// named are the engines whose blocks the prefill legs were told of, in order.
func (c *cluster) named() (out []any) {
	for _, b := range c.p {
		for _, r := range b.Records() {
			out = append(out, r.Params()["remote_engine_id"])
		}
	}
	return out
}

func TestTurnIsNamedToThePrefiller(t *testing.T) {
	for _, on := range []bool{true, false} {
		c := start(t, setup{change: func(cfg *Config) {
			readingBack(cfg)
			cfg.Backend.Bidirectional = on
		}})
		say := func(turn int, name, session string, headers ...string) {
			t.Helper()
			c.d[0].Hook = decoding(ending(name))
			r := c.post(chatPath, turnBody(turn, ""), append(headers, "X-Session-ID", session)...)
			require.Equal(t, 200, r.status, r.body)
			require.NotContains(t, r.body, "kv_transfer_params", "clients are not told")
		}
		say(1, "d-1", "s")
		say(2, "d-2", "s")
		say(3, "", "s")     // reads d-2 and leaves nothing
		say(4, "d-4", "s")  // nothing to read
		say(1, "d-9", "s2") // another session
		say(5, "", "s", "X-Session-End", "true")
		say(1, "", "") // no session
		want := []any{nil, "d-1", "d-2", nil, nil, "d-4", nil}
		if !on {
			want = make([]any, len(want))
		}
		require.Equal(t, want, c.named())
	}
}

// decoding answers every decode leg and attempt.
func decoding(h http.HandlerFunc) func(http.ResponseWriter, *http.Request, backendtest.Record) bool {
	return func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
		if rec.Leg == "p" {
			return false
		}
		h(w, r)
		return true
	}
}

// A Prefiller that fails may have failed for what it was told to read: the next
// one is told of nothing.
func TestTurnIsNamedOnce(t *testing.T) {
	c := start(t, setup{prefillers: 2, change: readingBack})
	c.d[0].Hook = decoding(ending("d-1"))
	require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
	for _, p := range c.p {
		p.Forget()
		p.Hook = func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
			if rec.Params()["remote_engine_id"] == nil {
				return false
			}
			answering(500, errorObject)(w, r)
			return true
		}
	}
	require.Equal(t, 200, c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s").status)
	require.ElementsMatch(t, []any{"d-1", nil}, c.named())
}

// What one Prefiller has read is not there for the next round's.
func TestTurnIsNotNamedAgainWhenTheDecoderFails(t *testing.T) {
	c := start(t, setup{decoders: 2, change: readingBack})
	for _, d := range c.d {
		d.Hook = decoding(ending("d-1"))
	}
	require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
	owner, _ := c.serving()
	c.d[owner].Hook = decoding(answering(500, errorObject))
	require.Equal(t, 200, c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s").status)
	require.Equal(t, []any{nil, "d-1", nil}, c.named())
}

// A session whose owner is gone moves to another Decoder, which is told where to
// read; if that does not work, the Prefiller computes everything.
func TestSessionMoves(t *testing.T) {
	for _, works := range []bool{true, false} {
		c := start(t, setup{decoders: 2, change: func(cfg *Config) {
			readingBack(cfg)
			cfg.Backend.Guard.MaxSuffixTokens = 100
		}})
		for _, d := range c.d {
			d.Hook = decoding(ending("d-1"))
		}
		require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
		owner, _ := c.serving()
		c.proxy.mu.Lock()
		require.NoError(t, c.proxy.router.DrainDecoder(c.d[owner].Addr))
		c.proxy.mu.Unlock()
		next := c.d[1-owner]
		next.Hook = func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
			if !works && rec.Params()["remote_engine_id"] == "d-1" {
				answering(500, errorObject)(w, r)
				return true
			}
			return decoding(ending("d-2"))(w, r, rec)
		}
		require.Equal(t, 200, c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s").status)
		first := next.Records()[0].Params()
		require.Equal(t, "d-1", first["remote_engine_id"])
		require.Equal(t, true, first["do_remote_prefill"])
		require.Equal(t, false, first["do_remote_decode"])
		prefills := []any{nil, nil}
		if works {
			prefills = prefills[:1]
		}
		require.Equal(t, prefills, c.named())
	}
}

func TestKeptTurnsAreBounded(t *testing.T) {
	var k keptTurns
	now := time.Now()
	key := func(n int) route.SessionKey { return route.KeyOf("", fmt.Sprint(n)) }
	put := func(n, size int) { k.put(&kept{key: key(n), params: make([]byte, size), until: now.Add(keepFor)}) }
	put(1, 1<<20)
	put(1, 2<<20)
	require.Equal(t, 2<<20, k.size)
	for i := 2; i < 100; i++ {
		put(i, 1<<20)
	}
	require.LessOrEqual(t, k.size, maxKeptBytes)
	require.Nil(t, k.take(key(1), now), "the oldest went")
	require.NotNil(t, k.take(key(99), now))
	require.Nil(t, k.take(key(99), now), "it is good for one reader")
	require.Nil(t, k.take(key(98), now.Add(keepFor+1)))
	for i := range 100 {
		k.take(key(i), now)
	}
	require.Zero(t, k.size)
	require.Zero(t, k.order.Len())
	require.Empty(t, k.index)
}
