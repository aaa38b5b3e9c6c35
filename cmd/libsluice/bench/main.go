// Command bench compares a scheduler that is called from Go with one that is
// called through libsluice, in one run: Plan and Apply with all requests
// decoding, in turns of a few steps each, by processor time. It prints both and
// their ratio.
//
//	go run ./cmd/libsluice/bench --lib build/libsluice
package main

import (
	"bufio"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// program is the C side.
//
//go:embed testdata/steps.c
var program string

const (
	output  = 4096
	longest = 527
	turn    = 64 // steps; a multiple of the block size: every request takes and fills as many blocks
)

func main() {
	lib := flag.String("lib", "build/libsluice", "folder below which the library is installed (make lib)")
	rows := flag.Int("rows", 256, "requests that decode")
	turns := flag.Int("turns", 50, "turns of 64 steps that each side takes, at most 56")
	atMost := flag.Float64("at-most", 0, "fail if the ratio of the least times is larger; 0: never")
	flag.Parse()
	worst := 0.0
	for _, with := range []string{"plain", "graphs"} {
		r, err := compare(*lib, with, *rows, min(*turns, 56))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("%d rows, %s: Go %.1f µs, C %.1f µs a step (least %.1f, %.1f); ratio of the medians %.3f, of the least %.3f; median of the ratios turn by turn %.3f\n",
			*rows, with, median(r.here)/1e3, median(r.there)/1e3, slices.Min(r.here)/1e3, slices.Min(r.there)/1e3,
			median(r.there)/median(r.here), slices.Min(r.there)/slices.Min(r.here), median(r.ratios))
		worst = max(worst, slices.Min(r.there)/slices.Min(r.here))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Printf("%d processors, load average %s\n", runtime.NumCPU(), strings.Fields(string(load))[0])
	}
	if *atMost > 0 && worst > *atMost {
		fmt.Fprintf(os.Stderr, "the ratio %.3f is more than %.3f\n", worst, *atMost)
		os.Exit(1)
	}
}

// times are nanoseconds of processor time of a step, by turn.
type times struct{ here, there, ratios []float64 }

// compare runs both sides in turns, the one that begins changing.
func compare(lib, with string, rows, turns int) (times, error) {
	var t times
	c, err := startC(lib, with, rows)
	if err != nil {
		return t, err
	}
	defer c.stop()
	g, err := startGo(with, rows)
	if err != nil {
		return t, err
	}
	runtime.GC()
	for i := range turns {
		var here, there float64
		var errs [2]error
		sides := []func(){
			func() { here, errs[0] = g.steps(turn) },
			func() { there, errs[1] = c.steps(turn) },
		}
		sides[i%2]()
		sides[1-i%2]()
		for _, err := range errs {
			if err != nil {
				return t, err
			}
		}
		t.here, t.there, t.ratios = append(t.here, here), append(t.there, there), append(t.ratios, there/here)
	}
	return t, nil
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// cpu is the processor time of this process.
func cpu() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(t.Nano())
}

// here is the scheduler of this process.
type here struct {
	s    *scheduler.Scheduler
	res  scheduler.Result
	now  scheduler.Time
	rows int
}

func startGo(with string, rows int) (*here, error) {
	most := max(8192, rows)
	cache, err := kvcache.New(kvcache.Config{Blocks: rows*(longest+output+16)/16 + 2, BlockSize: 16})
	if err != nil {
		return nil, err
	}
	var opts []scheduler.Option
	if with == "graphs" {
		d, err := graphs.New(graphs.Config{MaxNumSeqs: rows, MaxNumBatchedTokens: most})
		if err != nil {
			return nil, err
		}
		d.SetCaptureState(graphs.AllCaptured)
		opts = append(opts, scheduler.WithGraphs(d))
	}
	h := &here{rows: rows}
	if h.s, err = scheduler.New(scheduler.Config{MaxNumSeqs: rows, MaxBatchedTokens: most, MaxModelLen: longest + output}, cache, opts...); err != nil {
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
	for range 2*rows*520/most + 1 {
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
	return float64(cpu()-begun) / float64(n), nil
}

// there is the scheduler of a C program.
type there struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	dir string
}

func startC(lib, with string, rows int) (*there, error) {
	lib, err := filepath.Abs(lib)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "steps")
	if err != nil {
		return nil, err
	}
	t := &there{dir: dir}
	built := filepath.Join(dir, "steps")
	gcc := exec.Command("gcc", "-D_GNU_SOURCE", "-O2", "-o", built, "-x", "c", "-", "-I"+lib+"/include", "-L"+lib+"/lib", "-lsluice", "-Wl,-rpath,"+lib+"/lib")
	gcc.Stdin = strings.NewReader(program)
	if text, err := gcc.CombinedOutput(); err != nil {
		t.stop()
		return nil, fmt.Errorf("gcc: %w\n%s", err, text)
	}
	t.cmd = exec.Command(built, strconv.Itoa(rows), with)
	t.cmd.Stderr = os.Stderr
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = bufio.NewScanner(out)
	return t, t.cmd.Start()
}

func (t *there) steps(n int) (float64, error) {
	if _, err := fmt.Fprintln(t.in, n); err != nil {
		return 0, err
	}
	if !t.out.Scan() {
		return 0, fmt.Errorf("the C program has ended: %w", io.ErrUnexpectedEOF)
	}
	return strconv.ParseFloat(t.out.Text(), 64)
}

// stop ends the program and removes it.
func (t *there) stop() {
	if t.cmd != nil {
		_ = t.in.Close() // it ends at it
		_ = t.cmd.Wait() // what it had to say it has said
	}
	_ = os.RemoveAll(t.dir) // a temporary folder
}
