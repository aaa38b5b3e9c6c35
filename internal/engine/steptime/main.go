// Command steptime measures the executor on a device: the time of a decode step
// per batch and kind of graph, the host's part of it, and prefill. It makes the
// model's weights by a generator, so it needs no checkpoint.
//
//	go run ./internal/engine/steptime --device cuda --model qwen3-0.6b
//
// With --grid it measures single steps of given compositions instead, which the
// simulator takes as its cost model; a run that is cut short goes on where its
// file ends:
//
//	go run ./internal/engine/steptime --grid --append steps.csv --time-limit 3m30s
//
// Output is CSV, one line per figure, after comment lines with the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

type options struct {
	device, models, batches, prefills, modes string
	ops                                      executor.Ops
	context, steps, block, repeat            int

	grid, full                                         bool
	between, contexts, decodes, chunks, prefixes, file string
	limit                                              time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.device, "device", "cuda", "cuda or host")
	flag.StringVar(&o.models, "model", "qwen3-0.6b", "shapes, separated by commas")
	flag.StringVar(&o.batches, "batch", "1,8,32,128", "sequences of a decode step")
	flag.StringVar(&o.prefills, "prefill", "1024,4096,12288", "tokens of a prompt; empty for none")
	flag.StringVar(&o.modes, "modes", "FULL,PIECEWISE,NONE", "kinds of graphs; empty for no decodes")
	flag.IntVar(&o.context, "context", 1024, "tokens in the cache of each sequence at the first decode step")
	flag.IntVar(&o.steps, "steps", 200, "decode steps of one run")
	flag.Func("operations", "fused (the default), per-row (as --batch-invariant) or named", func(s string) (err error) {
		o.ops, err = executor.ParseOps(s)
		return err
	})
	flag.IntVar(&o.block, "block-size", 64, "tokens per KV block")
	flag.IntVar(&o.repeat, "repeat", 3, "runs, of which the median counts")
	flag.BoolVar(&o.grid, "grid", false, "single steps by decodes, context, new tokens and cached prefix, for the simulator")
	flag.StringVar(&o.between, "between", "3,5,9,17,24,25,33,40", "with --grid: sequences between those of --batch, in FULL graphs alone, which they fill in part; empty for none")
	flag.BoolVar(&o.full, "full-for-all", false, "with --grid: FULL graphs for steps with prompt rows too, as far as the ladder goes")
	flag.StringVar(&o.contexts, "contexts", "1152,4608,256,12288", "with --grid: tokens that each decode attends to, the most valuable first; decodes beside a prompt row have the first of them")
	flag.StringVar(&o.decodes, "decodes", "8,32,0", "with --grid: decodes beside a prompt row")
	flag.StringVar(&o.chunks, "chunks", "1,64,256,512,1024,2048", "with --grid: new tokens of a prompt row")
	flag.StringVar(&o.prefixes, "prefixes", "0,1024,4096,12288", "with --grid: cached tokens before them")
	flag.StringVar(&o.file, "append", "", "with --grid: file to which steps are appended, and whose steps are not measured again")
	flag.DurationVar(&o.limit, "time-limit", 0, "with --grid: no step begins later; 0: none")
	flag.Parse()
	var err error
	if o.grid {
		if !given("batch") {
			o.batches = "1,2,4,8,16,32,64,128"
		}
		err = runGrid(context.Background(), o, os.Stdout)
	} else {
		err = run(context.Background(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "steptime:", err)
		os.Exit(1)
	}
}

