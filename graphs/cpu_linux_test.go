package graphs

import (
	"syscall"
	"time"
)

// cpuTime is the processor time of the calling thread, which other work on the
// machine does not lengthen by taking its turn.
func cpuTime() time.Duration {
	const thisThread = 1 // RUSAGE_THREAD
	var r syscall.Rusage
	if err := syscall.Getrusage(thisThread, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
