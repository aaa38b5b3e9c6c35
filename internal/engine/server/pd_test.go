package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// pair is a prefiller and a decoder, each behind HTTP.
type pair struct{ p, d *node }

func prefiller() engine.Config {
	return engine.Config{KVTransfer: engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleProducer}}
}

func decoder() engine.Config {
	return engine.Config{
		KVTransfer: engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleConsumer},
		Additional: engine.Additional{Scheduler: engine.SchedulerOptions{DecoderAppendPrefill: true}},
	}
}

func startPair(t *testing.T, p, d engine.Config) *pair {
	t.Helper()
	return &pair{start(t, p, Options{Noise: NoiseAllowed}), start(t, d, Options{Noise: NoiseAllowed})}
}

// prefill runs the P leg of a turn and gives the parameters for D.
func (x *pair) prefill(messages []m, more m) json.RawMessage {
	body := chatBody(messages, more)
	body["max_tokens"], body["min_tokens"] = 1, 1
	body["kv_transfer_params"] = m{
		"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
	}
	delete(body, "kv_noise")
	res, raw := x.p.post("/v1/chat/completions", body)
	require.Equal(x.p.t, http.StatusOK, res.StatusCode, "%s", raw)
	var out openai.ChatResponse
	require.NoError(x.p.t, json.Unmarshal(raw, &out))
	require.NotEmpty(x.p.t, out.KVTransferParams)
	require.Equal(x.p.t, 1, out.Usage.CompletionTokens)
	return out.KVTransferParams
}

// remote serves a turn by both engines.
func (x *pair) remote(messages []m, more m, headers ...string) openai.ChatResponse {
	params := x.prefill(messages, more)
	with := m{"kv_transfer_params": params}
	for k, v := range more {
		with[k] = v
	}
	return x.d.chat(messages, with, headers...)
}

// attempt is the local leg of a follow-up turn.
func (x *pair) attempt(messages []m, more m, headers ...string) (*http.Response, []byte) {
	body := chatBody(messages, more)
	body["kv_transfer_params"] = m{"decoder_append_prefill": true, "do_remote_prefill": false, "do_remote_decode": false}
	return x.d.post("/v1/chat/completions", body, headers...)
}

func (x *pair) nothingHeld() {
	x.p.nothingHeld()
	x.d.nothingHeld()
}

func TestIdentityOfPD(t *testing.T) {
	w := reference(t)
	cases := []struct {
		name string
		p, d func(*engine.Config)
	}{
		{"two ranks, small steps", func(c *engine.Config) { c.MaxTokens = 64 }, func(c *engine.Config) { c.DataParallel, c.MaxTokens = 2, 64 }},
		{"async", func(*engine.Config) {}, func(*engine.Config) {}},
		{"sync, eager, P without prefix reuse", func(c *engine.Config) { c.NoPrefix, c.Sync = true, true }, func(c *engine.Config) { c.Sync, c.Eager = true, true }},
	}
	for _, c := range cases[:min(few, len(cases))] {
		t.Run(c.name, func(t *testing.T) {
			p, d := prefiller(), decoder()
			c.p(&p)
			c.d(&d)
			x := startPair(t, p, d)
			w.both(t, func(k turn, more m) identity.Answer {
				var h []string
				if d.DataParallel > 1 {
					h = []string{"X-data-parallel-rank", fmt.Sprint(k.session % 2)}
				}
				return x.remote(k.messages, more, h...).Choices[0].TokenIDs
			})
			x.nothingHeld()
			blocks := x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received")
			require.Positive(t, blocks)
			require.Equal(t, blocks*32*1024, x.d.metric("sluice_kv_transfer_bytes_total", "direction", "received"))
			require.Equal(t, x.d.metric("sluice_kv_transfer_bytes_total", "direction", "received"), x.p.metric("sluice_kv_transfer_bytes_total", "direction", "sent"))
		})
	}
}

// First turns by P and D, follow-ups on D alone: the answers are those of an
// uncached engine, P is not asked again, and nothing is pulled for a hit.
func TestIdentityOfAppendPrefill(t *testing.T) {
	w := reference(t)
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprintf("sync=%v", sync), func(t *testing.T) {
			d := decoder()
			d.Sync, d.DataParallel = sync, 2
			x := startPair(t, prefiller(), d)
			w.both(t, func(k turn, more m) identity.Answer {
				h := []string{"X-data-parallel-rank", fmt.Sprint(k.session % 2), "X-Session-ID", fmt.Sprint(k.session)}
				if k.turn == 0 {
					out := x.remote(k.messages, more, h...)
					var p struct {
						Resident int `json:"resident_tokens"`
					}
					require.NoError(t, json.Unmarshal(out.KVTransferParams, &p))
					require.Equal(t, (out.Usage.TotalTokens-1)/16*16, p.Resident)
					return out.Choices[0].TokenIDs
				}
				res, raw := x.attempt(k.messages, more, h...)
				require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
				require.Equal(t, x.d.engine.ID(k.session%2), res.Header.Get("X-Sluice-Engine"))
				var out openai.ChatResponse
				require.NoError(t, json.Unmarshal(raw, &out))
				require.Positive(t, out.Usage.Cached())
				return out.Choices[0].TokenIDs
			})
			x.nothingHeld()
			require.Equal(t, 2.0*sessions, x.p.metric("vllm:request_success_total"))
			require.Equal(t, 2.0*sessions*(turns-1), x.d.metric("sluice_append_prefill_total", "result", "hit"))
			require.Zero(t, x.d.metric("sluice_append_prefill_total", "result", "refused"))
		})
	}
}

