package openai

import (
	"encoding/json"
	"strconv"
)

// Values of finish_reason and stop_reason that the proxy and the engine agree on.
const (
	FinishStop           = "stop"
	FinishLength         = "length"
	FinishAbort          = "abort"
	FinishError          = "error"
	FinishCacheThreshold = "cache_threshold"

	StopRecomputed = "recomputed" // the engine gave the request up to make room; continue it elsewhere
)

// Values of object.
const (
	ObjectCompletion = "text_completion"
	ObjectChat       = "chat.completion"
	ObjectChatChunk  = "chat.completion.chunk"
	ObjectList       = "list"
	ObjectModel      = "model"
)

// Usage is the token account of one request.
type Usage struct {
	PromptTokens        int                  `json:"prompt_tokens"`
	CompletionTokens    int                  `json:"completion_tokens"`
	TotalTokens         int                  `json:"total_tokens"`
	PromptTokensDetails *PromptTokensDetails `json:"prompt_tokens_details,omitempty"`
}

// PromptTokensDetails says how many prompt tokens were served from a cache.
type PromptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// NewUsage is a usage with its sum and its cached tokens.
func NewUsage(prompt, completion, cached int) *Usage {
	return &Usage{
		PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion,
		PromptTokensDetails: &PromptTokensDetails{CachedTokens: cached},
	}
}

// Cached is the number of cached prompt tokens; 0 when the answer names none.
func (u *Usage) Cached() int {
	if u == nil || u.PromptTokensDetails == nil {
		return 0
	}
	return u.PromptTokensDetails.CachedTokens
}

// CompletionResponse answers POST /v1/completions, whole or as one chunk of a
// stream (the two have the same shape).
type CompletionResponse struct {
	ID               string             `json:"id"`
	Object           string             `json:"object"`
	Created          int64              `json:"created"` // seconds since 1970
	Model            string             `json:"model"`
	Choices          []CompletionChoice `json:"choices"`
	Usage            *Usage             `json:"usage,omitempty"`
	KVTransferParams json.RawMessage    `json:"kv_transfer_params,omitempty"`
}

// CompletionChoice is one answer of a completion, or what a chunk adds to it.
type CompletionChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       json.RawMessage `json:"logprobs"` // nil encodes as null
	FinishReason   *string         `json:"finish_reason"`
	StopReason     any             `json:"stop_reason"` // nil, a token id or a string
	TokenIDs       []int32         `json:"token_ids,omitempty"`
	PromptTokenIDs []int32         `json:"prompt_token_ids,omitempty"`
	PromptLogprobs PromptLogprobs  `json:"prompt_logprobs,omitempty"`
}

// CompletionLogprobs is the logprobs member of a completion's choice. Its lists
// have an entry per token; TopLogprobs has the chosen token besides the most
// likely ones. The first token of an echoed prompt has neither: nil, null in JSON.
type CompletionLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float64           `json:"token_logprobs"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"` // characters
}

// PromptLogprobs has an entry per token of a prompt: its own token and the most
// likely ones at its place. That of the first token is nil, null in JSON.
type PromptLogprobs []PromptTokens

// PromptTokens are the tokens at one place of a prompt, the prompt's own first. In
// JSON it is an object whose members are named by token ids, in this order.
type PromptTokens []PromptLogprob

// PromptLogprob is one of them.
type PromptLogprob struct {
	ID      int32   `json:"-"`
	Logprob float64 `json:"logprob"`
	Rank    int     `json:"rank"` // 1: the most likely one
	Token   string  `json:"decoded_token"`
}

// MarshalJSON writes the object.
func (t PromptTokens) MarshalJSON() ([]byte, error) {
	if t == nil {
		return []byte("null"), nil
	}
	out := []byte{'{'}
	for i := range t {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(append(out, '"'), int64(t[i].ID), 10)
		raw, err := json.Marshal(t[i])
		if err != nil {
			return nil, err
		}
		out = append(append(out, '"', ':'), raw...)
	}
	return append(out, '}'), nil
}

// ChatLogprobs is the logprobs member of a chat completion's choice.
type ChatLogprobs struct {
	Content []ChatLogprob `json:"content"`
}

// ChatLogprob is one token of a message, with the most likely ones at its place.
type ChatLogprob struct {
	TokenLogprob
	TopLogprobs []TokenLogprob `json:"top_logprobs"`
}

// TokenLogprob is a token and the logarithm of its probability.
type TokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"` // of its text
}

// ChatResponse answers POST /v1/chat/completions without streaming.
type ChatResponse struct {
	ID               string          `json:"id"`
	Object           string          `json:"object"`
	Created          int64           `json:"created"` // seconds since 1970
	Model            string          `json:"model"`
	Choices          []ChatChoice    `json:"choices"`
	Usage            *Usage          `json:"usage,omitempty"`
	PromptTokenIDs   []int32         `json:"prompt_token_ids,omitempty"`
	PromptLogprobs   PromptLogprobs  `json:"prompt_logprobs,omitempty"`
	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// ChatChoice is one answer of a chat completion.
type ChatChoice struct {
	Index        int             `json:"index"`
	Message      AnswerMessage   `json:"message"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   any             `json:"stop_reason"`
	TokenIDs     []int32         `json:"token_ids,omitempty"`
}

// AnswerMessage is the assistant's message.
type AnswerMessage struct {
	Role             string          `json:"role"`
	Content          string          `json:"content"`
	ReasoningContent string          `json:"reasoning_content,omitempty"`
	ToolCalls        json.RawMessage `json:"tool_calls,omitempty"`
}

// ChatChunk is one event of a streamed chat completion.
type ChatChunk struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Created          int64             `json:"created"` // seconds since 1970
	Model            string            `json:"model"`
	Choices          []ChatChunkChoice `json:"choices"`
	Usage            *Usage            `json:"usage,omitempty"`
	PromptTokenIDs   []int32           `json:"prompt_token_ids,omitempty"`
	KVTransferParams json.RawMessage   `json:"kv_transfer_params,omitempty"`
}

// ChatChunkChoice is what a chunk adds to one answer.
type ChatChunkChoice struct {
	Index        int             `json:"index"`
	Delta        Delta           `json:"delta"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   any             `json:"stop_reason,omitempty"`
	TokenIDs     []int32         `json:"token_ids,omitempty"`
}

// Delta is the part of a message that a chunk adds.
type Delta struct {
	Role             string          `json:"role,omitempty"`
	Content          *string         `json:"content,omitempty"`
	ReasoningContent string          `json:"reasoning_content,omitempty"`
	ToolCalls        json.RawMessage `json:"tool_calls,omitempty"`
}

// ModelList answers GET /v1/models.
type ModelList struct {
	Object string  `json:"object"`
	Data   []Model `json:"data"`
}

// Model is one served model.
type Model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"` // seconds since 1970
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len,omitempty"` // tokens
}

// NewModelList is the list of the given models.
func NewModelList(models ...Model) ModelList {
	for i := range models {
		models[i].Object = ObjectModel
	}
	return ModelList{Object: ObjectList, Data: models}
}
