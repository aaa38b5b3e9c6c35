// Package tails plays the arrival of requests with imported KV at a decoder on
// a virtual clock: what does it cost the decoder that the first step of each
// arrival is a prompt tail, under each policy of classification?
//
// The decoder is reduced to what matters for that: requests arrive by a Poisson
// process with the KV of all but their last prompt token, are admitted at the
// next step, and generate a fixed number of tokens. A step takes a time that
// depends on the number of rows and on whether it replays a FULL graph.
// Everything is deterministic: the same configuration gives the same result.
package tails

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/sluice-serving/sluice/graphs"
)

// Padding says whether tails are padded for speculation.
type Padding uint8

const (
	PadTails   Padding = iota // default
	LeaveTails                // tails have one token beside rows of K+1
)

// Config describes one run. Times are in seconds.
type Config struct {
	Rate     float64 // arrivals per second
	Duration float64 // Rate*Duration requests arrive, the last one then, as load generators scale their gaps; all are finished
	Prompt   int     // tokens
	Output   int     // tokens
	Seed     uint64
	Padding  Padding
	Left     int   // prompt tokens that are not imported; 0 = 1
	Hold     int32 // most steps that a remainder is spread over to stay uniform; 0 = off

	Graphs graphs.Config // K, policy, ladder, rows at most

	Step    float64 // of a FULL step without rows
	PerRow  float64 // more for each row
	NonFull float64 // more where the step is not FULL
}

// Published are the parameters with which the published step counts of a small
// model come out: 1.40 ms and 0.02 ms per running request, 2.8 ms more for a
// step that is not FULL; prompts of 1,000 tokens, 256 tokens of output, 30 s.
func Published(rate float64, seed uint64) Config {
	return Config{
		Rate: rate, Duration: 30, Prompt: 1000, Output: 256, Seed: seed,
		Graphs: graphs.Config{
			MaxNumSeqs: 256, MaxNumBatchedTokens: 8192,
			KV: graphs.KVTransfer{Role: graphs.RoleConsumer, Connector: "NixlConnector"},
		},
		Step: 1.40e-3, PerRow: 0.02e-3, NonFull: 2.8e-3,
	}
}

// Validate reports what cannot be run.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, v float64) {
		if !(v > 0) || math.IsInf(v, 0) {
			errs = append(errs, fmt.Errorf("tails: %s is %v, must be positive", name, v))
		}
	}
	positive("rate", c.Rate)
	positive("duration", c.Duration)
	positive("step", c.Step)
	if c.Rate*c.Duration > 1e7 {
		errs = append(errs, errors.New("tails: more than ten million arrivals"))
	}
	if c.Prompt < 2 || c.Output < 1 || c.Prompt > 1<<24 || c.Output > 1<<24 {
		errs = append(errs, fmt.Errorf("tails: prompts of %d and outputs of %d tokens", c.Prompt, c.Output))
	}
	if c.Left < 0 || c.Left >= c.Prompt || c.Hold < 0 {
		errs = append(errs, fmt.Errorf("tails: %d of %d prompt tokens left, spread over %d steps", c.Left, c.Prompt, c.Hold))
	}
	if c.PerRow < 0 || c.NonFull < 0 {
		errs = append(errs, errors.New("tails: a time is negative"))
	}
	return errors.Join(append(errs, c.Graphs.Validate())...)
}

// Result is what one run did.
type Result struct {
	Arrivals int
	// Admissions is the number of steps in which at least one request was
	// admitted: arrivals less those that came together with another one.
	Admissions int
	Counts     graphs.Counters
	Tokens     int     // generated
	Seconds    float64 // until the last token
	Busy       float64 // of them in steps
	MeanTPOT   float64 // mean over requests of the time per output token behind the first
	MeanITL    float64 // mean gap between two tokens of a request
	P99ITL     float64
	TTFT       float64 // median time from arrival to the first token
}

// NonFullShare is the share of steps that were not FULL.
func (r Result) NonFullShare() float64 { return r.Counts.NonFullShare() }

// Predicted is the share that an unsaturated decoder is expected to have when
// every arrival costs a step: the chance that something arrives during one.
func Predicted(rate, tpot float64) float64 { return 1 - math.Exp(-rate*tpot) }

type request struct {
	arrival, first, last float64
	computed             int // tokens whose KV is there
	left                 int // tokens to generate
	now                  int // prompt tokens in this step
}

