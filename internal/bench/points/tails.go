package points

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/up"
)

// vocabulary is the range of random token ids that a model takes.
func vocabulary(model string) workload.Range {
	if _, known := memories[model]; known {
		return workload.Range{Low: 1000, High: 100_000}
	}
	return workload.TokenRange
}

// arrivals is the workload of a point: as many requests as the rate gives over
// the time, at the times of a Poisson process of which the last comes at its
// end. The policy does not change it, the repeat does.
func (p *Point) arrivals() (*workload.Workload, error) {
	if !(p.Rate > 0) || !(p.Seconds > 0) {
		return nil, fmt.Errorf("rate %v and seconds %v must be above 0", p.Rate, p.Seconds)
	}
	w, err := (&workload.RandomPrompts{
		Seed: uint64(p.Repeat)<<32 | uint64(p.Input)<<8 | uint64(p.Rate), Content: workload.Tokens, Vocab: vocabulary(p.Model),
		Requests: max(int(math.Round(p.Rate*p.Seconds)), 1), InputLen: p.Input, OutputLen: p.Output, Rate: p.Rate,
	}).Generate()
	if err != nil {
		return nil, err
	}
	if last := w.ArrivalWindow(); last > 0 {
		scale := p.Seconds * float64(time.Second) / float64(last)
		for i := range w.Sessions {
			w.Sessions[i].Arrival = time.Duration(float64(w.Sessions[i].Arrival) * scale)
		}
	}
	return w, nil
}

// warmUp is how many requests go ahead of the first point of a kind.
const warmUp = 3

// warm has a Decoder and the Prefiller do once what the points will ask for.
func (r *runner) warm(ctx context.Context, d *decoder, p *Point, length int, routing up.Routing) error {
	if d.warm[length] {
		return nil
	}
	w, err := (&workload.RandomPrompts{
		Seed: 1, Content: workload.Tokens, Vocab: vocabulary(p.Model), Requests: warmUp, InputLen: length, OutputLen: min(p.Output, 16),
	}).Generate()
	if err != nil {
		return err
	}
	records, err := r.replay(ctx, d, w, p, routing, load.Config{Prefix: fmt.Sprintf("warm-%s-%d-", d.name, length), MaxConcurrency: 2})
	if err != nil {
		return err
	}
	if err := allValid("warm-up", records); err != nil {
		return err
	}
	d.warm[length] = true
	return nil
}

// replay sends a workload of token ids through a proxy of the Decoder.
func (r *runner) replay(ctx context.Context, d *decoder, w *workload.Workload, p *Point, routing up.Routing, c load.Config) ([]measure.Record, error) {
	c.Server = load.Server{URL: d.proxies[routing].URL(), Model: p.Model, Client: r.fleet.client}
	c.Endpoint, c.EOS, c.Timeout = load.Completions, load.IgnoreEOS, requestTimeout
	return load.Run(ctx, w, c)
}

// tails measures a point of prompt tails.
func (r *runner) tails(ctx context.Context, d *decoder, l *Line) error {
	w, err := l.arrivals()
	if err != nil {
		return err
	}
	l.Workload = w.Hash()
	if err := r.warm(ctx, d, &l.Point, l.Input, up.OrdinaryPD); err != nil {
		return err
	}
	if l.Alone, err = r.alone(ctx, d, &l.Point, l.Input, up.OrdinaryPD, 0); err != nil {
		return err
	}
	_, err = r.measured(ctx, d, l, func(ctx context.Context) ([]measure.Record, error) {
		return r.replay(ctx, d, w, &l.Point, up.OrdinaryPD, load.Config{Prefix: fmt.Sprintf("t%d-", time.Now().UnixNano())})
	})
	return err
}