// given reports whether a flag stands on the command line.
func given(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

func run(ctx context.Context, o options) error {
	batches, err := numbers(o.batches)
	if err != nil {
		return err
	}
	prefills, err := numbers(o.prefills)
	if err != nil {
		return err
	}
	dev, err := open(o.device)
	if err != nil {
		return err
	}
	defer dev.Close(ctx)
	fmt.Printf("# %s, %s, %v operations, block size %d, context %d, %d steps, median of %d\n", dev.Info().Name, time.Now().UTC().Format("2006-01-02"), o.ops, o.block, o.context, o.steps, o.repeat)
	fmt.Println("model,what,size,graphs,value,unit")
	for _, name := range strings.Split(o.models, ",") {
		shape, err := model.Shape(name)
		if err != nil {
			return err
		}
		for _, mode := range strings.FieldsFunc(o.modes, func(r rune) bool { return r == ',' }) {
			if err := decode(ctx, dev, o, shape, mode, batches); err != nil {
				return fmt.Errorf("%s, %s: %w", name, mode, err)
			}
		}
		for _, n := range prefills {
			if err := prefill(ctx, dev, o, shape, n); err != nil {
				return fmt.Errorf("%s, prefill of %d: %w", name, n, err)
			}
		}
	}
	return nil
}

func open(name string) (ascendrt.Device, error) {
	switch name {
	case "cuda":
		return cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
	case "host":
		return host.Backend{}.Open(0, ascendrt.OpenOptions{})
	}
	return nil, fmt.Errorf("unknown device %q: cuda or host", name)
}

// runGrid measures the grid of each model.
func runGrid(ctx context.Context, o options, out io.Writer) (err error) {
	g := grid{o: o}
	if o.limit > 0 {
		g.end = time.Now().Add(o.limit)
	}
	for _, x := range []struct {
		name, text string
		to         *[]int
		least      int
	}{
		{"batch", o.batches, &g.a.batches, 1}, {"between", o.between, &g.a.between, 1}, {"contexts", o.contexts, &g.a.contexts, 2}, {"decodes", o.decodes, &g.a.decodes, 0},
		{"chunks", o.chunks, &g.a.chunks, 1}, {"prefixes", o.prefixes, &g.a.prefixes, 0},
	} {
		if *x.to, err = atLeast(x.least, x.text); err != nil {
			return fmt.Errorf("--%s: %w", x.name, err)
		}
		if len(*x.to) == 0 && x.name != "between" {
			return fmt.Errorf("--%s is empty", x.name)
		}
	}
	if o.repeat < 1 || o.block < 1 {
		return fmt.Errorf("--repeat is %d and --block-size %d, must be at least 1", o.repeat, o.block)
	}
	g.a.beside = g.a.contexts[0]
	dev, err := open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close(ctx)) }()
	if g.sink, err = openSink(out, o.file); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.sink.close()) }()
	for _, text := range []string{
		fmt.Sprintf("# %s, %s, block size %d, median of %d", dev.Info().Name, time.Now().UTC().Format("2006-01-02"), o.block, o.repeat),
		"model,what,decodes,graphs,value,unit,context,chunk,prefix",
	} {
		if err := g.sink.line(text); err != nil {
			return err
		}
	}
	for _, name := range strings.Split(o.models, ",") {
		shape, err := model.Shape(name)
		if err != nil {
			return err
		}
		if err := g.run(ctx, dev, shape); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func numbers(s string) ([]int, error) { return atLeast(1, s) }

func atLeast(least int, s string) ([]int, error) {
	var out []int
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(f)
		if err != nil || n < least {
			return nil, fmt.Errorf("%q is no number of at least %d", f, least)
		}
		out = append(out, n)
	}
	return out, nil
}

// rig is an executor with a scheduler in front of it.
type rig struct {
	exec   *executor.Executor
	sched  *scheduler.Scheduler
	rng    *rand.Rand
	vocab  int
	flight []inFlight
	tokens []scheduler.Token
	host   [3]time.Duration // spent in Plan, Submit and Apply
	clock  *clock
	limit  int // steps in flight
}

var hostParts = [3]string{"plan", "submit", "apply"}

type inFlight struct {
	plan *scheduler.Plan
	step executor.Step
}

const stepsInFlight = 2

