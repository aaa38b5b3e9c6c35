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
		s, err := d.exec.Submit(ctx, p)
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

// decode takes turns of decode steps without and with copies.
func decode(ctx context.Context, dev ascendrt.Device, o options, shape model.Config, out io.Writer) (err error) {
	kv := newShape(shape, o.block, o.tokens/o.block)
	arms := 2*o.rounds*(o.steps+warm) + 64
	length := o.context + arms
	own := o.batch*((length+o.block-1)/o.block+1) + 1
	d, err := newDecoder(ctx, dev, o, shape, length+16, own, kv.blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.exec.Close()) }()
	r := newRand()
	for i := range o.batch {
		p := make([]scheduler.Token, o.context)
		for k := range p {
			p[k] = scheduler.Token(r.IntN(shape.Vocab))
		}
		if _, err := d.sched.Add(scheduler.Request{ID: fmt.Sprint(i), Prompt: p, MaxTokens: arms}); err != nil {
			return err
		}
	}
	for { // prompts first
		rows, tokens, err := d.step(ctx)
		if err != nil {
			return err
		}
		if rows == o.batch && tokens == int32(o.batch) {
			break
		}
	}
	m, err := offload.NewDeviceMover(dev, d.exec.Buffers())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if _, err := m.Alloc(kv.total()); err != nil {
		return err
	}
	c := &copies{m: m, moves: moves(kv)}
	for i := range c.moves {
		c.moves[i].Offset += int64(own-1) * int64(kv.bytes) // behind the scheduler's blocks
	}
	var without, with, moved figures
	for i := range o.rounds {
		for _, busy := range []bool{i%2 == 1, i%2 == 0} { // by turns first, as each step reads more than the one before
			stop := func() (int64, error) { return 0, nil }
			if busy {
				stop = c.start(ctx)
			}
			took, err := d.arm(ctx, o)
			bytes, serr := stop()
			if err := errors.Join(err, serr); err != nil {
				return err
			}
			ms := took.Seconds() * 1e3 / float64(o.steps)
			if busy {
				with = append(with, ms)
				moved = append(moved, rate(bytes, took))
			} else {
				without = append(without, ms)
			}
		}
	}
	batch := fmt.Sprintf("batch %d", o.batch)
	line(out, "decode step", batch, without, nil, "ms")
	line(out, "decode step while saving and restoring", batch, with, without, "ms")
	line(out, "saved and restored meanwhile", batch, moved, nil, "GB/s")
	return nil
}

// warm is the number of steps ahead of the clock.
const warm = 10

func (d *decoder) arm(ctx context.Context, o options) (time.Duration, error) {
	var begin time.Time
	for i := range warm + o.steps {
		if i == warm {
			begin = time.Now()
		}
		if rows, _, err := d.step(ctx); err != nil || rows != o.batch {
			return 0, errors.Join(err, fmt.Errorf("%d rows of %d", rows, o.batch))
		}
	}
	return time.Since(begin), nil
}

// copies saves and restores a prompt's blocks again and again.
type copies struct {
	m     *offload.DeviceMover
	moves []offload.Move
}

// start begins; the result ends it and gives the bytes that were moved.
func (c *copies) start(ctx context.Context) func() (int64, error) {
	var stop atomic.Bool
	var bytes atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, 2)
	const piece = 1024 // moves of one call
	for i, f := range []func(context.Context, []offload.Move) error{c.m.Save, c.m.Load} {
		half := c.moves[i*len(c.moves)/2 : (i+1)*len(c.moves)/2] // the two touch different blocks
		wg.Go(func() {
			for at := 0; !stop.Load() && errs[i] == nil; at += piece {
				if at >= len(half) {
					at = 0
				}
				now := half[at:min(at+piece, len(half))]
				errs[i] = f(ctx, now)
				bytes.Add(int64(len(now)) * int64(now[0].Bytes))
			}
		})
	}
	return func() (int64, error) {
		stop.Store(true)
		wg.Wait()
		return bytes.Load(), errors.Join(errs...)
	}
}
