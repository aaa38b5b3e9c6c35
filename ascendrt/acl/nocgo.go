//go:build !cgo || !linux

package acl

import (
	"context"

	"github.com/sluice-serving/sluice/ascendrt"
)

const why = "this binary was built without cgo (CGO_ENABLED=0) or not for Linux: rebuild with CGO_ENABLED=1 on Linux to use Ascend devices"

var _ ascendrt.Backend = Backend{}

// Probe reports why there are no devices.
func (Backend) Probe(context.Context) (ascendrt.Report, error) {
	return ascendrt.Report{Problem: why}, nil
}

// Open answers ErrUnavailable.
func (Backend) Open(int, ascendrt.OpenOptions) (ascendrt.Device, error) {
	return nil, &ascendrt.Error{Backend: name, Call: "open", Text: why, Command: -1, Class: ascendrt.ErrUnavailable}
}
