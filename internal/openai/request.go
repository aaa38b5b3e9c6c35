package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// StreamOptions is the stream_options member of a request.
type StreamOptions struct {
	// IncludeUsage asks for one last chunk without choices that carries usage.
	IncludeUsage bool `json:"include_usage,omitempty"`
	// ContinuousUsageStats asks for usage in every chunk.
	ContinuousUsageStats bool `json:"continuous_usage_stats,omitempty"`
}

// Sampling holds the members that completions and chat completions share. Nil
// means absent.
type Sampling struct {
	MaxTokens           *int     `json:"max_tokens,omitempty"`            // tokens
	MaxCompletionTokens *int     `json:"max_completion_tokens,omitempty"` // tokens; wins over MaxTokens
	MinTokens           int      `json:"min_tokens,omitempty"`            // tokens
	Temperature         *float64 `json:"temperature,omitempty"`
	TopP                *float64 `json:"top_p,omitempty"`
	TopK                *int     `json:"top_k,omitempty"`
	MinP                *float64 `json:"min_p,omitempty"`
	PresencePenalty     *float64 `json:"presence_penalty,omitempty"`
	FrequencyPenalty    *float64 `json:"frequency_penalty,omitempty"`
	RepetitionPenalty   *float64 `json:"repetition_penalty,omitempty"`
	Seed                *int64   `json:"seed,omitempty"`
	N                   *int     `json:"n,omitempty"`
	Stop                Strings  `json:"stop,omitempty"`
	StopTokenIDs        []int32  `json:"stop_token_ids,omitempty"`
	IgnoreEOS           bool     `json:"ignore_eos,omitempty"`
	// LogitBias is added to the logits of token ids, which are written in decimal.
	LogitBias map[string]float64 `json:"logit_bias,omitempty"`
	// PromptLogprobs asks for the log probabilities of the prompt's tokens and of so
	// many most likely ones at their places.
	PromptLogprobs *int `json:"prompt_logprobs,omitempty"`
	ReturnTokenIDs bool `json:"return_token_ids,omitempty"`

	Constraints
}

// Constraints are the members that say which tokens or texts an answer may hold.
type Constraints struct {
	ResponseFormat    json.RawMessage `json:"response_format,omitempty"` // {"type":"text"} constrains nothing
	StructuredOutputs json.RawMessage `json:"structured_outputs,omitempty"`
	GuidedJSON        json.RawMessage `json:"guided_json,omitempty"`
	GuidedRegex       json.RawMessage `json:"guided_regex,omitempty"`
	GuidedChoice      json.RawMessage `json:"guided_choice,omitempty"`
	GuidedGrammar     json.RawMessage `json:"guided_grammar,omitempty"`
	AllowedTokenIDs   json.RawMessage `json:"allowed_token_ids,omitempty"`
	BadWords          json.RawMessage `json:"bad_words,omitempty"`
}

// Given is the name of a member that constrains the answer; empty if none does.
func (c *Constraints) Given() string {
	var format struct {
		Type string `json:"type"`
	}
	if !absent(c.ResponseFormat) && (json.Unmarshal(c.ResponseFormat, &format) != nil || format.Type != "text") {
		return "response_format"
	}
	for _, m := range []struct {
		name string
		raw  json.RawMessage
	}{
		{"structured_outputs", c.StructuredOutputs}, {"guided_json", c.GuidedJSON}, {"guided_regex", c.GuidedRegex},
		{"guided_choice", c.GuidedChoice}, {"guided_grammar", c.GuidedGrammar}, {"allowed_token_ids", c.AllowedTokenIDs}, {"bad_words", c.BadWords},
	} {
		if !absent(m.raw) && string(m.raw) != "[]" {
			return m.name
		}
	}
	return ""
}

// OutputLimit is the number of output tokens that the request allows:
// max_completion_tokens, else max_tokens; false when it names neither.
func (s *Sampling) OutputLimit() (int, bool) {
	switch {
	case s.MaxCompletionTokens != nil:
		return *s.MaxCompletionTokens, true
	case s.MaxTokens != nil:
		return *s.MaxTokens, true
	}
	return 0, false
}

// Routing holds the members that concern caching, priority and KV transfer
// rather than sampling.
type Routing struct {
	KVTransferParams  json.RawMessage `json:"kv_transfer_params,omitempty"`
	CacheSalt         string          `json:"cache_salt,omitempty"`
	CacheHitThreshold *float64        `json:"cache_hit_threshold,omitempty"` // 0 to 1
	Priority          int             `json:"priority,omitempty"`
	RequestID         string          `json:"request_id,omitempty"`
}

