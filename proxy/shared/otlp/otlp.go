// Package otlp sends the proxy's spans to a collector over OTLP and HTTP.
package otlp

import (
	"context"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-serving/sluice/proxy/command"
)

// closeLimit bounds how long the last spans may take to be sent.
const closeLimit = 5 * time.Second

// Open makes a provider that the environment configures with the variables of
// OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names the collector, OTEL_SERVICE_NAME the
// service, OTEL_TRACES_SAMPLER what is sampled. Without a collector there is no
// provider, and no error.
func Open(ctx context.Context) (command.Tracing, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "sluice-proxy")), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	return provider{trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(about))}, nil
}

type provider struct{ *trace.TracerProvider }

// Close sends what is left.
func (p provider) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return p.Shutdown(ctx)
}
