package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ardanlabs/jinja"

	"github.com/sluice-serving/sluice/kvcache"
)

// File is the file of a checkpoint's folder that makes it have a tokenizer.
const File = "tokenizer.json"

// The other files, which may be absent; the template in a file of its own is
// taken before the one in the configuration.
const (
	configFile   = "tokenizer_config.json"
	templateFile = "chat_template.jinja"
)

// Model is a checkpoint's own tokenizer and chat template.
type Model struct {
	vocabulary *byteLevel
	template   *chatTemplate // nil: there is none
}

var _ Tokenizer = (*Model)(nil)

// Load reads the tokenizer of a checkpoint's folder. It is nil if the folder has
// no tokenizer.json; files that cannot be used are errors that name the file.
func Load(dir string) (*Model, error) {
	raw, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := &Model{}
	if m.vocabulary, err = parseByteLevel(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, File), err)
	}
	m.template, err = loadTemplate(dir)
	return m, err
}

// Size is one more than the highest id that has a token.
func (m *Model) Size() int { return len(m.vocabulary.pieces) }

// Has reports whether the id has a token.
func (m *Model) Has(t kvcache.Token) bool {
	return t >= 0 && int(t) < m.Size() && m.vocabulary.known[t]
}

// HasTemplate reports whether Chat can work.
func (m *Model) HasTemplate() bool { return m.template != nil }

// Encode is the tokens of a text, between those that the post-processor adds. An
// added token's spelling in the text is that token.
func (m *Model) Encode(text string) []kvcache.Token {
	v := m.vocabulary
	return append(v.append(append([]kvcache.Token(nil), v.before...), text), v.after...)
}

// Chat is the tokens of the rendered template, which brings the tokens around the
// text itself.
func (m *Model) Chat(c Conversation) ([]kvcache.Token, error) {
	if m.template == nil {
		return nil, ErrNoTemplate
	}
	text, err := m.template.render(c)
	if err != nil {
		return nil, err
	}
	return m.vocabulary.append(nil, text), nil
}

// Bytes is what the token stands for in an answer.
func (m *Model) Bytes(t kvcache.Token) string {
	if !m.Has(t) {
		return ""
	}
	return m.vocabulary.pieces[t]
}

// loadTemplate reads the chat template of a folder, nil if there is none.
func loadTemplate(dir string) (*chatTemplate, error) {
	config := map[string]json.RawMessage{}
	path := filepath.Join(dir, configFile)
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &config)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	plain, tools, err := configTemplates(config["chat_template"])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	own := filepath.Join(dir, templateFile)
	switch raw, err := os.ReadFile(own); {
	case err == nil:
		plain, tools, path = string(raw), "", own
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if plain == "" {
		return nil, nil
	}
	t := &chatTemplate{variables: map[string]jinja.Value{}}
	for _, name := range []string{"bos_token", "eos_token", "pad_token", "unk_token"} {
		if token := tokenText(config[name]); token != "" {
			t.variables[name] = jinja.NewString(token)
		}
	}
	if err := t.compile(plain, tools); err != nil {
		return nil, fmt.Errorf("%s: chat template: %w", path, err)
	}
	return t, nil
}

// configTemplates reads the member chat_template: one template, or a list of
// named ones, of which "default" and "tool_use" are used.
func configTemplates(raw json.RawMessage) (plain, tools string, err error) {
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &plain) == nil {
		return plain, "", nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return "", "", fmt.Errorf("chat_template: %w", err)
	}
	for _, t := range named {
		switch t.Name {
		case "default":
			plain = t.Template
		case "tool_use":
			tools = t.Template
		}
	}
	return plain, tools, nil
}

// tokenText is a special token's text, which stands there as a string or as an
// object with content.
func tokenText(raw json.RawMessage) (text string) {
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var token struct{ Content string }
	_ = json.Unmarshal(raw, &token) // another form has no text
	return token.Content
}
