package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// Backend says how the Decoders of a pool are asked for a local attempt and
// how they refuse it. A preset gives one by name; every part can be replaced.
type Backend struct {
	Name string
	// Headers are set on local attempts.
	Headers map[string]string
	// Params is the kv_transfer_params of local attempts; nil sends none.
	Params json.RawMessage
	// RemoteETA adds to them the member remote_eta_ms: how long the Prefillers
	// would take for the prompt, where that is known. An engine with much to do
	// can weigh it against its own.
	RemoteETA bool
	// Members are top-level body members of local attempts.
	Members map[string]json.RawMessage
	// PrefillMembers are top-level body members of prefill legs.
	PrefillMembers map[string]json.RawMessage
	// Refusals are the rules that recognise a refusal; one that matches is enough.
	// They apply only while no output was seen.
	Refusals []RefusalRule
	// Guard bounds local attempts on the pool's ranks.
	Guard route.Guard
	// Push is the mode in which the Decoder is asked first and the Prefiller
	// pushes the KV into its blocks.
	Push bool
	// Bidirectional keeps the names of the blocks that a Decoder holds after a
	// turn, and gives them to whoever computes the next turn elsewhere. The
	// engines have a switch of the same name.
	Bidirectional bool
	// Continue asks the Decoders for token ids, so that an answer which one gives
	// up to make room is continued from exactly the tokens that the client has.
	Continue bool
	// ContinueBroken also continues answers whose Decoder broke off.
	ContinueBroken bool
}

// RefusalRule matches an answer, or one event of it, when all its non-empty
// fields do.
type RefusalRule struct {
	Status       int // HTTP status
	FinishReason string
	StopReason   string // equal, or with a ":" and a reason after it
	ErrorType    string
	ErrorCode    string
	// Pointer is a JSON pointer into the body or event, and Equals the text or
	// JSON that it must lead to; an empty Equals asks only that it leads somewhere.
	Pointer string
	Equals  string
	// Empty asks for an answer that is finished without any output.
	Empty bool
}

// Presets are the names that Preset knows, in order.
func Presets() []string {
	return []string{"sluice", "vllm-ascend", "cache-threshold", "llm-d", "plain"}
}

// ErrPreset reports a name that is no preset.
var ErrPreset = errors.New("unknown backend preset")

// marker is the transfer parameters that mark a local attempt.
var marker = json.RawMessage(`{"decoder_append_prefill":true,"do_remote_prefill":false,"do_remote_decode":false}`)

// Preset gives the backend of that name.
//
//   - sluice: this project's engine, which answers a refusal with status 412, or
//     in band.
//   - vllm-ascend: the proposed append-prefill scheduler. The proposal names no
//     wire form of a refusal, so the rules accept the forms that are likely:
//     a stop reason, status 412, or an answer that stops without output.
//   - cache-threshold: engines with a cache hit threshold per request.
//   - llm-d: the same, where the Prefiller must be sent a threshold of zero.
//   - plain: engines without the feature. They never refuse, so an attempt is
//     made only when the resident prefix can be predicted.
func Preset(name string) (Backend, error) {
	foreign := route.Guard{MaxSuffixTokens: 4096, MaxAppendTokensInFlight: 8192, MaxLocalAttempts: 4}
	threshold := map[string]json.RawMessage{"cache_hit_threshold": json.RawMessage("0.5")}
	byThreshold := []RefusalRule{{FinishReason: openai.FinishCacheThreshold}}
	switch name {
	case "sluice":
		return Backend{
			Name: name, Headers: map[string]string{"Prefer": openai.PreferIfAvailable}, Params: marker, RemoteETA: true,
			Refusals: []RefusalRule{
				{Status: 412, ErrorType: openai.TypeAppendPrefillMiss},
				{StopReason: openai.TypeAppendPrefillMiss},
				{FinishReason: openai.FinishCacheThreshold},
			},
		}, nil
	case "vllm-ascend":
		return Backend{
			Name: name, Params: marker, Guard: foreign,
			Refusals: []RefusalRule{
				{StopReason: openai.TypeAppendPrefillMiss},
				{ErrorType: openai.TypeAppendPrefillMiss},
				{Status: 412},
				{FinishReason: openai.FinishStop, Empty: true},
				{FinishReason: openai.FinishAbort, Empty: true},
			},
		}, nil
	case "cache-threshold":
		return Backend{Name: name, Members: threshold, Refusals: byThreshold, Guard: foreign}, nil
	case "llm-d":
		return Backend{Name: name, Members: threshold, Refusals: byThreshold, Guard: foreign,
			PrefillMembers: map[string]json.RawMessage{"cache_hit_threshold": json.RawMessage("0")}}, nil
	case "plain":
		foreign.MaxSuffixTokens, foreign.RequireResident = 2048, true
		return Backend{Name: name, Guard: foreign}, nil
	}
	return Backend{}, fmt.Errorf("%w %q: give one of %s", ErrPreset, name, strings.Join(Presets(), ", "))
}

