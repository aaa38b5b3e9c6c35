package proxy

import (
	"strconv"
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
	if !f.hasUsage {
		return
	}
	o := &r.x.outcome
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
		edits[n] = splice.Delete("kv_transfer_params")
		n++
	}
	if r.mode.dropUsage && r.object.Has("usage") {
		edits[n] = splice.Delete("usage")
		n++
	}
	if usage && r.mode.rewriteCached && f.hasUsage && x.at.prefix != "" {
		edits[n] = splice.Set("usage", cachedUsage(r.object.Raw("usage"), r.prefillCached()))
		n++
	}
	if x.cont != nil && !x.cont.asked {
		if choices := r.object.Raw("choices"); len(choices) > 2 && choices[0] == '[' {
			edits[n] = splice.Set("choices", strip(choices))
			n++
		}
		edits[n] = splice.Delete("prompt_token_ids")
		n++
	}
	return r.object.Apply(dst, edits[:n]...)
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
	choices := whole.Raw("choices")
	if x.cont != nil && !x.cont.asked {
		choices = strip(choices)
	}
	return whole.Apply(nil, splice.Set("id", x.responseID()), splice.Set("choices", choices), splice.Delete("kv_transfer_params"), splice.Delete("usage"), splice.Delete("prompt_token_ids"))
}

// responseID is the id that the client sees on every part of its answer, as a JSON string.
func (x *exchange) responseID() []byte {
	if x.respID == nil {
		x.respID = []byte(`"` + x.at.prefix + x.id + `"`)
	}
	return x.respID
}

// cachedUsage is a usage object with its cached tokens replaced.
func cachedUsage(usage []byte, cached int) []byte {
	n := []byte(strconv.Itoa(cached))
	o, err := splice.Parse(usage)
	if err != nil { // usage is an object of a checked body; only duplicate keys can bring us here
		return usage
	}
	details := o.Raw("prompt_tokens_details")
	if d, err := splice.Parse(details); err == nil {
		return o.Apply(nil, splice.Set("prompt_tokens_details", d.Apply(nil, splice.Set("cached_tokens", n))))
	}
	return o.Apply(nil, splice.Set("prompt_tokens_details", append(append([]byte(`{"cached_tokens":`), n...), '}')))
}
