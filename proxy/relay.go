package proxy

import (
	"context"
	"errors"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// relayMode says how an answer is treated on its way to the client.
type relayMode struct {
	local         *Backend // an attempt, and how it may be refused; nil otherwise
	rewriteCached bool     // the client sees the Prefiller's cached tokens
	cached        int
	dropUsage     bool    // the client has not asked for the usage of its stream
	push          *pushed // in push mode: knows the cached tokens once the prompt is computed
}

// relay carries one 200 answer of a Decoder to the client.
type relay struct {
	x      *exchange
	c      call
	ctx    context.Context
	mode   relayMode
	status int

	sawOutput  bool
	outputs    int // events with output
	completion int // completion tokens that usage names
	finished   bool
	object     splice.Object
	edited     []byte
	paceFrom   time.Time // of the last output that the router knows of
	paceEvents int       // outputs since then
	held       []byte    // events before the first output
}

// maxHeld bounds the bytes that are held back before output is proven.
const maxHeld = 1 << 20

func isEventStream(contentType string) bool {
	return len(contentType) >= 17 && strings.EqualFold(contentType[:17], "text/event-stream")
}

// output is the number of output tokens, or of events with output where the
// answer names no count.
func (r *relay) output() int {
	if r.completion > 0 {
		return r.completion
	}
	return r.outputs
}

// begin notes the first output: the attempt is proven, the Prefiller's load
// ends, and the body that was kept for a fallback is dropped.
func (r *relay) begin() {
	if r.sawOutput {
		return
	}
	r.sawOutput = true
	x := r.x
	if x.first.IsZero() {
		x.first = time.Now()
	}
	x.p.mu.Lock()
	x.p.router.Output(x.first, x.turn)
	x.p.mu.Unlock()
	x.dropBody()
}

// pace tells the router now and then how fast the stream comes.
func (r *relay) pace(now time.Time) {
	if r.paceFrom.IsZero() {
		r.paceFrom = now
		return
	}
	r.paceEvents++
	took := now.Sub(r.paceFrom)
	if r.paceEvents < 16 && took < 100*time.Millisecond {
		return
	}
	r.x.p.mu.Lock()
	r.x.p.router.Pace(now, r.c.target.Decoder, r.c.target.Rank, r.paceEvents, took)
	r.x.p.mu.Unlock()
	r.paceFrom, r.paceEvents = now, 0
}

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

// whole relays an answer that is not a stream. Nothing reaches the client
// before the answer is complete.
func (r *relay) whole(body io.Reader, contentType string) result {
	x := r.x
	limit := x.p.cfg.MaxAnswer
	raw, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case err != nil && x.gone():
		return result{verdict: gone}
	case err != nil && len(raw) == 0:
		x.broke(r.c, err)
		return x.transportFailure(r.ctx, r.c, err)
	case err != nil:
		x.broke(r.c, err)
		// The engine had finished its work when it began to answer: the output
		// is lost, and trying again would be a replay.
		x.p.metrics.blocked.Inc()
		x.out.fail(x.transportFailure(r.ctx, r.c, err).problem)
		return result{verdict: cut, reason: "error:cut"}
	case int64(len(raw)) > limit:
		x.out.fail(openai.BadGateway("the answer is longer than %d bytes", limit))
		return result{verdict: cut, reason: "error:too_long"}
	case len(raw) == 0:
		return result{verdict: failed, reason: "error:empty", problem: openai.BadGateway("the %s gave an empty answer", roles[r.c.leg])}
	}
	if err := r.object.Reset(raw); err != nil {
		r.outputs = 1
		r.begin()
		return r.done(x.out.whole(r.status, contentType, raw))
	}
	f := inspect(&r.object, r.status)
	if res, ok := r.early(f); ok {
		return res
	}
	if x.cont != nil {
		x.cont.take(&r.object, f)
	}
	if f.output {
		r.outputs = 1
	}
	if f.stopReason == openai.StopRecomputed {
		return r.recomputed(&r.object)
	}
	r.account(f)
	r.begin()
	if x.continues() {
		x.cont.part(&r.object)
		return r.done(x.out.whole(r.status, contentType, x.cont.join(&r.object, x.responseID())))
	}
	return r.done(x.out.whole(r.status, contentType, r.rewrite(nil, f, true)))
}

