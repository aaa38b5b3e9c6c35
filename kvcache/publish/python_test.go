package publish

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/testkit/pyzmq"
	"github.com/sluice-serving/sluice/kvcache"
)

// python gives the interpreter of subscribers, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	name := pyzmq.Find(t)
	if name == "" {
		t.Skip(pyzmq.Missing)
	}
	return name
}

// values is JSON as values that keep every digit.
func values(t *testing.T, text []byte) (all []any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for d.More() {
		var v any
		require.NoError(t, d.Decode(&v), "%s", text)
		all = append(all, v)
	}
	return all
}

// foreign runs the Python subscriber beside do, and gives what it printed.
func foreign(t *testing.T, do func(), args ...string) []any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python(t), append([]string{"testdata/subscriber.py"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Start())
	do()
	require.NoError(t, cmd.Wait(), "%s", &errs)
	return values(t, out.Bytes())
}

type object = map[string]any

// A client in Python, with packages that are not ours, reads topic, sequence and
// payload as they were published, in both forms of events and of hashes, and
// replays what it missed.
func TestPythonSubscriber(t *testing.T) {
	python(t)
	ns := kvcache.Namespace{Salt: "pepper", LoRA: kvcache.LoRA{ID: 7, Name: "sql"}}
	h, err := kvcache.NewHasher(kvcache.SHA256CBOR, "0", kvcache.SharedScope)
	require.NoError(t, err)
	tokens := []kvcache.Token{100, 2, 3, 4, 5, 6, 7, 8}
	salted, plain := h.Chain(nil, &ns, tokens, 4), h.Chain(nil, &kvcache.Namespace{}, tokens, 4)
	short := func(hashes ...kvcache.Hash) (all []any) {
		for _, h := range hashes {
			all = append(all, h.Uint64())
		}
		return all
	}
	whole := func(hashes ...kvcache.Hash) (all []any) {
		for _, h := range hashes {
			all = append(all, object{"hex": hex.EncodeToString(h.Bytes())})
		}
		return all
	}
	for name, c := range map[string]struct {
		cfg  Config
		want [][]any // events by batch
	}{
		"maps": {Config{}, [][]any{
			{object{
				"type": "BlockStored", "block_hashes": short(salted...), "parent_block_hash": nil, "token_ids": tokens, "block_size": 4,
				"lora_id": 7, "lora_name": "sql", "medium": "GPU", "extra_keys": []any{[]any{"sql", "pepper"}, []any{"sql"}},
				"group_idx": 0, "kv_cache_spec_kind": "full_attention",
			}},
			{object{
				"type": "BlockStored", "block_hashes": short(plain...), "parent_block_hash": nil, "token_ids": tokens, "block_size": 4,
				"lora_id": nil, "lora_name": nil, "medium": "GPU", "group_idx": 0, "kv_cache_spec_kind": "full_attention",
			}},
			{object{"type": "BlockRemoved", "block_hashes": short(plain[1]), "medium": "CPU", "group_idx": 0}, object{"type": "AllBlocksCleared"}},
		}},
		"arrays": {Config{Events: EventArrays, Hashes: WholeHashes}, [][]any{
			{[]any{"BlockStored", whole(salted...), nil, tokens, 4, 7, "GPU", "sql", []any{[]any{"sql", "pepper"}, []any{"sql"}}, 0, "full_attention", nil, nil}},
			{[]any{"BlockStored", whole(plain...), nil, tokens, 4, nil, "GPU", nil, nil, 0, "full_attention", nil, nil}},
			{[]any{"BlockRemoved", whole(plain[1]), "CPU", 0, nil}, []any{"AllBlocksCleared"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := c.cfg
			cfg.Topic, cfg.Rank, cfg.Replay = "kv@pod1", 3, "tcp://127.0.0.1:0"
			cfg.Now = func() time.Time { return time.Unix(1_700_000_000, 250e6) }
			p := start(t, cfg)
			cache := cached(t)
			got := foreign(t, func() {
				await(t, "the subscriber", func() bool { return p.Stats().Subscribers == 1 })
				require.NoError(t, p.Publish(events(t, cache, ns, 100)))
				require.NoError(t, p.Publish(events(t, cache, kvcache.Namespace{}, 100)))
				require.NoError(t, p.Publish([]kvcache.Event{{Kind: kvcache.Removed, Hashes: plain[1:], Medium: "CPU"}, {Kind: kvcache.Cleared}}))
			}, "sub", "tcp://"+p.Addr().String(), "kv@", strconv.Itoa(len(c.want)))
			var want []any
			for seq, batch := range c.want {
				want = append(want, object{"topic": "kv@pod1", "seq": seq, "time": 1_700_000_000.25, "events": batch, "rank": 3})
			}
			asJSON := func(all []any) []any {
				var text bytes.Buffer
				enc := json.NewEncoder(&text)
				for _, v := range all {
					require.NoError(t, enc.Encode(v))
				}
				return values(t, text.Bytes())
			}
			require.Equal(t, asJSON(want), got)

			end := object{"topic": "", "seq": -1}
			replayed := foreign(t, func() {}, "replay", "tcp://"+p.ReplayAddr().String(), "1")
			require.Equal(t, asJSON(append(want[1:], end)), replayed)
			require.NoError(t, p.Close())
		})
	}
}
