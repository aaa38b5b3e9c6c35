package server

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/eval"
	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/internal/openai"
)

func startScripted(t *testing.T, pieces ...string) *node {
	t.Helper()
	return start(t, engine.Config{Model: scripted(t, pieces, nil), ServedModelName: "s", BlockSize: 16, KVBlocks: 64, MaxModelLen: 1024, MaxSeqs: 4}, Options{})
}

// events are the chunks of a streamed answer.
func events[T any](t *testing.T, n *node, path string, body m) []T {
	t.Helper()
	body["stream"] = true
	resp, raw := n.post(path, body)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", raw)
	var out []T
	for line := range strings.SplitSeq(string(raw), "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var v T
		require.NoError(t, json.Unmarshal([]byte(data), &v))
		out = append(out, v)
	}
	return out
}

// A checkpoint with a tokenizer takes text and answers in text, whose deltas are
// whole characters although a token is a byte.
func TestTextOfACheckpoint(t *testing.T) {
	n := startScripted(t, "\xc3", "\xa9", "\xe6", "\xbc", "\xa2", "\xf0", "\x9f", "\x99", "\x82", " The end", "\xe5")
	const want = "é漢🙂 The end\ufffd"
	body := m{"prompt": "Two naïve words\n", "max_tokens": 20, "return_token_ids": true}
	out := n.complete(body)
	require.Equal(t, want, out.Choices[0].Text)
	require.Equal(t, "stop", *out.Choices[0].FinishReason)
	require.Equal(t, 12, out.Usage.CompletionTokens, "with the end of sequence")
	own, err := tokenizer.Load("../tokenizer/testdata/qwen")
	require.NoError(t, err)
	require.Equal(t, ids(own.Encode("Two naïve words\n")), out.Choices[0].PromptTokenIDs)

	text := ""
	for _, ev := range events[openai.CompletionResponse](t, n, "/v1/completions", body) {
		require.True(t, utf8.ValidString(ev.Choices[0].Text))
		text += ev.Choices[0].Text
	}
	require.Equal(t, want, text)

	for stop, before := range map[string]string{"漢": "é", "T": "é漢🙂 ", "🙂 The": "é漢", " The end": "é漢🙂"} {
		out = n.complete(m{"prompt": "x\n", "stop": stop})
		require.Equal(t, before, out.Choices[0].Text)
		require.Equal(t, stop, out.Choices[0].StopReason)
	}
}

var oneTool = []m{{"type": "function", "function": m{"name": "add", "parameters": m{"type": "object"}}}}

func toolBody(more m) m {
	body := m{"messages": []m{{"role": "user", "content": "1 + 2?"}}, "tools": oneTool}
	for k, v := range more {
		body[k] = v
	}
	return body
}

func (n *node) talk(body m, headers ...string) openai.ChatResponse {
	n.t.Helper()
	resp, raw := n.post("/v1/chat/completions", body, headers...)
	require.Equal(n.t, http.StatusOK, resp.StatusCode, "%s", raw)
	var out openai.ChatResponse
	require.NoError(n.t, json.Unmarshal(raw, &out))
	return out
}

