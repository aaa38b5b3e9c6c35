package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
	"github.com/sluice-serving/sluice/proxy/wire"
)

// verdict is what became of a leg.
type verdict uint8

const (
	served   verdict = iota // the client has the whole answer
	passedOn                // the client has the backend's error, or ours, and the turn is over
	refused                 // the attempt was refused, without output
	failed                  // no output came; something else may be tried
	cut                     // it failed after output; the client was told
	gone                    // the client went away
	given                   // the Decoder gave the answer up and it will be continued
)

// result is the end of a leg.
type result struct {
	verdict verdict
	reason  string        // of refused and failed, for trace and metrics
	problem *openai.Error // of failed: what to tell the client when nothing else helps
	unsent  bool          // of failed: the request never reached the instance
}

// errTimeout is the cause of a leg's end when the backend gave no sign of life.
var errTimeout = errors.New("the backend gave no sign of life in time")

// call is one request to an instance.
type call struct {
	leg     route.Leg
	id      string // X-Request-Id of the leg
	target  route.Target
	edits   []splice.Edit
	headers map[string]string
	limit   time.Duration // until the answer's header
}

// send sends a leg and waits for the header of its answer.
func (x *exchange) send(ctx context.Context, c call) (*wire.Response, error) {
	h := make([]wire.Field, 0, 10)
	add := func(name, value string) { h = append(h, wire.Field{Name: name, Value: value}) }
	add("Content-Type", "application/json")
	add("X-Request-Id", c.id)
	switch {
	case x.p.cfg.PassAuthorization:
		if v := x.r.Header.Get("Authorization"); v != "" {
			add("Authorization", v)
		}
	case x.p.cfg.APIKey != "":
		add("Authorization", "Bearer "+x.p.cfg.APIKey)
	}
	if x.session != "" {
		add("X-Session-Id", x.scopedSession())
	}
	if c.leg != route.LegPrefill && c.target.Ranks > 1 {
		add("X-data-parallel-rank", strconv.Itoa(int(c.target.Rank)))
	}
	h = x.trace.fields(h)
	for _, name := range sortedKeys(c.headers) {
		add(name, c.headers[name])
	}
	return x.p.pool.Do(ctx, &wire.Request{Method: http.MethodPost, Addr: c.target.Decoder, Path: x.path, Header: h, Body: x.body.Spliced(c.edits...)})
}

// watch is a timer that ends a leg when nothing happens for too long.
type watch struct {
	timer *time.Timer
	idle  time.Duration
	body  io.Reader
}

func newWatch(cancel context.CancelCauseFunc, first time.Duration) *watch {
	return &watch{timer: time.AfterFunc(first, func() { cancel(errTimeout) })}
}

// follow reads an answer's body; every read resets the timer.
func (w *watch) follow(body io.Reader, idle time.Duration) io.Reader {
	w.body, w.idle = body, idle
	w.timer.Reset(idle)
	return w
}

func (w *watch) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if n > 0 {
		w.timer.Reset(w.idle)
	}
	return n, err
}

// Messages to the client name the role of an instance, never its address.
var roles = map[route.Leg]string{route.LegLocal: "decoder", route.LegPrefill: "prefiller", route.LegDecode: "decoder"}

// transportFailure classifies an error of send or of reading an answer.
func (x *exchange) transportFailure(ctx context.Context, c call, err error) result {
	if x.gone() {
		return result{verdict: gone}
	}
	res := result{verdict: failed, reason: "error:connection", unsent: isDial(err)}
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		res.reason = "error:timeout"
		res.problem = openai.BadGateway("the %s gave no answer in time", roles[c.leg])
	case errors.Is(context.Cause(ctx), errPrefillFailed):
		res.reason = "error:prefill"
		res.problem = openai.BadGateway("no prefiller could compute the prompt")
	case res.unsent:
		res.reason = "error:refused"
		res.problem = openai.BadGateway("the %s cannot be reached", roles[c.leg])
	default:
		res.problem = openai.BadGateway("the connection to the %s broke", roles[c.leg])
	}
	return res
}

