package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
)

func TestBadInput(t *testing.T) {
	n := start(t, engine.Config{MaxModelLen: 256, DataParallel: 2}, Options{})
	long := strings.Repeat("x", 256)
	chat := func(more string) string {
		return `{"messages":[{"role":"user","content":"hello"}]` + more + `}`
	}
	for _, c := range []struct {
		name, path, body string
		headers          []string
		status           int
		param, code      string
	}{
		{"malformed JSON", "completions", `{"prompt":`, nil, 400, "", ""},
		{"no JSON at all", "completions", `hello`, nil, 400, "", ""},
		{"empty body", "completions", ``, nil, 400, "", ""},
		{"a list", "completions", `[]`, nil, 400, "", ""},
		{"no prompt", "completions", `{}`, nil, 400, "prompt", ""},
		{"empty prompt", "completions", `{"prompt":""}`, nil, 400, "prompt", ""},
		{"empty list of prompts", "completions", `{"prompt":[]}`, nil, 400, "prompt", ""},
		{"one empty prompt of two", "completions", `{"prompt":["a",""]}`, nil, 400, "prompt", ""},
		{"empty token list", "completions", `{"prompt":[[]]}`, nil, 400, "prompt", ""},
		{"prompt of a wrong type", "completions", `{"prompt":7}`, nil, 400, "", ""},
		{"mixed prompt", "completions", `{"prompt":[1,"a"]}`, nil, 400, "", ""},
		{"token beyond the vocabulary", "completions", `{"prompt":[1,272]}`, nil, 400, "prompt", ""},
		{"a token that is null", "completions", `{"prompt":[1,null]}`, nil, 400, "", ""},
		{"a token that is null in the second of two", "completions", `{"prompt":[[1],[null]]}`, nil, 400, "", ""},
		{"a list that is null", "completions", `{"prompt":[[1],null]}`, nil, 400, "", ""},
		{"negative token", "completions", `{"prompt":[-1]}`, nil, 400, "prompt", ""},
		{"prompt longer than the model", "completions", `{"prompt":"` + long + `"}`, nil, 400, "prompt", "context_length_exceeded"},
		{"chat longer than the model", "chat/completions", `{"messages":[{"role":"user","content":"` + long + `"}]}`, nil, 400, "messages", "context_length_exceeded"},
		{"negative max_tokens", "completions", `{"prompt":"a","max_tokens":-1}`, nil, 400, "max_tokens", ""},
		{"max_tokens of 0", "completions", `{"prompt":"a","max_tokens":0}`, nil, 400, "max_tokens", ""},
		{"max_tokens beyond the model", "completions", `{"prompt":"a","max_tokens":100000}`, nil, 400, "max_tokens", "context_length_exceeded"},
		{"max_tokens beyond an int", "completions", `{"prompt":"a","max_tokens":99999999999999999999}`, nil, 400, "max_tokens", ""},
		{"max_tokens as text", "completions", `{"prompt":"a","max_tokens":"8"}`, nil, 400, "max_tokens", ""},
		{"fractional max_tokens", "completions", `{"prompt":"a","max_tokens":1.5}`, nil, 400, "max_tokens", ""},
		{"negative max_completion_tokens", "chat/completions", chat(`,"max_completion_tokens":-5`), nil, 400, "max_tokens", ""},
		{"min above max", "completions", `{"prompt":"a","max_tokens":2,"min_tokens":3}`, nil, 400, "min_tokens", ""},
		{"negative min_tokens", "completions", `{"prompt":"a","min_tokens":-3}`, nil, 400, "min_tokens", ""},
		{"unknown model", "completions", `{"model":"gpt-x","prompt":"a"}`, nil, 404, "model", "model_not_found"},
		{"unknown model in chat", "chat/completions", chat(`,"model":"gpt-x"`), nil, 404, "model", "model_not_found"},
		{"n of 0", "completions", `{"prompt":"a","n":0}`, nil, 400, "n", ""},
		{"huge n", "completions", `{"prompt":"a","n":1000000000}`, nil, 400, "n", ""},
		{"temperature out of range", "completions", `{"prompt":"a","temperature":-1}`, nil, 400, "temperature", ""},
		{"top_p out of range", "completions", `{"prompt":"a","top_p":3}`, nil, 400, "top_p", ""},
		{"empty stop string", "completions", `{"prompt":"a","stop":""}`, nil, 400, "stop", ""},
		{"stop of a wrong type", "completions", `{"prompt":"a","stop":{"a":1}}`, nil, 400, "", ""},
		{"stop token beyond the vocabulary", "completions", `{"prompt":"a","stop_token_ids":[999]}`, nil, 400, "stop_token_ids", ""},
		{"cache_hit_threshold out of range", "completions", `{"prompt":"a","cache_hit_threshold":1.5}`, nil, 400, "cache_hit_threshold", ""},
		{"cache_salt of a wrong type", "completions", `{"prompt":"a","cache_salt":5}`, nil, 400, "cache_salt", ""},
		{"kv_transfer_params of a wrong type", "completions", `{"prompt":"a","kv_transfer_params":"x"}`, nil, 400, "kv_transfer_params", ""},
		{"a marker of a wrong type", "completions", `{"prompt":"a","kv_transfer_params":{"decoder_append_prefill":"yes"}}`, nil, 400, "kv_transfer_params", ""},
		{"too many logprobs", "completions", `{"prompt":"a","logprobs":21}`, nil, 400, "logprobs", ""},
		{"negative logprobs", "completions", `{"prompt":"a","logprobs":-1}`, nil, 400, "logprobs", ""},
		{"logprobs of a wrong type", "completions", `{"prompt":"a","logprobs":true}`, nil, 400, "logprobs", ""},
		{"too many top_logprobs", "chat/completions", chat(`,"logprobs":true,"top_logprobs":21`), nil, 400, "top_logprobs", ""},
		{"top_logprobs alone", "chat/completions", chat(`,"top_logprobs":2`), nil, 400, "top_logprobs", ""},
		{"chat logprobs as a number", "chat/completions", chat(`,"logprobs":2`), nil, 400, "logprobs", ""},
		{"temperature too high", "completions", `{"prompt":"a","temperature":2.1}`, nil, 400, "temperature", ""},
		{"temperature as text", "completions", `{"prompt":"a","temperature":"hot"}`, nil, 400, "temperature", ""},
		{"top_p of 0", "completions", `{"prompt":"a","top_p":0}`, nil, 400, "top_p", ""},
		{"top_k below -1", "completions", `{"prompt":"a","top_k":-2}`, nil, 400, "top_k", ""},
		{"min_p out of range", "completions", `{"prompt":"a","min_p":1.1}`, nil, 400, "min_p", ""},
		{"presence_penalty out of range", "completions", `{"prompt":"a","presence_penalty":-2.1}`, nil, 400, "presence_penalty", ""},
		{"frequency_penalty out of range", "completions", `{"prompt":"a","frequency_penalty":3}`, nil, 400, "frequency_penalty", ""},
		{"repetition_penalty of 0", "completions", `{"prompt":"a","repetition_penalty":0}`, nil, 400, "repetition_penalty", ""},
		{"negative repetition_penalty", "completions", `{"prompt":"a","repetition_penalty":-1}`, nil, 400, "repetition_penalty", ""},
		{"seed beyond 64 bits", "completions", `{"prompt":"a","seed":99999999999999999999}`, nil, 400, "seed", ""},
		{"fractional seed", "completions", `{"prompt":"a","seed":1.5}`, nil, 400, "seed", ""},
		{"logit_bias of no token", "completions", `{"prompt":"a","logit_bias":{"x":1}}`, nil, 400, "logit_bias", ""},
		{"logit_bias beyond the vocabulary", "completions", `{"prompt":"a","logit_bias":{"272":1}}`, nil, 400, "logit_bias", ""},
		{"logit_bias out of range", "completions", `{"prompt":"a","logit_bias":{"5":101}}`, nil, 400, "logit_bias", ""},
		{"a format that needs a grammar", "chat/completions", chat(`,"response_format":{"type":"json_object"}`), nil, 400, "response_format", ""},
		{"a format of a wrong type", "chat/completions", chat(`,"response_format":5`), nil, 400, "response_format", ""},
		{"structured outputs", "completions", `{"prompt":"a","structured_outputs":{"regex":"a"}}`, nil, 400, "structured_outputs", ""},
		{"a guided answer", "completions", `{"prompt":"a","guided_json":{"type":"object"}}`, nil, 400, "guided_json", ""},
		{"a choice of answers", "completions", `{"prompt":"a","guided_choice":["a","b"]}`, nil, 400, "guided_choice", ""},
		{"allowed tokens", "completions", `{"prompt":"a","allowed_token_ids":[65]}`, nil, 400, "allowed_token_ids", ""},
		{"words that must not occur", "completions", `{"prompt":"a","bad_words":["x"]}`, nil, 400, "bad_words", ""},
		{"noise that is not enabled", "completions", `{"prompt":"a","kv_noise":true}`, nil, 400, "kv_noise", ""},
		{"rank that does not exist", "completions", `{"prompt":"a"}`, []string{"X-data-parallel-rank", "2"}, 400, "X-data-parallel-rank", ""},
		{"no messages", "chat/completions", `{}`, nil, 400, "messages", ""},
		{"empty messages", "chat/completions", `{"messages":[]}`, nil, 400, "messages", ""},
		{"unknown role", "chat/completions", `{"messages":[{"role":"boss","content":"x"}]}`, nil, 400, "messages[0].role", ""},
		{"content of a wrong type", "chat/completions", `{"messages":[{"role":"user","content":5}]}`, nil, 400, "", ""},
		{"an image", "chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`, nil, 400, "", ""},
		{"messages as an object", "chat/completions", `{"messages":{"role":"user"}}`, nil, 400, "messages", ""},
		{"a body that is too large", "completions", `{"prompt":"` + strings.Repeat("x", maxBody) + `"}`, nil, 413, "", "body_too_large"},
		{"a request id that is too long", "completions", `{"prompt":"a"}`, []string{"X-Request-Id", long + "x"}, 400, "X-Request-Id", ""},
		{"deep nesting", "completions", `{"prompt":"a","kv_transfer_params":{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}}`, nil, 400, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, stream := range []string{"", `"stream":true,`} {
				body := c.body
				if stream != "" {
					if !strings.HasPrefix(body, "{") {
						continue
					}
					body = strings.ReplaceAll("{"+stream+body[1:], ",}", "}")
				}
				res, raw := n.post("/v1/"+c.path, body, c.headers...)
				require.Equal(t, c.status, res.StatusCode, "%s", raw)
				require.Equal(t, "application/json", res.Header.Get("Content-Type"))
				require.NotEmpty(t, res.Header.Get("X-Sluice-Engine"))
				e, ok := openai.ParseError(res.StatusCode, raw)
				require.True(t, ok, "%s", raw)
				require.NotEmpty(t, e.Message)
				require.NotEmpty(t, e.Type)
				if c.param != "" && c.name != "empty body" {
					require.Equal(t, c.param, e.Param)
				}
				if c.code != "" {
					require.Equal(t, c.code, e.Code)
				}
			}
		})
	}
	n.nothingHeld()
	require.Zero(t, n.metric("vllm:prompt_tokens_total"), "nothing of it ran")
	require.Equal(t, "length", *n.complete(m{"prompt": "still here", "ignore_eos": true}).Choices[0].FinishReason)
}

