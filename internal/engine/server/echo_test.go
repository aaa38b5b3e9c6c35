package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/internal/openai"
)

// place is what an answer says of one token of a prompt.
type place = map[string]openai.PromptLogprob

// scored is a completion with prompt_logprobs as the client reads it.
type scored struct {
	Choices []struct {
		Text           string
		FinishReason   string                    `json:"finish_reason"`
		Logprobs       openai.CompletionLogprobs `json:"logprobs"`
		PromptLogprobs []place                   `json:"prompt_logprobs"`
	}
	PromptLogprobs []place `json:"prompt_logprobs"` // of a chat
	Usage          *openai.Usage
}

func (n *node) scored(path string, body m) (out scored) {
	n.t.Helper()
	res, raw := n.post(path, body)
	require.Equal(n.t, http.StatusOK, res.StatusCode, "%s", raw)
	require.NoError(n.t, json.Unmarshal(raw, &out))
	return out
}

// referenceScores are the log probabilities of a prompt's tokens behind each other,
// by a model that shares no code with the executor; by position and token.
var referenceScores = func() func(prompt []int32) [][]float64 {
	weights := sync.OnceValue(func() model.Weights {
		return model.Generate(model.Builtin(), model.BuiltinScales(), 1, tokenizer.Speakable)
	})
	var mu sync.Mutex
	known := map[string][][]float64{}
	return func(prompt []int32) (out [][]float64) {
		mu.Lock()
		defer mu.Unlock()
		if out := known[fmt.Sprint(prompt)]; out != nil {
			return out
		}
		defer func() { known[fmt.Sprint(prompt)] = out }()
		r := model.NewReference(model.Builtin(), weights())
		for _, tok := range prompt[:len(prompt)-1] {
			logits := r.Step(int(tok))
			sum := 0.0
			for _, v := range logits {
				sum += math.Exp(float64(v))
			}
			at := make([]float64, len(logits))
			for i, v := range logits {
				at[i] = float64(v) - math.Log(sum)
			}
			out = append(out, at)
		}
		return out
	}
}()

// near is how far sums of another order may lead, far below what another token or place would.
const near = 1e-3

// right compares prompt_logprobs with the reference.
func right(t *testing.T, prompt []int32, top int, got []place) {
	t.Helper()
	want := referenceScores(prompt)
	require.Len(t, got, len(prompt))
	require.Nil(t, got[0], "nothing stands before the first token")
	for i, at := range got[1:] {
		own, ok := at[fmt.Sprint(prompt[i+1])]
		require.True(t, ok, "the prompt's own token %d", i+1)
		require.GreaterOrEqual(t, len(at), max(top, 1))
		require.LessOrEqual(t, len(at), top+1)
		for id, x := range at {
			var tok int
			fmt.Sscan(id, &tok)
			require.InDelta(t, want[i][tok], x.Logprob, near, "position %d, token %s", i+1, id)
			likelier := 0
			for _, v := range want[i] {
				if v > want[i][tok]+near {
					likelier++
				}
			}
			require.Greater(t, x.Rank, likelier)
			if x.Rank <= top {
				continue
			}
			require.Equal(t, own, x, "beside the most likely ones the prompt's own alone")
		}
	}
}

// The log probabilities of a prompt are the model's whatever of it is cached,
// however it is cut into steps, beside others and after a preemption.
func TestPromptLogprobs(t *testing.T) {
	prompt := tokens(words(90))
	for _, c := range []struct {
		name string
		cfg  engine.Config
	}{
		{"cut into steps", engine.Config{MaxTokens: 16}}, {"one step", engine.Config{}}, {"eager, without overlap", engine.Config{Sync: true, Eager: true}},
		{"drafts", engine.Config{Speculative: engine.Speculative{Method: "ngram", Tokens: 2, Max: 3, Min: 2}, MaxTokens: 64}},
	}[:min(4, few)] {
		t.Run(c.name, func(t *testing.T) {
			n := start(t, c.cfg, Options{})
			body := m{"prompt": prompt, "max_tokens": 3, "ignore_eos": true}
			plain := n.complete(body)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { n.complete(m{"prompt": words(120), "max_tokens": 20, "ignore_eos": true}) })
			}
			for _, top := range []int{0, 3} {
				out := n.scored("/v1/completions", merged(body, m{"prompt_logprobs": top}))
				right(t, prompt, top, out.Choices[0].PromptLogprobs)
				require.Equal(t, plain.Choices[0].Text, out.Choices[0].Text)
				require.Zero(t, out.Usage.Cached(), "a cached prefix has no logits")
			}
			wg.Wait()
			require.Positive(t, n.complete(body).Usage.Cached(), "what it computed is cached for others")
			one := n.scored("/v1/completions", m{"prompt": prompt[:1], "max_tokens": 1, "prompt_logprobs": 2})
			require.Equal(t, []place{nil}, one.Choices[0].PromptLogprobs)
			n.nothingHeld()
		})
	}
}

