package server

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/internal/chain"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

func transferConfig(t *testing.T, s string) engine.KVTransfer {
	t.Helper()
	k, err := engine.ParseKVTransfer(s)
	require.NoError(t, err)
	return k
}

const (
	offloadAlone = `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":16777216}}`
	offloadAndPD = `{"kv_connector":"multi","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[
		{"kv_connector":"offload","kv_connector_extra_config":{"cpu_bytes_to_use":16777216}},{"kv_connector":"pd"}]}}`
)

// A preempted request comes back from the host tier, where it was, and answers
// as if nothing had happened; with both generations of executors, both modes of
// scheduling, alone and beside the pull from a prefiller, with and without
// sending victims away that find no room.
func TestIdentityOfOffload(t *testing.T) {
	const promptLen, outputLen = 200, 150
	n := min(6, sessions+1)
	rng := rand.New(rand.NewPCG(1, 9))
	prompts := make([]string, n)
	for i := range prompts {
		prompts[i] = text16(rng, promptLen)
	}
	ask := func(to *node, more m) []identity.Answer {
		out := make([]identity.Answer, n)
		var wg sync.WaitGroup
		for i := range prompts {
			wg.Go(func() {
				ids := tokens(prompts[i])
				for again := true; again && len(out[i]) < outputLen; { // a victim that is sent away comes back, as a proxy brings it
					body := m{"prompt": append(ids[:len(ids):len(ids)], out[i]...), "max_tokens": outputLen - len(out[i]), "ignore_eos": true, "return_token_ids": true}
					for k, v := range more {
						body[k] = v
					}
					choice := to.complete(body).Choices[0]
					out[i] = append(out[i], choice.TokenIDs...)
					again = choice.StopReason == openai.StopRecomputed
				}
			})
		}
		wg.Wait()
		return out
	}
	want := ask(start(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, Options{}), nil)
	recompute := engine.Additional{Scheduler: engine.SchedulerOptions{DecoderAppendPrefill: true, Recompute: true}}
	cases := []struct {
		name, transfer string
		cfg            engine.Config
	}{
		{"with pd and recompute, runner 2", offloadAndPD, engine.Config{Additional: recompute, Runner: 2}},
		{"async", offloadAlone, engine.Config{}},
		{"sync", offloadAlone, engine.Config{Sync: true}},
		{"runner 2, sync", offloadAlone, engine.Config{Sync: true, Runner: 2}},
		{"runner 2, async", offloadAlone, engine.Config{Runner: 2}},
		{"no prefix cache", offloadAlone, engine.Config{NoPrefix: true}},
		{"with pd and recompute", offloadAndPD, engine.Config{Additional: recompute}},
	}
	for _, c := range cases[:min(few, len(cases))] {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.KVTransfer = transferConfig(t, c.transfer)
			c.cfg.BlockSize, c.cfg.KVBlocks, c.cfg.MaxModelLen = 8, 55, 440
			x := start(t, c.cfg, Options{Noise: NoiseAllowed})
			got := ask(x, m{"cache_salt": "right"})
			require.Positive(t, x.metric("vllm:num_preemptions_total"))
			require.Positive(t, x.metric("sluice_kv_offload_total", "event", "save"))
			require.Positive(t, x.metric("sluice_kv_offload_total", "event", "restore"))
			require.Positive(t, x.metric("sluice_kv_offload_bytes_total", "direction", "restored"))
			require.Zero(t, x.metric("sluice_kv_offload_total", "event", "failed"))
			runner := "1"
			if c.cfg.Runner == 2 {
				runner = "2"
			}
			require.Equal(t, 1.0, x.metric("sluice_engine_info", "runner", runner))
			identity.Check(t, want, got, func() []identity.Answer { return ask(x, m{"cache_salt": "wrong", "kv_noise": true}) })
			x.nothingHeld()
			require.Zero(t, x.metric("sluice_kv_offload_blocks", "state", "used"))
		})
	}
}

// tokens are the ids of a text: its bytes.
func tokens(text string) []int32 {
	out := make([]int32, len(text))
	for i := range text {
		out[i] = int32(text[i])
	}
	return out
}

