package server

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
)

// A model without a tokenizer is served by token ids, and says so to text.
func TestModelWithoutTokenizer(t *testing.T) {
	n := start(t, engine.Config{Model: "random:tiny", BlockSize: 16, KVBlocks: 64, MaxModelLen: 256}, Options{})
	r := n.complete(m{"model": "random:tiny", "prompt": []int{5, 500, 7}, "max_tokens": 6, "ignore_eos": true, "return_token_ids": true})
	require.Empty(t, r.Choices[0].Text)
	require.Len(t, r.Choices[0].TokenIDs, 6)
	require.Equal(t, 6, r.Usage.CompletionTokens)
	for path, body := range map[string]m{
		"/v1/completions":      {"model": "random:tiny", "prompt": "text"},
		"/v1/chat/completions": {"model": "random:tiny", "messages": []m{{"role": "user", "content": "text"}}},
	} {
		resp, raw := n.post(path, body)
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)
		require.Contains(t, string(raw), "no tokenizer")
	}
	resp, raw := n.post("/v1/completions", m{"model": "random:tiny", "prompt": []int{512}})
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Contains(t, string(raw), "token id 512 is not in the vocabulary of 512")
	_, err := engine.New(t.Context(), engine.Config{Model: "random:tiny", MaxModelLen: 5000}, engine.Options{})
	require.ErrorContains(t, err, "max-model-len is 5000; model tiny has 4096 positions")
}
