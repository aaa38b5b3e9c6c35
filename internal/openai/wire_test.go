package openai

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPromptForms(t *testing.T) {
	for _, c := range []struct {
		in     string
		texts  []string
		tokens [][]int32
		bad    bool
	}{
		{in: `"hi"`, texts: []string{"hi"}},
		{in: `["a","b"]`, texts: []string{"a", "b"}},
		{in: `["a"]`, texts: []string{"a"}},
		{in: `[1,2,3]`, tokens: [][]int32{{1, 2, 3}}},
		{in: `[ [1],[2,3]]`, tokens: [][]int32{{1}, {2, 3}}},
		{in: `[]`},
		{in: `1`, bad: true},
		{in: `null`, bad: true},
		{in: `[1,"a"]`, bad: true},
		{in: `["a",1]`, bad: true},
		{in: `[[1],2]`, bad: true},
		{in: `[1.5]`, bad: true},
		{in: `[99999999999]`, bad: true},
		{in: `{}`, bad: true},
	} {
		var p Prompt
		err := p.UnmarshalJSON([]byte(c.in))
		require.Equal(t, c.bad, err != nil, "%s: %v", c.in, err)
		if c.bad {
			continue
		}
		require.Equal(t, c.texts, p.Texts, c.in)
		require.Equal(t, c.tokens, p.Tokens, c.in)
		require.Equal(t, len(c.texts)+len(c.tokens), p.Len())
		out, err := json.Marshal(p)
		require.NoError(t, err)
		require.JSONEq(t, c.in, string(out))
	}
}

func TestRequestMembers(t *testing.T) {
	var c ChatRequest
	require.NoError(t, json.Unmarshal([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},"b"]},{"role":"assistant","content":null}],
		"stop":"x","max_tokens":5,"max_completion_tokens":3,"stream":true,"stream_options":{"include_usage":true},"kv_transfer_params":{"z":1.0},"cache_salt":"s","unknown":1}`), &c))
	require.Equal(t, Content("a\nb"), c.Messages[0].Content)
	require.Equal(t, Content(""), c.Messages[1].Content)
	require.Equal(t, Strings{"x"}, c.Stop)
	n, ok := c.OutputLimit()
	require.True(t, ok)
	require.Equal(t, 3, n)
	require.Equal(t, `{"z":1.0}`, string(c.KVTransferParams))
	require.Equal(t, "s", c.CacheSalt)
	require.True(t, c.StreamOptions.IncludeUsage)

	require.Error(t, json.Unmarshal([]byte(`{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`), &c))
	require.Error(t, json.Unmarshal([]byte(`{"messages":[{"role":"user","content":7}]}`), &c))
	var r CompletionRequest
	require.NoError(t, json.Unmarshal([]byte(`{"prompt":[1],"stop":["a","b"]}`), &r))
	require.Equal(t, Strings{"a", "b"}, r.Stop)
	_, ok = r.OutputLimit()
	require.False(t, ok)
	require.Error(t, json.Unmarshal([]byte(`{"prompt":"a","stop":3}`), &r))
}

func TestErrorShape(t *testing.T) {
	w := httptest.NewRecorder()
	Miss(MissNoPrefix, 48, 0).Write(w)
	require.Equal(t, 412, w.Code)
	require.JSONEq(t, `{"error":{"type":"append_prefill_miss","code":"no_prefix","param":null,"message":"the local prefix does not serve this prompt (no_prefix): 0 of 48 tokens are cached","prompt_tokens":48,"cached_tokens":0}}`, w.Body.String())
	e, ok := ParseError(412, w.Body.Bytes())
	require.True(t, ok)
	require.True(t, e.IsMiss())
	require.Equal(t, 48, e.Refusal.PromptTokens)

	w = httptest.NewRecorder()
	TooMany(7, "slow down").Write(w)
	require.Equal(t, "7", w.Header().Get("Retry-After"))
	require.JSONEq(t, `{"error":{"message":"slow down","type":"rate_limit_error","param":null,"code":null}}`, w.Body.String())

	for _, in := range []string{`{"error":{"message":"m","type":"t","code":400}}`, `{"object":"error","message":"m","type":"t","code":400}`} {
		e, ok := ParseError(400, []byte(in))
		require.True(t, ok)
		require.Equal(t, "400", e.Code)
		require.False(t, e.IsMiss())
	}
	for _, in := range []string{``, `[]`, `{"id":"x"}`, `{"error":null}`} {
		_, ok := ParseError(500, []byte(in))
		require.False(t, ok, in)
	}
}

func TestUsage(t *testing.T) {
	var u *Usage
	require.Zero(t, u.Cached())
	u = NewUsage(10, 2, 8)
	require.Equal(t, 8, u.Cached())
	out, err := json.Marshal(CompletionResponse{ID: "cmpl-x", Object: ObjectCompletion, Choices: []CompletionChoice{{}}, Usage: u})
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"cmpl-x","object":"text_completion","created":0,"model":"","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":8}}}`, string(out))
	list, err := json.Marshal(NewModelList(Model{ID: "m"}))
	require.NoError(t, err)
	require.JSONEq(t, `{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":""}]}`, string(list))
}
