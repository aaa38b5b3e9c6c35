package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
	"github.com/sluice-serving/sluice/connector/transport/mooncake/emulated"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// endpoint is where a prefiller's blocks are read, as its answers tell.
type endpoint struct {
	EngineID string `json:"remote_engine_id"`
	Host     string `json:"remote_host"`
	Port     int    `json:"remote_port"`
}

// P pushes while it computes, step by step: the answers are those of an
// uncached engine, and no lease stays behind.
func TestIdentityOfPush(t *testing.T) {
	w := reference(t)
	p := prefiller()
	p.MaxTokens = 64 // several steps a prompt
	x := startPair(t, p, decoder())
	var at endpoint
	require.NoError(t, json.Unmarshal(x.prefill([]m{{"role": "user", "content": "hello"}}, nil), &at))
	var n atomic.Int64
	pushed := func(k turn, more m) identity.Answer {
		id := fmt.Sprintf("transfer-%d", n.Add(1))
		var wg sync.WaitGroup
		wg.Go(func() {
			body := chatBody(k.messages, more)
			body["max_tokens"], body["min_tokens"] = 1, 1
			body["kv_transfer_params"] = m{"do_remote_decode": true, "transfer_mode": "push", "transfer_id": id}
			delete(body, "kv_noise")
			res, raw := x.p.post("/v1/chat/completions", body)
			require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
		})
		with := m{"kv_transfer_params": m{
			"do_remote_prefill": true, "transfer_mode": "push", "transfer_id": id,
			"remote_engine_id": at.EngineID, "remote_host": at.Host, "remote_port": at.Port,
		}}
		for name, v := range more {
			with[name] = v
		}
		out := x.d.chat(k.messages, with)
		wg.Wait()
		return out.Choices[0].TokenIDs
	}
	w.both(t, pushed)
	require.Positive(t, x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"))
	require.Zero(t, x.d.metric("sluice_kv_transfer_failures_total"))
	require.Eventually(t, func() bool { return x.p.metric("sluice_kv_leases") <= 1 }, waitFor, tick, "the one of the first prompt, which nobody took, stays")
	x.d.nothingHeld()
}

// D keeps its turns' blocks and names them; P reads them back for the next
// turn, computes the rest, and hands all of it on.
func TestIdentityOfReversePull(t *testing.T) {
	w := reference(t)
	p, d := prefiller(), decoder()
	p.NoPrefix = true // what P knows of an earlier turn comes from D
	d.KVBlocks = 2048
	p.KVTransfer.Extra.Bidirectional, d.KVTransfer.Extra.Bidirectional = true, true
	x := startPair(t, p, d)
	var mu sync.Mutex
	kept := map[string]json.RawMessage{}
	serve := func(k turn, more m) identity.Answer {
		session := fmt.Sprint(k.session, more["cache_salt"])
		mu.Lock()
		params := kept[session]
		mu.Unlock()
		body := chatBody(k.messages, more)
		body["max_tokens"], body["min_tokens"] = 1, 1
		body["kv_transfer_params"] = m{"do_remote_decode": true, "do_remote_prefill": false}
		if params != nil {
			body["kv_transfer_params"] = params
		}
		delete(body, "kv_noise")
		res, raw := x.p.post("/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
		var first openai.ChatResponse
		require.NoError(t, json.Unmarshal(raw, &first))
		with := m{"kv_transfer_params": first.KVTransferParams}
		for name, v := range more {
			with[name] = v
		}
		var h []string
		if k.turn == turns-1 {
			h = []string{"X-Session-ID", session, "X-Session-End", "true"}
		} else {
			h = []string{"X-Session-ID", session}
		}
		out := x.d.chat(k.messages, with, h...)
		mu.Lock()
		kept[session] = out.KVTransferParams
		mu.Unlock()
		return out.Choices[0].TokenIDs
	}
	w.both(t, serve)
	require.Positive(t, x.p.metric("sluice_kv_transfer_blocks_total", "direction", "received"), "P has read from D")
	require.Positive(t, x.d.metric("sluice_kv_transfer_bytes_total", "direction", "sent"))
	x.nothingHeld()
	require.Zero(t, x.d.metric("sluice_kv_leases"), "the sessions have ended")
}

// Engines that show each other certificates of one authority work together; a
// stranger's pull fails, and so no KV is wrong: the prompt is computed here.
func TestPDOverTLS(t *testing.T) {
	w := reference(t)
	ca, other := conformance.NewAuthority(t), conformance.NewAuthority(t)
	with := func(c engine.Config, signer, trusted *conformance.Authority) engine.Config {
		cert, key := signer.Issue(t, "127.0.0.1")
		c.KVTransfer.Extra.TLS = &engine.TLSFiles{Cert: cert, Key: key, CA: trusted.File}
		return c
	}
	x := startPair(t, with(prefiller(), ca, ca), with(decoder(), ca, ca))
	got := x.remote(w.turns[0].messages, m{"cache_salt": "a"})
	require.Equal(t, w.want[0], identity.Answer(got.Choices[0].TokenIDs))
	require.Positive(t, x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"))
	x.nothingHeld()

	cfg := with(decoder(), other, ca)
	cfg.KVTransfer.LoadFailure = "recompute"
	stranger := &pair{x.p, start(t, cfg, Options{})}
	got = stranger.remote(w.turns[0].messages, m{"cache_salt": "b"})
	require.Equal(t, w.want[0], identity.Answer(got.Choices[0].TokenIDs))
	require.Zero(t, stranger.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"))
	require.Positive(t, stranger.d.metric("sluice_kv_transfer_failures_total", "direction", "received"))
}

// Who may name any peer decides whose KV is cached: peers elsewhere are
// refused by a status that names the member of the configuration.
func TestPeersThatWereNotConfigured(t *testing.T) {
	x := startPair(t, prefiller(), decoder())
	ask := []m{{"role": "user", "content": words(100)}}
	var params m
	require.NoError(t, json.Unmarshal(x.prefill(ask, nil), &params))
	params["remote_host"] = "localhost"
	res, raw := x.d.post("/v1/chat/completions", chatBody(ask, m{"kv_transfer_params": params}))
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	require.Contains(t, string(raw), "kv_peers")
	require.Contains(t, string(raw), "kv_transfer_params")
	x.d.nothingHeld()

	cfg := decoder()
	cfg.KVTransfer.Extra.Peers = []string{"localhost"}
	x.d = start(t, cfg, Options{})
	res, raw = x.d.post("/v1/chat/completions", chatBody(ask, m{"kv_transfer_params": params}))
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
	require.Positive(t, x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"))
	x.nothingHeld()
}

// Transport faults that the configuration asks for change no answer.
func TestIdentityUnderTransportFaults(t *testing.T) {
	w := reference(t)
	d := decoder()
	d.KVTransfer.Extra.Faults, d.KVTransfer.Extra.FaultSeed = "read%3 corrupt; read%5 error; read%7 delay 5ms; connect#2 error", 1
	x := startPair(t, prefiller(), d)
	w.both(t, func(k turn, more m) identity.Answer { return x.remote(k.messages, more).Choices[0].TokenIDs })
	require.Positive(t, x.d.metric("sluice_kv_transfer_failures_total", "direction", "received"))
	x.nothingHeld()
}

// Each transport gives the same answers; one that this binary or machine lacks
// is an error at the start that says what to do.
func TestIdentityOfTransports(t *testing.T) {
	lib, err := emulated.Build()
	if err != nil {
		t.Logf("without the emulated Transfer Engine: %v", err)
		lib = ""
	}
	t.Setenv(emulated.Variable, lib)
	for name, advice := range map[string]string{engine.TransportUCX: "-tags ucx", engine.TransportMooncake: emulated.Variable} {
		t.Run(name, func(t *testing.T) {
			w := reference(t)
			p, d := prefiller(), decoder()
			p.KVTransfer.Extra.Transport, d.KVTransfer.Extra.Transport = name, name
			e, err := engine.New(t.Context(), engine.Config{KVTransfer: d.KVTransfer, Eager: true, MaxSeqs: 4, DeviceWorkers: 1}, engine.Options{})
			if err != nil {
				require.False(t, name == engine.TransportMooncake && lib != "", "%v", err)
				var absent *transport.UnavailableError
				require.ErrorAs(t, err, &absent)
				require.Equal(t, name, absent.Transport)
				require.ErrorContains(t, err, advice)
				return
			}
			require.NoError(t, e.Close())
			x := startPair(t, p, d)
			w.both(t, func(k turn, more m) identity.Answer { return x.remote(k.messages, more).Choices[0].TokenIDs })
			require.Positive(t, x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"))
			require.Zero(t, x.d.metric("sluice_kv_transfer_failures_total", "direction", "received"))
			x.nothingHeld()
		})
	}
}

// A file of another process is left alone, and a folder that cannot be read
// does not take the engine down later.
func TestFileTierLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "dp0", "notes.txt")
	require.NoError(t, os.MkdirAll(filepath.Dir(mine), 0o700))
	require.NoError(t, os.WriteFile(mine, []byte("keep"), 0o600))
	cfg := engine.Config{KVTransfer: transferConfig(t, `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8388608,
		"enable_offload_prefix_caching":true,"file_path":"`+dir+`","file_bytes":67108864}}`)}
	n := start(t, cfg, Options{})
	n.complete(m{"prompt": words(200), "max_tokens": 4, "ignore_eos": true})
	require.Eventually(t, func() bool { // the gauge moves when the engine next turns
		n.complete(m{"prompt": "x", "max_tokens": 1, "ignore_eos": true})
		return n.metric("sluice_kv_offload_file_bytes") > 0
	}, waitFor, tick)
	raw, err := os.ReadFile(mine)
	require.NoError(t, err)
	require.Equal(t, "keep", string(raw))
	n.nothingHeld()
}
