package server

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
)

// guardedDecoder is a Decoder with the guarded profile and members of
// decoder_append_prefill_guards.
func guardedDecoder(t *testing.T, guards string) engine.Config {
	t.Helper()
	a, err := engine.ParseAdditional(`{"scheduler_config":{"decoder_append_prefill_enable":true,"decoder_append_prefill_profile":"guarded","decoder_append_prefill_guards":{` + guards + `}}}`)
	require.NoError(t, err)
	cfg := decoder()
	cfg.Additional = a
	return cfg
}

// What the sender knows of the other route comes with the request; an engine
// that has measured its steps refuses an attempt that would take longer here,
// before any other byte.
func TestRemoteETA(t *testing.T) {
	n := start(t, guardedDecoder(t, ""), Options{})
	for i := range 10 { // what a step takes here
		n.complete(m{"prompt": fmt.Sprint(i, words(60)), "max_tokens": 3, "ignore_eos": true})
	}
	prompt := words(200)
	attempt := func(eta float64, stream bool) (*http.Response, []byte) {
		return n.post("/v1/completions", m{
			"prompt": prompt + " and then", "max_tokens": 4, "ignore_eos": true, "stream": stream, "cache_salt": fmt.Sprint(stream),
			"kv_transfer_params": m{"decoder_append_prefill": true, "remote_eta_ms": eta},
		})
	}
	for _, stream := range []bool{false, true} {
		n.complete(m{"prompt": prompt, "max_tokens": 1, "cache_salt": fmt.Sprint(stream)})
		res, raw := attempt(1e-6, stream)
		require.Equal(t, http.StatusPreconditionFailed, res.StatusCode, "%s", raw)
		e, ok := openai.ParseError(res.StatusCode, raw)
		require.True(t, ok)
		require.Equal(t, openai.MissBusy, e.Code)
		require.Equal(t, &openai.RefusalCounts{PromptTokens: 209, CachedTokens: 192}, e.Refusal)
		res, raw = attempt(3e6, stream)
		require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
	}
	n.nothingHeld()
	require.Equal(t, 2.0, n.metric("sluice_append_prefill_total", "reason", "busy"))
	require.Equal(t, 2.0, n.metric("sluice_append_prefill_total", "result", "hit"))
}

// The answer of a session's turn says how much of it stays and until when, in
// milliseconds since 1970; without a lease it promises no time.
func TestResidentUntilOnTheWire(t *testing.T) {
	type kept struct {
		Tokens *int   `json:"resident_tokens"`
		Until  *int64 `json:"resident_until_ms"`
	}
	turn := func(n *node, headers ...string) (k kept) {
		out := n.complete(m{"prompt": words(100), "max_tokens": 2, "ignore_eos": true}, headers...)
		if out.KVTransferParams != nil {
			require.NoError(t, json.Unmarshal(out.KVTransferParams, &k))
		}
		return k
	}
	n := start(t, guardedDecoder(t, ""), Options{})
	k := turn(n, "X-Session-ID", "s")
	require.Equal(t, 96, *k.Tokens)
	left := time.Until(time.UnixMilli(*k.Until))
	require.Greater(t, left, time.Minute)
	require.LessOrEqual(t, left, 5*time.Minute)
	k = turn(n, "X-Session-ID", "s", "X-Session-End", "true")
	require.Equal(t, 96, *k.Tokens)
	require.Nil(t, k.Until, "nobody comes back")
	require.Zero(t, turn(n))
	k = turn(start(t, decoder(), Options{}), "X-Session-ID", "s")
	require.Equal(t, 96, *k.Tokens)
	require.Nil(t, k.Until)
}

// A prefix that only the host tier still has is usable: it is brought back, and
// the answer is that of an engine without a cache.
func TestAppendFromTheHostTier(t *testing.T) {
	cfg := guardedDecoder(t, `"leases":false`)
	cfg.KVTransfer = transferConfig(t, `{"kv_connector":"multi","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[
		{"kv_connector":"pd"},{"kv_connector":"offload","kv_connector_extra_config":{"cpu_bytes_to_use":16777216,"enable_offload_prefix_caching":true}}]}}`)
	cfg.KVBlocks, cfg.MaxModelLen = 40, 600
	n := start(t, cfg, Options{})
	plain := start(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, Options{})
	rng := rand.New(rand.NewPCG(3, 4))
	first := text16(rng, 300)
	ask := func(prompt string) m {
		return m{"prompt": prompt, "max_tokens": 8, "ignore_eos": true, "return_token_ids": true}
	}
	n.complete(ask(first), "X-Session-ID", "s")
	saved := func() bool {
		return n.metric("sluice_kv_offload_total", "event", "turn") > 0 && n.metric("sluice_kv_offload_blocks", "state", "used") == 0
	}
	require.Eventually(t, saved, waitFor, tick)
	for range 2 { // the device forgets
		n.complete(ask(text16(rng, 520)))
	}
	require.Eventually(t, saved, waitFor, tick)
	second := first + text16(rng, 40)
	body := ask(second)
	body["kv_transfer_params"] = m{"decoder_append_prefill": true}
	res, raw := n.post("/v1/completions", body, "X-Session-ID", "s")
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
	var out openai.CompletionResponse
	require.NoError(t, json.Unmarshal(raw, &out))
	require.Equal(t, plain.complete(ask(second)).Choices[0].TokenIDs, out.Choices[0].TokenIDs)
	require.GreaterOrEqual(t, n.metric("sluice_append_prefill_tokens_total", "kind", "restored"), 250.0, "of some 300")
	require.Equal(t, 1.0, n.metric("sluice_kv_offload_total", "event", "hit"))
	require.Equal(t, 340.0, n.metric("sluice_append_prefill_tokens_total"), "each token of the prompt is of one kind")
	n.nothingHeld()
}
