package points

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/up"
)

// Alone is what requests of a point's shape take that meet nobody: medians, in ms.
// What of it no step explains is the way: HTTP, the proxy, the KV's copy. The
// simulator takes it from here.
type Alone struct {
	Output int     `json:"output_tokens"` // of each
	Prompt float64 `json:"prompt_ms"`     // a prompt at the Prefiller, asked directly, to the end of its one token
	TTFT   float64 `json:"ttft_ms"`       // through proxy, Prefiller and Decoder, from when it was sent
	Hit    float64 `json:"hit_ttft_ms,omitempty"`
	Gap    float64 `json:"gap_ms"` // between two events of an answer
	GapP99 float64 `json:"gap_p99_ms"`
	// Gaps is every half percentile of them, from the least to the greatest.
	Gaps []float64 `json:"gap_curve_ms,omitempty"`
	Late float64   `json:"first_late_ms"` // how much nearer to the second event the first one is than a gap: it repeats the prompt's tokens
	// Beside is the mean gap while the Prefiller computes prompts without a pause, on the
	// same device; 0: it has another one.
	Beside float64 `json:"gap_beside_prompts_ms,omitempty"`
	// BesideGaps is every percentile of them, from the least to the greatest.
	BesideGaps []float64 `json:"gap_beside_prompts_curve_ms,omitempty"`
}

const (
	calibrations  = 5  // prompts that are timed, and requests that go alone
	aloneOutput   = 64 // tokens of their answers, at most
	aloneNext     = 8  // tokens that a second turn adds
	aloneSeed     = 11
	besideAnswers = 4 // answers while the Prefiller computes
	besidePrompts = 4 // prompts that it computes meanwhile, again and again, two at a time
)

// atPrefiller is the median time in seconds of the first prompts of a workload, one
// at a time at the Prefiller, answered by one token.
func (r *runner) atPrefiller(ctx context.Context, w *workload.Workload, p *Point) (float64, error) {
	records, err := load.Run(ctx, firstTurns(w, calibrations+2, 1), r.atP(p, "calibrate-", 1))
	if err != nil {
		return 0, err
	}
	if err := allValid("time of a prompt", records); err != nil {
		return 0, err
	}
	var seconds []float64
	for i := range records {
		rec := &records[i]
		if i > 1 || len(records) < 4 { // the first ones warm up
			seconds = append(seconds, (rec.End - rec.Sent).Seconds())
		}
	}
	return measure.Percentile(seconds, 50), nil
}

// firstTurns is the first turns of so many sessions of a workload, with answers of so
// many tokens.
func firstTurns(w *workload.Workload, sessions, output int) *workload.Workload {
	first := w.Cut(1)
	first.Sessions = first.Sessions[:min(len(first.Sessions), sessions)]
	for i := range first.Sessions {
		turn := first.Sessions[i].Turns[0]
		turn.MaxTokens = output
		first.Sessions[i].Turns = []workload.Turn{turn}
	}
	return first
}

// alone measures them once for a Decoder, a route and a shape, one session after the
// other. With append attempts each has a second turn, which is a hit. prompt is the time
// of one at the Prefiller, 0 if it is to be measured.
func (r *runner) alone(ctx context.Context, d *decoder, p *Point, length int, routing up.Routing, prompt time.Duration) (*Alone, error) {
	key := fmt.Sprint(length, "/", p.Output, "/", routing)
	if a := d.alone[key]; a != nil || r.o.NoAlone {
		return a, nil
	}
	c := workload.Conversations{
		Name: "alone", Seed: aloneSeed, Content: workload.Tokens, Sessions: calibrations, Turns: 1, Vocab: vocabulary(p.Model), MaxTokens: min(p.Output, aloneOutput),
		First: workload.Range{Low: length, High: length}, Next: workload.Range{Low: aloneNext, High: aloneNext},
	}
	if routing == up.AppendPrefill {
		c.Turns = 2
	}
	w, err := c.Generate()
	if err != nil {
		return nil, err
	}
	a := &Alone{Output: c.MaxTokens, Prompt: milliseconds(prompt)}
	if prompt == 0 {
		seconds, err := r.atPrefiller(ctx, w, p)
		if err != nil {
			return nil, err
		}
		a.Prompt = 1e3 * seconds
	}
	var records []measure.Record
	for i := range w.Sessions {
		one := *w
		one.Sessions = w.Sessions[i : i+1]
		prefix := fmt.Sprintf("alone-%d-", time.Now().UnixNano())
		got, err := r.replay(ctx, d, &one, p, routing, load.Config{
			Prefix: prefix, CacheSalt: prefix, Pace: load.Flat,
			Prepare: func(_ string, turn int, call *load.Call) {
				if turn == c.Turns-1 {
					call.Header.Set("X-Session-End", "true")
				}
			},
		})
		if err != nil {
			return nil, err
		}
		records = append(records, got...)
	}
	if err := a.take(records); err != nil {
		return nil, err
	}
	if r.o.Shared {
		answers, prompts, err := r.beside(ctx, d, p, w, routing)
		if err != nil {
			return nil, err
		}
		if err := a.takeBeside(answers, prompts); err != nil {
			fmt.Fprintf(r.o.Out, "  %s: what a token takes beside prompts is not kept: %v\n", d.name, err)
		}
	}
	if d.alone == nil {
		d.alone = map[string]*Alone{}
	}
	d.alone[key] = a
	fmt.Fprintf(r.o.Out, "  %s: alone, a prompt of %d tokens takes %.2f ms at the Prefiller, on its whole way %.2f ms to the first token, %.3f ms a token behind it\n", d.name, length, a.Prompt, a.TTFT, a.Gap)
	if a.Beside > 0 {
		fmt.Fprintf(r.o.Out, "  %s: while the Prefiller computes on the same device %.3f ms a token\n", d.name, a.Beside)
	}
	return a, nil
}

