package proxy

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/wire"
)

// maxHeld is how many bytes may be held back before output is proven, besides one event: the
// first one of a chat may have the ids of a prompt of any length, and no output.
const maxHeld = 1 << 20

func isEventStream(contentType string) bool {
	return len(contentType) >= 17 && strings.EqualFold(contentType[:17], "text/event-stream")
}

// stream relays an event stream, event by event, as its bytes come. Events are
// held back until one proves output or ends the answer.
func (r *relay) stream(resp *wire.Response, w *watch) (res result) {
	events := &r.events
	events.Reset(w, int(min(r.x.p.cfg.MaxAnswer, 1<<30)))
	r.pattern.forget()
	pumped := pumping{r: r, resp: resp, watch: w}
	defer pumped.end()
	d := &r.x.out.direct
	d.buf = r.chunk[:0]
	defer func() {
		r.x.out.end() // the memory is the next leg's
		r.chunk, d.buf = d.buf[:0], nil
	}()
	ended := false // the end marker came
	err := pumped.poll(func() (over bool) {
		if !pumped.rest() {
			res, over = result{verdict: gone}, true
		}
		for !over {
			ev, err := events.Next()
			switch {
			case err == openai.ErrWait:
				return pumped.wait(len(events.Buffered()) == 0)
			case err != nil:
				res, over = r.end(err, ended), true
			case ended:
			case ev.IsDone():
				ended = true
				r.begin()
				if !r.write(ev.Raw, flushNow, time.Now()) {
					res, over = result{verdict: gone}, true
				}
			default:
				res, over = r.event(ev, events.Pending())
			}
		}
		return true
	})
	if err != nil { // the wait was ended
		if cause := context.Cause(r.ctx); errors.Is(cause, io.ErrUnexpectedEOF) {
			err = cause
		}
		return r.end(err, ended)
	}
	return res
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
	now := time.Now()
	if r.sawOutput && ev.DataAt >= 0 {
		if text, ok := r.pattern.text(ev.Data); ok {
			return r.alike(ev, text, more, now)
		}
	}
	if ev.Data == nil || r.object.Reset(ev.Data) != nil {
		return r.pass(ev.Raw, more, now) // a comment, or nothing that we read
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
			if !r.write(openai.AppendEvent(nil, string(ev.Name), r.x.unfinished(&r.object, f)), flushNow, now) {
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
		r.pace(now)
	}
	if r.mode.dropUsage && f.choices == 0 && f.hasUsage {
		if r.sawOutput && !more && !r.write(nil, flushNow, now) { // what waited for this event goes out
			return result{verdict: gone}, true
		}
		return result{}, false
	}
	out := r.out[:0]
	if ev.DataAt >= 0 {
		out = r.edit(append(out, ev.Raw[:ev.DataAt]...), f)
		if r.plain(f) {
			r.pattern.learn(ev.Data, out[ev.DataAt:])
		}
		out = append(out, ev.Raw[ev.DataAt+len(ev.Data):]...)
	} else {
		r.edited = r.edit(r.edited[:0], f)
		out = openai.AppendEvent(out, string(ev.Name), r.edited)
	}
	r.out = out
	if f.isError {
		// The engine says itself that the answer ends here.
		r.write(out, flushNow, now)
		r.x.p.metrics.blocked.Inc()
		return result{verdict: cut, reason: "error:event"}, true
	}
	return r.pass(out, more, now)
}

// edit appends the event at hand to dst as the client is to see it.
func (r *relay) edit(dst []byte, f features) []byte {
	if r.x.continues() {
		return append(dst, r.x.cont.convert(&r.object, r.x.responseID(), f)...)
	}
	return r.rewrite(dst, f, f.choices == 0)
}

// alike handles an event that differs from one before it in its text alone.
func (r *relay) alike(ev openai.Event, text []byte, more bool, now time.Time) (result, bool) {
	r.outputs++
	r.pace(now)
	p := &r.pattern
	p.plain = ev.DataAt == len(dataField) && len(ev.Raw) == len(ev.Data)+len(dataField)+len(blankLine) && ev.Raw[len(ev.Raw)-2] == '\n'
	out := append(append(r.out[:0], ev.Raw[:ev.DataAt]...), p.outBefore...)
	out = append(append(out, text...), p.outAfter...)
	r.out = append(out, ev.Raw[ev.DataAt+len(ev.Data):]...)
	return r.pass(r.out, more, now)
}

// pass sends an event on, or holds it back while no output is proven.
func (r *relay) pass(raw []byte, more bool, now time.Time) (result, bool) {
	if !r.sawOutput {
		if len(r.held) > maxHeld {
			return result{verdict: failed, reason: "error:held", problem: openai.BadGateway("the %s sent too much before any output", roles[r.c.leg])}, true
		}
		r.held = append(r.held, raw...)
		return result{}, false
	}
	flush := flushNow
	if more {
		flush = flushLater
	}
	if !r.write(raw, flush, now) {
		return result{verdict: gone}, true
	}
	return result{}, false
}

// write sends what was held back, then raw.
func (r *relay) write(raw []byte, flush flushing, now time.Time) bool {
	if len(r.held) > 0 {
		raw = append(r.held, raw...)
		r.held = nil
	}
	return r.x.out.events(raw, flush, now)
}
