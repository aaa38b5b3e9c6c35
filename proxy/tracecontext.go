package proxy

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

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

// fields are the header fields of a leg, with a fresh span.
func (t traceContext) fields(h []wire.Field) []wire.Field {
	h = append(h, wire.Field{Name: "Traceparent", Value: "00-" + t.trace + "-" + randomHex(8) + "-" + t.flags})
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