// beside gives a workload's answers, one after the other, and the prompts that the
// Prefiller computes meanwhile, as long ones without a pause. The answers are as long as
// the engines bear, so that there are enough gaps; none if they bear too few.
func (r *runner) beside(ctx context.Context, d *decoder, p *Point, w *workload.Workload, routing up.Routing) (answers, prompts []measure.Record, err error) {
	s := r.o.setupOf(p)
	output := min(aloneOutput, min(s.longest(s.PrefillerTokens), s.longest(s.DecoderTokens))-len(w.Sessions[0].Turns[0].Tokens))
	if output < 3 {
		return nil, nil, nil
	}
	work := firstTurns(w, besidePrompts, 1)
	var ended atomic.Bool
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error {
		for !ended.Load() {
			got, err := load.Run(inner, work, r.atP(p, "beside-", 2))
			prompts = append(prompts, got...)
			if err != nil || allValid("", got) != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() (err error) {
		defer ended.Store(true)
		prefix := fmt.Sprintf("answers-%d-", time.Now().UnixNano())
		answers, err = r.replay(inner, d, firstTurns(w, besideAnswers, output), p, routing, load.Config{
			Prefix: prefix, CacheSalt: prefix, Pace: load.Flat, MaxConcurrency: 1,
			Prepare: func(_ string, _ int, call *load.Call) { call.Header.Set("X-Session-End", "true") },
		})
		return err
	})
	return answers, prompts, group.Wait()
}

// takeBeside takes the gaps of answers beside prompts, or says which of them is not valid.
func (a *Alone) takeBeside(answers, prompts []measure.Record) error {
	if err := allValid("an answer beside prompts", answers); err != nil {
		return err
	}
	if err := allValid("a prompt beside answers", prompts); err != nil {
		return err
	}
	var gaps []float64
	for i := range answers {
		for _, g := range answers[i].Gaps[min(1, len(answers[i].Gaps)):] {
			gaps = append(gaps, milliseconds(g))
		}
	}
	a.Beside, a.BesideGaps = measure.NewSpread(gaps).Mean, curve(gaps, 101)
	return nil
}

// invalidError is an answer that is not valid where a point rests on it.
type invalidError struct{ what, request, reason string }

func (e *invalidError) Error() string { return e.what + ": " + e.request + ": " + e.reason }

// allValid is an invalidError of the first record that is not valid.
func allValid(what string, records []measure.Record) error {
	for i := range records {
		if !records[i].Valid() {
			return &invalidError{what, records[i].RequestID, records[i].Error}
		}
	}
	return nil
}

// atP is how prompts are sent to the Prefiller itself, so many at a time.
func (r *runner) atP(p *Point, prefix string, together int) load.Config {
	return load.Config{
		Server: load.Server{URL: r.fleet.prefiller.URL(), Model: p.Model, Client: r.fleet.client}, Endpoint: load.Completions, EOS: load.IgnoreEOS,
		Pace: load.Flat, Prefix: prefix, Timeout: requestTimeout, MaxConcurrency: together,
	}
}

// take takes the medians of records.
func (a *Alone) take(records []measure.Record) error {
	if err := allValid("a request alone", records); err != nil {
		return err
	}
	var first, hit, gaps, head []float64
	for i := range records {
		rec := &records[i]
		took := milliseconds(rec.First - rec.Sent)
		if rec.FollowUp() {
			hit = append(hit, took)
			continue
		}
		first = append(first, took)
		for k, g := range rec.Gaps {
			if k == 0 {
				head = append(head, milliseconds(g))
			} else {
				gaps = append(gaps, milliseconds(g))
			}
		}
	}
	median := func(v []float64) float64 {
		if len(v) == 0 {
			return 0
		}
		return measure.Percentile(v, 50)
	}
	a.TTFT, a.Hit, a.Gap = median(first), median(hit), median(gaps)
	if len(gaps) > 0 {
		a.GapP99, a.Gaps = measure.Percentile(gaps, 99), curve(gaps, 201)
		a.Late = max(a.Gap-median(head), 0)
	}
	return nil
}