// done is the end of a complete answer.
func (r *relay) done(sent bool) result {
	r.x.outcome.Result = route.Completed
	if !sent {
		return result{verdict: gone}
	}
	return result{verdict: served}
}

// early decides about an answer or event that comes while nothing was sent:
// a refusal, or an error.
func (r *relay) early(f features) (result, bool) {
	if r.mode.local != nil && !f.output {
		if why, ok := r.mode.local.refused(f, &r.object); ok {
			return result{verdict: refused, reason: "refused:" + why}, true
		}
	}
	if !f.isError || f.output {
		return result{}, false
	}
	status, err := strconv.Atoi(f.errorCode)
	if err != nil || status < 400 || status > 599 {
		status = statusOfType(f.errorType)
	}
	raw := r.object.Source()
	if status >= 500 {
		return result{verdict: failed, reason: "error:event", problem: upstream(r.c.leg, status, nil, raw)}, true
	}
	r.x.out.fail(shaped(status, raw))
	return result{verdict: passedOn}, true
}

// statusOfType guesses the status of an error that came inside a 200 answer.
func statusOfType(kind string) int {
	switch strings.ToLower(kind) {
	case openai.TypeInvalidRequest, "badrequesterror", "bad_request_error":
		return 400
	case openai.TypeNotFound, "notfounderror":
		return 404
	case openai.TypeRateLimit, "ratelimiterror":
		return 429
	}
	return 500
}

// recomputed ends a leg whose answer the engine gave up to make room. Without
// output the turn may be run again. With output it is continued from the token
// ids that the client has, or, where they are not known, not at all: the text
// alone does not say which tokens it was.
func (r *relay) recomputed(o *splice.Object) result {
	c := r.x.cont
	switch {
	case !r.sawOutput && r.outputs == 0 && (c == nil || c.rounds == 0):
		if c != nil {
			c.prompt, c.ids, c.broken = nil, nil, false
		}
		return result{verdict: failed, reason: "error:recomputed", problem: openai.Unavailable(1, "the decoder gave the request up to make room")}
	case c.ready():
		if !c.stream {
			c.part(o)
		}
		return r.give("error:recomputed")
	}
	r.x.p.metrics.blocked.Inc()
	r.x.out.fail(openai.Unavailable(1, "the decoder gave the request up to make room"))
	return result{verdict: cut, reason: "error:recomputed"}
}

// give hands the rest of the answer to another round.
func (r *relay) give(reason string) result {
	r.begin()
	if len(r.held) > 0 && !r.write(nil, flushNow) {
		return result{verdict: gone}
	}
	c, o := r.x.cont, &r.x.outcome
	if c.rounds == 0 {
		if r.mode.rewriteCached {
			o.CachedTokens = r.prefillCached()
		}
		c.cached, o.PromptTokens = o.CachedTokens, len(c.prompt)
	}
	o.OutputTokens = len(c.ids)
	r.x.resume = true
	return result{verdict: given, reason: reason}
}

// stream relays an event stream, event by event. Events are held back until
// one proves output or ends the answer.
func (r *relay) stream(body io.Reader) result {
	x := r.x
	events := openai.NewReader(body, int(min(x.p.cfg.MaxAnswer, 1<<30)))
	ended := false // the end marker came
	for {
		ev, err := events.Next()
		if err != nil {
			return r.end(err, ended)
		}
		if ended {
			continue
		}
		if ev.IsDone() {
			ended = true
			r.begin()
			if !r.write(ev.Raw, flushNow) {
				return result{verdict: gone}
			}
			continue
		}
		if res, over := r.event(ev, events.Pending()); over {
			return res
		}
	}
}