// A finished turn that has gone from the device comes back from the host tier,
// and after a restart from files; answers stay the same. A disk that is full
// now and then changes nothing but what is found later.
func TestIdentityOfTiers(t *testing.T) {
	w := reference(t)
	dir := t.TempDir()
	tier := engine.Config{BlockSize: 16, KVBlocks: 160, MaxModelLen: 2560}
	tier.KVTransfer = transferConfig(t, `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":67108864,
		"enable_offload_prefix_caching":true,"eviction_policy":"arc","file_path":"`+dir+`","file_bytes":268435456,"file_full_every":5}}`)
	serve := func(n *node) {
		ask := func(x turn, more m) identity.Answer { return n.chat(x.messages, more).Choices[0].TokenIDs }
		if few == 1 { // the control overwrites blocks while others save them, which the race detector sees
			require.Equal(t, w.want, w.replay(func(x turn) identity.Answer { return ask(x, m{"cache_salt": "right"}) }))
			return
		}
		w.both(t, ask)
	}
	n := start(t, tier, Options{Noise: NoiseAllowed})
	serve(n)
	require.Positive(t, n.metric("sluice_kv_offload_total", "event", "turn"))
	n.nothingHeld()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "dp0", "*.sluicekv"))
		return err == nil && len(files) > 0
	}, waitFor, tick)
	require.NoError(t, n.engine.Close())

	again := start(t, tier, Options{Noise: NoiseAllowed})
	for i := len(w.turns) - 1; i >= 0; i -= turns { // the last turn of each session
		out := again.chat(w.turns[i].messages, m{"cache_salt": "right"})
		require.Equal(t, w.want[i], identity.Answer(out.Choices[0].TokenIDs))
	}
	require.Positive(t, again.metric("sluice_kv_offload_total", "event", "hit"), "found in the files of the engine before")
	again.nothingHeld()
}

// One request goes through all of it, in order: an append attempt, preemption,
// its KV on the host, ready, back on the device, and 512 tokens of output (fewer under the race
// detector).
func TestChainOfAppendAndOffload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	tr, err := engine.OpenTrace(file)
	require.NoError(t, err)
	d := decoder()
	d.KVTransfer = transferConfig(t, offloadAndPD)
	d.KVBlocks, d.BlockSize = 24+chainOutput*5/64, 16 // the prompts of three, and the outputs of one and a half
	d.MaxModelLen = min(800, d.KVBlocks*d.BlockSize)
	n := startTraced(t, d, Options{Noise: NoiseAllowed}, tr)
	x := &pair{p: start(t, prefiller(), Options{}), d: n}
	plain := start(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, Options{})

	const users = 3
	first := make([][]m, users)
	second := make([][]m, users)
	rng := rand.New(rand.NewPCG(7, 7))
	var want []identity.Answer
	for u := range users {
		first[u] = []m{{"role": "user", "content": text16(rng, 120)}}
		reply := plain.chat(first[u], nil).Choices[0].Message.Content
		second[u] = append(append([]m(nil), first[u]...), m{"role": "assistant", "content": reply}, m{"role": "user", "content": text16(rng, 20)})
		want = append(want, plain.chat(second[u], m{"max_tokens": chainOutput, "ignore_eos": true}).Choices[0].TokenIDs)
	}
	run := func(more m) []identity.Answer {
		got := make([]identity.Answer, users)
		for u := range users {
			x.remote(first[u], more)
		}
		var wg sync.WaitGroup
		for u := range users {
			wg.Go(func() {
				body := m{"max_tokens": chainOutput, "ignore_eos": true}
				for k, v := range more {
					body[k] = v
				}
				res, raw := x.attempt(second[u], body)
				if res.StatusCode == http.StatusPreconditionFailed { // its prefix went while it waited: the ordinary route
					got[u] = x.remote(second[u], body).Choices[0].TokenIDs
					return
				}
				var out openai.ChatResponse
				require.NoError(t, json.Unmarshal(raw, &out), "%s", raw)
				got[u] = out.Choices[0].TokenIDs
			})
		}
		wg.Wait()
		return got
	}
	got := run(m{"cache_salt": "right"})
	identity.Check(t, want, got, func() []identity.Answer { return run(m{"cache_salt": "wrong", "kv_noise": true}) })
	require.Positive(t, n.metric("sluice_kv_offload_total", "event", "restore"))
	x.nothingHeld()
	require.NoError(t, n.engine.Close())
	require.NoError(t, tr.Close())
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotEmpty(t, chain.Complete(bytes.NewReader(raw), chainOutput), "%s", raw)
}

func TestConnectorsRefuseToStart(t *testing.T) {
	notADir := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(notADir, nil, 0o600))
	for text, transfer := range map[string]string{
		"choose a folder that this user may write to": `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":1048576,"enable_offload_prefix_caching":true,"file_path":"` + notADir + `/x","file_bytes":1000}}`,
		"lower cpu_bytes_to_use":                      `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":4611686018427387904}}`,
		"tls certificate":                             `{"kv_connector":"pd","kv_role":"kv_consumer","kv_connector_extra_config":{"tls":{"cert":"/no/a","key":"/no/b","ca":"/no/c"}}}`,
		"pd control channel":                          `{"kv_connector":"pd","kv_role":"kv_consumer","kv_ip":"192.0.2.1"}`,
	} {
		_, err := engine.New(t.Context(), engine.Config{DeviceWorkers: 1, MaxSeqs: 4, Eager: true, KVTransfer: transferConfig(t, transfer)}, engine.Options{})
		require.ErrorContains(t, err, text, transfer)
	}
	big := engine.Config{DeviceWorkers: 1, MaxSeqs: 4, Eager: true}
	big.KVTransfer = transferConfig(t, `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":4611686018427387904}}`)
	_, err := engine.New(t.Context(), big, engine.Options{})
	var e *offload.MemoryError
	require.ErrorAs(t, err, &e)
}
