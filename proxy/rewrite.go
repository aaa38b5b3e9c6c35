package proxy

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/proxy/splice"
)

// prefillCached is the number of prompt tokens that the Prefiller had cached.
func (r *relay) prefillCached() int {
	if r.mode.push != nil {
		return int(r.mode.push.cached.Load())
	}
	return r.mode.cached
}

// account takes what an answer says about itself into the turn's outcome.
func (r *relay) account(f features) {
	o := &r.x.outcome
	if f.kind == "message_start" { // tells the prompt's part; the rest comes at the end
		o.PromptTokens, o.CachedTokens = f.prompt, f.cached
	}
	if !f.hasUsage {
		return
	}
	if f.kind == "message_delta" && f.prompt == 0 {
		f.prompt, f.cached = o.PromptTokens, o.CachedTokens
	}
	r.completion = f.completion
	if r.x.continues() {
		o.OutputTokens = len(r.x.cont.ids)
		return
	}
	o.PromptTokens, o.OutputTokens, o.CachedTokens = f.prompt, f.completion, f.cached
	if r.mode.rewriteCached {
		o.CachedTokens = r.prefillCached()
	}
}

// resident takes what the engine says it holds of the session after the turn.
func (r *relay) resident(params []byte) {
	tokens := splice.Field(params, "resident_tokens")
	if tokens == nil {
		return
	}
	o := &r.x.outcome
	o.HasResident, o.Resident = true, intOf(tokens)
	if ms := intOf(splice.Field(params, "resident_until_ms")); ms > 0 {
		o.ResidentUntil = time.UnixMilli(int64(ms))
	}
}

// rewrite gives the text of an answer or event as the client is to see it: one
// response id, the Prefiller's cached tokens, no transfer parameters.
func (r *relay) rewrite(dst []byte, f features, usage bool) []byte {
	x := r.x
	var edits [6]splice.Edit
	n := 0
	if raw := r.object.Raw("id"); len(raw) > 0 && raw[0] == '"' && x.at.prefix != "" {
		edits[n] = splice.Set("id", x.responseID())
		n++
	}
	if raw := r.object.Raw("kv_transfer_params"); raw != nil {
		r.resident(raw)
		x.keep(r.c.target.Decoder, raw)
		edits[n] = splice.Delete("kv_transfer_params")
		n++
	}
	if r.mode.dropUsage && r.object.Has("usage") {
		edits[n] = splice.Delete("usage")
		n++
	}
	if usage && r.mode.rewriteCached && f.hasUsage && x.at.prefix != "" {
		edits[n] = splice.Set("usage", r.cachedUsage(r.object.Raw("usage"), r.prefillCached()))
		n++
	}
	if x.at.prefix == "" {
		n += r.typed(edits[n:], f)
	}
	if x.cont != nil && !x.cont.asked {
		if choices := r.object.Raw("choices"); len(choices) > 2 && choices[0] == '[' {
			edits[n] = splice.Set("choices", x.cont.strip(choices))
			n++
		}
		edits[n] = splice.Delete("prompt_token_ids")
		n++
	}
	return r.object.Apply(dst, edits[:n]...)
}

// typed are the edits of an answer or event of /v1/responses and /v1/messages.
// Their usage stands in the answer, in the event, or in the object that the
// event carries; their ids stay, because later requests name them.
func (r *relay) typed(edits []splice.Edit, f features) int {
	inside := ""
	switch {
	case f.kind == "message_start":
		inside = "message"
	case strings.HasPrefix(f.kind, "response."):
		inside = "response"
	}
	if inside == "" {
		if f.kind == "" || f.kind == "message" {
			r.x.named(r.object.Raw("id"))
		}
		if usage, ok := r.typedUsage(r.object.Raw("usage")); ok {
			edits[0] = splice.Set("usage", usage)
			return 1
		}
		return 0
	}
	o, err := splice.Parse(r.object.Raw(inside))
	if err != nil {
		return 0 // no object, or one with a key twice: it goes on as it is
	}
	r.x.named(o.Raw("id"))
	var changes [2]splice.Edit
	n := 0
	if raw := o.Raw("kv_transfer_params"); raw != nil {
		r.resident(raw)
		r.x.keep(r.c.target.Decoder, raw)
		changes[n] = splice.Delete("kv_transfer_params")
		n++
	}
	if usage, ok := r.typedUsage(o.Raw("usage")); ok {
		changes[n] = splice.Set("usage", usage)
		n++
	}
	if n == 0 {
		return 0
	}
	edits[0] = splice.Set(inside, o.Apply(nil, changes[:n]...))
	return 1
}