func TestToolCallsOfAChat(t *testing.T) {
	n := startScripted(t, "I add", " them.\n", "<tool_call>", "\n{\"name\": \"add\", \"argu", "ments\": {\"a\": 1,", " \"b\": 2}}\n", "</tool_call>")
	out := n.talk(toolBody(nil))
	c := out.Choices[0]
	require.Equal(t, "tool_calls", *c.FinishReason)
	require.Equal(t, "I add them.", c.Message.Content)
	var calls []openai.ToolCall
	require.NoError(t, json.Unmarshal(c.Message.ToolCalls, &calls))
	require.Len(t, calls, 1)
	require.True(t, strings.HasPrefix(calls[0].ID, "call_"))
	require.Nil(t, calls[0].Index)
	require.Equal(t, openai.FunctionCall{Name: "add", Arguments: `{"a": 1, "b": 2}`}, calls[0].Function)

	content, finish := "", ""
	calls = nil
	for _, ev := range events[openai.ChatChunk](t, n, "/v1/chat/completions", toolBody(nil)) {
		d := ev.Choices[0]
		if d.Delta.Content != nil {
			content += *d.Delta.Content
		}
		if len(d.Delta.ToolCalls) > 0 {
			require.NoError(t, json.Unmarshal(d.Delta.ToolCalls, &calls))
		}
		if d.FinishReason != nil {
			finish = *d.FinishReason
		}
	}
	require.Equal(t, "I add them.", content)
	require.Equal(t, "tool_calls", finish)
	require.Len(t, calls, 1)
	require.Equal(t, 0, *calls[0].Index)
	require.Equal(t, "add", calls[0].Function.Name)

	// The turn after it begins with this turn's tokens, prompt and answer: the
	// template writes the call as the model wrote it.
	first := n.talk(toolBody(m{"return_token_ids": true}))
	next := n.talk(toolBody(m{"return_token_ids": true, "max_tokens": 1, "messages": []m{
		{"role": "user", "content": "1 + 2?"},
		{"role": "assistant", "content": first.Choices[0].Message.Content, "tool_calls": first.Choices[0].Message.ToolCalls},
		{"role": "tool", "tool_call_id": calls[0].ID, "content": "3"},
	}}))
	turn := append(first.PromptTokenIDs, first.Choices[0].TokenIDs...)
	require.Equal(t, turn, next.PromptTokenIDs[:len(turn)])
	require.Greater(t, next.Usage.Cached(), len(first.PromptTokenIDs)-16, "what is cached of the turn is found")

	const whole = "I add them.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</tool_call>"
	for _, body := range []m{toolBody(m{"tool_choice": "none"}), toolBody(m{"tools": nil})} {
		out = n.talk(body)
		require.Equal(t, whole, out.Choices[0].Message.Content)
		require.Empty(t, out.Choices[0].Message.ToolCalls)
		require.Equal(t, "stop", *out.Choices[0].FinishReason)
	}
	cut := n.talk(toolBody(m{"max_tokens": 5}))
	require.Equal(t, "length", *cut.Choices[0].FinishReason)
	require.Equal(t, "I add them.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1,", cut.Choices[0].Message.Content)
}

// After a tool call the next turn is expected sooner, and the turn is kept for
// less time.
func TestToolCallShortensTheLease(t *testing.T) {
	cfg := guardedDecoder(t, "")
	cfg.Model, cfg.ServedModelName = scripted(t, []string{"<tool_call>", "{\"name\": \"add\", \"arguments\": {}}", "</tool_call>"}, nil), "s"
	n := start(t, cfg, Options{})
	kept := func(session string, body m) time.Duration {
		out := n.talk(body, "X-Session-ID", session)
		var k struct {
			Until int64 `json:"resident_until_ms"`
		}
		require.NoError(t, json.Unmarshal(out.KVTransferParams, &k))
		return time.Until(time.UnixMilli(k.Until))
	}
	person, tool := kept("a", toolBody(m{"tool_choice": "none"})), kept("b", toolBody(nil))
	require.Greater(t, person, time.Minute)
	require.Positive(t, tool)
	require.Less(t, tool, person/2)
}

func TestMalformedToolCall(t *testing.T) {
	n := startScripted(t, "<tool_call>", "{add(1,2)}", "</tool_call>", " so")
	const want = "<tool_call>{add(1,2)}</tool_call> so"
	out := n.talk(toolBody(nil))
	require.Equal(t, want, out.Choices[0].Message.Content)
	require.Equal(t, "stop", *out.Choices[0].FinishReason)
	text := ""
	for _, ev := range events[openai.ChatChunk](t, n, "/v1/chat/completions", toolBody(nil)) {
		require.Empty(t, ev.Choices[0].Delta.ToolCalls)
		text += *ev.Choices[0].Delta.Content
	}
	require.Equal(t, want, text)
}

// Questions are asked of the engine as of any other endpoint.
func TestEvaluationOfACheckpoint(t *testing.T) {
	n := startScripted(t, "3 and 4", " are 7.", "\n#", "### 7", "\n\nQuestion", ": more 8")
	questions := []eval.Question{{Question: "a", Answer: "#### 1"}, {Question: "b", Answer: "#### 7"}, {Question: "c", Answer: "#### 8"}}
	r, err := eval.Run(t.Context(), questions, eval.Options{URL: n.url, Model: "s", Chat: true, Shots: 1, MaxTokens: 16, Client: n.client})
	require.NoError(t, err)
	require.Equal(t, eval.Result{Asked: 2, Strict: 1, Flexible: 1}, r)
}