// Validate joins everything that is wrong with a backend.
func (b *Backend) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if b.Params != nil {
		if _, err := splice.Parse(b.Params); err != nil {
			bad("params: %w", err)
		}
	}
	if b.RemoteETA && b.Params == nil {
		bad("remote_eta has no params to stand in")
	}
	for _, list := range []map[string]json.RawMessage{b.Members, b.PrefillMembers} {
		for _, k := range slices.Sorted(maps.Keys(list)) {
			if !json.Valid(list[k]) {
				bad("member %q: not valid JSON", k)
			}
			if k == "kv_transfer_params" || k == "stream" {
				bad("member %q is the proxy's own", k)
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(b.Headers)) {
		if !token(k) || strings.ContainsFunc(b.Headers[k], func(r rune) bool { return r < ' ' || r > '~' }) {
			bad("header %q: not fit to be sent", k)
		}
	}
	for i, r := range b.Refusals {
		switch {
		case r == RefusalRule{}:
			bad("refusal rule %d is empty and would match everything", i+1)
		case r == RefusalRule{Empty: true}, r == RefusalRule{Status: 200}:
			bad("refusal rule %d would match every ordinary answer's start", i+1)
		case r.Status != 0 && (r.Status < 200 || r.Status > 599):
			bad("refusal rule %d: status %d", i+1, r.Status)
		case r.Pointer != "" && r.Pointer[0] != '/':
			bad("refusal rule %d: a JSON pointer starts with a slash", i+1)
		case r.Equals != "" && r.Pointer == "":
			bad("refusal rule %d: equals without a pointer", i+1)
		}
	}
	g := b.Guard
	for _, f := range []struct {
		name string
		v    int
	}{{"max suffix tokens", g.MaxSuffixTokens}, {"max append tokens in flight", g.MaxAppendTokensInFlight}, {"max local attempts", g.MaxLocalAttempts}} {
		if f.v < 0 {
			bad("%s is %d, must not be negative", f.name, f.v)
		}
	}
	if g.PaceTarget < 0 {
		bad("tpot target is %v, must not be negative", g.PaceTarget)
	}
	return errors.Join(errs...)
}

// token reports whether s is a header's name.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune("()<>@,;:\\\"/[]?={}", r)
	})
}

// matches reports whether an answer's features are those of the rule; body is
// the checked JSON that they were read from, nil when it was none.
func (r RefusalRule) matches(f features, body *splice.Object) bool {
	if r == (RefusalRule{}) {
		return false
	}
	stop := r.StopReason == "" || f.stopReason == r.StopReason || strings.HasPrefix(f.stopReason, r.StopReason+":")
	return stop && (r.Status == 0 || r.Status == f.status) &&
		(r.FinishReason == "" || r.FinishReason == f.finishReason) &&
		(r.ErrorType == "" || r.ErrorType == f.errorType) &&
		(r.ErrorCode == "" || r.ErrorCode == f.errorCode) &&
		(!r.Empty || (!f.output && f.finishReason != "")) &&
		(r.Pointer == "" || (body != nil && r.points(body.Source())))
}

func (r RefusalRule) points(body []byte) bool {
	raw := splice.Pointer(body, r.Pointer)
	if raw == nil || r.Equals == "" {
		return raw != nil
	}
	if s, ok := splice.StringOf(raw); ok && s == r.Equals {
		return true
	}
	return string(raw) == r.Equals
}

// refused reports whether an answer is a refusal, and why.
func (b *Backend) refused(f features, body *splice.Object) (reason string, ok bool) {
	for _, rule := range b.Refusals {
		if !rule.matches(f, body) {
			continue
		}
		switch {
		case f.errorType == openai.TypeAppendPrefillMiss && f.errorCode != "":
			reason = bounded(f.errorCode)
		case rule.StopReason != "" && len(f.stopReason) > len(rule.StopReason):
			reason = bounded(f.stopReason[len(rule.StopReason)+1:])
		case f.finishReason == openai.FinishCacheThreshold:
			reason = openai.FinishCacheThreshold
		case rule.StopReason != "":
			reason = openai.MissNoPrefix
		default:
			reason = "other"
		}
		return reason, true
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