// typedUsage is a usage object with the Prefiller's cached tokens in the place
// of the Decoder's, where it tells any.
func (r *relay) typedUsage(usage []byte) ([]byte, bool) {
	if !r.mode.rewriteCached || len(usage) == 0 || usage[0] != '{' {
		return nil, false
	}
	o, err := splice.Parse(usage)
	if err != nil {
		return nil, false
	}
	n := strconv.AppendInt(nil, int64(r.prefillCached()), 10)
	if o.Has("cache_read_input_tokens") {
		return o.Apply(nil, splice.Set("cache_read_input_tokens", n)), true
	}
	details, err := splice.Parse(o.Raw("input_tokens_details"))
	if err != nil || !details.Has("cached_tokens") {
		return nil, false
	}
	return o.Apply(nil, splice.Set("input_tokens_details", details.Apply(nil, splice.Set("cached_tokens", n)))), true
}

// continues reports whether the legs under way continue an answer.
func (x *exchange) continues() bool { return x.cont != nil && x.cont.rounds > 0 }

// unfinished is the last event of an answer that was given up, without the
// reasons of its end.
func (x *exchange) unfinished(o *splice.Object, f features) []byte {
	choice, err := splice.Parse(firstChoice(o))
	if err != nil { // an event with text has a choice
		return o.Source()
	}
	null := []byte("null")
	open := choice.Apply(nil, splice.Replace("finish_reason", null), splice.Replace("stop_reason", null))
	whole, err := splice.Parse(o.Apply(nil, splice.Set("choices", append(append([]byte{'['}, open...), ']'))))
	if err != nil { // it was made of a checked event
		panic(err)
	}
	if x.continues() {
		return x.cont.convert(whole, x.responseID(), f)
	}
	edits := []splice.Edit{splice.Set("id", x.responseID()), splice.Delete("kv_transfer_params"), splice.Delete("usage")}
	if x.cont != nil && !x.cont.asked {
		edits = append(edits, splice.Set("choices", x.cont.strip(whole.Raw("choices"))), splice.Delete("prompt_token_ids"))
	}
	return whole.Apply(nil, edits...)
}

// responseID is the id that the client sees on every part of its answer, as a JSON string.
func (x *exchange) responseID() []byte {
	if x.respID == nil {
		x.respID = []byte(`"` + x.at.prefix + x.id + `"`)
	}
	return x.respID
}

// cachedUsage is a usage object with its cached tokens replaced.
func (s *scratch) cachedUsage(usage []byte, cached int) []byte {
	if s.usage.Reset(usage) != nil { // an object of a checked body; only duplicate keys can bring us here
		return usage
	}
	n := strconv.AppendInt(s.numbers[:0], int64(cached), 10)
	digits := len(n)
	if s.details.Reset(s.usage.Raw("prompt_tokens_details")) == nil {
		n = s.details.Apply(n, splice.Set("cached_tokens", n))
	} else {
		n = append(append(append(n, `{"cached_tokens":`...), n[:digits]...), '}')
	}
	details := len(n)
	n = s.usage.Apply(n, splice.Set("prompt_tokens_details", n[digits:]))
	s.numbers = n
	return n[details:]
}
