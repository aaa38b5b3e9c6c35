package proxy

import (
	"context"
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

// errTimeout is the cause of a leg's end when the backend gave no sign of life.
var errTimeout = errors.New("the backend gave no sign of life in time")

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
func upstream(leg route.Leg, status int, h wire.Header, body []byte) *openai.Error {
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