func newRig(ctx context.Context, dev ascendrt.Device, o options, shape model.Config, mode graphs.ModeConfig, sizes []int, seqs, tokens, length int) (*rig, error) {
	blocks := seqs*((length+o.block-1)/o.block+1) + 1
	g := graphs.Config{Mode: mode, MaxNumSeqs: seqs, MaxNumBatchedTokens: tokens}
	g.Ladder.Sizes = sizes
	typ := ascendrt.BFloat16
	if o.device == "host" {
		typ = ascendrt.Float32
	}
	c := executor.Config{
		Model: shape, Type: typ, Blocks: blocks, BlockSize: o.block, MaxSeqs: seqs, MaxTokens: tokens,
		MaxLen: length, InFlight: stepsInFlight, Graphs: g, Ops: o.ops,
	}
	watch := &clock{Device: dev}
	exec, err := executor.New(ctx, watch, c, model.Random{Config: shape, Seed: 1})
	if err != nil {
		return nil, err
	}
	cache, err := kvcache.New(kvcache.Config{Blocks: blocks, BlockSize: o.block, Caching: kvcache.CachingOff, MaxInFlight: tokens * stepsInFlight})
	if err != nil {
		return nil, err
	}
	sched, err := scheduler.New(scheduler.Config{
		MaxNumSeqs: seqs, MaxBatchedTokens: tokens, MaxModelLen: length, InFlight: stepsInFlight, Scheduling: scheduler.Async,
	}, cache, scheduler.WithGraphs(exec.Dispatcher()))
	if err != nil {
		return nil, err
	}
	return &rig{exec: exec, sched: sched, rng: rand.New(rand.NewPCG(1, 2)), vocab: shape.Vocab, clock: watch, limit: stepsInFlight}, nil
}

func (r *rig) add(prompt, output int, id string) error {
	p := make([]scheduler.Token, prompt)
	for i := range p {
		p[i] = scheduler.Token(r.rng.IntN(r.vocab))
	}
	_, err := r.sched.Add(scheduler.Request{ID: id, Prompt: p, MaxTokens: output})
	return err
}

// step plans one step if there is room, and settles the oldest otherwise. It
// reports the rows and the graph of the plan that it settled.
func (r *rig) step(ctx context.Context) (settled int, dec graphs.Decision, err error) {
	for len(r.flight) < r.limit && r.sched.HasWork() {
		t0 := time.Now()
		p := r.sched.Plan(0)
		if p == nil {
			break
		}
		t1 := time.Now()
		s, err := r.exec.Submit(ctx, p)
		if err != nil {
			return 0, dec, err
		}
		r.host[0] += t1.Sub(t0)
		r.host[1] += time.Since(t1)
		r.flight = append(r.flight, inFlight{p, s})
		if p.Rows() == 0 {
			break
		}
	}
	if len(r.flight) == 0 {
		return 0, dec, nil
	}
	f := r.flight[0]
	r.flight = append(r.flight[:0], r.flight[1:]...)
	if r.tokens, err = f.step.Wait(ctx, r.tokens[:0]); err != nil {
		return 0, dec, err
	}
	settled, dec = f.plan.Rows(), f.plan.Graph
	t0 := time.Now()
	_, err = r.sched.Apply(f.plan, scheduler.Result{Tokens: r.tokens})
	r.host[2] += time.Since(t0)
	return settled, dec, err
}

