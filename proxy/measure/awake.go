//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// A processor that has nothing to do sleeps, and on a virtual machine it is woken by
// the machine's host: at concurrency 1, where each process sleeps while the next one
// works, that can take longer than the work. What the proxy adds apart from it is
// measured with a process for each processor that always has something to do, and
// gives way to everything else.

// awakeFor bounds how long such a process runs.
const awakeFor = 5 * time.Minute

// schedIdle is SCHED_IDLE: nothing else waits for a process of this kind.
const schedIdle = 5

// keepAwake starts the processes; stop ends them.
func keepAwake() (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var all []*process
	stop = func() {
		for _, p := range all {
			_ = p.stop() // never fails
		}
	}
	for range cores() {
		p, err := launch(self, "-role", "awake")
		if err != nil {
			stop()
			return nil, err
		}
		all = append(all, p)
	}
	return stop, nil
}

// runAwake is such a process. It ends with the one that has started it, at the latest.
func runAwake(parent int) error {
	runtime.LockOSThread()
	var priority int32
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETSCHEDULER, 0, schedIdle, uintptr(unsafe.Pointer(&priority))); errno != 0 {
		return fmt.Errorf("a process that gives way to all others: %w", errno)
	}
	fmt.Println("awake")
	began := time.Now()
	for i := 1; time.Since(began) < awakeFor; i++ {
		if i%100_000 == 0 && os.Getppid() != parent {
			return errors.New("the measurement has ended")
		}
	}
	return nil
}