// Run plays one configuration.
func Run(c Config) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	d, err := graphs.New(c.Graphs)
	if err != nil {
		return Result{}, err
	}
	d.SetCaptureState(graphs.AllCaptured)
	var (
		res      Result
		arrivals = poisson(c)
		k        = int32(c.Graphs.K)
		now      float64
		running  []*request
		gaps     []float64
		tpots    []float64
		ttfts    []float64
		rows     graphs.Rows
		verdicts = make([]graphs.RowVerdict, c.Graphs.MaxNumSeqs)
		next     int
	)
	res.Arrivals = len(arrivals)
	for next < len(arrivals) || len(running) > 0 {
		if len(running) == 0 {
			now = max(now, arrivals[next])
		}
		rows = graphs.Rows{
			Scheduled: rows.Scheduled[:0], Drafts: rows.Drafts[:0], Placeholders: rows.Placeholders[:0],
			Computed: rows.Computed[:0], Prefill: rows.Prefill[:0],
		}
		hold := graphs.HoldInput{Most: c.Hold}
		for _, r := range running {
			if r.now = 0; r.computed >= c.Prompt {
				rows.Append(graphs.Row{Scheduled: 1 + k, Drafts: k, Computed: int32(r.computed), Prefill: int32(c.Prompt)})
				hold.Decodes++
			}
		}
		prompt := func(r *request) {
			hold.Left, hold.Computed = int32(c.Prompt-r.computed), int32(r.computed)
			n := graphs.HoldBack(hold)
			if r.now = int(n); n == 1 && k == 0 {
				hold.Decodes++
			} else {
				hold.Others++
			}
			rows.Append(graphs.Row{Scheduled: n, Computed: int32(r.computed), Prefill: int32(c.Prompt)})
		}
		for _, r := range running {
			if r.computed < c.Prompt { // what was held back
				prompt(r)
			}
		}
		admitted := 0
		for next < len(arrivals) && arrivals[next] <= now && len(running) < c.Graphs.MaxNumSeqs {
			r := &request{arrival: arrivals[next], computed: c.Prompt - max(c.Left, 1), left: c.Output}
			next++
			admitted++
			running = append(running, r)
			if c.Left > 1 {
				prompt(r)
				continue
			}
			r.now = 1
			row := graphs.Row{Scheduled: 1, Computed: int32(r.computed), Prefill: int32(c.Prompt)}
			in := graphs.PadInput{
				Known: int32(c.Prompt), Computed: int32(r.computed), K: k, Bonus: c.Graphs.Bonus,
				Budget: int32(c.Graphs.MaxNumBatchedTokens), MaxModelLen: int32(c.Prompt + c.Output + int(k) + 1),
				RunningRows: int32(len(running)),
			}
			if c.Padding == PadTails && graphs.Pad(in) == graphs.PadFull {
				row.Scheduled, row.Drafts, row.Placeholders = 1+k, k, k
			}
			rows.Append(row)
		}
		if admitted > 0 {
			res.Admissions++
		}
		dec := d.Dispatch(rows, graphs.Step{}, verdicts)
		res.Counts.Observe(dec)
		took := c.Step + c.PerRow*float64(len(running))
		if dec.Mode != graphs.Full {
			took += c.NonFull
		}
		now += took
		res.Busy += took

		alive := running[:0]
		for _, r := range running {
			if r.computed += max(r.now, 1); r.computed < c.Prompt { // drafts are never accepted here: they change the width of a row, not its pace
				alive = append(alive, r)
				continue
			}
			r.left--
			res.Tokens++
			if r.first == 0 {
				r.first = now
				ttfts = append(ttfts, now-r.arrival)
			} else {
				gaps = append(gaps, now-r.last)
			}
			r.last = now
			if r.left > 0 {
				alive = append(alive, r)
			} else if c.Output > 1 {
				tpots = append(tpots, (r.last-r.first)/float64(c.Output-1))
			}
		}
		running = alive
	}
	res.Seconds = now
	res.MeanITL, res.MeanTPOT = mean(gaps), mean(tpots)
	res.P99ITL, res.TTFT = quantile(gaps, 0.99), quantile(ttfts, 0.5)
	return res, nil
}

func mean(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// quantile sorts x and interpolates between its values.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	at := q * float64(len(x)-1)
	i := int(at)
	if i+1 == len(x) {
		return x[i]
	}
	return x[i] + (at-float64(i))*(x[i+1]-x[i])
}

// poisson gives the times of arrival.
func poisson(c Config) []float64 {
	var out []float64
	state := c.Seed
	for t, n := 0.0, int(math.Round(c.Rate*c.Duration)); len(out) < n; {
		state += 0x9E3779B97F4A7C15 // SplitMix64
		z := state
		z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
		z = (z ^ z>>27) * 0x94D049BB133111EB
		u := float64((z^z>>31)>>11) / (1 << 53)
		t += -math.Log1p(-u) / c.Rate
		out = append(out, t)
	}
	for i := range out { // the last one arrives at the end of the duration
		out[i] *= c.Duration / out[len(out)-1]
	}
	return out
}