// end is the end of the byte stream.
func (r *relay) end(err error, ended bool) result {
	x := r.x
	switch {
	case ended || (r.finished && errors.Is(err, io.EOF)):
		// Everything was sent; a broken connection after the end marker changes nothing.
		return r.done(true)
	case x.gone():
		return result{verdict: gone}
	}
	var res result
	if errors.Is(err, openai.ErrEventTooLong) {
		res = result{verdict: failed, reason: "error:too_long", problem: openai.BadGateway("an event of the %s is too long", roles[r.c.leg])}
	} else {
		res = x.transportFailure(r.ctx, r.c, err)
		x.broke(r.c, err)
	}
	switch {
	case !r.sawOutput:
		return res
	case r.x.cont.ready() && r.x.cont.stream && x.p.backend(r.c.target.Decoder).ContinueBroken:
		x.exclude(r.c.target.Decoder)
		return r.give(res.reason)
	}
	return r.cut(res.reason, res.problem)
}

// cut tells the client that its stream ends early.
func (r *relay) cut(reason string, problem *openai.Error) result {
	r.x.p.metrics.blocked.Inc()
	r.x.out.fail(problem)
	return result{verdict: cut, reason: reason}
}

// event handles one event that is not the end marker. over is true when the
// stream needs no further reading.
func (r *relay) event(ev openai.Event, more bool) (res result, over bool) {
	if ev.Data == nil || r.object.Reset(ev.Data) != nil {
		return r.pass(ev.Raw, more) // a comment, or nothing that we read
	}
	f := inspect(&r.object, r.status)
	if !r.sawOutput {
		if res, ok := r.early(f); ok {
			return res, true
		}
	}
	if r.x.cont != nil {
		r.x.cont.take(&r.object, f)
	}
	if f.stopReason == openai.StopRecomputed {
		if f.text {
			// It carries the last tokens too: they go out without the end.
			r.outputs++
			r.begin()
			if !r.write(openai.AppendEvent(nil, string(ev.Name), r.x.unfinished(&r.object, f)), flushNow) {
				return result{verdict: gone}, true
			}
		}
		return r.recomputed(&r.object), true
	}
	r.account(f)
	if f.text {
		r.outputs++
	}
	r.finished = r.finished || f.finishReason != ""
	if f.output || f.finishReason != "" {
		r.begin()
	}
	if f.text {
		r.pace(time.Now())
	}
	if r.mode.dropUsage && f.choices == 0 && f.hasUsage {
		return result{}, false
	}
	var data []byte
	if r.x.continues() {
		data = r.x.cont.convert(&r.object, r.x.responseID(), f)
	} else {
		data = r.rewrite(r.edited[:0], f, f.choices == 0)
		r.edited = data
	}
	var out []byte
	if ev.DataAt >= 0 {
		out = make([]byte, 0, len(ev.Raw)-len(ev.Data)+len(data))
		out = append(append(append(out, ev.Raw[:ev.DataAt]...), data...), ev.Raw[ev.DataAt+len(ev.Data):]...)
	} else {
		out = openai.AppendEvent(nil, string(ev.Name), data)
	}
	if f.isError {
		// The engine says itself that the answer ends here.
		r.write(out, flushNow)
		r.x.p.metrics.blocked.Inc()
		return result{verdict: cut, reason: "error:event"}, true
	}
	return r.pass(out, more)
}

// pass sends an event on, or holds it back while no output is proven.
func (r *relay) pass(raw []byte, more bool) (result, bool) {
	if !r.sawOutput {
		if len(r.held)+len(raw) > maxHeld {
			return result{verdict: failed, reason: "error:held", problem: openai.BadGateway("the %s sent too much before any output", roles[r.c.leg])}, true
		}
		r.held = append(r.held, raw...)
		return result{}, false
	}
	flush := flushNow
	if more {
		flush = flushLater
	}
	if !r.write(raw, flush) {
		return result{verdict: gone}, true
	}
	return result{}, false
}

// write sends what was held back, then raw.
func (r *relay) write(raw []byte, flush flushing) bool {
	if len(r.held) > 0 {
		raw = append(r.held, raw...)
		r.held = nil
	}
	return r.x.out.events(raw, flush)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
