//go:build !ucx || !cgo || !linux

package ucx

import (
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// New answers why there is no such transport.
func New(tcp.Config) (transport.Transport, error) {
	return nil, &transport.UnavailableError{Transport: "ucx", Reason: "this binary was built without it: rebuild with cgo on Linux, -tags ucx and libucp 1.13 or newer (Debian: libucx-dev)"}
}
