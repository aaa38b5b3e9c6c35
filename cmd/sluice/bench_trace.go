package main

import (
	"fmt"
	"io"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/sim"
	"github.com/sluice-serving/sluice/internal/sim/trace"
	"github.com/sluice-serving/sluice/kvcache"
)

// traceFlags are the flags of sluice bench for a recorded trace.
type traceFlags struct {
	file, ids              string
	lenient                bool
	gap, scaleTime, tokens float64
}

// workload freezes the first sessions of the trace; 0: all.
func (f *traceFlags) workload(sessions int, vocab workload.Range, errs io.Writer) (*workload.Workload, error) {
	ids, err := trace.ParseIDs(f.ids)
	if err != nil {
		return nil, err
	}
	t, err := openTrace(f.file, f.lenient, errs)
	if err != nil {
		return nil, err
	}
	r, err := sim.NewReplay(t, ids, sim.ReplayOptions{Sessions: sessions, ScaleTime: f.scaleTime, ScaleToken: f.tokens, Gap: f.gap})
	if err != nil {
		return nil, err
	}
	return workload.Recorded(t.Name, &recordedTrace{Replay: r}, vocab)
}

// openTrace reads a trace; lines that are left out are listed.
func openTrace(file string, lenient bool, errs io.Writer) (*trace.Trace, error) {
	strict := trace.Strict
	if lenient {
		strict = trace.Lenient
	}
	t, err := trace.Open(file, strict)
	if err != nil {
		return nil, err
	}
	for _, b := range t.Broken {
		fmt.Fprintf(errs, "%s: left out: %v\n", t.Name, b)
	}
	return t, nil
}

// recordedTrace is a replayed trace as a load run wants it.
type recordedTrace struct {
	*sim.Replay
	prompt []kvcache.Token
}

var _ workload.Recording = (*recordedTrace)(nil)

func (r *recordedTrace) Start(session int) time.Duration {
	return time.Duration(r.Replay.Start(session))
}

func (r *recordedTrace) Think(session, turn int) time.Duration {
	return time.Duration(r.Replay.Think(session, turn))
}

func (r *recordedTrace) Prompt(session, turn int, dst []int32) []int32 {
	r.prompt = r.Replay.Prompt(session, turn, r.prompt[:0])
	for _, id := range r.prompt {
		dst = append(dst, int32(id))
	}
	return dst
}
