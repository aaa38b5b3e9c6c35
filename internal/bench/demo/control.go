package demo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/progress"
	"github.com/sluice-serving/sluice/internal/openai"
)

const (
	calibrations = 5 // prompts that are timed

	// Bounds of the scale: beyond them the run would be over before a queue can
	// be seen, or take too long.
	scaleLow  = 0.2
	scaleHigh = 3

	controlSessions    = 20
	controlConcurrency = 4
	controlChanged     = 0.95 // least share of answers that wrong KV must change
)

// calibrate measures how long the Prefiller takes for one first prompt and
// scales the workload's times by it, so that the Prefiller is loaded alike on
// fast and on slow machines.
func (r *runner) calibrate(ctx context.Context) error {
	w := r.w.Cut(1)
	w.Sessions = w.Sessions[:min(len(w.Sessions), calibrations+1)]
	for i := range w.Sessions {
		turn := w.Sessions[i].Turns[0]
		turn.MaxTokens = 1
		w.Sessions[i].Turns = append(w.Sessions[i].Turns[:0:0], turn)
	}
	records, err := load.Run(ctx, w, load.Config{
		Server: load.Server{URL: r.prefiller.URL(), Model: r.p.Model, Client: r.client}, Endpoint: load.Chat, Pace: load.Flat,
		Prefix: "calibrate-", CacheSalt: "calibrate", Timeout: requestTimeout, MaxConcurrency: 1,
	})
	if err != nil {
		return err
	}
	var seconds []float64
	for i := range records[1:] { // the first one warms up
		rec := &records[i+1]
		if !rec.Valid() {
			return fmt.Errorf("%s: %s", rec.RequestID, rec.Error)
		}
		seconds = append(seconds, (rec.End - rec.Sent).Seconds())
	}
	took := measure.Percentile(seconds, 50)
	r.scale = min(max(took/r.p.ServiceTime.Seconds(), scaleLow), scaleHigh)
	r.report.Workload.PromptSeconds, r.report.Workload.TimeScale = took, r.scale
	fmt.Fprintf(r.out, "the Prefiller takes %.0f ms for a first prompt: the workload's times are scaled by %.2f\n", took*1e3, r.scale)
	return nil
}

// noisy is a request that is to run on KV of which one block was overwritten.
type noisy struct {
	*openai.ChatRequest
	Noise bool `json:"kv_noise"`
}

// control asks the Decoder the first follow-up of the first sessions once more,
// with one block of the KV that it computed before overwritten with noise.
func (r *runner) control(ctx context.Context) ([]measure.Record, error) {
	ranks := max(r.p.Cluster.Decoder.Ranks, 1)
	rank := make(map[string]string, len(r.w.Sessions))
	for i := range r.w.Sessions {
		rank[r.w.Sessions[i].ID] = strconv.Itoa(i % ranks)
	}
	w := r.w.Cut(2)
	w.Sessions = w.Sessions[:min(len(w.Sessions), controlSessions)]
	bar := progress.Start(r.out, "negative control: wrong KV")
	defer bar.End()
	return load.Run(ctx, w, load.Config{
		Server: load.Server{URL: r.decoder.URL(), Model: r.p.Model, Client: r.client}, Endpoint: load.Chat, Pace: load.Flat,
		Prefix: "control-", CacheSalt: "control", Timeout: requestTimeout, MaxConcurrency: controlConcurrency, Observe: bar.Observe,
		Prepare: func(session string, turn int, call *load.Call) {
			call.Header.Set("X-data-parallel-rank", rank[session])
			if req, ok := call.Body.(*openai.ChatRequest); ok && turn == 1 {
				call.Body = noisy{ChatRequest: req, Noise: true}
			}
		},
	})
}

// judgeControl counts how many answers the noise changed. The comparison means
// something only if nearly all did.
func (r *runner) judgeControl(records []measure.Record) {
	right := make(map[string]*measure.Record, len(r.right))
	key := func(rec *measure.Record) string { return fmt.Sprint(rec.Session, " ", rec.Turn) }
	for i := range r.right {
		right[key(&r.right[i])] = &r.right[i]
	}
	c := &Control{}
	for i := range records {
		rec := &records[i]
		want := right[key(rec)]
		same := rec.Valid() && measure.SameAnswer(rec, want)
		switch {
		case rec.Turn == 0 && !same:
			c.Broken++ // without noise the answer must be the right one
		case rec.Turn == 1 && !rec.Valid():
			c.Broken++
		case rec.Turn == 1:
			c.Answers++
			if !same {
				c.Changed++
			}
		}
	}
	r.report.Control = c
}

func (r *runner) checkControl() {
	c := r.report.Control
	if c == nil {
		return
	}
	ok := c.Broken == 0 && c.Answers > 0 && float64(c.Changed) >= controlChanged*float64(c.Answers)
	r.verify("negative control", ok, "%d of %d answers changed when one cached KV block was noise, at least %.0f %%; %d others were wrong", c.Changed, c.Answers, 100*controlChanged, c.Broken)
}

// window is the arrival window in this run.
func (r *runner) window() time.Duration {
	return time.Duration(r.scale * float64(r.w.ArrivalWindow()))
}
