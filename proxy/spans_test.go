package proxy

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

// recorder is a provider that keeps what it is told.
type recorder struct {
	noop.TracerProvider
	mu    sync.Mutex
	spans []*recorded
}

type recorded struct {
	noop.Span
	r           *recorder
	name        string
	kind        trace.SpanKind
	own, parent trace.SpanContext
	attributes  map[string]string
	code        codes.Code
	ended       bool
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return recorderTracer{r: r} }

type recorderTracer struct {
	noop.Tracer
	r *recorder
}

func (t recorderTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	cfg := trace.NewSpanStartConfig(options...)
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	s := &recorded{r: t.r, name: name, kind: cfg.SpanKind(), parent: trace.SpanContextFromContext(ctx), attributes: map[string]string{}}
	id := trace.TraceID{15: 9}
	if s.parent.IsValid() {
		id = s.parent.TraceID()
	}
	var span trace.SpanID
	binary.BigEndian.PutUint64(span[:], uint64(len(t.r.spans)+1))
	s.own = trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled, TraceState: s.parent.TraceState()})
	t.r.spans = append(t.r.spans, s)
	s.set(cfg.Attributes())
	return trace.ContextWithSpan(ctx, s), s
}

func (s *recorded) set(list []attribute.KeyValue) {
	for _, a := range list {
		s.attributes[string(a.Key)] = a.Value.String()
	}
}

func (s *recorded) SpanContext() trace.SpanContext { return s.own }

func (s *recorded) SetAttributes(list ...attribute.KeyValue) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.set(list)
}

func (s *recorded) SetStatus(c codes.Code, _ string) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.code = c
}

func (s *recorded) End(...trace.SpanEndOption) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.ended = true
}

// A request has a span beneath the client's, each leg one beneath the request's,
// and the header of each leg names the leg's own.
func TestSpans(t *testing.T) {
	rec := &recorder{}
	c := start(t, setup{change: func(cfg *Config) { cfg.Tracing = rec }})
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	client := []string{"Traceparent", parent, "Tracestate", "vendor=1", "X-Session-ID", "s"}
	c.post(chatPath, turnBody(1, ""), client...)
	c.d[0].Set(func(b *backendtest.Backend) { b.Hook = on("local", answering(500, "{}")) })
	c.post(chatPath, turnBody(2, ""), client...)
	c.post(chatPath, "not JSON", client...)
	c.post(chatPath, turnBody(1, ""))
	c.traces(3)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	var names []string
	for i, s := range rec.spans {
		require.True(t, s.ended, s.name)
		names = append(names, s.name)
		if strings.HasPrefix(s.name, "leg") {
			require.Equal(t, trace.SpanKindClient, s.kind)
			require.NotEmpty(t, s.attributes["sluice.request_id"])
		} else {
			require.Equal(t, trace.SpanKindServer, s.kind)
		}
		if i < 8 {
			require.Equal(t, "0af7651916cd43dd8448eb211c80319c", s.own.TraceID().String())
			require.Equal(t, "vendor=1", s.own.TraceState().String())
		} else {
			require.NotEqual(t, "0af7651916cd43dd8448eb211c80319c", s.own.TraceID().String())
		}
	}
	request := "POST " + chatPath
	require.Equal(t, []string{request, "leg p", "leg d", request, "leg local", "leg p", "leg d", request, request, "leg p", "leg d"}, names)
	require.Equal(t, "b7ad6b7169203331", rec.spans[0].parent.SpanID().String())
	require.Equal(t, "400", rec.spans[7].attributes["http.response.status_code"])
	require.Equal(t, "fallback", rec.spans[3].attributes["sluice.route"])
	require.Equal(t, codes.Error, rec.spans[4].code)
	require.Equal(t, "500", rec.spans[4].attributes["http.response.status_code"])
	for i, leg := range []int{1, 5} {
		require.Equal(t, rec.spans[leg-1-i].own.SpanID(), rec.spans[leg].parent.SpanID())
		require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-"+rec.spans[leg].own.SpanID().String()+"-01", c.p[0].Records()[i].Header.Get("Traceparent"))
	}
	require.Equal(t, fmt.Sprint(http.StatusOK), rec.spans[6].attributes["http.response.status_code"])
}
