package otlp

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
)

func TestOpen(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	p, err := Open(t.Context())
	require.NoError(t, err)
	require.Nil(t, p, "nothing is configured")

	var mu sync.Mutex
	var sent []byte
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/v1/traces" {
			sent = append(sent, body...)
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_SERVICE_NAME", "front-door")
	p, err = Open(t.Context())
	require.NoError(t, err)
	_, span := p.Tracer("test").Start(t.Context(), "leg local", trace.WithSpanKind(trace.SpanKindClient))
	require.True(t, span.SpanContext().IsValid())
	span.End()
	require.NoError(t, p.Close())
	mu.Lock()
	defer mu.Unlock()
	require.True(t, bytes.Contains(sent, []byte("leg local")), "the span was sent")
	require.True(t, bytes.Contains(sent, []byte("front-door")))
}