// isDial reports whether an error says that no connection was made.
func isDial(err error) bool {
	var dial *wire.DialError
	return errors.As(err, &dial)
}

// isReset reports whether an error says that the peer's process may have ended.
func isReset(err error) bool {
	return isDial(err) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// learn tells the router how a leg went and which life of the engine answered.
func (x *exchange) learn(c call, resp *wire.Response, err error) {
	outcome := route.LegOK
	switch {
	case err != nil && x.gone():
		outcome = route.LegAbandoned
	case err != nil || resp.Status >= 500:
		outcome = route.LegFailed
	}
	x.p.mu.Lock()
	x.p.router.LegDone(time.Now(), c.leg, c.target.Decoder, outcome)
	if c.leg != route.LegPrefill {
		switch {
		case err == nil:
			x.p.router.Observe(c.target.Decoder, c.target.Rank, resp.Header.Get("X-Sluice-Engine"))
		case outcome == route.LegFailed && isReset(err):
			x.p.router.Unreachable(c.target.Decoder)
		}
	}
	x.p.mu.Unlock()
	label := [...]string{"ok", "failed", "abandoned"}[outcome]
	x.p.metrics.legs.WithLabelValues(c.leg.String(), label).Inc()
}

// broke tells the router that an answer which had begun well was cut.
func (x *exchange) broke(c call, err error) {
	x.p.mu.Lock()
	x.p.router.LegDone(time.Now(), c.leg, c.target.Decoder, route.LegFailed)
	if isReset(err) {
		x.p.router.Unreachable(c.target.Decoder)
	}
	x.p.mu.Unlock()
	x.p.metrics.legs.WithLabelValues(c.leg.String(), "cut").Inc()
}

// maxErrorBody bounds the error bodies that are read from backends.
const maxErrorBody = 1 << 20

// errorAnswer turns an answer that is not 200 into a result: a 4xx is the
// client's to see, a 5xx may be tried elsewhere.
func (x *exchange) errorAnswer(c call, resp *wire.Response, body []byte) result {
	if resp.Status >= 500 {
		return result{verdict: failed, reason: "error:status_" + strconv.Itoa(resp.Status), problem: upstream(c.leg, resp.Status, resp.Header, body)}
	}
	switch {
	case resp.Status == http.StatusUnauthorized || resp.Status == http.StatusForbidden:
		if !x.p.cfg.PassAuthorization {
			x.out.fail(openai.BadGateway("the %s does not accept the proxy's key", roles[c.leg]))
			return result{verdict: passedOn}
		}
	case resp.Status < 400, resp.Status == http.StatusPreconditionFailed:
		x.out.fail(openai.BadGateway("the %s answered status %d", roles[c.leg], resp.Status))
		return result{verdict: passedOn}
	}
	if retry := resp.Header.Get("Retry-After"); retry != "" {
		x.w.Header().Set("Retry-After", retry)
	}
	if _, ok := openai.ParseError(resp.Status, body); ok && wrapped(body) {
		x.out.whole(resp.Status, "application/json", body)
	} else {
		x.out.fail(shaped(resp.Status, body))
	}
	return result{verdict: passedOn}
}

// wrapped reports whether a body has the error member of OpenAI's shape.
func wrapped(body []byte) bool {
	o, err := splice.Parse(body)
	return err == nil && len(o.Raw("error")) > 0 && o.Raw("error")[0] == '{'
}

// shaped gives a 4xx answer of another shape the OpenAI one.
func shaped(status int, body []byte) *openai.Error {
	if e, ok := openai.ParseError(status, body); ok {
		return e
	}
	e := &openai.Error{Status: status, Type: openai.TypeInvalidRequest, Message: http.StatusText(status)}
	if o, err := splice.Parse(body); err == nil {
		if s, ok := o.String("detail"); ok {
			e.Message = s
		} else if raw := o.Raw("detail"); raw != nil {
			e.Message = printable(string(raw), 2000)
		}
	}
	if status == http.StatusTooManyRequests {
		e.Type = openai.TypeRateLimit
	} else if status == http.StatusNotFound {
		e.Type = openai.TypeNotFound
	}
	return e
}

// upstream is what the client is told about a backend's 5xx: 503 stays 503,
// anything else is a bad gateway.
func upstream(leg route.Leg, status int, h http.Header, body []byte) *openai.Error {
	message := fmt.Sprintf("the %s answered status %d", roles[leg], status)
	if e, ok := openai.ParseError(status, body); ok && e.Message != "" {
		message += ": " + printable(e.Message, 500)
	}
	if status != http.StatusServiceUnavailable {
		return openai.BadGateway("%s", message)
	}
	retry, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || retry <= 0 {
		retry = 1
	}
	return openai.Unavailable(retry, "%s", message)
}

// local makes the append-prefill attempt on the session's owner.
func (x *exchange) local(d route.Decision) result {
	b := x.p.backend(d.Target.Decoder)
	c := call{leg: route.LegLocal, id: x.id + "-local", target: d.Target, headers: b.Headers, limit: x.p.cfg.FirstTimeout}
	if b.Params != nil {
		c.edits = append(c.edits, splice.Set("kv_transfer_params", b.Params))
	} else {
		c.edits = append(c.edits, splice.Delete("kv_transfer_params"))
	}
	for _, key := range sortedKeys(b.Members) {
		c.edits = append(c.edits, splice.Set(key, b.Members[key]))
	}
	mode := relayMode{local: b}
	if asked := x.askUsage(); asked != nil {
		// A hit is judged by its usage; the client does not see what it has not
		// asked for.
		c.edits = append(c.edits, splice.Set("stream_options", asked))
		mode.dropUsage = true
	}
	x.askTokens(b, &c)
	res := x.answerFrom(c, mode)
	label := "hit"
	switch res.verdict {
	case refused, failed:
		label = res.reason
	case passedOn:
		label = "client_error"
	case cut:
		label = "cut"
	case gone:
		label = "gone"
	}
	x.p.metrics.attempts.WithLabelValues(label).Inc()
	return res
}

// askTokens asks a Decoder for token ids where the pool continues answers.
func (x *exchange) askTokens(b *Backend, c *call) {
	if !b.Continue || x.at.prefix == "" || (x.cont != nil && x.cont.rounds > 0) {
		return
	}
	if x.cont == nil {
		if x.cont = x.continuable(); x.cont == nil {
			return
		}
	}
	c.edits = append(c.edits, splice.Set("return_token_ids", []byte("true")))
}

// limitKey is the body member that bounds the output on the path of the legs
// under way.
func (x *exchange) limitKey() string {
	if x.path == completions.path { // also of a continuation
		return completions.limit
	}
	return x.at.limit
}

// askUsage gives the stream options with which an attempt's stream also tells
// its usage; nil when it does anyway or is no stream.
func (x *exchange) askUsage() []byte {
	if string(x.body.Raw("stream")) != "true" || x.at.prefix == "" { // the other APIs tell it always
		return nil
	}
	raw := x.body.Raw("stream_options")
	if len(raw) == 0 || raw[0] != '{' {
		return []byte(`{"include_usage":true}`)
	}
	o, err := splice.Parse(raw)
	if err != nil || string(o.Raw("include_usage")) == "true" || string(o.Raw("continuous_usage_stats")) == "true" {
		return nil
	}
	return o.Apply(nil, splice.Set("include_usage", []byte("true")))
}

// answerFrom sends a leg to a Decoder and relays its answer.
func (x *exchange) answerFrom(c call, mode relayMode) result {
	line := LegTrace{Leg: c.leg.String(), RequestID: c.id, Instance: c.target.Decoder, Rank: int(c.target.Rank)}
	x.line.Decoder, x.line.Rank = c.target.Decoder, int(c.target.Rank)
	ctx, cancel := x.legContext()
	defer cancel(nil)
	if mode.push != nil {
		mode.push.fail = cancel
		x.p.pushes.add(mode.push)
		defer x.p.pushes.remove(mode.push)
		c.id, line.RequestID = mode.push.leg, mode.push.leg
	}
	w := newWatch(cancel, c.limit)
	defer w.timer.Stop()
	res := func() result {
		resp, err := x.send(ctx, c)
		x.learn(c, resp, err)
		if err != nil {
			return x.transportFailure(ctx, c, err)
		}
		defer resp.Close()
		line.Status = resp.Status
		body := w.follow(resp, x.p.cfg.IdleTimeout)
		if resp.Status != http.StatusOK {
			raw, err := io.ReadAll(io.LimitReader(body, maxErrorBody))
			if err != nil && x.gone() {
				return result{verdict: gone}
			}
			if mode.local != nil {
				f := features{status: resp.Status}
				o, err := splice.Parse(raw)
				if err == nil {
					f = inspect(o, resp.Status)
				}
				if why, ok := mode.local.refused(f, o); ok {
					return result{verdict: refused, reason: "refused:" + why}
				}
			}
			return x.errorAnswer(c, resp, raw)
		}
		rel := relay{x: x, c: c, ctx: ctx, mode: mode, status: resp.Status}
		if isEventStream(resp.Header.Get("Content-Type")) {
			res := rel.stream(body)
			line.Output = rel.output()
			return res
		}
		res := rel.whole(body, resp.Header.Get("Content-Type"))
		line.Output = rel.output()
		return res
	}()
	if res.verdict == gone {
		x.outcome.Result = route.Cancelled
	}
	line.Reason = res.reason
	x.line.Legs = append(x.line.Legs, line)
	return res
}

// rounds runs P/D rounds until one is answered or nothing is left to try.
func (x *exchange) rounds() {
	problem := openai.Unavailable(1, "no instance can take the request")
	for round := range x.p.cfg.MaxRetries {
		if round > 0 && !x.pause(x.p.cfg.RetryDelay<<min(round-1, 10)) {
			return
		}
		res, tried := x.round()
		if !tried {
			break
		}
		switch res.verdict {
		case served, passedOn, cut, gone, given:
			return
		}
		problem = res.problem
	}
	x.out.fail(problem)
}

// pause waits; false when the client went away meanwhile.
func (x *exchange) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// round is one P/D round: the prompt on a Prefiller, the answer on a Decoder.
// tried is false when no instance is left that could take it.
func (x *exchange) round() (res result, tried bool) {
	now := time.Now()
	x.p.mu.Lock()
	target, ok := x.p.router.Decoder(now, x.turn)
	push := ok && x.p.pools[target.Decoder] != nil && x.p.pools[target.Decoder].Push
	var addr string
	if ok && !push {
		addr, ok = x.p.router.Prefiller(now, x.turn)
	}
	x.p.mu.Unlock()
	if !ok {
		return result{}, false
	}
	if push {
		res = x.pushRound(target)
		switch {
		case res.verdict == failed && res.reason == "error:prefill":
			// Every Prefiller that could be tried was; another Decoder changes nothing.
			x.out.fail(res.problem)
			res.verdict = passedOn
		case res.verdict == failed:
			x.exclude(target.Decoder)
		}
		return res, true
	}
	params, cached, res := x.prefill(addr, target.Decoder)
	if res.verdict != served {
		if res.verdict == failed {
			x.exclude(addr)
		}
		return res, true
	}
	x.p.mu.Lock()
	x.p.router.Prefilled(x.turn)
	x.p.mu.Unlock()
	for {
		res = x.decodeLeg(target, params, cached)
		if res.verdict != failed {
			return res, true
		}
		x.exclude(target.Decoder)
		if !res.unsent {
			return res, true
		}
		// Nothing has reached that Decoder, so the KV still waits on the
		// Prefiller: another Decoder can pull it.
		x.p.mu.Lock()
		next, ok := x.p.router.Decoder(time.Now(), x.turn)
		x.p.mu.Unlock()
		if !ok {
			return res, true
		}
		target = next
	}
}

func (x *exchange) exclude(addr string) {
	x.p.mu.Lock()
	x.p.router.Exclude(x.turn, addr)
	x.p.mu.Unlock()
}

func numbered(id, leg string, n int) string {
	if n > 1 {
		return id + "-" + leg + strconv.Itoa(n)
	}
	return id + "-" + leg
}

// Values that the legs set.
var (
	remoteDecode = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	jsonOne      = []byte("1")
	jsonFalse    = []byte("false")
)

// prefill sends the prompt to a Prefiller, in pull mode. The Decoder that will
// answer may want members of its own in the leg.
func (x *exchange) prefill(addr, decoder string) (params json.RawMessage, cached int, res result) {
	x.legsP++
	edits := []splice.Edit{splice.Set("kv_transfer_params", remoteDecode)}
	extra := x.p.backend(decoder).PrefillMembers
	for _, key := range sortedKeys(extra) {
		edits = append(edits, splice.Set(key, extra[key]))
	}
	if extra["cache_hit_threshold"] == nil {
		edits = append(edits, splice.Delete("cache_hit_threshold"))
	}
	return x.prefillLeg(addr, numbered(x.id, "p", x.legsP), edits)
}

// prefillLeg sends the prompt to a Prefiller: one token, not streamed, KV kept
// for a Decoder or pushed to it. It gives the transfer parameters of the
// answer and the prompt tokens that the Prefiller had cached.
func (x *exchange) prefillLeg(addr, id string, edits []splice.Edit) (params json.RawMessage, cached int, res result) {
	c := call{leg: route.LegPrefill, id: id, target: route.Target{Decoder: addr}, limit: x.p.cfg.PrefillTimeout}
	c.edits = append(edits, splice.Set("stream", jsonFalse), splice.Set(x.limitKey(), jsonOne), splice.Set("min_tokens", jsonOne),
		splice.Replace("max_completion_tokens", jsonOne), splice.Delete("stream_options"))
	x.line.Prefiller = addr
	line := LegTrace{Leg: c.leg.String(), RequestID: c.id, Instance: addr}
	defer func() {
		line.Reason = res.reason
		x.line.Legs = append(x.line.Legs, line)
	}()
	ctx, cancel := x.legContext()
	defer cancel(nil)
	w := newWatch(cancel, c.limit)
	defer w.timer.Stop()
	resp, err := x.send(ctx, c)
	if err != nil {
		x.learn(c, nil, err)
		return nil, 0, x.transportFailure(ctx, c, err)
	}
	defer resp.Close()
	line.Status = resp.Status
	body, err := io.ReadAll(io.LimitReader(w.follow(resp, x.p.cfg.IdleTimeout), x.p.cfg.MaxAnswer+1))
	x.learn(c, resp, err)
	switch {
	case err != nil:
		return nil, 0, x.transportFailure(ctx, c, err)
	case resp.Status != http.StatusOK:
		return nil, 0, x.errorAnswer(c, resp, body)
	}
	o, err := splice.Parse(body)
	if err != nil {
		return nil, 0, result{verdict: failed, reason: "error:answer", problem: openai.BadGateway("the prefiller's answer cannot be read")}
	}
	f := inspect(o, resp.Status)
	line.Output = f.completion
	if raw := o.Raw("kv_transfer_params"); len(raw) > 2 && raw[0] == '{' && filled(raw) {
		params = bytes.Clone(raw)
	}
	return params, f.cached, result{verdict: served}
}

// decodeLeg sends the client's body with the Prefiller's parameters to a Decoder.
func (x *exchange) decodeLeg(target route.Target, params json.RawMessage, cached int) result {
	x.legsD++
	c := call{leg: route.LegDecode, id: numbered(x.id, "d", x.legsD), target: target, limit: x.p.cfg.FirstTimeout}
	if params != nil {
		c.edits = []splice.Edit{splice.Set("kv_transfer_params", params)}
	} else {
		c.edits = []splice.Edit{splice.Delete("kv_transfer_params")}
	}
	x.askTokens(x.p.backend(target.Decoder), &c)
	return x.answerFrom(c, relayMode{cached: cached, rewriteCached: true})
}