func TestChatRequestsThatAreRefused(t *testing.T) {
	n := startScripted(t, "x y")
	for _, x := range []struct {
		body m
		err  string
	}{
		{m{"tool_choice": "required"}, "is not supported: the model decides"},
		{m{"tool_choice": m{"type": "function", "function": m{"name": "add"}}}, "is not supported: the model decides"},
		{m{"tool_choice": "sometimes"}, "must be auto, none, required or a function"},
		{m{"tool_choice": "auto", "tools": []m{}}, "tool_choice is given without tools"},
		{m{"tools": m{}}, "tools must be a list of functions"},
		{m{"tools": []m{{"type": "retrieval"}}}, "tools[0] is no function with a name"},
		{m{"messages": []m{{"role": "assistant", "tool_calls": "f"}}}, "tool_calls is no list"},
		{m{"messages": []m{{"role": "wizard", "content": "x"}}}, "unknown role"},
	} {
		resp, raw := n.post("/v1/chat/completions", toolBody(x.body))
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, "%s", raw)
		require.Contains(t, string(raw), x.err)
	}
	out := n.talk(m{"messages": []m{{"role": "user", "content": "x"}}, "chat_template_kwargs": m{"enable_thinking": false}, "return_token_ids": true, "max_tokens": 1})
	own, err := tokenizer.Load("../tokenizer/testdata/qwen")
	require.NoError(t, err)
	prompt := "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
	require.Equal(t, ids(own.Encode(prompt)), out.PromptTokenIDs)
}

func TestCheckpointsWithHalfOfTheText(t *testing.T) {
	remove := func(name string) func(string) {
		return func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, name))) }
	}
	cfg := engine.Config{ServedModelName: "s", BlockSize: 16, KVBlocks: 64, MaxModelLen: 256, MaxSeqs: 4}
	cfg.Model = scripted(t, []string{"x y"}, remove("tokenizer_config.json"))
	n := start(t, cfg, Options{})
	require.Equal(t, "x y", n.complete(m{"prompt": "a\n"}).Choices[0].Text)
	resp, raw := n.post("/v1/chat/completions", m{"messages": []m{{"role": "user", "content": "x"}}})
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Contains(t, string(raw), "the model has no chat template")

	for _, skip := range []bool{false, true} {
		cfg.Model, cfg.SkipTokenizer = scripted(t, []string{"x y"}, remove(tokenizer.File)), skip
		if skip {
			cfg.Model = scripted(t, []string{"x y"}, nil)
		}
		n = start(t, cfg, Options{})
		resp, raw = n.post("/v1/completions", m{"prompt": "a\n"})
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)
		require.Contains(t, string(raw), "no tokenizer")
		require.NotEmpty(t, n.complete(m{"prompt": []int{1, 2}, "return_token_ids": true, "max_tokens": 2}).Choices[0].TokenIDs)
	}
}

// The log says at the start what a model can read and write.
func TestTheLogSaysWhatIsMissing(t *testing.T) {
	for want, edit := range map[string]func(dir string){
		"no tokenizer: prompts and answers are token ids": func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, tokenizer.File))) },
		"the tokenizer has no chat template":              func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "tokenizer_config.json"))) },
		"tokenizer ids=592 vocabulary=704":                nil,
	} {
		var log bytes.Buffer
		cfg := engine.Config{Model: scripted(t, []string{"x y"}, edit), KVBlocks: 16, MaxModelLen: 128, MaxSeqs: 1, Eager: true, DeviceWorkers: 1}
		e, err := engine.New(t.Context(), cfg, engine.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		require.NoError(t, e.Close())
		require.Contains(t, log.String(), want)
	}
}

// A tokenizer of another model is found at the start.
func TestTokenizerOfAnotherModel(t *testing.T) {
	edit := func(change func(file m)) func(string) {
		return func(dir string) {
			path := filepath.Join(dir, tokenizer.File)
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			var file m
			require.NoError(t, json.Unmarshal(raw, &file))
			change(file)
			raw, err = json.Marshal(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, raw, 0o600))
		}
	}
	for _, x := range []struct {
		change func(file m)
		err    string
	}{
		{func(file m) {
			file["added_tokens"] = append(file["added_tokens"].([]any), m{"id": 704, "content": "<more>"})
		}, "has 705 token ids, the model's vocabulary 704"},
		{func(file m) { file["added_tokens"] = []any{} }, "the model's end of sequence; it has ids up to 575, the model's vocabulary 704"},
		{func(file m) { file["model"].(m)["type"] = "WordPiece" }, `model type "WordPiece" is not supported`},
	} {
		dir := scripted(t, nil, edit(x.change))
		_, err := engine.New(t.Context(), engine.Config{Model: dir, MaxModelLen: 256}, engine.Options{})
		require.ErrorContains(t, err, x.err)
		require.ErrorContains(t, err, filepath.Join(dir, tokenizer.File))
	}
}
