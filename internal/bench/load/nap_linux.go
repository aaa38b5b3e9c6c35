package load

import (
	"syscall"
	"time"
)

// nap sleeps in the kernel, and may end before its time.
func nap(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}
