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

	requests   int           // so far
	submitting time.Duration // of steps, on the host
}

type inFlight struct {
	plan *scheduler.Plan
	step executor.Step
}

func newDecoder(ctx context.Context, dev ascendrt.Device, o options, shape model.Config, length, own, more int) (*decoder, error) {
	g := graphs.Config{Mode: graphs.ModeFullDecodeOnly, MaxNumSeqs: o.batch, MaxNumBatchedTokens: stepTokens(o)}
	g.Ladder.Sizes = []int{o.batch}
	exec, err := executor.New(ctx, dev, executor.Config{
		Model: shape, Type: ascendrt.BFloat16, Blocks: own + more, BlockSize: o.block, MaxSeqs: o.batch, MaxTokens: stepTokens(o),
		MaxLen: length, InFlight: stepsInFlight, Graphs: g,
	}, model.Random{Config: shape, Seed: 1})
	if err != nil {
		return nil, err
	}
	cache, err := kvcache.New(kvcache.Config{Blocks: own, BlockSize: o.block, Caching: kvcache.CachingOff, MaxInFlight: stepTokens(o) * stepsInFlight})
	if err != nil {
		return nil, errors.Join(err, exec.Close())
	}
	sched, err := scheduler.New(scheduler.Config{
		MaxNumSeqs: o.batch, MaxBatchedTokens: stepTokens(o), MaxModelLen: length, InFlight: stepsInFlight, Scheduling: scheduler.Async,
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

// arm is decode steps beside some traffic, or beside none, which tells how far apart
// two measurements of the same thing are.
type arm struct {
	name               string
	v                  tierVariant
	t                  traffic
	step, submit, GBs  figures
	plain, plainSubmit figures // the means of just before and just after
}

// pause is one measurement of decode steps.
type pause struct {
	step, submit float64 // ms
}

// turnSteps are those of one turn of an arm: before, beside and after the copies.
func (o options) turnSteps() int { return 3 * (o.steps + warm) }

// besideTokens bounds the tokens whose KV is copied beside steps: every turn pins their
// memory. It is several times what a device caches.
const besideTokens = 4096

// decode takes turns of all arms. Every turn starts the requests anew, so that all arms
// have the same lengths of sequences, around those that were asked for.
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
	kv := newShape(shape, o.block, max(2, min(o.tokens, besideTokens)/o.block))
	prompt := max(1, o.context-o.turnSteps()/2)
	// Those who have their prompt first decode until the last ones have theirs.
	outputs := o.turnSteps() + o.batch + o.batch*prompt/stepTokens(o) + 2*stepsInFlight
	own := o.batch*((prompt+outputs+o.block-1)/o.block+1) + 1
	d, err := newDecoder(ctx, dev, o, shape, prompt+outputs+16, own, kv.blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.exec.Close()) }()
	for i := range o.rounds {
		for k := range arms { // another one first each time
			a := arms[(i+k)%len(arms)]
			if err := d.turn(ctx, dev, o, kv, a, own, func() error { return d.prompts(ctx, o, shape, prompt, outputs) }); err != nil {
				return fmt.Errorf("beside %s: %w", a.name, err)
			}
		}
	}
	for _, a := range arms {
		with := fmt.Sprintf("batch %d beside %s", o.batch, a.name)
		line(out, "decode step without copies", with, a.plain, nil, "ms")
		line(out, "decode step while copying", with, a.step, a.plain, "ms")
		ratios(out, "decode step slower by", with, a.step, a.plain)
		line(out, "submission of a step while copying", with, a.submit, a.plainSubmit, "ms")
		line(out, "copied meanwhile", with, a.GBs, nil, "GB/s")
	}
	return nil
}

// stepTokens is how many tokens a step may have.
func stepTokens(o options) int { return max(2048, o.batch) }

// prompts adds requests and computes their prompts.
func (d *decoder) prompts(ctx context.Context, o options, shape model.Config, prompt, outputs int) error {
	r := newRand()
	for range o.batch {
		p := make([]scheduler.Token, prompt)
		for k := range p {
			p[k] = scheduler.Token(r.IntN(shape.Vocab))
		}
		d.requests++
		if _, err := d.sched.Add(scheduler.Request{ID: fmt.Sprint(d.requests), Prompt: p, MaxTokens: outputs}); err != nil {
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

// turn measures steps before, beside and after the copies of an arm, with requests of
// their own.
func (d *decoder) turn(ctx context.Context, dev ascendrt.Device, o options, kv kvShape, a *arm, own int, prompts func() error) (err error) {
	var c *copies
	if a.t != (traffic{}) {
		how := a.v.how
		how.Busy = func() bool { return true } // steps run all the while
		m, merr := offload.NewDeviceMover(dev, d.exec.Buffers(), how)
		if merr != nil {
			return merr
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		if _, err := m.Alloc(kv.total()); err != nil {
			return err
		}
		c = &copies{m: m, c: copiesOf(kv, 1, 2), at: o.at}
		for i := range c.c.Blocks {
			c.c.Blocks[i] += int32(own - 1) // behind the scheduler's blocks
		}
	}
	if err := prompts(); err != nil {
		return err
	}
	var three [3]pause
	speed := 0.0
	for i := range three {
		end := func() (float64, error) { return 0, nil }
		if i == 1 && c != nil {
			end = c.start(ctx, a.t)
		}
		p, err := d.measure(ctx, o)
		x, eerr := end()
		if err := errors.Join(err, eerr); err != nil {
			return err
		}
		three[i], speed = p, max(speed, x)
	}
	for d.sched.HasWork() || len(d.flight) > 0 { // to the requests' ends
		if _, _, err := d.step(ctx); err != nil {
			return err
		}
	}
	a.step, a.submit, a.GBs = append(a.step, three[1].step), append(a.submit, three[1].submit), append(a.GBs, speed)
	a.plain = append(a.plain, (three[0].step+three[2].step)/2)
	a.plainSubmit = append(a.plainSubmit, (three[0].submit+three[2].submit)/2)
	return nil
}

// warm is the number of steps ahead of the clock.
const warm = 5

// measure takes the time of decode steps.
func (d *decoder) measure(ctx context.Context, o options) (pause, error) {
	var begin time.Time
	for i := range warm + o.steps {
		if i == warm {
			begin, d.submitting = time.Now(), 0
		}
		if rows, _, err := d.step(ctx); err != nil || rows != o.batch {
			return pause{}, errors.Join(err, fmt.Errorf("%d rows of %d", rows, o.batch))
		}
	}
	took := time.Since(begin)
	n := float64(o.steps)
	return pause{step: milliseconds(took) / n, submit: milliseconds(d.submitting) / n}, nil
}

// copies saves and restores a prompt's blocks again and again.
type copies struct {
	m  *offload.DeviceMover
	c  offload.Copies
	at int // blocks of one call
}

// start begins; the result ends it and gives the GB/s, of one call each way at least.
func (c *copies) start(ctx context.Context, t traffic) (end func() (float64, error)) {
	var stop atomic.Bool
	var bytes atomic.Int64
	begin := time.Now()
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
			for at := 0; errs[i] == nil && (at == 0 || !stop.Load()); at += c.at {
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
	return func() (float64, error) {
		stop.Store(true)
		wg.Wait()
		return rate(bytes.Load(), time.Since(begin)), errors.Join(errs...)
	}
}
