package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
)

// events posts a streaming request and gives the data of its events.
func (n *node) events(path string, body m, headers ...string) (*http.Response, []string) {
	n.t.Helper()
	body["stream"] = true
	res, raw := n.post(path, body, headers...)
	require.Equal(n.t, http.StatusOK, res.StatusCode, "%s", raw)
	require.Equal(n.t, openai.ContentTypeSSE, res.Header.Get("Content-Type"))
	var out []string
	r := openai.NewReader(bytes.NewReader(raw), 0)
	for {
		ev, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(n.t, err)
		out = append(out, string(ev.Data))
	}
	return res, out
}

func TestStreamEqualsWhole(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	whole := n.complete(m{"prompt": words(200), "max_tokens": 24, "ignore_eos": true})
	res, events := n.events("/v1/completions", m{"prompt": words(200), "max_tokens": 24, "ignore_eos": true, "stream_options": m{"include_usage": true}}, "X-Request-Id", "r-1")
	require.Equal(t, n.engine.ID(0), res.Header.Get("X-Sluice-Engine"))
	require.Equal(t, openai.Done, events[len(events)-1])
	text := ""
	for i, ev := range events[:len(events)-1] {
		var c openai.CompletionResponse
		require.NoError(t, json.Unmarshal([]byte(ev), &c))
		require.Equal(t, "cmpl-r-1", c.ID)
		if i == len(events)-2 {
			require.Empty(t, c.Choices, "the usage chunk has no choices")
			require.Contains(t, ev, `"choices":[]`)
			require.Equal(t, openai.NewUsage(200, 24, 192), c.Usage)
			continue
		}
		require.Nil(t, c.Usage)
		text += c.Choices[0].Text
		require.Equal(t, i == len(events)-3, c.Choices[0].FinishReason != nil, "the last chunk of the choice ends it")
	}
	require.Equal(t, whole.Choices[0].Text, text)
	require.Equal(t, openai.NewUsage(200, 24, 0), whole.Usage)
}

func TestChatStream(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	ask := []m{{"role": "user", "content": []m{{"type": "text", "text": words(50)}}}}
	whole := n.chat(ask, nil)
	_, events := n.events("/v1/chat/completions", chatBody(ask, m{"stream_options": m{"include_usage": true, "continuous_usage_stats": true}}), "X-Session-ID", "s")
	var first, last openai.ChatChunk
	require.NoError(t, json.Unmarshal([]byte(events[0]), &first))
	require.Equal(t, "assistant", first.Choices[0].Delta.Role)
	require.Empty(t, *first.Choices[0].Delta.Content)
	text, seen := "", 0
	for _, ev := range events[1 : len(events)-2] {
		last = openai.ChatChunk{}
		require.NoError(t, json.Unmarshal([]byte(ev), &last))
		text += *last.Choices[0].Delta.Content
		require.Greater(t, last.Usage.CompletionTokens, seen)
		seen = last.Usage.CompletionTokens
	}
	require.Equal(t, whole.Choices[0].Message.Content, text)
	require.Equal(t, whole.Choices[0].FinishReason, last.Choices[0].FinishReason)
	require.JSONEq(t, `{"resident_tokens":80}`, string(last.KVTransferParams), "69 tokens of prompt and 16 of output, of which the last is not cached")
}

// Who asks for token ids is told those of the prompt too, as by vLLM: once for each
// answer, in a completion's choice or, of a chat, in the event that opens it.
func TestPromptIDsOfStreams(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	body := m{"prompt": []string{words(40), words(7)}, "n": 2, "max_tokens": 3, "ignore_eos": true, "return_token_ids": true}
	whole := n.complete(body)
	_, events := n.events("/v1/completions", body)
	told := map[int][]int32{}
	for _, ev := range events[:len(events)-1] {
		var c openai.CompletionResponse
		require.NoError(t, json.Unmarshal([]byte(ev), &c))
		choice := c.Choices[0]
		require.Equal(t, told[choice.Index] == nil, choice.PromptTokenIDs != nil, ev)
		if choice.PromptTokenIDs != nil {
			told[choice.Index] = choice.PromptTokenIDs
		}
	}
	require.Len(t, told, 4)
	for i, ids := range told {
		require.Equal(t, whole.Choices[i].PromptTokenIDs, ids)
		require.Len(t, ids, []int{40, 40, 7, 7}[i])
	}

	ask := []m{{"role": "user", "content": words(50)}}
	_, events = n.events("/v1/chat/completions", chatBody(ask, m{"return_token_ids": true}))
	var opens openai.ChatChunk
	require.NoError(t, json.Unmarshal([]byte(events[0]), &opens))
	require.Equal(t, n.chat(ask, m{"return_token_ids": true}).PromptTokenIDs, opens.PromptTokenIDs)
	require.NotEmpty(t, opens.PromptTokenIDs)
	require.Equal(t, "assistant", opens.Choices[0].Delta.Role)
	for _, ev := range events[1:] {
		require.NotContains(t, ev, "prompt_token_ids")
	}
	body["return_token_ids"] = false
	_, events = n.events("/v1/completions", body)
	for _, ev := range events {
		require.NotContains(t, ev, "token_ids")
	}
}

