package proxy

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

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

// call is one request to an instance.
type call struct {
	leg     route.Leg
	id      string // X-Request-Id of the leg
	target  route.Target
	edits   []splice.Edit
	headers map[string]string
	limit   time.Duration // until the answer's header
	span    trace.Span    // nil when spans are not recorded
}

// send sends a leg and waits for the header of its answer.
func (x *exchange) send(ctx context.Context, c call) (*wire.Response, error) {
	h := x.fields[:0]
	add := func(name, value string) { h = append(h, wire.Field{Name: name, Value: value}) }
	add("Content-Type", "application/json")
	add("Accept-Encoding", "identity") // without it any coding would do
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
		add("X-Session-Id", scopedSession(x.tenant, x.session, x.key))
	}
	if x.outcome.End && c.leg != route.LegPrefill {
		add("X-Session-End", "true") // what the Decoder keeps for the session's next turn is not needed
	}
	if c.leg != route.LegPrefill && c.target.Ranks > 1 {
		add("X-data-parallel-rank", strconv.Itoa(int(c.target.Rank)))
	}
	h = x.trace.fields(h, c.span)
	for _, name := range sortedKeys(c.headers) {
		add(name, c.headers[name])
	}
	x.parts = x.body.Splice(x.parts[:0], c.edits...)
	defer clear(x.parts) // the body's memory is another's when it was dropped
	x.request = wire.Request{Method: http.MethodPost, Addr: c.target.Decoder, Path: x.path, Header: h, Body: x.parts}
	return x.p.pool.Do(ctx, &x.request)
}

// coded is the problem with an answer that is compressed although none such was
// asked for; nil when it is not.
func coded(resp *wire.Response, leg route.Leg) *openai.Error {
	coding := resp.Header.Get("Content-Encoding")
	if coding == "" || strings.EqualFold(coding, "identity") {
		return nil
	}
	return openai.BadGateway("the %s compressed its answer with %q, which it was not asked to", roles[leg], printable(coding, 40))
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
	defer w.stop()
	x.trace.leg(&c)
	res := func() result {
		resp, err := x.send(ctx, c)
		x.learn(c, resp, err)
		if err != nil {
			return x.transportFailure(ctx, c, err)
		}
		defer resp.Close()
		line.Status = resp.Status
		if problem := coded(resp, c.leg); problem != nil {
			return result{verdict: failed, reason: "error:encoding", problem: problem}
		}
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
		rel := relay{x: x, c: c, ctx: ctx, mode: mode, status: resp.Status, scratch: takeScratch()}
		defer rel.giveBack() // of the answer only copies are kept
		if isEventStream(resp.Header.Get("Content-Type")) {
			res := rel.stream(resp, w)
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
	c.end(&line, res.verdict)
	x.line.Legs = append(x.line.Legs, line)
	return res
}
