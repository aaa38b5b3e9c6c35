// Command sluice-proxy is the proxy of sluice with the stores and memberships
// that need client libraries, etcd and NATS, and with spans that go to a
// collector where OTEL_EXPORTER_OTLP_ENDPOINT names one.
//
//	sluice-proxy --session-store nats://127.0.0.1:4222/sessions --membership etcd://127.0.0.1:2379/instances ...
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-serving/sluice/proxy/command"
	"github.com/sluice-serving/sluice/proxy/shared/etcd"
	"github.com/sluice-serving/sluice/proxy/shared/nats"
	"github.com/sluice-serving/sluice/proxy/shared/otlp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := command.New(command.Options{
		Stores:      map[string]command.OpenStore{"etcd": etcd.OpenStore, "etcds": etcd.OpenStore, "nats": nats.OpenStore, "tls": nats.OpenStore},
		Trace:       otlp.Open,
		Memberships: map[string]command.OpenMembership{"etcd": etcd.OpenMembership, "etcds": etcd.OpenMembership},
	})
	cmd.Use = "sluice-proxy"
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-proxy:", err)
		os.Exit(1)
	}
}