func TestUnknownMembersAndOddSessionsAreIgnored(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	for _, id := range []any{"", nil, 7, []int{1}, m{"a": 1}, "s-1"} {
		n.complete(m{"prompt": "hello", "conversation_id": id, "no_such_member": 1, "user": "u"})
	}
	n.complete(m{"prompt": "hello"}, "X-data-parallel-rank", "first")
	n.complete(m{"prompt": "hello", "response_format": m{"type": "text"}, "bad_words": []string{}, "guided_json": nil}) // constrains nothing
}

func TestPathsAndMethods(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	do := func(method, path string) (int, []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, n.url+path, nil)
		require.NoError(t, err)
		res, err := n.client.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, raw
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/health", 200}, {"GET", "/v1/models", 200}, {"GET", "/v1/models/builtin", 200}, {"GET", "/v1/models/other", 404},
		{"GET", "/v1/completions", 405}, {"DELETE", "/v1/models", 405}, {"GET", "/nothing", 404}, {"POST", "/reset_prefix_cache", 200},
	} {
		status, raw := do(c.method, c.path)
		require.Equal(t, c.status, status, "%s %s", c.method, c.path)
		if status >= 400 {
			_, ok := openai.ParseError(status, raw)
			require.True(t, ok, "%s", raw)
		}
	}
	_, raw := do("GET", "/v1/models")
	var list openai.ModelList
	require.NoError(t, json.Unmarshal(raw, &list))
	require.Equal(t, "builtin", list.Data[0].ID)
	require.Equal(t, 4096, list.Data[0].MaxModelLen)
}

