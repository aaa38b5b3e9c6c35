//go:build ucx && cgo && linux

package ucx

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T, notified transport.Notified) transport.Transport {
		made, err := New(tcp.Config{Notified: notified, ChunkBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, "ucx", made.Name())
		return made
	})
}

func TestRefused(t *testing.T) {
	_, err := New(tcp.Config{ServerTLS: &tls.Config{}, ClientTLS: &tls.Config{}})
	var e *transport.UnavailableError
	require.ErrorAs(t, err, &e)
	_, err = New(tcp.Config{Listen: "192.0.2.1:0"})
	require.ErrorContains(t, err, "ucx transport")
	_, err = New(tcp.Config{Listen: "nowhere"})
	require.Error(t, err)
}
