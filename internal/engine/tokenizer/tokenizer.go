// Package tokenizer turns text into tokens and back: Builtin for the model that
// the binary carries, and Model for a checkpoint's own tokenizer.json and chat
// template.
package tokenizer

import (
	"encoding/json"

	"github.com/sluice-serving/sluice/kvcache"
)

// Tokenizer is the text side of a model. Its methods may be called by several
// goroutines at once.
type Tokenizer interface {
	// Encode is the prompt of a text that stands alone, with the tokens that the
	// model wants before and after one.
	Encode(text string) []kvcache.Token
	// Chat is the prompt of a conversation, up to where the assistant's answer
	// begins. Errors: ErrNoTemplate, *TemplateError.
	Chat(c Conversation) ([]kvcache.Token, error)
	// Bytes is what the token stands for in an answer: nothing for special tokens
	// and ids without a token. They need be no UTF-8.
	Bytes(t kvcache.Token) string
}

// Conversation is what a chat template is given.
type Conversation struct {
	Messages []Message
	Tools    json.RawMessage            // a JSON list in the OpenAI form; nil if there are none
	Options  map[string]json.RawMessage // further variables of the template, such as enable_thinking
}

// Message is one turn of a conversation.
type Message struct {
	Role       string // system, user, assistant, tool or developer
	Content    string
	Name       string
	Reasoning  string          // of an assistant's message, where the client keeps it apart
	ToolCalls  json.RawMessage // a JSON list in the OpenAI form; nil if there are none
	ToolCallID string          // of a tool's message
}