// A client that goes away in the middle of a stream leaves nothing behind.
func TestDisconnect(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	for _, stream := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		body, err := json.Marshal(m{"prompt": words(300), "max_tokens": 3000, "ignore_eos": true, "stream": stream, "n": 3})
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/completions", strings.NewReader(string(body)))
		require.NoError(t, err)
		if stream {
			res, err := n.client.Do(req)
			require.NoError(t, err)
			_, err = io.ReadFull(res.Body, make([]byte, 200))
			require.NoError(t, err)
			cancel()
			res.Body.Close()
		} else {
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err := n.client.Do(req)
			require.ErrorIs(t, err, context.Canceled)
		}
		n.nothingHeld()
	}
	require.Equal(t, 6.0, n.metric("vllm:request_success_total", "finished_reason", "abort"))
}

func TestQueueFull(t *testing.T) {
	n := start(t, engine.Config{MaxQueue: 2}, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		s, err := n.engine.Submit(ctx, engine.Request{ID: "long", Prompt: []token{1, 2, 3}, MaxTokens: 4000, IgnoreEOS: true, Rank: engine.AnyRank})
		require.NoError(t, err)
		defer s.Cancel()
	}
	res, raw := n.post("/v1/completions", m{"prompt": "one more"})
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode, "%s", raw)
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	e, ok := openai.ParseError(res.StatusCode, raw)
	require.True(t, ok)
	require.Equal(t, openai.TypeRateLimit, e.Type)
}

