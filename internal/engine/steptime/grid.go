package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// The grid measures single steps of a given composition, without computing what is
// in their cache: plans are made here and not by a scheduler, each row has KV blocks
// of its own, and what these hold has no influence on the time. A line is
//
//	model,step,decodes,graphs,value,ms,context,chunk,prefix
//
// for a step of so many decodes that attend to context tokens each, their own
// included, and of one prompt row with chunk new tokens behind prefix cached ones;
// chunk 0 is none.

// point is one step of the grid.
type point struct {
	decodes, context, chunk, prefix int
	plain                           bool // without a FULL graph
}

// axes are the values whose combinations the grid has.
type axes struct {
	batches, contexts         []int // of decodes alone
	between                   []int // more of these batches, in FULL graphs alone
	decodes, chunks, prefixes []int // of steps with a prompt row
	beside                    int   // context of the decodes in these
}

// points are the steps in the order of their value: decodes, among them those that fill
// a graph in part, prompt rows beside decodes and alone, decodes without FULL graphs, and
// one-token tails in the place of one of the decodes.
func (a axes) points() []point {
	var out []point
	for _, batches := range [][]int{a.batches, a.between} {
		for _, c := range a.contexts {
			for _, n := range batches {
				out = append(out, point{decodes: n, context: c})
			}
		}
	}
	for _, d := range a.decodes {
		for _, p := range a.prefixes {
			for _, n := range a.chunks {
				x := point{decodes: d, context: a.beside, chunk: n, prefix: p, plain: true}
				if d == 0 {
					x.context = 0
				}
				out = append(out, x)
			}
		}
	}
	for _, c := range a.contexts {
		for _, n := range a.batches {
			out = append(out, point{decodes: n, context: c, plain: true})
		}
	}
	for _, c := range a.contexts {
		for _, n := range a.batches {
			x := point{decodes: n - 1, context: c, chunk: 1, prefix: c - 1}
			if n == 1 {
				x.context = 0
			}
			out = append(out, x)
		}
	}
	return out
}

// rows is how many rows a step has.
func (p point) rows() int { return p.decodes + min(p.chunk, 1) }

// blocks is how many KV blocks its rows have.
func (p point) blocks(size int) int {
	of := func(tokens int) int { return (tokens + size - 1) / size }
	return p.decodes*of(p.context) + of(p.prefix+p.chunk)
}

// plan is the step as a scheduler would plan it for requests that come with their
// cache. All rows are new ones, so that any point may follow any other.
func (p point) plan(d *graphs.Dispatcher, size int) *scheduler.Plan {
	out := &scheduler.Plan{Seq: 1, Groups: 1, InputsAt: []int32{0}, BlocksAt: []int32{0}}
	block := kvcache.BlockID(1)
	add := func(computed, tokens, known int) {
		out.Requests = append(out.Requests, connector.NewRequestID(uint32(len(out.Requests)), 1))
		out.Kinds = append(out.Kinds, scheduler.RowNew)
		out.Scheduled, out.Computed, out.Prefill = append(out.Scheduled, int32(tokens)), append(out.Computed, int32(computed)), append(out.Prefill, int32(known))
		out.Drafts, out.Placeholders, out.Outputs, out.Samples = append(out.Drafts, 0), append(out.Placeholders, 0), append(out.Outputs, 0), append(out.Samples, 1)
		for i := range tokens {
			out.Inputs = append(out.Inputs, scheduler.Token(i%7))
		}
		for range (computed + tokens + size - 1) / size {
			out.Blocks = append(out.Blocks, block)
			block++
		}
		out.InputsAt, out.BlocksAt = append(out.InputsAt, int32(len(out.Inputs))), append(out.BlocksAt, int32(len(out.Blocks)))
		out.TableFrom = append(out.TableFrom, 0)
	}
	for range p.decodes {
		add(p.context-1, 1, p.context-1)
	}
	if p.chunk > 0 {
		add(p.prefix, p.chunk, p.prefix+p.chunk)
	}
	out.Total = int32(len(out.Inputs))
	out.Verdicts = make([]graphs.RowVerdict, p.rows())
	modes := graphs.AllModes
	if p.plain {
		modes = modes.Without(graphs.Full)
	}
	out.Graph = d.SelectAmong(d.Classify(out.GraphRows(), graphs.Step{}, out.Verdicts), modes)
	return out
}

// serveSeqs is the least number of rows that the graphs are made for, so that steps
// are padded as they are in the measured clusters.
const serveSeqs = 256

