package proxy

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
	"github.com/sluice-serving/sluice/proxy/wire"
)

// endpoint is one of the paths whose requests are turns.
type endpoint struct {
	path   string
	prefix string // of the response id; empty leaves the engine's own, which later requests may name
	prompt string // body member that holds the prompt
	limit  string // body member that bounds the output
}

var (
	completions = endpoint{path: "/v1/completions", prefix: "cmpl-", prompt: "prompt", limit: "max_tokens"}
	chat        = endpoint{path: "/v1/chat/completions", prefix: "chatcmpl-", prompt: "messages", limit: "max_tokens"}
	responses   = endpoint{path: "/v1/responses", prompt: "input", limit: "max_output_tokens"}
	messages    = endpoint{path: "/v1/messages", prompt: "messages", limit: "max_tokens"}
)

// statusGone is what the trace and the metrics show when the client went away
// before an answer.
const statusGone = 499

// exchange is one client request on its way through the proxy. It lives on the
// goroutine of its handler.
type exchange struct {
	p     *Proxy
	w     http.ResponseWriter
	r     *http.Request
	at    endpoint
	start time.Time

	id      string         // client-visible request id
	body    *splice.Object // the client's body; dropped at the first output
	memory  *memory        // that it stands in
	tenant  string
	session string // as the client names it; empty for none
	key     route.SessionKey
	claimed bool // the store was told of the session's first turn
	answers bool // the answer's id is the session's name for later turns
	turn    *route.Turn

	request wire.Request // of the leg under way, and what it stands in
	fields  [12]wire.Field
	parts   [][]byte

	trace  traceContext
	span   trace.Span    // nil when spans are not recorded
	path   string        // of the legs under way
	cont   *continuation // nil when the answer cannot be continued
	resume bool          // the answer is to be continued

	out      answer
	first    time.Time // of the first output
	outcome  route.Outcome
	line     RouteTrace
	legsP    int    // prefill legs sent so far, for fresh leg ids
	legsD    int    // decode legs sent so far
	pushP    string // Prefiller of the leg in push mode; guarded by the proxy's lock
	pushLegs []LegTrace
	before   *kept  // of the session's last turn, to be read back
	lastTurn *kept  // of this turn
	respID   []byte // client-visible response id as a JSON string
	twice    string // header of a session source that came with different values
}

// turn is the handler of an endpoint whose requests are routed.
func (p *Proxy) turn(at endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{p: p, w: w, r: r, at: at, path: at.path, start: time.Now(), outcome: route.Outcome{Result: route.Failed}}
		x.id = requestID(r.Header.Get("X-Request-Id"))
		x.trace = newTraceContext(r.Header.Get("Traceparent"), r.Header.Get("Tracestate"))
		x.span = x.trace.record(p.spans, r)
		x.out = answer{w: w, flush: http.NewResponseController(w), timeout: p.cfg.ClientTimeout, direct: direct{conn: connOf(w, r)}}
		w.Header().Set("X-Request-Id", x.id)
		var problem *openai.Error
		if x.tenant, problem = p.tenant(r); problem != nil {
			x.refuse(problem)
			return
		}
		query, problem := x.read()
		if problem != nil {
			x.refuse(problem)
			return
		}
		if err := p.gate.enter(r.Context(), x.tenant); err != nil {
			x.dropBody()
			x.refuse(openai.TooMany(max(int(p.cfg.QueueTimeout/time.Second/2), 1), "%v", err))
			return
		}
		defer p.gate.leave(x.tenant)
		x.adopt(&query)
		p.mu.Lock()
		var d route.Decision
		x.turn, d = p.router.Begin(x.start, query)
		p.mu.Unlock()
		defer x.finish()
		defer x.out.end()
		x.run(d)
	}
}

// refuse answers a request that never became a turn.
func (x *exchange) refuse(problem *openai.Error) {
	problem.Write(x.w)
	x.endSpan(problem.Status)
	x.p.metrics.requests.WithLabelValues("none", strconv.Itoa(problem.Status)).Inc()
	if x.p.cfg.AccessLog {
		x.p.cfg.Logger.Info("request", "id", x.id, "path", x.at.path, "status", problem.Status, "error", problem.Type, "took", time.Since(x.start))
	}
}