// CompletionRequest is the body of POST /v1/completions.
type CompletionRequest struct {
	Model         string         `json:"model"`
	Prompt        Prompt         `json:"prompt"`
	Echo          bool           `json:"echo,omitempty"` // the answer begins with the prompt
	Logprobs      *int           `json:"logprobs,omitempty"`
	Suffix        string         `json:"suffix,omitempty"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *StreamOptions `json:"stream_options,omitempty"`
	User          string         `json:"user,omitempty"`
	Sampling
	Routing
}

// ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Model               string          `json:"model"`
	Messages            []Message       `json:"messages"`
	Tools               json.RawMessage `json:"tools,omitempty"`
	ToolChoice          json.RawMessage `json:"tool_choice,omitempty"`
	Logprobs            bool            `json:"logprobs,omitempty"`
	TopLogprobs         *int            `json:"top_logprobs,omitempty"`
	Echo                bool            `json:"echo,omitempty"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt,omitempty"`
	// ChatTemplateKwargs are further variables of the model's chat template.
	ChatTemplateKwargs map[string]json.RawMessage `json:"chat_template_kwargs,omitempty"`
	Stream             bool                       `json:"stream,omitempty"`
	StreamOptions      *StreamOptions             `json:"stream_options,omitempty"`
	User               string                     `json:"user,omitempty"`
	Sampling
	Routing
}

// Message is one message of a conversation.
type Message struct {
	Role             string          `json:"role"`
	Content          Content         `json:"content"`
	Name             string          `json:"name,omitempty"`
	ReasoningContent string          `json:"reasoning_content,omitempty"` // of an assistant's message
	ToolCalls        json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID       string          `json:"tool_call_id,omitempty"`
}

// Content is the content of a message: a string, a list of text parts or null.
type Content string

// UnmarshalJSON accepts a string, null, or a list of strings and text parts,
// which it joins with line ends as vLLM does for text-only models.
func (c *Content) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	switch {
	case bytes.Equal(b, []byte("null")):
		*c = ""
		return nil
	case len(b) > 0 && b[0] == '"':
		return json.Unmarshal(b, (*string)(c))
	case len(b) == 0 || b[0] != '[':
		return errors.New("content must be a string, a list of parts or null")
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	texts := make([]string, 0, len(parts))
	for i, raw := range parts {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			texts = append(texts, text)
			continue
		}
		var part struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(raw, &part); err != nil {
			return fmt.Errorf("content part %d: %w", i, err)
		}
		if part.Text == nil {
			return fmt.Errorf("content part %d: type %q carries no text, and only text is supported", i, part.Type)
		}
		texts = append(texts, *part.Text)
	}
	*c = Content(strings.Join(texts, "\n"))
	return nil
}

// Strings is a list of strings that may also be written as one string or null.
type Strings []string

// UnmarshalJSON accepts null, one string, or a list of strings.
func (s *Strings) UnmarshalJSON(b []byte) error {
	var one *string
	if json.Unmarshal(b, &one) == nil {
		*s = nil
		if one != nil {
			*s = Strings{*one}
		}
		return nil
	}
	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		return errors.New("must be a string or a list of strings")
	}
	*s = list
	return nil
}

// Prompt is the prompt of a completions request: one or more texts, or one or
// more token id lists. Exactly one of the two fields is non-nil after decoding.
type Prompt struct {
	Texts  []string
	Tokens [][]int32
	list   bool // the JSON was a list of prompts, not one prompt
}

// TokenPrompt is a prompt of one token id list; the caller keeps the slice unchanged.
func TokenPrompt(ids []int32) Prompt { return Prompt{Tokens: [][]int32{ids}} }

// Len is the number of prompts.
func (p *Prompt) Len() int { return len(p.Texts) + len(p.Tokens) }

// UnmarshalJSON accepts a string, a list of strings, a list of token ids, or a
// list of token id lists. An empty list decodes to no prompt at all.
func (p *Prompt) UnmarshalJSON(b []byte) error {
	*p = Prompt{}
	b = bytes.TrimSpace(b)
	if len(b) == 0 || (b[0] != '"' && b[0] != '[') {
		return errors.New("prompt must be a string, a list of strings, a list of token ids or a list of token id lists")
	}
	if b[0] == '"' {
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		p.Texts = []string{text}
		return nil
	}
	switch inner := bytes.TrimLeft(b[1:], " \t\r\n"); {
	case len(inner) == 0:
		return errors.New("prompt is cut short")
	case inner[0] == ']':
		return nil
	case inner[0] == '"':
		p.list = true
		if err := json.Unmarshal(b, &p.Texts); err != nil {
			return errors.New("prompt must be a list of strings throughout")
		}
	case inner[0] == '[':
		p.list = true
		var lists []json.RawMessage
		if err := json.Unmarshal(b, &lists); err != nil {
			return err
		}
		for _, list := range lists {
			ids, ok := ParseIDs(list)
			if !ok {
				return errors.New("prompt must be a list of token id lists throughout")
			}
			p.Tokens = append(p.Tokens, ids)
		}
	default:
		ids, ok := ParseIDs(b)
		if !ok {
			return errors.New("prompt must be a list of token ids throughout")
		}
		p.Tokens = [][]int32{ids}
	}
	return nil
}

// MarshalJSON writes one prompt plain and several as a list.
func (p Prompt) MarshalJSON() ([]byte, error) {
	switch {
	case len(p.Texts) == 1 && !p.list:
		return json.Marshal(p.Texts[0])
	case len(p.Texts) > 0:
		return json.Marshal(p.Texts)
	case len(p.Tokens) == 1 && !p.list:
		return AppendIDs(make([]byte, 0, 8*len(p.Tokens[0])+2), p.Tokens[0]), nil
	case len(p.Tokens) > 0:
		return json.Marshal(p.Tokens)
	}
	return []byte("[]"), nil
}