func TestStops(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	prompt := words(100)
	free := n.complete(m{"prompt": prompt, "max_tokens": 20, "ignore_eos": true, "return_token_ids": true}).Choices[0]
	require.Len(t, free.TokenIDs, 20)
	require.Equal(t, "length", *free.FinishReason)
	require.Len(t, free.PromptTokenIDs, 100)

	id := free.TokenIDs[9]
	at := 0
	for free.TokenIDs[at] != id {
		at++
	}
	byID := n.complete(m{"prompt": prompt, "max_tokens": 20, "stop_token_ids": []int32{id}, "return_token_ids": true}).Choices[0]
	require.Equal(t, free.TokenIDs[:at+1], byID.TokenIDs, "the stop token is part of the ids")
	require.Equal(t, "stop", *byID.FinishReason)
	require.EqualValues(t, id, byID.StopReason)

	stop := free.Text[5:8]
	byText := n.complete(m{"prompt": prompt, "max_tokens": 20, "ignore_eos": true, "stop": stop})
	require.Equal(t, free.Text[:strings.Index(free.Text, stop)], byText.Choices[0].Text)
	require.Equal(t, "stop", *byText.Choices[0].FinishReason)
	require.Equal(t, stop, byText.Choices[0].StopReason)
	require.Equal(t, strings.Index(free.Text, stop)+3, byText.Usage.CompletionTokens)
	_, events := n.events("/v1/completions", m{"prompt": prompt, "max_tokens": 20, "ignore_eos": true, "stop": []string{stop, "never so"}})
	text := ""
	for _, ev := range events[:len(events)-1] {
		var c openai.CompletionResponse
		require.NoError(t, json.Unmarshal([]byte(ev), &c))
		text += c.Choices[0].Text
	}
	require.Equal(t, byText.Choices[0].Text, text)

	late := n.complete(m{"prompt": prompt, "max_tokens": 20, "min_tokens": 15, "stop_token_ids": []int32{id}, "ignore_eos": true, "return_token_ids": true}).Choices[0]
	require.GreaterOrEqual(t, len(late.TokenIDs), 15)
	n.nothingHeld()
}

func TestSeveralPromptsAndChoices(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	a := n.complete(m{"prompt": words(60), "max_tokens": 12}).Choices[0].Text
	b := n.complete(m{"prompt": words(90), "max_tokens": 12}).Choices[0].Text
	out := n.complete(m{"prompt": []string{words(60), words(90)}, "n": 2, "max_tokens": 12})
	require.Len(t, out.Choices, 4)
	for i, want := range []string{a, a, b, b} {
		require.Equal(t, i, out.Choices[i].Index)
		require.Equal(t, want, out.Choices[i].Text)
	}
	require.Equal(t, 150, out.Usage.PromptTokens)
	_, events := n.events("/v1/completions", m{"prompt": []string{words(60), words(90)}, "max_tokens": 12})
	texts := map[int]string{}
	for _, ev := range events[:len(events)-1] {
		var c openai.CompletionResponse
		require.NoError(t, json.Unmarshal([]byte(ev), &c))
		texts[c.Choices[0].Index] += c.Choices[0].Text
	}
	require.Equal(t, map[int]string{0: a, 1: b}, texts)
}

func TestCacheSaltAndReset(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	ask := func(salt string) int {
		return n.complete(m{"prompt": words(100), "max_tokens": 1, "cache_salt": salt}).Usage.Cached()
	}
	require.Equal(t, 0, ask(""))
	require.Equal(t, 96, ask(""))
	require.Equal(t, 0, ask("tenant"))
	require.Equal(t, 96, ask("tenant"))
	res, _ := n.post("/reset_prefix_cache", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, 0, ask(""))

	s, err := n.engine.Submit(t.Context(), engine.Request{ID: "long", Prompt: []token{1, 2, 3}, MaxTokens: 4000, IgnoreEOS: true, Rank: engine.AnyRank})
	require.NoError(t, err)
	_, err = s.Next(t.Context())
	require.NoError(t, err)
	res, raw := n.post("/reset_prefix_cache", "")
	require.Equal(t, http.StatusConflict, res.StatusCode, "%s", raw)
	s.Cancel()
	n.nothingHeld()
}

// The trace tells, per request, how it was admitted, what was read for it and
// how it ended.
func TestTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d.jsonl")
	tr, err := engine.OpenTrace(file)
	require.NoError(t, err)
	d := startTraced(t, decoder(), Options{}, tr)
	x := &pair{start(t, prefiller(), Options{}), d}
	ask := []m{{"role": "user", "content": words(101)}}
	out := x.remote(ask, nil, "X-Request-Id", "r-d")
	ask = append(ask, m{"role": "assistant", "content": out.Choices[0].Message.Content}, m{"role": "user", "content": "more"})
	res, raw := x.attempt(ask, nil, "X-Request-Id", "r-local")
	require.Equal(t, http.StatusOK, res.StatusCode)
	var next openai.ChatResponse
	require.NoError(t, json.Unmarshal(raw, &next))
	x.nothingHeld()
	finish := func(id string, out openai.ChatResponse) string {
		return fmt.Sprintf(`{"event":"finish","request_id":"%s","rank":0,"output_tokens":%d,"finish_reason":"%s"}`, id, out.Usage.CompletionTokens, *out.Choices[0].FinishReason)
	}
	want := []string{
		`{"event":"kv_read","request_id":"r-d","rank":0,"blocks":8,"bytes":262144,"peer":"` + x.p.engine.ID(0) + `"}`,
		`{"event":"admit","request_id":"r-d","rank":0,"route":"remote","prompt_tokens":120,"cached_tokens":0,"external_tokens":120}`,
		finish("r-d", out),
		fmt.Sprintf(`{"event":"admit","request_id":"r-local","rank":0,"route":"append","prompt_tokens":%d,"cached_tokens":%d}`,
			next.Usage.PromptTokens, (out.Usage.TotalTokens-1)/16*16),
		finish("r-local", next),
	}
	var lines []string
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(file)
		lines = strings.Split(strings.TrimSpace(string(raw)), "\n")
		return err == nil && len(lines) == len(want)
	}, waitFor, tick)
	require.Equal(t, want, lines)
}
