//go:build !cgo || !linux

package mooncake

import (
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// New answers why there is no such transport.
func New(tcp.Config) (transport.Transport, error) {
	return nil, &transport.UnavailableError{Transport: "mooncake", Reason: "this binary was built without cgo (CGO_ENABLED=0) or not for Linux: rebuild with CGO_ENABLED=1 on Linux"}
}