func TestDraining(t *testing.T) {
	n := start(t, decoder(), Options{})
	s, err := n.engine.Submit(t.Context(), engine.Request{ID: "running", Prompt: []token{1, 2, 3}, MaxTokens: 200, IgnoreEOS: true, Rank: engine.AnyRank})
	require.NoError(t, err)
	drained := make(chan error, 1)
	go func() { drained <- n.engine.Drain(t.Context()) }()
	require.Eventually(t, func() bool { return n.engine.Err() != nil }, waitFor, tick)
	res, _ := n.post("/v1/completions", m{"prompt": "hello"})
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	res, raw := (&pair{d: n}).attempt([]m{{"role": "user", "content": "hello"}}, nil)
	require.Equal(t, http.StatusPreconditionFailed, res.StatusCode)
	require.Contains(t, string(raw), openai.MissDraining)
	count := 0
	for count < 200 {
		d, err := s.Next(t.Context())
		require.NoError(t, err)
		count += len(d.Tokens)
	}
	require.NoError(t, <-drained, "what ran has ended")
	res, err = n.client.Get(n.url + "/health")
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
}

// A request that D refuses before it runs frees what P keeps for it.
func TestRefusedRemotePrefillFreesP(t *testing.T) {
	x := startPair(t, prefiller(), decoder())
	ask := []m{{"role": "user", "content": words(100)}}
	for _, more := range []m{{"max_tokens": 100000}, {"max_tokens": -1}, {"model": "other"}, {"n": 0}} {
		params := x.prefill(ask, nil)
		require.Positive(t, x.p.metric("sluice_kv_blocks", "state", "held"))
		body := chatBody(ask, more)
		body["kv_transfer_params"] = params
		res, _ := x.d.post("/v1/chat/completions", body)
		require.GreaterOrEqual(t, res.StatusCode, 400)
		x.nothingHeld()
	}
}

// KV that does not arrive: by default D computes the prompt itself, and the
// answer is the right one.
func TestPrefillerIsGone(t *testing.T) {
	w := reference(t)
	ask, want := w.turns[0].messages, w.want[0]
	p := start(t, prefiller(), Options{})
	recompute, fail := decoder(), decoder()
	fail.KVTransfer.LoadFailure = "fail"
	d1, d2 := start(t, recompute, Options{}), start(t, fail, Options{})
	params := (&pair{p: p}).prefill(ask, nil)
	require.NoError(t, p.engine.Close())
	out := d1.chat(ask, m{"kv_transfer_params": params})
	require.Equal(t, []int32(want), out.Choices[0].TokenIDs)
	d1.nothingHeld()
	body := chatBody(ask, m{"kv_transfer_params": params})
	res, raw := d2.post("/v1/chat/completions", body)
	require.Equal(t, http.StatusBadGateway, res.StatusCode, "%s", raw)
	d2.nothingHeld()
	require.Equal(t, 1.0, d2.metric("sluice_kv_transfer_failures_total"))
}
