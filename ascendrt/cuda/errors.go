//go:build cgo && linux

package cuda

import (
	"github.com/sluice-serving/sluice/ascendrt"
)

// library numbers whose code an error carries; those of shim.h.
type library int

const (
	libCUDA library = iota
	libNVRTC
	libCUBLASLt
	libNCCL
)

func (l library) String() string {
	return [...]string{"libcuda", "libnvrtc", "libcublasLt", "libnccl"}[l]
}

// classOf maps a code to the class that callers decide on.
func classOf(lib library, code int) error {
	if code < 0 {
		return ascendrt.ErrUnsupported
	}
	switch lib {
	case libNVRTC:
		if code == 1 {
			return ascendrt.ErrOutOfMemory
		}
		return ascendrt.ErrCompile
	case libCUBLASLt:
		switch code {
		case 3:
			return ascendrt.ErrOutOfMemory
		case 8, 15:
			return ascendrt.ErrUnsupported
		case 13:
			return ascendrt.ErrDeviceLost
		}
		return ascendrt.ErrInvalid
	case libNCCL:
		if code == 4 || code == 5 {
			return ascendrt.ErrInvalid
		}
		return ascendrt.ErrDegraded
	}
	switch code {
	case 2:
		return ascendrt.ErrOutOfMemory
	case 4: // deinitialized: the process is ending
		return ascendrt.ErrClosed
	case 3, 100, 101, 802, 803:
		return ascendrt.ErrUnavailable
	case 209, 222, 801:
		return ascendrt.ErrUnsupported
	case 701:
		return ascendrt.ErrResourceLimit
	case 909:
		return ascendrt.ErrTimeout
	case 910:
		return ascendrt.ErrGraphUpdate
	case 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999:
		return ascendrt.ErrDeviceLost
	}
	if code >= 900 && code <= 908 {
		return ascendrt.ErrCapture
	}
	return ascendrt.ErrInvalid
}

func invalid(call, text string, class error) error {
	return &ascendrt.Error{Backend: name, Call: call, Text: text, Command: -1, Class: class}
}

// need opens a library for a call.
func need(call string, l library) error {
	return use(l).Need(name, call, l.String(), advice(l))
}
