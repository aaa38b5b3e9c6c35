// Command bench compares a scheduler that is called from Go with one that is
// called from C through the functions of libsluice, in one process and one run:
// Plan and Apply with all requests decoding, in turns of a few steps each, by
// the thread's processor time. It prints both and their ratio.
package main

// #cgo CFLAGS: -I${SRCDIR}/../include
// #include <stdlib.h>
// #include "steps.h"
import "C"

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-serving/sluice/cmd/libsluice/abi"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

const (
	output  = 4096
	longest = 527
	turn    = 16 // steps, the block size: every request takes one block and fills one
)

func main() {
	rows := flag.Int("rows", 256, "requests that decode")
	turns := flag.Int("turns", 100, "turns of 16 steps that each side of a pair takes, at most 224")
	pairs := flag.Int("pairs", 15, "pairs of schedulers: where their memory lies matters as much as who calls them")
	atMost := flag.Float64("at-most", 0, "fail if a median of the pairs' ratios is larger; 0: never")
	flag.Parse()
	runtime.LockOSThread() // one thread's time is read
	worst := 0.0
	for _, with := range []string{"plain", "graphs"} {
		var here, there, ratios []float64
		for i := range *pairs {
			t, err := compare(with, *rows, min(*turns, 224), i%2 == 1)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			g, c := at(t.here, 0.1), at(t.there, 0.1)
			here, there, ratios = append(here, g), append(there, c), append(ratios, c/g)
		}
		fmt.Printf("%d rows, %s: a step from Go %.2f µs, from C %.2f µs (medians of %d pairs; least %.2f, %.2f); ratio %.3f (median; %.3f to %.3f)\n",
			*rows, with, at(here, 0.5)/1e3, at(there, 0.5)/1e3, *pairs, at(here, 0)/1e3, at(there, 0)/1e3, at(ratios, 0.5), at(ratios, 0), slices.Max(ratios))
		worst = max(worst, at(ratios, 0.5))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Printf("%d processors, load average %s\n", runtime.NumCPU(), strings.Fields(string(load))[0])
	}
	if *atMost > 0 && worst > *atMost {
		fmt.Fprintf(os.Stderr, "the ratio %.3f is more than %.3f\n", worst, *atMost)
		os.Exit(1)
	}
}

// times are nanoseconds of a step, by turn.
type times struct{ here, there []float64 }

// at is the value below which a share of all lies.
func at(x []float64, share float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[int(share*float64(len(x)))]
}

// compare runs a pair in turns, the one that begins changing. Each side's time
// is that of its quickest tenth of turns: the rest met neighbours.
func compare(with string, rows, turns int, cFirst bool) (times, error) {
	var (
		t    times
		g    *here
		c    *there
		errs [2]error
	)
	start := []func(){func() { g, errs[0] = startGo(with, rows) }, func() { c, errs[1] = startC(with, rows) }}
	if cFirst {
		slices.Reverse(start)
	}
	for _, f := range start {
		f()
	}
	if err := errors.Join(errs[:]...); err != nil {
		return t, err
	}
	defer c.stop()
	runtime.GC()
	for i := range turns {
		for k := range 2 {
			steps, list := g.steps, &t.here
			if (i+k)%2 == 1 {
				steps, list = c.steps, &t.there
			}
			ns, err := steps(turn)
			if err != nil {
				return t, err
			}
			*list = append(*list, ns)
		}
	}
	return t, nil
}

// here is the scheduler that Go calls.
type here struct {
	s    *scheduler.Scheduler
	res  scheduler.Result
	now  scheduler.Time
	rows int
}

func budget(rows int) int { return max(8192, rows) }

func blocks(rows int) int { return rows*(longest+output+16)/16 + 2 }

// warm is the number of steps until all requests decode.
func warm(rows int) int { return 2*rows*520/budget(rows) + 1 }

