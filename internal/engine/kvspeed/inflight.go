package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/kvcache"
)

// parseInflight reads how many prompts are pulled at once.
func parseInflight(s string) (out []int, err error) {
	for _, x := range splitList(s) {
		n, err := strconv.Atoi(x)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of pulls at once", x)
		}
		out = append(out, n)
	}
	return out, nil
}

// seriesFrom measures pulls of several prompts at once from one peer, each with its own
// lease and blocks on both sides, as bytes over the time of a series; and beside it the
// plain copy of one prompt, and of as many as a series has, one behind the other.
func seriesFrom(ctx context.Context, dev ascendrt.Device, o options, s kvShape, peer string, variants []pullVariant, at []int, out io.Writer) (err error) {
	places := slices.Max(at)
	wide := s
	wide.blocks = places * s.blocks
	p, err := newPool(dev, wide)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	plain, err := newPlain(&pool{kvShape: s, dev: dev, stream: p.stream}, o.device, peer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.close(ctx)) }()
	child, err := startOther(peer, wide, places)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, child.end()) }()
	var all []*series
	for _, v := range variants {
		x := &series{p: p, one: s, child: child, count: o.series, speed: make([]figures, len(at))}
		if x.side, err = newSide(p, "s-"+v.name, pd.Consumer, v); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, x.side.w.Close()) }()
		if _, err := x.run(ctx, places); err != nil { // imports, connections
			return fmt.Errorf("%s: %w", v.name, err)
		}
		all = append(all, x)
	}
	var raw, row figures
	for range o.repeat {
		t, err := plain.copy(ctx)
		if err != nil {
			return err
		}
		raw = append(raw, rate(s.total(), t))
		if t, err = plain.copies(ctx, o.series); err != nil {
			return err
		}
		row = append(row, rate(s.total()*int64(o.series), t))
		for i, x := range all {
			for k, n := range at {
				t, err := x.run(ctx, n)
				if err != nil {
					return fmt.Errorf("%s, %d at once: %w", variants[i].name, n, err)
				}
				x.speed[k] = append(x.speed[k], rate(s.total()*int64(o.series), t))
			}
		}
	}
	with := fmt.Sprintf("%s from %s", o.device, peer)
	line(out, "plain copy beside series", with, raw, nil, "GB/s")
	line(out, fmt.Sprintf("%d plain copies one behind the other", o.series), with, row, raw, "GB/s")
	for i, x := range all {
		for k, n := range at {
			line(out, fmt.Sprintf("series of %d pulls: %d at once", o.series, n), with+" by "+variants[i].name, x.speed[k], raw, "GB/s")
		}
	}
	return nil
}

// series is one variant that pulls several prompts at once, into as many places of the pool.
type series struct {
	*side
	p     *pool
	one   kvShape // of a prompt
	child *other
	count int
	speed []figures
	slot  uint32
	seed  uint64
}

// pulling is a request on its way, or that has arrived.
type pulling struct {
	r     *connector.Request
	place int
	to    []kvcache.BlockID
}

// run pulls count prompts, n at once, and compares what arrived last in each place.
func (x *series) run(ctx context.Context, n int) (time.Duration, error) {
	if err := x.p.clear(ctx); err != nil {
		return 0, err
	}
	prompts := make([]*pd.Params, x.count)
	for i := range prompts {
		x.seed++
		var err error
		if prompts[i], err = x.child.prompt(x.seed, i%n); err != nil {
			return 0, err
		}
	}
	var free []int
	for place := range n {
		free = append(free, place)
	}
	flying, last := map[connector.RequestID]pulling{}, make([]pulling, n)
	next := 0
	begin := time.Now()
	for next < x.count || len(flying) > 0 {
		for ; next < x.count && len(free) > 0; next++ {
			f := pulling{place: free[0]}
			free = free[1:]
			x.slot++
			f.to = orderAt(x.one.blocks, x.seed+uint64(x.slot), f.place)
			var err error
			if f.r, _, err = x.start(x.slot, x.one, prompts[next], f.to); err != nil {
				return 0, err
			}
			flying[f.r.ID] = f
		}
		ev := <-x.w.Events()
		x.s.Completed(ev)
		switch ev.Kind {
		case connector.Failed:
			return 0, ev.Err
		case connector.Received:
			f := flying[ev.Request]
			delete(flying, ev.Request)
			x.s.Finished(f.r, nil, connector.End{})
			free, last[f.place] = append(free, f.place), f
		}
	}
	took := time.Since(begin)
	for _, f := range last {
		if f.r == nil { // fewer prompts than places
			continue
		}
		if err := x.p.check(ctx, f.r.Params.(*pd.Params).Blocks[0], f.to, newRand()); err != nil {
			return 0, fmt.Errorf("place %d: %w", f.place, err)
		}
	}
	return took, nil
}

// orderAt is order for the prompt in a place of a pool.
func orderAt(blocks int, seed uint64, place int) []kvcache.BlockID {
	out := order(blocks, seed)
	for i := range out {
		out[i] += kvcache.BlockID(place * blocks)
	}
	return out
}
