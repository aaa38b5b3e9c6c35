package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

type object = map[string]any

// folder writes the files of a tokenizer after edit has changed its tokenizer.json.
func folder(t *testing.T, edit func(object), others map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	var file object
	readJSON(t, "qwen/tokenizer.json", &file)
	edit(file)
	raw, err := json.Marshal(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, File), raw, 0o600))
	for name, text := range others {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestTokenizersThatCannotBeUsed(t *testing.T) {
	model := func(f object) object { return f["model"].(object) }
	for _, x := range []struct {
		err  string
		edit func(object)
	}{
		{`model type "Unigram" is not supported`, func(f object) { model(f)["type"] = "Unigram" }},
		{"model.byte_fallback", func(f object) { model(f)["byte_fallback"] = true }},
		{"model.dropout is 0.1", func(f object) { model(f)["dropout"] = 0.1 }},
		{"end_of_word_suffix", func(f object) { model(f)["end_of_word_suffix"] = "</w>" }},
		{"no token for the byte 0x41", func(f object) { delete(model(f)["vocab"].(object), "A") }},
		{`has two tokens`, func(f object) { model(f)["vocab"].(object)["twice"] = 3 }},
		{`token "far" has id 16777216`, func(f object) { model(f)["vocab"].(object)["far"] = maxVocab }},
		{`token "less" has id -1`, func(f object) { model(f)["vocab"].(object)["less"] = -1 }},
		{`entry 0: model.vocab has no token "AB"`, func(f object) { model(f)["merges"] = []any{"A B"} }},
		{`entry 0: "AB" is no pair`, func(f object) { model(f)["merges"] = []any{"AB"} }},
		{`entry 1: ["A"] is no pair`, func(f object) { model(f)["merges"] = []any{"Ġ t", []any{"A"}} }},
		{`entry 0: json`, func(f object) { model(f)["merges"] = []any{3} }},
		{`token "new" with id 7 is another one`, func(f object) { f["added_tokens"] = []any{object{"id": 7, "content": "new"}} }},
		{`token "A" with id 7 is another one`, func(f object) { f["added_tokens"] = []any{object{"id": 7, "content": "A"}} }},
		{`token "far" has id 99999999`, func(f object) { f["added_tokens"] = []any{object{"id": 99999999, "content": "far"}} }},
		{`normalizer type "Lowercase"`, func(f object) {
			f["normalizer"] = object{"type": "Sequence", "normalizers": []any{object{"type": "Lowercase"}}}
		}},
		{"no ByteLevel part", func(f object) { f["pre_tokenizer"] = nil }},
		{`pre_tokenizer type "Metaspace"`, func(f object) { f["pre_tokenizer"] = object{"type": "Metaspace"} }},
		{"add_prefix_space", func(f object) { f["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": true} }},
		{"a Split has no pattern", func(f object) { f["pre_tokenizer"] = object{"type": "Split", "behavior": "Isolated"} }},
		{"pre_tokenizer pattern", func(f object) {
			f["pre_tokenizer"] = object{"type": "Split", "behavior": "Isolated", "pattern": object{"Regex": "("}}
		}},
		{`behavior "Contiguous"`, func(f object) {
			f["pre_tokenizer"] = object{"type": "Split", "behavior": "Contiguous", "pattern": object{"String": "x"}}
		}},
		{`"Split" behind ByteLevel`, func(f object) {
			f["pre_tokenizer"] = object{"type": "Sequence", "pretokenizers": []any{object{"type": "ByteLevel"}, object{"type": "Split"}}}
		}},
		{`post_processor type "BertProcessing"`, func(f object) { f["post_processor"] = object{"type": "BertProcessing"} }},
		{`special_tokens has no "<s>"`, func(f object) {
			f["post_processor"] = object{"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "<s>"}}}}
		}},
		{"has 0 of them", func(f object) { f["post_processor"] = object{"type": "TemplateProcessing"} }},
		{"decoder is not of type ByteLevel", func(f object) { f["decoder"] = object{"type": "Metaspace"} }},
	} {
		dir := folder(t, x.edit, nil)
		_, err := Load(dir)
		require.ErrorContains(t, err, x.err)
		require.ErrorContains(t, err, filepath.Join(dir, File))
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, File), []byte("{"), 0o600))
	_, err := Load(dir)
	require.ErrorContains(t, err, File)
	m, err := Load(t.TempDir())
	require.NoError(t, err)
	require.Nil(t, m, "a folder without a tokenizer")
}

