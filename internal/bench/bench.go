// Package bench drives a load run against one OpenAI-compatible server and
// reports its figures: what `sluice bench` does without a preset. The packages
// below it hold its parts; demo is the comparison that `make run` shows.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/progress"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/bench/workload"
)

// Options says what a run does.
type Options struct {
	Workload *workload.Workload
	Load     load.Config // Observe is set by Run
	Repeat   int         // runs, one after another; 0: 1
	Records  bool        // keep every request's record in the result
	// Watch is the address of a metrics page whose waiting requests are watched
	// during each run; empty: none.
	Watch string
}

// Result is what the runs found.
type Result struct {
	URL          string `json:"url"`
	Model        string `json:"model"`
	Endpoint     string `json:"endpoint"`
	Workload     string `json:"workload"`
	WorkloadHash string `json:"workload_sha256"`
	Runs         []Once `json:"runs"`
	Median       Median `json:"median"`
}

// Once is one run.
type Once struct {
	Started   time.Time        `json:"started"`
	Summary   measure.Summary  `json:"summary"`
	QueuePeak *float64         `json:"queue_peak,omitempty"`
	Records   []measure.Record `json:"records,omitempty"`
}

// Median holds the medians over the runs.
type Median struct {
	TotalSeconds      float64 `json:"total_s"`
	OutputThroughput  float64 `json:"output_tokens_per_s"`
	RequestThroughput float64 `json:"requests_per_s"`
	TTFTP50           float64 `json:"ttft_p50_s"`
	TTFTP95           float64 `json:"ttft_p95_s"`
	TPOTMean          float64 `json:"tpot_mean_ms"`
	TPOTP50           float64 `json:"tpot_p50_ms"`
	TPOTP95           float64 `json:"tpot_p95_ms"`
	TPOTP99           float64 `json:"tpot_p99_ms"`
	ITLP99            float64 `json:"itl_p99_ms"`
}

// Run does the runs and prints a line of figures for each to out. Failed
// requests are part of the result; Invalid counts them.
func Run(ctx context.Context, o Options, out io.Writer) (*Result, error) {
	if o.Load.Server.Model == "" {
		model, err := o.Load.Server.FirstModel(ctx)
		if err != nil {
			return nil, err
		}
		o.Load.Server.Model = model
	}
	res := &Result{
		URL: o.Load.Server.URL, Model: o.Load.Server.Model, Endpoint: o.Load.Endpoint.String(),
		Workload: o.Workload.Name, WorkloadHash: o.Workload.Hash(),
	}
	fmt.Fprintf(out, "%s at %s, %s: workload %s, %d requests, sha256 %.12s\n", res.Model, res.URL, res.Endpoint, res.Workload, o.Workload.Requests(), res.WorkloadHash)
	repeat := max(o.Repeat, 1)
	prefix := o.Load.Prefix
	for i := range repeat {
		label := "run"
		if repeat > 1 {
			label = fmt.Sprintf("run %d of %d", i+1, repeat)
			o.Load.Prefix = fmt.Sprintf("%s%d-", prefix, i+1)
		}
		once, err := run(ctx, &o, progress.Start(out, label))
		if err != nil {
			return nil, err
		}
		once.print(out)
		res.Runs = append(res.Runs, *once)
	}
	res.Median = median(res.Runs)
	return res, nil
}

func run(ctx context.Context, o *Options, bar *progress.Bar) (*Once, error) {
	once := &Once{Started: time.Now()}
	var queue *scrape.Watch
	if o.Watch != "" {
		var err error
		if queue, err = scrape.WatchPeak(ctx, o.Load.Server.Client, o.Watch, "vllm:num_requests_waiting", 100*time.Millisecond, 0); err != nil {
			return nil, err
		}
	}
	cfg := o.Load
	cfg.Observe = bar.Observe
	records, err := load.Run(ctx, o.Workload, cfg)
	if queue != nil {
		peak := queue.Stop()
		once.QueuePeak = &peak.Value
	}
	if err != nil {
		return nil, err
	}
	bar.End()
	once.Summary = measure.Summarize(records)
	if o.Records {
		once.Records = records
	}
	return once, nil
}

func (o *Once) print(out io.Writer) {
	s := &o.Summary
	fmt.Fprintf(out, "  valid %d of %d, %.2f s, %.1f output tokens/s, %.2f requests/s, cached %d of %d prompt tokens\n",
		s.Valid, s.Requests, s.TotalSeconds, s.OutputThroughput, s.RequestThroughput, s.CachedTokens, s.PromptTokens)
	fmt.Fprintf(out, "  TTFT p50 %.3f s, p95 %.3f s; TPOT mean %.2f ms, p50 %.2f, p95 %.2f, p99 %.2f; ITL p99 %.2f ms\n",
		s.TTFT.P50, s.TTFT.P95, s.TPOT.Mean, s.TPOT.P50, s.TPOT.P95, s.TPOT.P99, s.ITL.P99)
	if o.QueuePeak != nil {
		fmt.Fprintf(out, "  queue peak %.0f\n", *o.QueuePeak)
	}
	if s.FirstError != "" {
		fmt.Fprintf(out, "  first failure: %s\n", s.FirstError)
	}
}

func median(runs []Once) Median {
	over := func(f func(*measure.Summary) float64) float64 {
		values := make([]float64, 0, len(runs))
		for i := range runs {
			values = append(values, f(&runs[i].Summary))
		}
		return measure.Percentile(values, 50)
	}
	return Median{
		TotalSeconds:      over(func(s *measure.Summary) float64 { return s.TotalSeconds }),
		OutputThroughput:  over(func(s *measure.Summary) float64 { return s.OutputThroughput }),
		RequestThroughput: over(func(s *measure.Summary) float64 { return s.RequestThroughput }),
		TTFTP50:           over(func(s *measure.Summary) float64 { return s.TTFT.P50 }),
		TTFTP95:           over(func(s *measure.Summary) float64 { return s.TTFT.P95 }),
		TPOTMean:          over(func(s *measure.Summary) float64 { return s.TPOT.Mean }),
		TPOTP50:           over(func(s *measure.Summary) float64 { return s.TPOT.P50 }),
		TPOTP95:           over(func(s *measure.Summary) float64 { return s.TPOT.P95 }),
		TPOTP99:           over(func(s *measure.Summary) float64 { return s.TPOT.P99 }),
		ITLP99:            over(func(s *measure.Summary) float64 { return s.ITL.P99 }),
	}
}

// Invalid is the number of requests whose answer was not valid, over all runs.
func (r *Result) Invalid() int {
	n := 0
	for i := range r.Runs {
		n += r.Runs[i].Summary.Requests - r.Runs[i].Summary.Valid
	}
	return n
}

// Write writes the result as JSON.
func (r *Result) Write(dst io.Writer) error {
	enc := json.NewEncoder(dst)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteFile writes the result as JSON to a file.
func (r *Result) WriteFile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := r.Write(f); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Close()
}
