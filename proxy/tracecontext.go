package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-serving/sluice/proxy/wire"
)

// traceContext is the W3C trace context of one client request. Every leg gets
// the same trace with a span of its own, so that logs and spans of both
// engines join.
type traceContext struct {
	trace  string // 32 hex digits
	flags  string // 2 hex digits
	state  string // tracestate of the client, passed on as it is
	parent string // span of the client; empty when the trace begins here

	spans trace.Tracer    // nil when spans are not recorded
	ctx   context.Context // of the request's own span
}

// newTraceContext takes over the client's trace when its header is well
// formed, and begins one otherwise. A begun trace is not sampled: whether to
// record is the client's to say.
func newTraceContext(parent, state string) traceContext {
	if t, ok := parseTraceParent(parent); ok {
		if len(state) <= 512 {
			t.state = state
		}
		return t
	}
	return traceContext{trace: randomHex(16), flags: "00"}
}

// parseTraceParent reads version 00 of the header, and of later versions the
// part that is the same.
func parseTraceParent(h string) (traceContext, bool) {
	if len(h) < 55 || h[2] != '-' || h[35] != '-' || h[52] != '-' || (len(h) > 55 && (h[:2] == "00" || h[55] != '-')) {
		return traceContext{}, false
	}
	version, trace, span, flags := h[:2], h[3:35], h[36:52], h[53:55]
	if version == "ff" || strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "" {
		return traceContext{}, false
	}
	for _, part := range []string{version, trace, span, flags} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return traceContext{}, false
		}
	}
	return traceContext{trace: trace, parent: span, flags: flags}, true
}

// record begins a span for the request, beneath the client's, where spans are
// recorded. The legs then carry the trace and flags of that span.
func (t *traceContext) record(tracer trace.Tracer, r *http.Request) trace.Span {
	if tracer == nil {
		return nil
	}
	ctx := r.Context()
	if t.parent != "" {
		ctx = trace.ContextWithRemoteSpanContext(ctx, t.remote())
	}
	ctx, span := tracer.Start(ctx, r.Method+" "+r.URL.Path, trace.WithSpanKind(trace.SpanKindServer))
	if c := span.SpanContext(); c.IsValid() {
		t.spans, t.ctx = tracer, ctx
		t.trace, t.flags = c.TraceID().String(), c.TraceFlags().String()
	}
	return span
}

// remote is the client's span.
func (t *traceContext) remote() trace.SpanContext {
	var cfg trace.SpanContextConfig
	cfg.TraceID, _ = trace.TraceIDFromHex(t.trace) // both were checked when they came
	cfg.SpanID, _ = trace.SpanIDFromHex(t.parent)
	if flags, err := hex.DecodeString(t.flags); err == nil && len(flags) == 1 {
		cfg.TraceFlags = trace.TraceFlags(flags[0])
	}
	cfg.TraceState, _ = trace.ParseTraceState(t.state) // one that cannot be read is passed on and not recorded
	cfg.Remote = true
	return trace.NewSpanContext(cfg)
}

// leg begins the span of a leg, where spans are recorded.
func (t *traceContext) leg(c *call) {
	if t.spans == nil {
		return
	}
	_, c.span = t.spans.Start(t.ctx, "leg "+c.leg.String(), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("server.address", c.target.Decoder), attribute.Int("sluice.rank", int(c.target.Rank)), attribute.String("sluice.request_id", c.id)))
}

// end ends the span of a leg with what its line in the trace file says.
func (c *call) end(line *LegTrace, v verdict) {
	if c.span == nil {
		return
	}
	c.span.SetAttributes(attribute.Int("http.response.status_code", line.Status), attribute.Int("sluice.output", line.Output), attribute.String("sluice.reason", line.Reason))
	if v == failed || v == cut {
		c.span.SetStatus(codes.Error, line.Reason)
	}
	c.span.End()
}

// fields are the header fields of a leg: its own span, or a fresh one where
// spans are not recorded.
func (t *traceContext) fields(h []wire.Field, span trace.Span) []wire.Field {
	id := ""
	if span != nil {
		id = span.SpanContext().SpanID().String()
	} else {
		id = randomHex(8)
	}
	h = append(h, wire.Field{Name: "Traceparent", Value: "00-" + t.trace + "-" + id + "-" + t.flags})
	if t.state != "" {
		h = append(h, wire.Field{Name: "Tracestate", Value: t.state})
	}
	return h
}

func randomHex(n int) string {
	var b [16]byte
	_, _ = rand.Read(b[:n]) // never fails
	return hex.EncodeToString(b[:n])
}