// The forms that the small tokenizers do not have.
func TestOtherTokenizerForms(t *testing.T) {
	gpt2 := func(f object) {
		f["normalizer"] = object{"type": "Sequence", "normalizers": []any{object{"type": "NFKC"}}}
		f["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": false}
		f["post_processor"] = nil
	}
	m, err := Load(folder(t, gpt2, nil))
	require.NoError(t, err)
	require.Equal(t, "fine 12", Decode(m, m.Encode("ﬁne 1２")))
	require.False(t, m.HasTemplate())
	_, err = m.Chat(Conversation{})
	require.ErrorIs(t, err, ErrNoTemplate)
	require.True(t, m.Has(0))
	require.False(t, m.Has(-1))
	require.False(t, m.Has(kvcache.Token(m.Size())))

	matches := func(f object) {
		f["pre_tokenizer"] = object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "behavior": "Removed", "invert": true, "pattern": object{"Regex": `[a-z]+|\d`}},
			object{"type": "Split", "behavior": "Isolated", "pattern": object{"String": "."}},
			object{"type": "ByteLevel", "use_regex": false},
		}}
	}
	m, err = Load(folder(t, matches, nil))
	require.NoError(t, err)
	require.Equal(t, "ab12", Decode(m, m.Encode("ab -- 12 ??")))
}

func TestTemplateFiles(t *testing.T) {
	same := func(object) {}
	hello := Conversation{Messages: []Message{{Role: "user", Content: "hello"}}}
	for _, x := range []struct {
		name, want string
		files      map[string]string
		tools      string
	}{
		{"its own file goes first", "own hello", map[string]string{
			configFile: `{"chat_template": "config"}`, templateFile: "own {{ messages[0].content }}"}, ""},
		{"named templates", "plain", map[string]string{
			configFile: `{"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]}`}, ""},
		{"named templates, with tools", "tools", map[string]string{
			configFile: `{"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]}`}, "[]"},
		{"special tokens", "ab|True", map[string]string{
			configFile: `{"bos_token": "a", "eos_token": {"content": "b"}, "pad_token": null, "chat_template": "{{ bos_token + eos_token }}|{{ pad_token is undefined }}"}`}, ""},
		{"escapes and braces", "\r\u00e9\\d'\"}}|1", map[string]string{templateFile: `{{ "\r\u00e9\\d\'\"}}" }}|{{ {"a": {"b": 1}}.a.b }}`}, ""},
		{"marks of white space", "a b\n  c", map[string]string{templateFile: "a {{- ' ' -}} \n b{% if true +%}\n  {%+ if true %}c{% endif %}{% endif %}\n"}, ""},
	} {
		m, err := Load(folder(t, same, x.files))
		require.NoError(t, err, x.name)
		c := hello
		c.Tools = json.RawMessage(x.tools)
		text, err := m.template.render(c)
		require.NoError(t, err, x.name)
		require.Equal(t, x.want, text, x.name)
	}
	for _, x := range []struct {
		err   string
		files map[string]string
	}{
		{configFile, map[string]string{configFile: `{`}},
		{"chat_template", map[string]string{configFile: `{"chat_template": 3}`}},
		{`"{{ x" does not end`, map[string]string{templateFile: "{{ x"}},
		{`does not end`, map[string]string{templateFile: `{{ "x }}`}},
		{"raw is not supported", map[string]string{templateFile: "{% raw %}{% endraw %}"}},
		{templateFile, map[string]string{templateFile: "{% nonsense %}"}},
	} {
		_, err := Load(folder(t, same, x.files))
		require.ErrorContains(t, err, x.err)
	}
}

// A conversation that the template or its own form does not allow is an error of
// the request, never a panic.
func TestConversationsThatCannotBeRendered(t *testing.T) {
	m := load(t, "qwen")
	for _, c := range []Conversation{
		{Messages: []Message{{Role: "user"}}, Tools: json.RawMessage(`[`)},
		{Messages: []Message{{Role: "user"}}, Options: map[string]json.RawMessage{"x": json.RawMessage(`1 2`)}},
		{Messages: []Message{{Role: "assistant", ToolCalls: json.RawMessage(`{}`)}}},
		{Messages: []Message{{Role: "assistant", ToolCalls: json.RawMessage(`[null]`)}}},
		{Messages: []Message{{Role: "assistant", ToolCalls: json.RawMessage(`[{"function": 1}]`)}}},
	} {
		_, err := m.Chat(c)
		var refused *TemplateError
		require.ErrorAs(t, err, &refused)
	}
	deep, err := json.Marshal(strings.Repeat("[", 1<<20))
	require.NoError(t, err)
	_, err = m.Chat(Conversation{Messages: []Message{
		{Role: "user"}, {Role: "assistant", ToolCalls: json.RawMessage(`[{"function": {"name": "f", "arguments": ` + string(deep) + `}}]`)},
	}})
	require.NoError(t, err, "what is no object stays a string, however deep")
	broken, err := Load(folder(t, func(object) {}, map[string]string{templateFile: "{{ messages | select | list }}"}))
	require.NoError(t, err)
	_, err = broken.Chat(Conversation{})
	require.ErrorContains(t, err, "the interpreter failed")
}
