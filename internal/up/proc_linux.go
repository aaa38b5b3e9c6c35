package up

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// ownGroup keeps a terminal's Ctrl-C from the child, so that the supervisor
// decides when it ends, and ends the child should the supervisor be killed.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// peakMemory is the largest resident size of a process in bytes; 0 when it is gone.
func peakMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			fields := bytes.Fields(rest)
			if len(fields) == 0 {
				return 0
			}
			kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// OwnPeakMemory is the largest resident size in bytes that this process has had.
func OwnPeakMemory() int64 { return peakMemory(os.Getpid()) }
