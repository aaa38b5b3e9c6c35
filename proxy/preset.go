package proxy

import (
	"encoding/json"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// Backend says what a local attempt carries and what counts as its refusal.
type Backend struct {
	Name string
	// Headers are set on local attempts.
	Headers map[string]string
	// Params are the members of kv_transfer_params on local attempts, as one JSON object.
	Params json.RawMessage
	// Members are top-level body members of local attempts.
	Members map[string]json.RawMessage
	// Refusals are the rules that recognise a refusal; one that matches is enough.
	// They apply only while no output was seen.
	Refusals []RefusalRule
}

// RefusalRule matches an answer, or one event of it, when all its non-empty
// fields do.
type RefusalRule struct {
	Status       int // HTTP status
	FinishReason string
	StopReason   string // equal, or with a ":" and a reason after it
	ErrorType    string
	ErrorCode    string
}

// Sluice is the preset for Sluice's own engine.
func Sluice() Backend {
	return Backend{
		Name:    "sluice",
		Headers: map[string]string{"Prefer": openai.PreferIfAvailable},
		Params:  json.RawMessage(`{"decoder_append_prefill":true,"do_remote_prefill":false,"do_remote_decode":false}`),
		Refusals: []RefusalRule{
			{Status: 412, ErrorType: openai.TypeAppendPrefillMiss},
			{StopReason: openai.TypeAppendPrefillMiss},
			{FinishReason: openai.FinishCacheThreshold},
		},
	}
}

// matches reports whether an answer's features are those of the rule.
func (r RefusalRule) matches(f features) bool {
	if r == (RefusalRule{}) {
		return false
	}
	stop := r.StopReason == "" || f.stopReason == r.StopReason ||
		(len(f.stopReason) > len(r.StopReason) && f.stopReason[:len(r.StopReason)] == r.StopReason && f.stopReason[len(r.StopReason)] == ':')
	return stop && (r.Status == 0 || r.Status == f.status) &&
		(r.FinishReason == "" || r.FinishReason == f.finishReason) &&
		(r.ErrorType == "" || r.ErrorType == f.errorType) &&
		(r.ErrorCode == "" || r.ErrorCode == f.errorCode)
}

// refused reports whether an answer is a refusal, and why.
func (b *Backend) refused(f features) (reason string, ok bool) {
	for _, rule := range b.Refusals {
		if !rule.matches(f) {
			continue
		}
		switch {
		case f.errorCode != "":
			reason = f.errorCode
		case len(f.stopReason) > len(rule.StopReason) && rule.StopReason != "":
			reason = f.stopReason[len(rule.StopReason)+1:]
		case f.finishReason == openai.FinishCacheThreshold:
			reason = openai.FinishCacheThreshold
		default:
			reason = openai.MissNoPrefix
		}
		return bounded(reason), true
	}
	return "", false
}

// bounded keeps a reason that came over the wire fit for a metric label.
func bounded(reason string) string {
	switch reason {
	case openai.MissNoPrefix, openai.MissBelowMinPrefix, openai.MissSuffixTooLong, openai.MissBusy, openai.MissDraining, openai.FinishCacheThreshold:
		return reason
	}
	return "other"
}

// features are the parts of an answer, or of one event, that decisions read.
type features struct {
	status       int
	output       bool // it carries output
	choices      int  // number of choices; -1 when there is no choices member
	finishReason string
	stopReason   string
	errorType    string
	errorCode    string
	isError      bool // it has an error member
	prompt       int  // usage.prompt_tokens
	completion   int  // usage.completion_tokens
	cached       int
	hasUsage     bool
}

// inspect reads the features of a checked body or event.
func inspect(o *splice.Object, status int) features {
	f := features{status: status, choices: -1}
	if raw := o.Raw("choices"); len(raw) > 0 && raw[0] == '[' {
		f.choices = 0
		splice.Elements(raw, func(choice []byte) bool {
			f.choices++
			f.choice(choice)
			return true
		})
	}
	if raw := o.Raw("usage"); len(raw) > 0 && raw[0] == '{' {
		f.hasUsage = true
		f.prompt = intOf(splice.Field(raw, "prompt_tokens"))
		f.completion = intOf(splice.Field(raw, "completion_tokens"))
		f.cached = intOf(splice.Field(splice.Field(raw, "prompt_tokens_details"), "cached_tokens"))
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

func (f *features) choice(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case "text":
			f.output = f.output || filled(value)
		case "delta", "message":
			members(value, func(key, value []byte) {
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
	})
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

func members(object []byte, visit func(key, value []byte)) { splice.Each(object, visit) }

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