func TestPromptLogprobsOfPreemptedRequests(t *testing.T) {
	n := start(t, engine.Config{BlockSize: 8, KVBlocks: 35, MaxModelLen: 280, MaxTokens: 48}, Options{})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			prompt := tokens(words(100 + i))
			out := n.scored("/v1/completions", m{"prompt": prompt, "max_tokens": 60, "ignore_eos": true, "prompt_logprobs": 1, "cache_salt": fmt.Sprint(i)})
			right(t, prompt, 1, out.Choices[0].PromptLogprobs)
		})
	}
	wg.Wait()
	require.Positive(t, n.metric("vllm:num_preemptions_total"))
	n.nothingHeld()
}

func TestPromptLogprobsOfChats(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	ask := []m{{"role": "user", "content": "hello"}}
	out := n.scored("/v1/chat/completions", chatBody(ask, m{"prompt_logprobs": 2, "max_tokens": 2}))
	var ids []int32
	for _, t := range tokenizer.Render([]tokenizer.Message{{Role: "user", Content: "hello"}}) {
		ids = append(ids, int32(t))
	}
	right(t, ids, 2, out.PromptLogprobs)
	require.Nil(t, out.Choices[0].PromptLogprobs)
	first := out.PromptLogprobs[1]
	require.Equal(t, "u", first["117"].Token)
}

// Several prompts and several answers each: every answer has its own prompt's.
func TestPromptLogprobsOfSeveralAnswers(t *testing.T) {
	n := start(t, engine.Config{DataParallel: 2}, Options{})
	prompts := [][]int32{tokens(words(20)), tokens("another one")}
	out := n.scored("/v1/completions", m{"prompt": prompts, "n": 2, "max_tokens": 2, "temperature": 1, "prompt_logprobs": 1, "echo": true})
	require.Len(t, out.Choices, 4)
	for i, c := range out.Choices {
		right(t, prompts[i/2], 1, c.PromptLogprobs)
		require.True(t, strings.HasPrefix(c.Text, []string{words(20), "another one"}[i/2]), c.Text)
	}
	require.Equal(t, 20+11, out.Usage.PromptTokens)
}

