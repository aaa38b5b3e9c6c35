package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/sluice-serving/sluice/kvcache"
)

// The flag and the seed of the environment reach the engine: a router that asks
// for everything from the start reads the block that a prompt has filled, under the
// hash that vLLM gives it with this seed.
func TestServePublishesKVEvents(t *testing.T) {
	t.Setenv("PYTHONHASHSEED", "42")
	ctx, cancel := context.WithCancel(t.Context())
	var out, log lockedBuffer
	root := newRootCmd()
	root.SetOut(&out)
	root.SetErr(&log)
	root.SetArgs([]string{
		"serve", "--port", "0", "--enforce-eager", "--device-workers", "1", "--kv-events-config",
		`{"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:0","replay_endpoint":"tcp://127.0.0.1:0","topic":"kv@pod"}`,
	})
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	found := func(text *lockedBuffer, pattern string) string {
		var m []string
		require.Eventually(t, func() bool {
			m = regexp.MustCompile(pattern).FindStringSubmatch(text.String())
			return m != nil
		}, time.Minute, 5*time.Millisecond, pattern)
		return m[1]
	}
	url, replay := found(&out, `listening on (http://\S+)`), found(&log, `replay=(127\.0\.0\.1:\d+)`)
	prompt := strings.Repeat("a", 20)
	res, err := http.Post(url+"/v1/completions", "application/json", bytes.NewReader([]byte(`{"prompt":"`+prompt+`","max_tokens":1,"ignore_eos":true}`)))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)

	waits, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	dealer := zmq4.NewDealer(waits)
	defer dealer.Close()
	require.NoError(t, dealer.Dial("tcp://"+replay))
	var m zmq4.Msg
	for { // until the batch is encoded
		require.NoError(t, dealer.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, 0))))
		m, err = dealer.Recv()
		require.NoError(t, err)
		if len(m.Frames[3]) > 0 {
			break
		}
	}
	require.Equal(t, "kv@pod", string(m.Frames[1]))
	require.Zero(t, binary.BigEndian.Uint64(m.Frames[2]))
	var batch []any
	require.NoError(t, msgpack.Unmarshal(m.Frames[3], &batch))
	stored := batch[1].([]any)[0].(map[string]any)
	require.Equal(t, "BlockStored", stored["type"])
	var tokens []kvcache.Token
	for _, id := range stored["token_ids"].([]any) {
		tokens = append(tokens, kvcache.Token(uintOf(t, id)))
	}
	require.Len(t, tokens, 16)
	h, err := kvcache.NewHasher(kvcache.SHA256CBOR, "42", kvcache.SharedScope)
	require.NoError(t, err)
	require.Equal(t, h.Chain(nil, &kvcache.Namespace{}, tokens, 16)[0].Uint64(), uintOf(t, stored["block_hashes"].([]any)[0]))
}

// uintOf is a whole number of any of msgpack's sizes.
func uintOf(t *testing.T, v any) uint64 {
	t.Helper()
	raw, err := msgpack.Marshal(v)
	require.NoError(t, err)
	var n uint64
	require.NoError(t, msgpack.Unmarshal(raw, &n))
	return n
}
