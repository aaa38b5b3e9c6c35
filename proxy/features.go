package proxy

import (
	"strings"

	"github.com/sluice-serving/sluice/proxy/splice"
)

// features are the parts of an answer, or of one event, that decisions read.
type features struct {
	status       int
	output       bool // it carries output
	text         bool // it carries text or ids that the client sees as output
	choices      int  // number of choices; -1 when there is no choices member
	finishReason string
	stopReason   string
	errorType    string
	errorCode    string
	isError      bool   // it has an error member
	kind         string // type member of what has no choices
	prompt       int    // usage.prompt_tokens
	completion   int    // usage.completion_tokens
	cached       int
	hasUsage     bool
}

// inspect reads the features of a checked body or event.
func inspect(o *splice.Object, status int) features {
	f := features{status: status, choices: -1}
	if raw := o.Raw("choices"); len(raw) > 0 && raw[0] == '[' {
		f.choices = 0
		splice.Records(raw, func() { f.choices++ }, f.choice)
	}
	f.typed(o)
	f.text = f.output
	if raw := o.Raw("usage"); len(raw) > 0 && raw[0] == '{' {
		f.hasUsage = true
		f.usage(raw)
		f.output = f.output || f.completion > 0
	}
	if raw := o.Raw("error"); len(raw) > 0 && raw[0] != 'n' {
		f.isError = true
		f.errorType, _ = splice.StringOf(splice.Field(raw, "type"))
		code := splice.Field(raw, "code")
		if s, ok := splice.StringOf(code); ok {
			f.errorCode = s
		} else if len(code) > 0 && code[0] != 'n' {
			f.errorCode = string(code)
		}
	}
	return f
}

// usage reads the account in the words of any of the APIs.
func (f *features) usage(raw []byte) {
	splice.Each(raw, func(key, value []byte) {
		switch string(key) {
		case "prompt_tokens", "input_tokens":
			f.prompt = intOf(value)
		case "completion_tokens", "output_tokens":
			f.completion = intOf(value)
		case "prompt_tokens_details", "input_tokens_details":
			f.cached = intOf(splice.Field(value, "cached_tokens"))
		case "cache_read_input_tokens":
			f.cached = intOf(value)
		}
	})
}

// typed reads what has no choices: events and answers of /v1/responses and
// /v1/messages, which name their type.
func (f *features) typed(o *splice.Object) {
	kind, ok := o.String("type")
	if f.choices >= 0 {
		return
	}
	f.kind = kind
	switch {
	case kind == "content_block_delta" || strings.HasSuffix(kind, ".delta"):
		f.output = filled(o.Raw("delta"))
	case kind == "message_stop":
		f.finishReason = kind
	case kind == "message_delta":
		if why, ok := splice.StringOf(splice.Field(o.Raw("delta"), "stop_reason")); ok {
			f.stopReason = why
		}
	case kind == "message_start":
		if raw := splice.Field(o.Raw("message"), "usage"); raw != nil {
			f.usage(raw)
		}
	case kind == "response.completed" || kind == "response.incomplete" || kind == "response.failed":
		f.finishReason = kind
		if raw := splice.Field(o.Raw("response"), "usage"); len(raw) > 0 && raw[0] == '{' {
			f.hasUsage = true
			f.usage(raw)
			f.output = f.completion > 0
		}
		f.isError = kind == "response.failed"
	case !ok || kind == "message": // a whole answer
		f.output = filled(o.Raw("output")) || filled(o.Raw("content"))
		if why, ok := o.String("stop_reason"); ok {
			f.stopReason = why
		}
	}
}

// choice reads a member of a choice.
func (f *features) choice(key, value []byte) {
	switch string(key) {
	case "text":
		f.output = f.output || filled(value)
	case "delta", "message":
		splice.Each(value, func(key, value []byte) {
			switch string(key) {
			case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio":
				f.output = f.output || filled(value)
			}
		})
	case "token_ids":
		f.output = f.output || filled(value)
	case "finish_reason":
		if s, ok := splice.StringOf(value); ok && f.finishReason == "" {
			f.finishReason = s
		}
	case "stop_reason":
		if s, ok := splice.StringOf(value); ok && f.stopReason == "" {
			f.stopReason = s
		}
	}
}

// filled reports whether a value is more than null or an empty string, list or object.
func filled(raw []byte) bool {
	switch {
	case len(raw) == 0 || raw[0] == 'n':
		return false
	case raw[0] == '"':
		return len(raw) > 2
	case raw[0] == '[' || raw[0] == '{':
		for _, c := range raw[1 : len(raw)-1] {
			if c > ' ' {
				return true
			}
		}
		return false
	}
	return true
}

// intOf reads a checked JSON number that is a non-negative integer; 0 for anything else.
func intOf(raw []byte) int {
	if len(raw) == 0 || len(raw) > 15 {
		return 0
	}
	n := 0
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}