func TestRefusal(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	tr, err := engine.OpenTrace(trace)
	require.NoError(t, err)
	n := startTraced(t, decoder(), Options{}, tr)
	x := &pair{d: n}
	ask := []m{{"role": "user", "content": words(100)}}
	for _, stream := range []bool{false, true} {
		res, raw := x.attempt(ask, m{"stream": stream}, "X-Request-Id", "abc-local")
		require.Equal(t, http.StatusPreconditionFailed, res.StatusCode)
		require.Equal(t, "application/json", res.Header.Get("Content-Type"))
		require.Equal(t, n.engine.ID(0), res.Header.Get("X-Sluice-Engine"))
		e, ok := openai.ParseError(res.StatusCode, raw)
		require.True(t, ok)
		require.True(t, e.IsMiss())
		require.Equal(t, openai.MissNoPrefix, e.Code)
		require.Equal(t, &openai.RefusalCounts{PromptTokens: 119, CachedTokens: 0}, e.Refusal)
	}
	res, _ := n.post("/v1/chat/completions", chatBody(ask, nil), "Prefer", "return=minimal, If-Available")
	require.Equal(t, http.StatusPreconditionFailed, res.StatusCode, "asked for by the header alone")
	n.chat(ask, nil) // not asked for: never refused
	res, raw := x.attempt(ask, nil)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
	n.nothingHeld()
	require.Equal(t, 3.0, n.metric("sluice_append_prefill_total", "result", "refused", "reason", "no_prefix"))
	require.Equal(t, 1.0, n.metric("sluice_append_prefill_total", "result", "hit"))
	require.Eventually(t, func() bool {
		lines, err := os.ReadFile(trace)
		return err == nil && strings.Contains(string(lines), `{"event":"refuse","request_id":"abc-local","rank":0,"reason":"no_prefix","prompt_tokens":119,"cached_tokens":0}`)
	}, waitFor, tick)
}

func TestRefusalInBand(t *testing.T) {
	cfg := decoder()
	cfg.AppendRefusal = engine.RefuseInBand
	x := &pair{d: start(t, cfg, Options{})}
	ask := []m{{"role": "user", "content": words(100)}}
	res, raw := x.attempt(ask, nil)
	require.Equal(t, http.StatusOK, res.StatusCode)
	var out openai.ChatResponse
	require.NoError(t, json.Unmarshal(raw, &out))
	require.Zero(t, out.Usage.CompletionTokens)
	require.Empty(t, out.Choices[0].Message.Content)
	require.Equal(t, "stop", *out.Choices[0].FinishReason)
	require.Equal(t, openai.TypeAppendPrefillMiss, out.Choices[0].StopReason)
	x.d.nothingHeld()
}

// Without the switch an attempt is an ordinary request.
func TestAttemptWithoutTheFeature(t *testing.T) {
	cfg := decoder()
	cfg.Additional = engine.Additional{}
	x := &pair{d: start(t, cfg, Options{})}
	res, _ := x.attempt([]m{{"role": "user", "content": words(100)}}, nil)
	require.Equal(t, http.StatusOK, res.StatusCode)
}

// A request may ask not to run here unless enough of it is cached, on any
// route; a prefiller's share of the work is not asked.
func TestCacheHitThreshold(t *testing.T) {
	x := startPair(t, prefiller(), decoder())
	ask := func(more m) openai.CompletionResponse {
		body := m{"prompt": words(100), "max_tokens": 8, "ignore_eos": true}
		for k, v := range more {
			body[k] = v
		}
		return x.d.complete(body)
	}
	refused := func(out openai.CompletionResponse) {
		t.Helper()
		require.Equal(t, openai.FinishCacheThreshold, *out.Choices[0].FinishReason)
		require.Zero(t, out.Usage.CompletionTokens)
		require.Empty(t, out.Choices[0].Text)
	}
	refused(ask(m{"cache_hit_threshold": 0.5}))
	require.Equal(t, 8, ask(nil).Usage.CompletionTokens)
	require.Equal(t, 8, ask(m{"cache_hit_threshold": 0.9}).Usage.CompletionTokens, "96 of 100 tokens are cached")
	refused(ask(m{"cache_hit_threshold": 0.99}))
	x.remote([]m{{"role": "user", "content": "hello"}}, m{"cache_hit_threshold": 0.9})
	x.nothingHeld()

	global := decoder()
	global.CacheHitThreshold = 0.5
	x.d = start(t, global, Options{})
	refused(ask(nil))
	require.Equal(t, 8, ask(m{"cache_hit_threshold": 0}).Usage.CompletionTokens)
}

// The guarded profile refuses an attempt whose prefix is only a small share of
// the prompt; the plain one takes it.
func TestProfiles(t *testing.T) {
	for profile, status := range map[engine.AppendProfile]int{engine.AppendPlain: 200, "": 200, engine.AppendGuarded: 412} {
		cfg := decoder()
		cfg.Additional.Scheduler.AppendProfile = profile
		x := &pair{d: start(t, cfg, Options{})}
		system := m{"role": "system", "content": words(100)}
		x.d.chat([]m{system, {"role": "user", "content": "first"}}, nil)
		res, raw := x.attempt([]m{system, {"role": "user", "content": words(600)[50:]}}, nil, "X-Session-ID", "s", "X-Session-End", "true")
		require.Equal(t, status, res.StatusCode, "%s", raw)
		if status == 412 {
			require.Contains(t, string(raw), openai.MissBelowMinPrefix)
		}
		x.d.nothingHeld()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, x.d.url+"/v1/sessions/s", nil)
		require.NoError(t, err)
		res, err = x.d.client.Do(req)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, http.StatusNoContent, res.StatusCode)
	}
}