func (r *rig) drain(ctx context.Context) error {
	for r.sched.HasWork() || len(r.flight) > 0 {
		if _, _, err := r.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// steady is what one run of decode steps of n sequences gave, each per step.
type steady struct {
	ms                   float64
	host                 [3]float64 // µs in Plan, Submit and Apply
	driver, middle, most float64    // µs of Submit in the stream's own
	mode                 graphs.Mode
}

// warmSteps are decode steps before the clock runs, lastSteps those that are left
// when it stops: sequences end there.
const (
	warmSteps = 8
	lastSteps = 40
)

// decodes runs n sequences to their end and measures the steps in which all decode,
// and the next one does.
func (r *rig) decodes(ctx context.Context, o options, n int, name string) (out steady, err error) {
	for i := range n {
		if err := r.add(o.context-o.steps/2, o.steps+8, fmt.Sprintf("%s-%d", name, i)); err != nil {
			return out, err
		}
	}
	var begun time.Time
	count, warm := 0, warmSteps
	for r.sched.HasWork() || len(r.flight) > 0 {
		rows, dec, err := r.step(ctx)
		if err != nil {
			return out, err
		}
		full := rows == n && dec.Tokens == int32(n) // prompts come first
		if r.limit > 1 {
			full = full && len(r.flight) > 0 && r.flight[0].plan.Rows() == n && r.flight[0].plan.Graph.Tokens == int32(n)
		}
		if !full {
			if count > o.steps/4 {
				break
			}
			count, warm = 0, warmSteps
			continue
		}
		if warm > 0 {
			if warm--; warm == 0 {
				begun, r.host, count = time.Now(), [3]time.Duration{}, 0
				r.clock.reset()
			}
			continue
		}
		count++
		out.mode = dec.Mode
		if count == o.steps-lastSteps {
			break
		}
	}
	total := time.Since(begun)
	if count == 0 {
		return out, fmt.Errorf("batch %d: no steady steps", n)
	}
	out.ms = total.Seconds() * 1e3 / float64(count)
	for i, d := range r.host {
		out.host[i] = d.Seconds() * 1e6 / float64(count)
	}
	out.driver, out.middle, out.most = r.clock.driver()
	return out, r.drain(ctx)
}

// decode measures steps in which every sequence has one token: with two in flight, as
// a server runs them, and for the host's side once more with one, where the device has
// nothing to do when a step is submitted. What a driver waits for with a step on the
// device shows between the two.
func decode(ctx context.Context, dev ascendrt.Device, o options, shape model.Config, name string, batches []int) error {
	modes := map[string]graphs.ModeConfig{"FULL": graphs.ModeFullDecodeOnly, "PIECEWISE": graphs.ModePiecewise, "NONE": graphs.ModeNone}
	mode, ok := modes[name]
	if !ok {
		return fmt.Errorf("unknown kind of graphs %q", name)
	}
	most := slices.Max(batches)
	length := o.context + o.steps + 64
	t0 := time.Now()
	r, err := newRig(ctx, dev, o, shape, mode, batches, most, max(2048, most), length)
	if err != nil {
		return err
	}
	defer r.exec.Close()
	fmt.Printf("%s,start,%d,%s,%.2f,s\n", shape.Name, r.exec.Graphs(), name, time.Since(t0).Seconds())
	for _, n := range batches {
		var runs []steady
		for run := range o.repeat {
			s, err := r.decodes(ctx, o, n, fmt.Sprintf("%d-%d", n, run))
			if err != nil {
				return err
			}
			runs = append(runs, s)
		}
		r.limit = 1
		idle, err := r.decodes(ctx, o, n, fmt.Sprintf("%d-idle", n))
		r.limit = stepsInFlight
		if err != nil {
			return err
		}
		line := func(what, unit string, digits int, of func(steady) float64) {
			var v []float64
			for _, s := range runs {
				v = append(v, of(s))
			}
			fmt.Printf("%s,%s,%d,%s,%.*f,%s\n", shape.Name, what, n, runs[0].mode, digits, median(v), unit)
		}
		line("decode", "ms", 4, func(s steady) float64 { return s.ms })
		line("host", "us", 2, func(s steady) float64 { return s.host[0] + s.host[1] + s.host[2] })
		for i, name := range hostParts {
			line("host-"+name, "us", 2, func(s steady) float64 { return s.host[i] })
		}
		line("host-driver", "us", 2, func(s steady) float64 { return s.driver })
		line("host-driver-median", "us", 2, func(s steady) float64 { return s.middle })
		line("host-driver-most", "us", 2, func(s steady) float64 { return s.most })
		runs = []steady{idle}
		line("host-submit-idle", "us", 2, func(s steady) float64 { return s.host[1] })
		line("host-driver-idle", "us", 2, func(s steady) float64 { return s.driver })
		line("host-driver-idle-median", "us", 2, func(s steady) float64 { return s.middle })
	}
	return nil
}

// prefill measures one prompt in one step, without graphs.
func prefill(ctx context.Context, dev ascendrt.Device, o options, shape model.Config, n int) error {
	r, err := newRig(ctx, dev, o, shape, graphs.ModeNone, nil, 1, n, n+16)
	if err != nil {
		return err
	}
	defer r.exec.Close()
	var rate []float64
	for run := range o.repeat + 1 {
		if err := r.add(n, 1, strconv.Itoa(run)); err != nil {
			return err
		}
		t0 := time.Now()
		if err := r.drain(ctx); err != nil {
			return err
		}
		if run > 0 {
			rate = append(rate, float64(n)/time.Since(t0).Seconds()/1e3)
		}
	}
	fmt.Printf("%s,prefill,%d,NONE,%.2f,ktok/s\n", shape.Name, n, median(rate))
	return nil
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