// grid measures the points of a model that the sink does not have.
type grid struct {
	o    options
	a    axes
	sink *sink
	end  time.Time // no point begins behind it; zero: any may
}

func (g *grid) run(ctx context.Context, dev ascendrt.Device, shape model.Config) error {
	mode := graphs.ModeFullAndPiecewise
	if g.o.full {
		mode = graphs.ModeFull
	}
	points := g.a.points()
	if g.o.full {
		for i := range points {
			points[i].plain = false
		}
	}
	rows, tokens, length, need := 0, 0, 0, 0
	for _, p := range points {
		rows, tokens = max(rows, p.rows()), max(tokens, p.decodes+p.chunk)
		length, need = max(length, p.context, p.prefix+p.chunk), max(need, p.blocks(g.o.block)+1)
	}
	if g.o.device != "host" {
		rows = max(rows, serveSeqs)
	}
	c := executor.Config{
		Model: shape, Type: ascendrt.BFloat16, BlockSize: g.o.block, MaxSeqs: rows, MaxTokens: tokens, MaxLen: length, InFlight: stepsInFlight, Ops: g.o.ops,
		Graphs: graphs.Config{Mode: mode, MaxNumSeqs: rows, MaxNumBatchedTokens: tokens},
	}
	if g.o.device == "host" {
		c.Type, c.Blocks = ascendrt.Float32, need
	}
	exec, err := executor.New(ctx, dev, c, model.Random{Config: shape, Seed: 1})
	if err != nil {
		return err
	}
	defer exec.Close()
	left, crowded := 0, 0
	for i, p := range points {
		plan := p.plan(exec.Dispatcher(), g.o.block)
		key := p.key(shape.Name, plan.Graph.Mode)
		switch {
		case g.sink.has(key):
			continue
		case p.blocks(g.o.block) >= exec.PoolBlocks():
			crowded++
			continue
		case !g.end.IsZero() && time.Now().After(g.end):
			left = 0
			for _, p := range points[i:] {
				if !g.sink.has(p.key(shape.Name, p.plan(exec.Dispatcher(), g.o.block).Graph.Mode)) && p.blocks(g.o.block) < exec.PoolBlocks() {
					left++
				}
			}
			fmt.Fprintf(os.Stderr, "steptime: %s: the time limit is over, %d of %d steps are left\n", shape.Name, left, len(points))
			return nil
		}
		ms, err := g.measure(ctx, exec, plan)
		if err != nil {
			return fmt.Errorf("step %s: %w", key, err)
		}
		if err := g.sink.add(key, ms); err != nil {
			return err
		}
	}
	if crowded > 0 {
		fmt.Fprintf(os.Stderr, "steptime: %s: %d steps need more than the %d KV blocks that there are\n", shape.Name, crowded, exec.PoolBlocks())
	}
	return nil
}

// gridWarm and gridTime bound how often a step runs: some times first, then as often
// as fits the time.
const (
	gridWarm = 4
	gridTime = 60 * time.Millisecond
)

// measure is the median of a step's time over the repeats, in ms.
func (g *grid) measure(ctx context.Context, exec *executor.Executor, p *scheduler.Plan) (float64, error) {
	var tokens []scheduler.Token
	times := func(n int) (time.Duration, error) {
		var flight []executor.Step
		begun := time.Now()
		for i := range n + stepsInFlight {
			if len(flight) == stepsInFlight || i >= n {
				if len(flight) == 0 {
					break
				}
				var err error
				if tokens, err = flight[0].Wait(ctx, tokens[:0]); err != nil {
					return 0, err
				}
				flight = append(flight[:0], flight[1:]...)
			}
			if i < n {
				s, err := exec.Submit(ctx, p)
				if err != nil {
					return 0, err
				}
				flight = append(flight, s)
			}
		}
		return time.Since(begun), nil
	}
	if _, err := times(1); err != nil { // kernels are loaded
		return 0, err
	}
	took, err := times(gridWarm)
	if err != nil {
		return 0, err
	}
	n := int(min(max(gridTime*gridWarm/max(took, 1), 6), 60))
	var ms []float64
	for range g.o.repeat {
		took, err := times(n)
		if err != nil {
			return 0, err
		}
		ms = append(ms, took.Seconds()*1e3/float64(n))
	}
	return median(ms), nil
}

// key names a measured step: the line without its value.
func (p point) key(model string, mode graphs.Mode) string {
	return fmt.Sprintf("%s,step,%d,%s,%d,%d,%d", model, p.decodes, mode, p.context, p.chunk, p.prefix)
}
