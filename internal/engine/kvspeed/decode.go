package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

const stepsInFlight = 2

// decoder is an executor with a scheduler in front of it. Its pool has more
// blocks than the scheduler knows of: those are saved and restored.
type decoder struct {
	exec   *executor.Executor
	sched  *scheduler.Scheduler
	flight []inFlight
	tokens []scheduler.Token

	submitting time.Duration // of steps, on the host
}

type inFlight struct {
	plan *scheduler.Plan
	step executor.Step
}

func newDecoder(ctx context.Context, dev ascendrt.Device, o options, shape model.Config, length, own, more int) (*decoder, error) {
	g := graphs.Config{Mode: graphs.ModeFullDecodeOnly, MaxNumSeqs: o.batch, MaxNumBatchedTokens: max(2048, o.batch)}
	g.Ladder.Sizes = []int{o.batch}
	exec, err := executor.New(ctx, dev, executor.Config{
		Model: shape, Type: ascendrt.BFloat16, Blocks: own + more, BlockSize: o.block, MaxSeqs: o.batch, MaxTokens: max(2048, o.batch),
		MaxLen: length, InFlight: stepsInFlight, Graphs: g,
	}, model.Random{Config: shape, Seed: 1})
	if err != nil {
		return nil, err
	}
	cache, err := kvcache.New(kvcache.Config{Blocks: own, BlockSize: o.block, Caching: kvcache.CachingOff, MaxInFlight: max(2048, o.batch) * stepsInFlight})
	if err != nil {
		return nil, errors.Join(err, exec.Close())
	}
	sched, err := scheduler.New(scheduler.Config{
		MaxNumSeqs: o.batch, MaxBatchedTokens: max(2048, o.batch), MaxModelLen: length, InFlight: stepsInFlight, Scheduling: scheduler.Async,
	}, cache, scheduler.WithGraphs(exec.Dispatcher()))
	if err != nil {
		return nil, errors.Join(err, exec.Close())
	}
	return &decoder{exec: exec, sched: sched}, nil
}

// step keeps the device busy and settles one step. It reports its rows and tokens.
func (d *decoder) step(ctx context.Context) (rows int, tokens int32, err error) {
	for len(d.flight) < stepsInFlight && d.sched.HasWork() {
		p := d.sched.Plan(0)
		if p == nil {
			break
		}
		begin := time.Now()
		s, err := d.exec.Submit(ctx, p)
		d.submitting += time.Since(begin)
		if err != nil {
			return 0, 0, err
		}
		d.flight = append(d.flight, inFlight{p, s})
	}
	if len(d.flight) == 0 {
		return 0, 0, errors.New("nothing to decode")
	}
	f := d.flight[0]
	d.flight = append(d.flight[:0], d.flight[1:]...)
	if d.tokens, err = f.step.Wait(ctx, d.tokens[:0]); err != nil {
		return 0, 0, err
	}
	rows, tokens = f.plan.Rows(), int32(0)
	for _, n := range f.plan.Scheduled {
		tokens += n
	}
	_, err = d.sched.Apply(f.plan, scheduler.Result{Tokens: d.tokens})
	return rows, tokens, err
}

// arm is decode steps beside some traffic, or beside none.
type arm struct {
	name              string
	v                 tierVariant
	t                 traffic
	step, submit, GBs figures
}

// decode takes turns of decode steps without and with copies.
func decode(ctx context.Context, dev ascendrt.Device, o options, shape model.Config, out io.Writer) (err error) {
	variants, err := parseTiers(o.tiers)
	if err != nil {
		return err
	}
	names, kinds, err := parseTraffic(o.traffic)
	if err != nil {
		return err
	}
	arms := []*arm{{name: "nothing"}}
	for _, v := range variants {
		for i, t := range kinds {
			arms = append(arms, &arm{name: v.name + " " + names[i], v: v, t: t})
		}
	}
	kv := newShape(shape, o.block, o.tokens/o.block)
	steps := len(arms)*o.rounds*(o.steps+warm) + 64
	length := o.context + steps
	own := o.batch*((length+o.block-1)/o.block+1) + 1
	d, err := newDecoder(ctx, dev, o, shape, length+16, own, kv.blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.exec.Close()) }()
	if err := d.prompts(ctx, o, shape, steps); err != nil {
		return err
	}
	for i := range o.rounds {
		for k := range arms { // another one first each time, as each step reads more than the one before
			if err := d.beside(ctx, dev, o, kv, arms[(i+k)%len(arms)], own); err != nil {
				return err
			}
		}
	}
	batch := fmt.Sprintf("batch %d beside ", o.batch)
	for _, a := range arms {
		if a == arms[0] {
			line(out, "decode step", batch+a.name, a.step, nil, "ms")
			line(out, "submission of a step", batch+a.name, a.submit, nil, "ms")
			continue
		}
		line(out, "decode step while copying", batch+a.name, a.step, arms[0].step, "ms")
		ratios(out, "decode step slower by", batch+a.name, a.step, arms[0].step)
		line(out, "submission of a step while copying", batch+a.name, a.submit, arms[0].submit, "ms")
		line(out, "copied meanwhile", batch+a.name, a.GBs, nil, "GB/s")
	}
	return nil
}

