//go:build race

package host

import (
	"runtime"
	"unsafe"
)

// The kernels in assembly are invisible to the race detector: an operation
// reports its operands here.

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
