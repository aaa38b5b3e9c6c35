//go:build !cgo || !linux

package mooncake

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

func TestAbsent(t *testing.T) {
	_, err := New(tcp.Config{})
	var e *transport.UnavailableError
	require.ErrorAs(t, err, &e)
	require.ErrorContains(t, err, "CGO_ENABLED=1")
}
