package sim

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/scheduler"
)

// Work is what a step asks of a device.
type Work struct {
	scheduler.StepWork
	Decoded int64       // tokens that the decode rows attend to
	Tails   int         // of the decode rows those with a prompt's last token
	Tailed  int64       // tokens that these attend to
	Mode    graphs.Mode // of the step; None without a dispatcher
	Padded  int         // tokens of the graph that replays it; 0: none does
}

// WorkOf reads a plan.
func WorkOf(p *scheduler.Plan) Work {
	w := Work{StepWork: scheduler.WorkOf(p), Mode: p.Graph.Mode}
	if w.Mode != graphs.None {
		w.Padded = int(p.Graph.PaddedTokens)
	}
	for i, n := range p.Scheduled {
		if p.IsDecode(i) {
			w.Decoded += int64(p.Computed[i]) + int64(n)
			if p.Computed[i] < p.Prefill[i] {
				w.Tails++
				w.Tailed += int64(p.Computed[i]) + int64(n)
			}
		}
	}
	return w
}

// Cost tells how long a step lasts, in seconds. step numbers the steps of one
// rank from 0, so that a noisy model stays deterministic.
type Cost interface {
	Step(w Work, step uint64) float64
}

// Linear is the step-time model Base + Decode·rows + Prefill·tokens +
// Context·Σcontext + DecodeContext·(tokens that decode rows attend to), in
// seconds; a step with prefill costs Eager more.
type Linear struct {
	Base, Decode, Prefill, Context, Eager float64
	DecodeContext                         float64
}

var _ Cost = Linear{}

// Step is 0 for a step without rows.
func (l Linear) Step(w Work, _ uint64) float64 {
	if w.Decodes == 0 && w.Prefill == 0 {
		return 0
	}
	s := l.Base + l.Decode*float64(w.Decodes) + l.Prefill*float64(w.Prefill) + l.Context*w.Context + l.DecodeContext*float64(w.Decoded)
	if w.Prefill > 0 {
		s += l.Eager
	}
	return s
}

// Validate reports negative or non-finite coefficients.
func (l Linear) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    float64
	}{{"base", l.Base}, {"decode", l.Decode}, {"prefill", l.Prefill}, {"context", l.Context}, {"eager", l.Eager}, {"decode context", l.DecodeContext}} {
		if !(f.v >= 0) || math.IsInf(f.v, 0) {
			errs = append(errs, fmt.Errorf("cost model: %s is %v, must be a finite number of seconds, not negative", f.name, f.v))
		}
	}
	if l.Base+l.Decode+l.Prefill == 0 {
		errs = append(errs, errors.New("cost model: base, decode and prefill are all zero: steps would take no time"))
	}
	return errors.Join(errs...)
}

// Disturbed is a cost that is not what a fitted model expects: relative noise,
// rare slow steps, a jump at a tile size, coefficients that change in mid-run.
type Disturbed struct {
	Cost
	Noise     float64 // each step is scaled by a factor within 1±Noise
	Outliers  float64 // share of steps that take OutlierBy times as long
	OutlierBy float64
	Tile      int     // prefill tokens are rounded up to a multiple; 0: not
	After     uint64  // from this step on Scale applies to what exceeds Floor
	Scale     float64 // 0: never
	Floor     float64 // seconds that Scale leaves alone
	Seed      uint64
}

// Step disturbs the inner model's time.
func (d Disturbed) Step(w Work, step uint64) float64 {
	if d.Tile > 0 && w.Prefill > 0 {
		up := (w.Prefill + d.Tile - 1) / d.Tile * d.Tile
		w.Context *= float64(up) / float64(w.Prefill)
		w.Prefill = up
	}
	s := d.Cost.Step(w, step)
	if d.Scale > 0 && step >= d.After && s > d.Floor {
		s = d.Floor + (s-d.Floor)*d.Scale
	}
	if d.Noise > 0 {
		s *= 1 + d.Noise*(2*unit(d.Seed, step)-1)
	}
	if d.Outliers > 0 && unit(d.Seed^0x9E3779B97F4A7C15, step) < d.Outliers {
		s *= d.OutlierBy
	}
	return s
}

// mix is a bijection of 64-bit words whose outputs look independent
// (the finalizer of SplitMix64).
func mix(z uint64) uint64 {
	z += 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// unit is a number in [0, 1) made of two words.
func unit(seed, i uint64) float64 { return float64(mix(mix(seed)^i)>>11) / (1 << 53) }
