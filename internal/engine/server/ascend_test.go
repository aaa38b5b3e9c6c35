package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/ascend"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// ascendSessions of the workload on Ascend: blocks of 128 tokens, bfloat16.
const ascendSessions = 3

var frozenHalf = sync.OnceValue(func() *workload { return &workload{} })

// ascendReference is the workload as the host answers it with the storage of
// Ascend, without prefix caching, graphs or overlap of steps.
func ascendReference(t *testing.T) *workload {
	t.Helper()
	require.NoError(t, ascend.Open(t).Close(t.Context()))
	w := frozenHalf()
	if len(w.turns) == 0 {
		*w = *record(t, engine.Config{DType: "bfloat16", BlockSize: 128, KVBlocks: 64, NoPrefix: true, Sync: true, Eager: true}, ascendSessions)
	}
	return w
}

func onAscend(c engine.Config) engine.Config {
	c.Device, c.KVBlocks, c.MaxSeqs = "ascend", 64, 8
	return c
}

// The engine on the emulated Ascend runtime says what it says on the host, with
// hits in the prefix cache, eager and with graphs.
func TestIdentityOnAscend(t *testing.T) {
	w := ascendReference(t)
	for _, c := range []struct {
		name string
		cfg  engine.Config
		full bool
	}{
		{"sync, eager", engine.Config{Sync: true, Eager: true}, false},
		{"async, eager, prompts in chunks", engine.Config{Eager: true, MaxTokens: 96}, false},
		{"async, FULL and PIECEWISE", engine.Config{}, true},
		{"three drafts", engine.Config{Speculative: ngram(3)}, true},
		{"sync, FULL for all, small steps", engine.Config{Sync: true, GraphMode: graphs.ModeFull, MaxTokens: 64}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := start(t, onAscend(c.cfg), Options{Noise: NoiseAllowed})
			w.both(t, func(x turn, more m) identity.Answer {
				out := n.chat(x.messages, more)
				if x.turn > 0 {
					require.Positive(t, out.Usage.Cached())
				}
				return out.Choices[0].TokenIDs
			})
			if c.full {
				require.Positive(t, n.metric("sluice_graph_steps_total", "mode", "FULL"))
			}
			n.nothingHeld()
		})
	}
}

// First turns by a prefiller and a decoder on Ascend, whose KV moves through
// pinned memory; follow-up turns are prefilled on the decoder alone.
func TestAppendPrefillOnAscend(t *testing.T) {
	w := ascendReference(t)
	x := startPair(t, onAscend(prefiller()), onAscend(decoder()))
	w.both(t, func(k turn, more m) identity.Answer {
		h := []string{"X-Session-ID", fmt.Sprint(k.session)}
		if k.turn == 0 {
			return x.remote(k.messages, more, h...).Choices[0].TokenIDs
		}
		res, raw := x.attempt(k.messages, more, h...)
		require.Equal(t, http.StatusOK, res.StatusCode, "%s", raw)
		var out openai.ChatResponse
		require.NoError(t, json.Unmarshal(raw, &out))
		require.Positive(t, out.Usage.Cached())
		return out.Choices[0].TokenIDs
	})
	x.nothingHeld()
	require.Equal(t, 2.0*ascendSessions*(turns-1), x.d.metric("sluice_append_prefill_total", "result", "hit"))
	require.Positive(t, x.d.metric("sluice_graph_steps_total", "mode", "FULL"))
	require.Equal(t, 128*1024*x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"), x.d.metric("sluice_kv_transfer_bytes_total", "direction", "received"))
}