// An echo with logprobs has those of the prompt before those of the answer, which
// are the ones of a request for its own.
func TestEcho(t *testing.T) {
	n := start(t, engine.Config{MaxTokens: 32}, Options{})
	text := words(40)
	body := m{"prompt": text, "max_tokens": 5, "ignore_eos": true, "logprobs": 2}
	plain := n.scored("/v1/completions", body).Choices[0]
	echo := n.scored("/v1/completions", merged(body, m{"echo": true})).Choices[0]
	require.Equal(t, text+plain.Text, echo.Text)
	require.Nil(t, echo.PromptLogprobs, "they were not asked for")
	p, k := echo.Logprobs, len(text)
	require.Len(t, p.Tokens, k+5)
	require.Nil(t, p.TokenLogprobs[0])
	require.Nil(t, p.TopLogprobs[0])
	want := referenceScores(tokens(text))
	for i := 1; i < k; i++ {
		require.Equal(t, text[i:i+1], p.Tokens[i])
		require.Equal(t, i, p.TextOffset[i])
		require.InDelta(t, want[i-1][text[i]], *p.TokenLogprobs[i], near)
		require.Contains(t, p.TopLogprobs[i], text[i:i+1])
		require.LessOrEqual(t, len(p.TopLogprobs[i]), 3)
	}
	require.Equal(t, plain.Logprobs.Tokens, p.Tokens[k:])
	for i, v := range plain.Logprobs.TokenLogprobs {
		require.InDelta(t, *v, *p.TokenLogprobs[k+i], 1e-6)
		require.Equal(t, k+i, p.TextOffset[k+i])
	}

	t.Run("streamed", func(t *testing.T) {
		_, events := n.events("/v1/completions", merged(body, m{"echo": true}))
		var all openai.CompletionLogprobs
		whole := ""
		for _, ev := range events[:len(events)-1] {
			var c scored
			require.NoError(t, json.Unmarshal([]byte(ev), &c))
			whole += c.Choices[0].Text
			q := c.Choices[0].Logprobs
			all.Tokens, all.TokenLogprobs = append(all.Tokens, q.Tokens...), append(all.TokenLogprobs, q.TokenLogprobs...)
			all.TopLogprobs, all.TextOffset = append(all.TopLogprobs, q.TopLogprobs...), append(all.TextOffset, q.TextOffset...)
		}
		require.Equal(t, echo.Text, whole)
		require.Equal(t, p, all)
	})
	t.Run("nothing but the prompt", func(t *testing.T) {
		out := n.scored("/v1/completions", merged(body, m{"echo": true, "max_tokens": 0}))
		alone := out.Choices[0]
		require.Equal(t, text, alone.Text)
		require.Equal(t, "length", alone.FinishReason)
		require.Equal(t, p.Tokens[:k], alone.Logprobs.Tokens)
		require.Equal(t, p.TokenLogprobs[:k], alone.Logprobs.TokenLogprobs)
		require.Equal(t, openai.NewUsage(k, 0, 0), out.Usage)
		ended := n.scored("/v1/completions", merged(body, m{"echo": true, "max_tokens": 0, "logit_bias": m{"258": 100}, "ignore_eos": false}))
		require.Equal(t, "length", ended.Choices[0].FinishReason, "whatever would have come")
		_, events := n.events("/v1/completions", merged(body, m{"echo": true, "max_tokens": 0}))
		var c scored
		require.NoError(t, json.Unmarshal([]byte(events[0]), &c))
		require.Equal(t, text, c.Choices[0].Text)
	})
	t.Run("without log probabilities", func(t *testing.T) {
		out := n.complete(m{"prompt": text, "max_tokens": 5, "ignore_eos": true, "echo": true})
		require.Equal(t, echo.Text, out.Choices[0].Text)
		require.Equal(t, "null", string(out.Choices[0].Logprobs))
		require.Positive(t, out.Usage.Cached(), "the text alone needs no logits")
	})
	t.Run("the prompt's own alone", func(t *testing.T) {
		q := n.scored("/v1/completions", merged(body, m{"echo": true, "logprobs": 0})).Choices[0].Logprobs
		require.Equal(t, p.TokenLogprobs, q.TokenLogprobs)
		require.Equal(t, map[string]float64{p.Tokens[3]: *p.TokenLogprobs[3]}, q.TopLogprobs[3])
	})
	t.Run("stop strings are of the answer", func(t *testing.T) {
		stop := plain.Text[2:4]
		out := n.complete(merged(body, m{"echo": true, "prompt": text, "stop": []string{stop, text[5:9] + "\x00"}}))
		require.Equal(t, text+plain.Text[:2], out.Choices[0].Text)
		whole := n.complete(m{"prompt": stop + text, "max_tokens": 3, "ignore_eos": true, "echo": true, "stop": stop + text[:3]})
		require.True(t, strings.HasPrefix(whole.Choices[0].Text, stop+text), "%q", whole.Choices[0].Text)
	})
	t.Run("as many as the larger one asks for", func(t *testing.T) {
		out := n.scored("/v1/completions", merged(body, m{"echo": true, "prompt_logprobs": 1})).Choices[0]
		right(t, tokens(text), 1, out.PromptLogprobs)
		require.Equal(t, p, out.Logprobs)
	})
	t.Run("token ids and characters of several bytes", func(t *testing.T) {
		odd := "né €" // each byte is a token
		var ids []int32
		for _, b := range []byte(odd) {
			ids = append(ids, int32(b))
		}
		for _, prompt := range []any{odd, ids} {
			out := n.scored("/v1/completions", m{"prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 0}).Choices[0]
			require.True(t, strings.HasPrefix(out.Text, odd), "%q", out.Text)
			require.Equal(t, []int{0, 1, 2, 2, 3, 4, 4, 4}, out.Logprobs.TextOffset)
		}
	})
	n.nothingHeld()
}

// An append attempt has no use for a prefix whose logits are needed: it is refused
// before any output, and what P has computed is given up for the prompt's logits.
func TestPromptLogprobsWithPrefillAndDecode(t *testing.T) {
	x := startPair(t, prefiller(), decoder())
	prompt := tokens(words(100))
	body := m{"prompt": prompt, "max_tokens": 3, "ignore_eos": true}
	leg := func() json.RawMessage {
		out := x.p.complete(merged(body, m{"max_tokens": 1, "kv_transfer_params": m{"do_remote_decode": true}, "echo": true, "logprobs": 1, "prompt_logprobs": 1}))
		require.Nil(t, out.Choices[0].PromptLogprobs, "nobody reads the answer")
		return out.KVTransferParams
	}
	want := x.d.complete(merged(body, m{"kv_transfer_params": leg()})).Choices[0].Text
	before := x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received")
	require.Positive(t, before)

	for _, ask := range []m{{"prompt_logprobs": 2}, {"echo": true, "logprobs": 2}} {
		res, raw := x.d.post("/v1/completions", merged(body, ask, m{"kv_transfer_params": m{"decoder_append_prefill": true}}))
		require.Equal(t, http.StatusPreconditionFailed, res.StatusCode, "%s", raw)
		e, ok := openai.ParseError(res.StatusCode, raw)
		require.True(t, ok)
		require.Equal(t, openai.MissNoPrefix, e.Code)
	}
	threshold := m{"cache_hit_threshold": 0.9}
	out := x.d.scored("/v1/completions", merged(body, threshold, m{"prompt_logprobs": 2, "kv_transfer_params": leg()}))
	right(t, prompt, 2, out.Choices[0].PromptLogprobs)
	require.Equal(t, want, out.Choices[0].Text)
	require.Equal(t, before, x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"), "computed here")
	x.nothingHeld()
}

func TestBadPromptLogprobs(t *testing.T) {
	n := start(t, engine.Config{MaxModelLen: 4096}, Options{})
	for _, c := range []struct {
		name, path, body, param, text string
	}{
		{"negative", "completions", `{"prompt":"ab","prompt_logprobs":-1}`, "prompt_logprobs", "prompt_logprobs is -1, must be within 0 to 20"},
		{"too many", "completions", `{"prompt":"ab","prompt_logprobs":21}`, "prompt_logprobs", "prompt_logprobs is 21"},
		{"negative beside an echo", "completions", `{"prompt":"ab","echo":true,"logprobs":3,"prompt_logprobs":-2}`, "prompt_logprobs", "prompt_logprobs is -2"},
		{"too many of an echo", "completions", `{"prompt":"ab","echo":true,"logprobs":21}`, "logprobs", "logprobs is 21"},
		{"wrong type", "completions", `{"prompt":"ab","prompt_logprobs":"5"}`, "prompt_logprobs", "wrong type"},
		{"streamed", "completions", `{"prompt":"ab","stream":true,"prompt_logprobs":1}`, "prompt_logprobs", "prompt_logprobs is 1, but with stream there are none"},
		{"streamed chat", "chat/completions", `{"messages":[{"role":"user","content":"a"}],"stream":true,"prompt_logprobs":0}`, "prompt_logprobs", "stream"},
		{"echo of a chat", "chat/completions", `{"messages":[{"role":"user","content":"a"}],"echo":true}`, "echo", "echo is of completions"},
		{"echo of a wrong type", "completions", `{"prompt":"ab","echo":1}`, "echo", "wrong type"},
		{"nothing without an echo", "completions", `{"prompt":"ab","max_tokens":0,"prompt_logprobs":1}`, "max_tokens", "max_tokens is 0"},
		{"less than nothing with one", "completions", `{"prompt":"ab","max_tokens":-1,"echo":true}`, "max_tokens", "max_tokens is -1"},
		{"nothing, but at least one", "completions", `{"prompt":"ab","max_tokens":0,"min_tokens":1,"echo":true}`, "min_tokens", "min_tokens is 1, more than max_tokens 0"},
		{"too much in all", "completions", `{"prompt":"` + words(2000) + `","n":64,"prompt_logprobs":20}`, "prompt_logprobs", "2688000 log probabilities"},
		{"too much in all of an echo", "completions", `{"prompt":"` + words(2000) + `","n":64,"echo":true,"logprobs":20}`, "logprobs", "at most 2097152"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, raw := n.post("/v1/"+c.path, c.body)
			require.Equal(t, http.StatusBadRequest, res.StatusCode, "%s", raw)
			e, ok := openai.ParseError(res.StatusCode, raw)
			require.True(t, ok, "%s", raw)
			require.Equal(t, c.param, e.Param)
			require.Contains(t, e.Message, c.text)
		})
	}
	n.nothingHeld()
}