func startGo(with string, rows int) (*here, error) {
	cache, err := kvcache.New(kvcache.Config{Blocks: blocks(rows), BlockSize: 16})
	if err != nil {
		return nil, err
	}
	var opts []scheduler.Option
	if with == "graphs" {
		d, err := graphs.New(graphs.Config{MaxNumSeqs: rows, MaxNumBatchedTokens: budget(rows)})
		if err != nil {
			return nil, err
		}
		d.SetCaptureState(graphs.AllCaptured)
		opts = append(opts, scheduler.WithGraphs(d))
	}
	h := &here{rows: rows}
	if h.s, err = scheduler.New(scheduler.Config{MaxNumSeqs: rows, MaxBatchedTokens: budget(rows), MaxModelLen: longest + output}, cache, opts...); err != nil {
		return nil, err
	}
	for i := range rows {
		prompt := make([]scheduler.Token, 512+i%16)
		for k := range prompt {
			prompt[k] = scheduler.Token((i*7919 + k*31 + 1) % 30000)
		}
		prompt[0] = scheduler.Token(i)
		if _, err := h.s.Add(scheduler.Request{ID: fmt.Sprint("r", i+1), Prompt: prompt, MaxTokens: output}); err != nil {
			return nil, err
		}
	}
	for range warm(rows) {
		if _, err := h.step(); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *here) step() (int, error) {
	h.now++
	p := h.s.Plan(h.now)
	h.res.Tokens = h.res.Tokens[:0]
	for i, yields := range p.Samples {
		if yields == 1 {
			h.res.Tokens = append(h.res.Tokens, scheduler.Token(100+(int(p.Seq)+i)%1000))
		}
	}
	rows := p.Rows()
	_, err := h.s.Apply(p, h.res)
	return rows, err
}

// cpu is the processor time of this thread in nanoseconds.
func cpu() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return float64(t.Nano())
}

func (h *here) steps(n int) (float64, error) {
	begun := cpu()
	for range n {
		rows, err := h.step()
		if err != nil {
			return 0, err
		}
		if rows != h.rows {
			return 0, fmt.Errorf("a step has %d rows, not %d", rows, h.rows)
		}
	}
	return (cpu() - begun) / float64(n), nil
}

// there is the scheduler that C calls.
type there struct{ e *C.engine }

func startC(with string, rows int) (*there, error) {
	config := fmt.Sprintf(`{"Cache": {"Blocks": %d, "BlockSize": 16}, "Scheduler": {"MaxNumSeqs": %d, "MaxBatchedTokens": %d, "MaxModelLen": %d}`,
		blocks(rows), rows, budget(rows), longest+output)
	if with == "graphs" {
		config += `, "Graphs": {}`
	}
	text := C.CString(config + "}")
	defer C.free(unsafe.Pointer(text))
	all := abi.Functions()
	f := (*C.functions)(C.calloc(1, C.sizeof_functions))
	defer C.free(unsafe.Pointer(f))
	f.create, f.add = (*[0]byte)(all["sluice_new"]), (*[0]byte)(all["sluice_add"])
	f.release = (*[0]byte)(all["sluice_free"])
	f.plan, f.apply = (*[0]byte)(all["sluice_plan"]), (*[0]byte)(all["sluice_apply"])
	said := (*C.char)(C.calloc(1, 1024))
	defer C.free(unsafe.Pointer(said))
	e := (*C.engine)(C.calloc(1, C.sizeof_engine))
	if status := C.engine_start(e, f, text, C.int32_t(rows), output, C.int32_t(warm(rows)), said, 1024); status != C.SLUICE_OK {
		return nil, fmt.Errorf("status %d: %s", int(status), C.GoString(said))
	}
	return &there{e}, nil
}

func (t *there) steps(n int) (float64, error) {
	var ns C.double
	if status := C.engine_steps(t.e, C.int32_t(n), &ns); status != C.SLUICE_OK {
		return 0, fmt.Errorf("a step from C: status %d", int(status))
	}
	return float64(ns), nil
}

// stop frees the scheduler.
func (t *there) stop() { C.engine_stop(t.e) }

// stain lets the C side's variables hold what was left there by others: the
// address of Go memory that is no more.
func (t *there) stain(address uintptr) { *(*uintptr)(unsafe.Pointer(&t.e.before)) = address }