// prompts adds the requests and computes their prompts.
func (d *decoder) prompts(ctx context.Context, o options, shape model.Config, outputs int) error {
	r := newRand()
	for i := range o.batch {
		p := make([]scheduler.Token, o.context)
		for k := range p {
			p[k] = scheduler.Token(r.IntN(shape.Vocab))
		}
		if _, err := d.sched.Add(scheduler.Request{ID: fmt.Sprint(i), Prompt: p, MaxTokens: outputs}); err != nil {
			return err
		}
	}
	for {
		rows, tokens, err := d.step(ctx)
		if err != nil {
			return err
		}
		if rows == o.batch && tokens == int32(o.batch) {
			return nil
		}
	}
}

// beside runs one arm once.
func (d *decoder) beside(ctx context.Context, dev ascendrt.Device, o options, kv kvShape, a *arm, own int) (err error) {
	stop := func() (int64, error) { return 0, nil }
	if a.t != (traffic{}) {
		m, err := offload.NewDeviceMoverWith(dev, d.exec.Buffers(), a.v.how)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		if _, err := m.Alloc(kv.total()); err != nil {
			return err
		}
		c := &copies{m: m, c: copiesOf(kv, 1, 2), at: o.at}
		for i := range c.c.Blocks {
			c.c.Blocks[i] += int32(own - 1) // behind the scheduler's blocks
		}
		stop = c.start(ctx, a.t)
	}
	took, submitting, err := d.arm(ctx, o)
	bytes, serr := stop()
	if err := errors.Join(err, serr); err != nil {
		return fmt.Errorf("beside %s: %w", a.name, err)
	}
	a.step = append(a.step, milliseconds(took)/float64(o.steps))
	a.submit = append(a.submit, milliseconds(submitting)/float64(o.steps))
	a.GBs = append(a.GBs, rate(bytes, took))
	return nil
}

// warm is the number of steps ahead of the clock.
const warm = 10

func (d *decoder) arm(ctx context.Context, o options) (took, submitting time.Duration, err error) {
	var begin time.Time
	for i := range warm + o.steps {
		if i == warm {
			begin, d.submitting = time.Now(), 0
		}
		if rows, _, err := d.step(ctx); err != nil || rows != o.batch {
			return 0, 0, errors.Join(err, fmt.Errorf("%d rows of %d", rows, o.batch))
		}
	}
	return time.Since(begin), d.submitting, nil
}

// copies saves and restores a prompt's blocks again and again.
type copies struct {
	m  *offload.DeviceMover
	c  offload.Copies
	at int // blocks of one call
}

// start begins; the result ends it and gives the bytes that were moved.
func (c *copies) start(ctx context.Context, t traffic) func() (int64, error) {
	var stop atomic.Bool
	var bytes atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, f := range []func(context.Context, offload.Copies) error{c.m.Save, c.m.Load} {
		if i == 0 && !t.save || i == 1 && !t.load {
			continue
		}
		n := len(c.c.Blocks)
		half := c.c // the two touch different blocks
		half.Blocks, half.Slots = half.Blocks[i*n/2:(i+1)*n/2], half.Slots[i*n/2:(i+1)*n/2]
		wg.Go(func() {
			for at := 0; !stop.Load() && errs[i] == nil; at += c.at {
				if at >= len(half.Blocks) {
					at = 0
				}
				now := half
				last := min(at+c.at, len(half.Blocks))
				now.Blocks, now.Slots = half.Blocks[at:last], half.Slots[at:last]
				errs[i] = f(ctx, now)
				bytes.Add(int64(len(now.Blocks)) * now.SlotBytes)
			}
		})
	}
	return func() (int64, error) {
		stop.Store(true)
		wg.Wait()
		return bytes.Load(), errors.Join(errs...)
	}
}
