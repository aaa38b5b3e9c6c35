//go:build race

package host

import (
	"runtime"
	"unsafe"
)

// The kernels in assembly are invisible to the race detector, and those in Go that
// work on one row are made so: an operation reports its operands here, as wholes.

func raceRead(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(&b[0]), len(b))
	}
}

func raceWrite(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(&b[0]), len(b))
	}
}