// run takes a turn through its legs.
func (x *exchange) run(d route.Decision) {
	x.line.Route, x.line.Reason = d.Route.String(), string(d.Reason)
	x.announce()
	if d.Route == route.Local {
		res := x.local(d)
		switch res.verdict {
		case served, passedOn, cut, gone, given:
			if res.verdict == served || res.verdict == given {
				x.line.Reason = "hit"
			}
			x.goOn()
			return
		}
		x.p.mu.Lock()
		x.p.router.Missed(x.turn)
		switch res.reason {
		case "no_prefix", "below_min_prefix", "suffix_too_long":
			x.p.router.Lost(x.turn)
		}
		x.p.mu.Unlock()
		x.line.Route, x.line.Reason = "fallback", res.reason
		x.announce()
		took := time.Since(x.start)
		x.line.FellMillis = millis(took)
		x.p.metrics.fallback.Observe(took.Seconds())
	}
	x.takeTurn()
	x.rounds()
	x.goOn()
}

// announce names the route in the answer's header, where that is wanted, and
// in the log at debug level.
func (x *exchange) announce() {
	if x.p.cfg.RouteHeader {
		x.w.Header().Set("X-Sluice-Route", x.line.Route+"; reason="+x.line.Reason)
	}
	x.p.cfg.Logger.LogAttrs(x.r.Context(), slog.LevelDebug, "decision", slog.String("id", x.id), slog.String("route", x.line.Route), slog.String("reason", x.line.Reason))
}

// read reads and checks the body and finds out what the router needs to know.
func (x *exchange) read() (route.Query, *openai.Error) {
	kept, problem := x.readBody()
	if problem != nil {
		return route.Query{}, problem
	}
	body := &kept.object
	x.body, x.memory = body, kept
	if err := body.Reset(kept.raw); err != nil {
		x.dropBody()
		return route.Query{}, openai.BadRequest("", "the body cannot be read: %v", err)
	}
	for _, key := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		if v := body.Raw(key); v != nil && v[0] != 'n' && (v[0] < '0' || v[0] > '9') {
			x.dropBody()
			return route.Query{}, openai.BadRequest(key, "%s must be a number that is not negative", key)
		}
	}
	q := route.Query{Bytes: len(kept.raw)}
	if x.p.cfg.Append {
		var from route.Source
		if x.session, from = route.Resolve(x.p.cfg.Sources, x); from == route.SourcePreviousID {
			x.session = "" // it names an answer, not a session
		}
		if x.session != "" {
			q.HasSession, q.Session = true, route.KeyOf(x.tenant, x.session)
			x.key = q.Session
			if parent := x.Header("X-Parent-Session-Id"); parent != "" {
				q.HasParent, q.Parent = true, route.KeyOf(x.tenant, parent)
			}
			q.FollowUp = x.p.try && x.at.prompt != "prompt" && hasAssistant(body.Raw(x.at.prompt))
		} else {
			x.chain(&q)
		}
		if x.twice != "" {
			x.dropBody()
			return route.Query{}, openai.BadRequest("", "the header %s is there twice, with different values", x.twice)
		}
		if q.HasSession || q.Chained {
			q.Eligible = x.eligible()
			x.outcome.End = strings.EqualFold(x.r.Header.Get("X-Session-End"), "true")
		}
	}
	return q, nil
}

// Header implements route.Request.
func (x *exchange) Header(canonical string) string {
	v := x.r.Header[canonical]
	if len(v) == 0 {
		return ""
	}
	for _, other := range v[1:] {
		if other != v[0] {
			x.twice = canonical
		}
	}
	return v[0]
}

// Member implements route.Request.
func (x *exchange) Member(name string) (string, bool) { return x.body.String(name) }

