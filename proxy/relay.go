package proxy

import (
	"context"
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
	*scratch
	paceFrom   time.Time // of the last output that the router knows of
	paceEvents int       // outputs since then
	held       []byte    // events before the first output
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

// whole relays an answer that is not a stream. Nothing reaches the client
// before the answer is complete.
func (r *relay) whole(body io.Reader, contentType string) result {
	x := r.x
	limit := x.p.cfg.MaxAnswer
	raw, err := readAll(r.raw[:0], io.LimitReader(body, limit+1), 0)
	r.raw = raw
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
	r.edited = r.rewrite(r.edited[:0], f, true)
	return r.done(x.out.whole(r.status, contentType, r.edited))
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
			c.list, c.prompt, c.ids, c.broken = nil, nil, nil, false
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
	if len(r.held) > 0 && !r.write(nil, flushNow, time.Now()) {
		return result{verdict: gone}
	}
	c, o := r.x.cont, &r.x.outcome
	if c.rounds == 0 {
		if r.mode.rewriteCached {
			o.CachedTokens = r.prefillCached()
		}
		c.cached, o.PromptTokens = o.CachedTokens, len(c.promptIDs())
	}
	o.OutputTokens = len(c.ids)
	r.x.resume = true
	return result{verdict: given, reason: reason}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
