package tokenizer

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/kvcache"
)

func load(t testing.TB, kind string) *Model {
	t.Helper()
	m, err := Load(filepath.Join("testdata", kind))
	require.NoError(t, err)
	require.NotNil(t, m)
	return m
}

func readJSON(t testing.TB, name string, v any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, v))
}

// The expected ids and texts are those of Hugging Face's tokenizers; see
// testdata/make.py.
func TestTokensAreThoseOfHuggingFace(t *testing.T) {
	var texts []string
	readJSON(t, "texts.json", &texts)
	var want map[string]struct {
		Encoded [][]kvcache.Token
		Decoded []struct {
			IDs  []kvcache.Token
			Text string
		}
	}
	readJSON(t, "expected.json", &want)
	for _, kind := range []string{"qwen", "llama", "smol"} {
		m := load(t, kind)
		require.Len(t, want[kind].Encoded, len(texts))
		for i, text := range texts {
			got := m.Encode(text)
			if len(got) == 0 {
				got = []kvcache.Token{}
			}
			require.Equal(t, want[kind].Encoded[i], got, "%s: %q", kind, text)
		}
		for _, d := range want[kind].Decoded {
			require.Equal(t, d.Text, Decode(m, d.IDs), "%s: %v", kind, d.IDs)
		}
	}
}

// Whatever the text, its tokens stand for it: as it is without a normaliser, in
// NFC with one.
func TestDecodeUndoesEncode(t *testing.T) {
	plain, nfc := load(t, "llama"), load(t, "qwen")
	words := rapid.SampledFrom([]string{"the", " ", "\n", "é", "e\u0301", "漢字", "🙂", "<tool_call>", "<think>", "'ll", "123", "\x00", "a\u200d"})
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.String().Draw(rt, "text") + strings.Join(rapid.SliceOfN(words, 0, 8).Draw(rt, "words"), "") + rapid.String().Draw(rt, "more")
		if got := Decode(plain, plain.Encode(text)); got != text {
			rt.Fatalf("%q became %q", text, got)
		}
		if got := Decode(nfc, nfc.Encode(text)); got != norm.NFC.String(text) {
			rt.Fatalf("%q became %q", text, got)
		}
	})
}

// The deltas of any tokens are whole characters and add up to the whole text.
func TestDeltasAreWholeCharacters(t *testing.T) {
	m := load(t, "qwen")
	rapid.Check(t, func(rt *rapid.T) {
		ids := rapid.SliceOfN(rapid.Int32Range(-1, int32(m.Size())), 0, 40).Draw(rt, "ids")
		d := Decoder{Of: m}
		text, raw := "", ""
		for _, id := range ids {
			delta := d.Push(kvcache.Token(id))
			if !utf8.ValidString(delta) {
				rt.Fatalf("delta %q", delta)
			}
			if len(d.held) >= utf8.UTFMax {
				rt.Fatalf("%d bytes are held", len(d.held))
			}
			text += delta
			raw += m.Bytes(kvcache.Token(id))
		}
		text += d.Flush()
		if utf8.ValidString(raw) && text != raw || strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\ufffd", "") != strings.ReplaceAll(strings.ToValidUTF8(raw, ""), "\ufffd", "") {
			rt.Fatalf("%q became %q", raw, text)
		}
	})
}

// A word without any place to cut costs no more than its length asks for.
func TestLongWords(t *testing.T) {
	m := load(t, "llama")
	for _, s := range []string{"a", " ", "\n", "é", "<", "<|", "!"} {
		text := strings.Repeat(s, 50_000)
		require.Equal(t, text, Decode(m, m.Encode(text)))
	}
}

func TestChatTemplates(t *testing.T) {
	var cases []struct {
		Name     string
		Messages []struct {
			Role, Content string
			Reasoning     string          `json:"reasoning_content"`
			ToolCalls     json.RawMessage `json:"tool_calls"`
			ToolCallID    string          `json:"tool_call_id"`
		}
		Tools      json.RawMessage
		Options    map[string]json.RawMessage
		Qwen       string
		Llama      string
		LlamaError string `json:"llama_error"`
	}
	readJSON(t, "conversations.json", &cases)
	require.NotEmpty(t, cases)
	for _, x := range cases {
		c := Conversation{Tools: x.Tools, Options: x.Options}
		for _, m := range x.Messages {
			c.Messages = append(c.Messages, Message{
				Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID,
			})
		}
		qwen := load(t, "qwen")
		text, err := qwen.template.render(c)
		require.NoError(t, err, x.Name)
		require.Equal(t, x.Qwen, text, x.Name)
		tokens, err := qwen.Chat(c)
		require.NoError(t, err)
		require.Equal(t, qwen.Encode(x.Qwen), tokens)

		llama := load(t, "llama")
		tokens, err = llama.Chat(c)
		if x.LlamaError != "" {
			var refused *TemplateError
			require.ErrorAs(t, err, &refused)
			require.ErrorContains(t, err, x.LlamaError)
			continue
		}
		require.NoError(t, err, x.Name)
		text, err = llama.template.render(c)
		require.NoError(t, err)
		require.Equal(t, x.Llama, text, x.Name)
		require.Equal(t, llama.Encode(x.Llama)[1:], tokens, "the template brings the first token itself")
	}
}

// One tokenizer serves all requests at once.
func TestConcurrentUse(t *testing.T) {
	m := load(t, "qwen")
	c := Conversation{Messages: []Message{{Role: "user", Content: "naïve 漢字 123"}}, Tools: json.RawMessage(`[{"type": "function", "function": {"name": "f"}}]`)}
	want, err := m.Chat(c)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				got, err := m.Chat(c)
				assert.NoError(t, err)
				assert.Equal(t, want, got)
			}
		})
	}
	wg.Wait()
}

// A file that can be read gives a tokenizer that can be used; another one is an
// error, never a panic.
func FuzzTokenizerFile(f *testing.F) {
	for _, kind := range []string{"qwen", "llama", "smol"} {
		raw, err := os.ReadFile(filepath.Join("testdata", kind, File))
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":1},"merges":[["a"]]},"added_tokens":[{"id":2,"content":""}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if bytes.Contains(raw, []byte("Regex")) {
			t.Skip("an expression may take any time") // and is the operator's
		}
		b, err := parseByteLevel(raw)
		if err != nil {
			return
		}
		m := &Model{vocabulary: b}
		Decode(m, m.Encode("The text's é 漢 123 <|im_end|>\n"))
	})
}

// What a template is rewritten to has nothing but whole tags.
func FuzzTemplate(f *testing.F) {
	for _, name := range []string{"llama/chat_template.jinja", "qwen/tokenizer_config.json"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(string(raw))
	}
	f.Add("{%- if a -%} {{ \"}}\" }} {# x #}{% endif +%}")
	f.Fuzz(func(t *testing.T, source string) {
		out, err := prepare(source)
		if err != nil {
			return
		}
		for rest := out; rest != ""; {
			require.Zero(t, tagStart(rest), "%q became %q", source, out)
			_, rest, err = readTag(rest)
			require.NoError(t, err, "%q became %q", source, out)
		}
	})
}
