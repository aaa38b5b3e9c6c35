//go:build !linux

package up

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from the child, so that the supervisor
// decides when it ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// peakMemory is not known on this system.
func peakMemory(int) int64 { return 0 }

// OwnPeakMemory is not known on this system.
func OwnPeakMemory() int64 { return 0 }
