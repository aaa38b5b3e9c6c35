package main

import (
	"cmp"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/sluice-serving/sluice/internal/sim"
)

// playScale plays a large fleet, or very many sessions.
func (f *simFlags) playScale(out, errs io.Writer) error {
	run := func(observe func(done, all int)) (*sim.ScaleReport, error) {
		return sim.Fleet(1000, cmp.Or(f.replay.Sessions, 60_000), observe)
	}
	if f.preset == "sessions" {
		run = func(observe func(done, all int)) (*sim.ScaleReport, error) {
			return sim.Crowd(cmp.Or(f.replay.Sessions, 1_000_000), observe)
		}
	}
	if f.replay.Sessions < 0 {
		return fmt.Errorf("--sessions is %d, must not be negative", f.replay.Sessions)
	}
	observe, end := bar(errs, "simulate "+f.preset)
	rep, err := run(observe)
	end()
	if err != nil {
		return err
	}
	f.played = rep.Requests
	return f.print(out, rep, rep.Page(), "preset "+rep.Preset)
}

func (f *simFlags) count(rows []*sim.StudyRow) {
	for _, r := range rows {
		f.played += r.Requests
	}
}

// printCost says what the run took of this machine. It is no part of the
// report, which is the same wherever it is made.
func (f *simFlags) printCost(errs io.Writer) {
	var u syscall.Rusage
	if f.played == 0 || syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return
	}
	busy := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	fmt.Fprintf(errs, "%d requests simulated with %.2f s of processor time (%.2f s user), %.1f µs each; peak memory %.0f MiB\n",
		f.played, busy.Seconds(), time.Duration(u.Utime.Nano()).Seconds(), float64(busy.Microseconds())/float64(f.played), float64(u.Maxrss)/1024)
}