// finish closes the turn whatever happened: reservations, owner table, trace
// and metrics.
func (x *exchange) finish() {
	if x.r.Context().Err() != nil && x.outcome.Result == route.Failed {
		x.outcome.Result = route.Cancelled
	}
	x.dropBody()
	now := time.Now()
	x.keepAtEnd(now)
	x.p.mu.Lock()
	stopped := x.p.router.Finish(now, x.turn, x.outcome)
	if x.pushP != "" {
		x.line.Prefiller, x.line.Legs = x.pushP, append(x.line.Legs, x.pushLegs...)
	}
	x.p.mu.Unlock()
	x.publish()
	m := x.p.metrics
	if stopped {
		m.stopped.Inc()
		x.p.cfg.Logger.Warn("a decoder answers local attempts without a cached prefix; attempts on it are stopped", "decoder", x.line.Decoder, "rank", x.line.Rank, "set", "decoder_append_prefill_enable on the decoder, or its preset")
	}
	status := x.out.status
	if status == 0 {
		status = statusGone
	}
	m.requests.WithLabelValues(x.line.Route, strconv.Itoa(status)).Inc()
	m.reasons.WithLabelValues(x.line.Route, x.line.Reason).Inc()
	m.total.WithLabelValues(x.line.Route).Observe(now.Sub(x.start).Seconds())
	if !x.first.IsZero() {
		m.first.WithLabelValues(x.line.Route).Observe(x.first.Sub(x.start).Seconds())
		x.line.FirstMillis = millis(x.first.Sub(x.start))
	}
	m.tokens.WithLabelValues("prompt").Add(float64(x.outcome.PromptTokens))
	m.tokens.WithLabelValues("output").Add(float64(x.outcome.OutputTokens))
	if x.line.Route == "local" && x.outcome.Result == route.Completed {
		m.tokens.WithLabelValues("cached").Add(float64(x.outcome.CachedTokens))
		m.tokens.WithLabelValues("suffix").Add(float64(max(x.outcome.PromptTokens-x.outcome.CachedTokens, 0)))
	}
	x.line.Event, x.line.RequestID, x.line.Session = "route", x.id, printable(x.session, 128)
	x.line.Trace = x.trace.trace
	x.line.Status, x.line.Millis = status, millis(now.Sub(x.start))
	x.line.Prompt, x.line.Cached = x.outcome.PromptTokens, x.outcome.CachedTokens
	x.p.trace.write(x.line)
	x.endSpan(status)
	x.p.last.note(now, &x.line, x.outcome.OutputTokens)
	if x.p.cfg.AccessLog {
		x.p.cfg.Logger.Info("request", "id", x.id, "trace", x.trace.trace, "path", x.at.path, "status", status, "route", x.line.Route, "reason", x.line.Reason,
			"decoder", x.line.Decoder, "rank", x.line.Rank, "prompt_tokens", x.line.Prompt, "cached_tokens", x.line.Cached, "output_tokens", x.outcome.OutputTokens,
			"ttft_ms", x.line.FirstMillis, "took", now.Sub(x.start))
	}
}

// endSpan ends the request's span, where spans are recorded.
func (x *exchange) endSpan(status int) {
	if x.span == nil {
		return
	}
	x.span.SetAttributes(attribute.Int("http.response.status_code", status), attribute.String("sluice.route", x.line.Route), attribute.String("sluice.reason", x.line.Reason),
		attribute.Int("sluice.prompt_tokens", x.line.Prompt), attribute.Int("sluice.cached_tokens", x.line.Cached))
	if status >= 500 {
		x.span.SetStatus(codes.Error, x.line.Reason)
	}
	x.span.End()
}

// gone reports whether the client went away.
func (x *exchange) gone() bool { return x.r.Context().Err() != nil }

// requestID is the client's own id when it is fit to travel in headers and
// response ids, else a fresh one.
func requestID(given string) string {
	if given != "" && len(given) <= 128 {
		fit := true
		for i := range len(given) {
			c := given[i]
			fit = fit && (c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == ':')
		}
		if fit {
			return given
		}
	}
	return randomHex(16)
}

// scopedSession is the session id that the engine sees: the client's own when
// it has no tenant and is fit for a header, else the digest of both.
func scopedSession(tenant, session string, key route.SessionKey) string {
	if tenant == "" && len(session) <= 256 {
		fit := true
		for i := range len(session) {
			fit = fit && session[i] > ' ' && session[i] < 0x7f
		}
		if fit {
			return session
		}
	}
	return hex.EncodeToString(key[:])
}

// legContext is the context of a leg: it ends with the client's request, or for
// a cause of ours, such as a watch that saw no sign of life.
func (x *exchange) legContext() (context.Context, context.CancelCauseFunc) {
	return context.WithCancelCause(x.r.Context())
}
