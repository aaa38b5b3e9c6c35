//go:build linux

package main

import (
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// pin keeps this process, and those that it starts, to the listed processors.
func pin(list string) error {
	if list == "" {
		return nil
	}
	var mask cpuSet
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 0 || n >= len(mask)*64 {
			return fmt.Errorf("-cpus %q: %q is no processor", list, text)
		}
		mask[n/64] |= 1 << (n % 64)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks { // a thread that is started later has it from the one that starts it
		id, _ := strconv.Atoi(t.Name())
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(id), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask))); errno != 0 {
			return fmt.Errorf("-cpus %q: %w", list, errno)
		}
	}
	return nil
}

type cpuSet [16]uint64

// cores is the number of processors that this process may use.
func cores() (n int) {
	var mask cpuSet
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask))); errno != 0 {
		return runtime.NumCPU()
	}
	for _, word := range mask {
		n += bits.OnesCount64(word)
	}
	return n
}

// spent is processor time, in the program and in the kernel.
type spent struct{ user, system time.Duration }

func (s spent) minus(t spent) spent { return spent{s.user - t.user, s.system - t.system} }
func (s spent) plus(t spent) spent  { return spent{s.user + t.user, s.system + t.system} }

// per is the time for each of n pieces of work.
func (s spent) per(n int) string {
	if n == 0 {
		return ""
	}
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(n) }
	return fmt.Sprintf("%.1f µs (%.1f + %.1f)", micros(s.user+s.system), micros(s.user), micros(s.system))
}

// cpu is the processor time that the process has used; the kernel counts it in
// hundredths of a second.
func (p *process) cpu() spent {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return spent{}
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return spent{}
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return spent{time.Duration(user) * 10 * time.Millisecond, time.Duration(system) * 10 * time.Millisecond}
}

// ownCPU is the processor time that this process, the generator, has used.
func ownCPU() spent {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return spent{}
	}
	return spent{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}
}

// work is the processor time of the three parts of a bench.
type work struct{ proxy, backends, generator spent }

func (b *bench) work() work {
	return work{proxy: b.proxy.cpu(), backends: b.p.cpu().plus(b.d.cpu()), generator: ownCPU()}
}

// rows prints the processor time that each process took for each of n pieces of
// work: of the direct calls, and of those through the proxy.
func (b *bench) rows(piece string, before, between work, direct int, via int) {
	after := b.work()
	for _, r := range []struct {
		name         string
		direct, over spent
	}{
		{"proxy", spent{}, after.proxy.minus(between.proxy)},
		{"backends", between.backends.minus(before.backends), after.backends.minus(between.backends)},
		{"generator", between.generator.minus(before.generator), after.generator.minus(between.generator)},
	} {
		alone := ""
		if r.direct != (spent{}) {
			alone = r.direct.per(direct)
		}
		fmt.Printf("| processor time per %s of the %s (program + kernel) | %s | %s | |\n", piece, r.name, alone, r.over.per(via))
	}
}
