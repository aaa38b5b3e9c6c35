package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
)

func open(cfg Config) conformance.Open {
	return func(t *testing.T, notified transport.Notified) transport.Transport {
		cfg.Notified = notified
		tr, err := New(cfg)
		require.NoError(t, err)
		return tr
	}
}

func TestConformance(t *testing.T) {
	conformance.Run(t, open(Config{ChunkBytes: 1 << 20}))
}

func TestConformanceWithoutChecksum(t *testing.T) {
	conformance.Run(t, open(Config{Checksum: NoChecksum, Conns: 1, ChunkBytes: 1 << 20}))
}
