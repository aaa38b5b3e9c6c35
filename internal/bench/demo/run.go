package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/internal/bench/join"
	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/progress"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/up"
)

const (
	scrapeEvery    = 100 * time.Millisecond
	requestTimeout = 10 * time.Minute // for what hangs: a slow machine with other work takes minutes for the queue of the baseline
	settleTimeout  = 10 * time.Second // for blocks to be released after a run
	decoderName    = "d0"
)

// runner carries one run.
type runner struct {
	p      *Params
	out    io.Writer
	began  time.Time
	sup    *up.Supervisor
	client *http.Client
	w      *workload.Workload
	report *Report

	prefiller  *up.Child
	caching    up.Caching // of the running Prefiller
	prefillers int        // started so far
	decoder    *up.Child
	proxies    []string // names, for their trace files
	engines    []string
	right      []measure.Record // the answers without any cache
	scale      float64          // of the workload's times
}

// Run starts the cluster, runs probes, arms and the uncached engine, and gives
// the report with its checks; progress and the table go to out. An error means
// that the run could not be finished. Every process has ended when Run returns.
func Run(ctx context.Context, p Params, out io.Writer) (report *Report, err error) {
	start := time.Now()
	w, err := p.Conversations.Generate()
	if err != nil {
		return nil, err
	}
	if err := prepareDir(p.Dir); err != nil {
		return nil, err
	}
	p.Cluster.TraceDir = p.Dir
	sup, stop, err := up.NewIn(p.Dir, up.Overwrite, up.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	client := load.NewHTTPClient()
	defer client.CloseIdleConnections()

	r := &runner{p: &p, out: out, began: start, sup: sup, client: client, w: w, report: &Report{Workload: WorkloadInfo{
		Hash: w.Hash(), Seed: w.Seed, Sessions: len(w.Sessions), Requests: w.Requests(), FollowUps: w.FollowUps(), Window: w.ArrivalWindow().Seconds(),
	}}}
	group, ctx := errgroup.WithContext(ctx)
	ctx, done := context.WithCancel(ctx)
	group.Go(func() error { // a process that dies ends the run
		select {
		case err := <-sup.Deaths():
			return err
		case <-ctx.Done():
			return nil
		}
	})
	group.Go(func() error {
		defer done()
		return r.all(ctx)
	})
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("%w (output of the processes: %s)", err, filepath.Join(p.Dir, up.LogFile))
	}
	r.report.Seconds = time.Since(start).Seconds()
	r.check()
	r.table()
	return r.report, r.writeFiles()
}

// prepareDir makes the folder and removes the trace files of an earlier run.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) all(ctx context.Context) error {
	fmt.Fprintf(r.out, "workload %s: %d sessions × %d turns, seed %d, sha256 %s\n", r.w.Name, len(r.w.Sessions), r.p.Conversations.Turns, r.w.Seed, r.report.Workload.Hash)
	if err := r.p.Cluster.CheckPort(); err != nil {
		return err
	}
	if err := r.startPrefiller(ctx, arms[baseline].prefiller); err != nil {
		return err
	}
	var err error
	if r.decoder, err = r.start(ctx, r.p.Cluster.DecoderCommand(decoderName)); err != nil {
		return err
	}
	if err := r.describe(ctx, r.decoder); err != nil {
		return err
	}
	if err := r.calibrate(ctx); err != nil {
		return fmt.Errorf("calibration: %w", err)
	}
	if err := r.probe(ctx); err != nil {
		return fmt.Errorf("probes: %w", err)
	}
	for i := range arms {
		if err := r.arm(ctx, &arms[i]); err != nil {
			return fmt.Errorf("arm %s: %w", arms[i].name, err)
		}
	}
	control, err := r.control(ctx)
	if err != nil {
		return fmt.Errorf("negative control: %w", err)
	}
	if err := r.stopEngines(); err != nil {
		return err
	}
	if err := r.uncached(ctx); err != nil {
		return fmt.Errorf("run without a cache: %w", err)
	}
	r.judgeControl(control)
	return r.join()
}

func (r *runner) start(ctx context.Context, c up.Command) (*up.Child, error) {
	r.report.Processes = append(r.report.Processes, Process{c.Name, c.Args})
	child, err := r.sup.Start(ctx, c)
	if err == nil && c.Args[0] == "serve" {
		r.engines = append(r.engines, c.Name)
	}
	return child, err
}

// startPrefiller makes sure that the running Prefiller treats prefixes so.
func (r *runner) startPrefiller(ctx context.Context, c up.Caching) error {
	if r.prefiller != nil {
		if r.caching == c {
			return nil
		}
		if err := r.sup.Stop(r.prefiller); err != nil {
			return err
		}
	}
	cluster := r.p.Cluster
	cluster.Prefiller.Caching = c
	child, err := r.start(ctx, cluster.PrefillerCommand(fmt.Sprintf("p%d", r.prefillers)))
	if err != nil {
		return err
	}
	r.prefiller, r.caching = child, c
	r.prefillers++
	return r.describe(ctx, child)
}

func (r *runner) stopEngines() error {
	r.notePeak()
	return errors.Join(r.sup.Stop(r.decoder), r.sup.Stop(r.prefiller))
}

// withProxy runs f with a proxy of its own in front of the engines.
func (r *runner) withProxy(ctx context.Context, name string, routing up.Routing, f func(url string) error) error {
	command, err := r.p.Cluster.ProxyCommand(name, routing, r.prefiller, r.decoder)
	if err != nil {
		return err
	}
	proxy, err := r.start(ctx, command)
	if err != nil {
		return err
	}
	r.proxies = append(r.proxies, name)
	err = f(proxy.URL())
	r.notePeak(proxy)
	return errors.Join(err, r.sup.Stop(proxy))
}

// notePeak adds up the largest sizes of the processes that run now.
func (r *runner) notePeak(others ...*up.Child) {
	sum := up.OwnPeakMemory()
	for _, c := range append(others, r.prefiller, r.decoder) {
		if c != nil {
			sum += c.PeakMemory()
		}
	}
	r.report.PeakBytes = max(r.report.PeakBytes, sum)
}

func (r *runner) page(ctx context.Context, c *up.Child) (scrape.Page, error) {
	return scrape.Fetch(ctx, r.client, c.URL()+"/metrics")
}

// describe notes what an engine says about itself.
func (r *runner) describe(ctx context.Context, c *up.Child) error {
	page, err := r.page(ctx, c)
	if err != nil {
		return err
	}
	info := EngineInfo{Name: c.Name(), BlockBytes: int64(page.Max("sluice_kv_block_bytes"))}
	if s := page["sluice_engine_info"]; len(s) > 0 {
		l := s[0].Labels
		info.Role, info.Scheduling, info.Runner, info.Device, info.Model = l["role"], l["scheduling"], l["runner"], l["device"], l["model"]
	}
	r.report.Engines = append(r.report.Engines, info)
	fmt.Fprintf(r.out, "%-5s %s  %s\n", c.Name(), c.URL(), &info)
	return nil
}

func (r *runner) arm(ctx context.Context, a *arm) error {
	if err := r.startPrefiller(ctx, a.prefiller); err != nil {
		return err
	}
	result := Arm{
		Name: a.name, Title: a.title, Routing: a.routing.String(), PrefillerReuse: a.prefiller.String(),
		CacheSalt: "demo-" + a.name, WorkloadHash: r.w.Hash(),
	}
	err := r.withProxy(ctx, "proxy-"+a.name, a.routing, func(url string) error {
		before, err := r.pages(ctx)
		if err != nil {
			return err
		}
		bar := progress.Start(r.out, "arm: "+a.title)
		result.Started = time.Since(r.began).Seconds()
		peak, err := r.replay(ctx, url, &result, bar)
		if err != nil {
			return err
		}
		bar.End()
		result.QueuePeak = peak
		after, err := r.settle(ctx, &result)
		if err != nil {
			return err
		}
		result.Ended = time.Since(r.began).Seconds()
		result.count(before, after)
		return nil
	})
	if err != nil {
		return err
	}
	r.report.Arms = append(r.report.Arms, result)
	return nil
}

// replay sends the workload and gives the peak of the Prefiller's queue in the
// arrival window.
func (r *runner) replay(ctx context.Context, url string, a *Arm, bar *progress.Bar) (float64, error) {
	queue, err := scrape.WatchPeak(ctx, r.client, r.prefiller.URL()+"/metrics", "vllm:num_requests_waiting", scrapeEvery, r.window())
	if err != nil {
		return 0, fmt.Errorf("the Prefiller's queue: %w", err)
	}
	records, err := load.Run(ctx, r.w, load.Config{
		Server: load.Server{URL: url, Model: r.p.Model, Client: r.client}, Endpoint: load.Chat,
		Prefix: a.Name + "-", CacheSalt: a.CacheSalt, Timeout: requestTimeout, TimeScale: r.scale, Observe: bar.Observe,
	})
	peak := queue.Stop()
	if err != nil {
		return 0, err
	}
	a.records, a.Summary = records, measure.Summarize(records)
	return peak.Value, nil
}

// pages are the metrics of Prefiller and Decoder at one moment.
type pages struct{ prefiller, decoder scrape.Page }

func (r *runner) pages(ctx context.Context) (pages, error) {
	p, err := r.page(ctx, r.prefiller)
	if err != nil {
		return pages{}, err
	}
	d, err := r.page(ctx, r.decoder)
	return pages{p, d}, err
}

// settle waits until no block is held any more.
func (r *runner) settle(ctx context.Context, a *Arm) (pages, error) {
	held := map[string]string{"state": "held"}
	for deadline := time.Now().Add(settleTimeout); ; {
		now, err := r.pages(ctx)
		if err != nil {
			return pages{}, err
		}
		a.HeldAfter = now.prefiller.Sum("sluice_kv_blocks", held) + now.decoder.Sum("sluice_kv_blocks", held)
		if a.HeldAfter == 0 || time.Now().After(deadline) {
			return now, nil
		}
		select {
		case <-time.After(scrapeEvery):
		case <-ctx.Done():
			return pages{}, ctx.Err()
		}
	}
}

// count takes the growth of the counters over the arm.
func (a *Arm) count(before, after pages) {
	const steps, blocks, bytes = "sluice_graph_steps_total", "sluice_kv_transfer_blocks_total", "sluice_kv_transfer_bytes_total"
	modes := scrape.Minus(after.decoder.By(steps, "mode", nil), before.decoder.By(steps, "mode", nil))
	a.Steps = 0
	for _, mode := range scrape.Keys(modes) {
		a.Steps += modes[mode]
	}
	if a.Steps > 0 {
		a.FullShare = modes["FULL"] / a.Steps
	}
	a.NonFull = make(map[string]int)
	for mode := range modes {
		if mode == "FULL" {
			continue
		}
		want := map[string]string{"mode": mode}
		for reason, n := range scrape.Minus(after.decoder.By(steps, "reason", want), before.decoder.By(steps, "reason", want)) {
			a.NonFull[reason] += int(n)
		}
	}
	a.stepTimes(before.decoder, after.decoder)
	received := map[string]string{"direction": "received"}
	a.CountedBlocks = after.decoder.Sum(blocks, received) - before.decoder.Sum(blocks, received)
	a.CountedBytes = after.decoder.Sum(bytes, received) - before.decoder.Sum(bytes, received)
	a.PrefillTokens = computed(after.prefiller) - computed(before.prefiller)
}

// stepTimes takes the mean times of the Decoder's steps, FULL and others.
func (a *Arm) stepTimes(before, after scrape.Page) {
	const name = "sluice_step_seconds"
	sums := scrape.Minus(after.By(name+"_sum", "mode", nil), before.By(name+"_sum", "mode", nil))
	counts := scrape.Minus(after.By(name+"_count", "mode", nil), before.By(name+"_count", "mode", nil))
	var sum, count float64
	for _, mode := range scrape.Keys(counts) {
		n := counts[mode]
		if mode == "FULL" {
			a.FullStepMs = 1e3 * sums[mode] / n
			continue
		}
		sum, count = sum+sums[mode], count+n
	}
	if count > 0 {
		a.OtherStepMs = 1e3 * sum / count
	}
}

// computed is the number of prompt tokens that an engine computed itself.
func computed(p scrape.Page) float64 {
	return p.Sum("vllm:prompt_tokens_by_source_total", map[string]string{"source": "local_compute"})
}

// uncached replays the workload on one engine without any cache.
func (r *runner) uncached(ctx context.Context) error {
	engine, err := r.start(ctx, r.p.Cluster.AloneCommand("alone", r.p.Alone))
	if err != nil {
		return err
	}
	if err := r.describe(ctx, engine); err != nil {
		return err
	}
	bar := progress.Start(r.out, "one engine without any cache")
	records, err := load.Run(ctx, r.w, load.Config{
		Server: load.Server{URL: engine.URL(), Model: r.p.Model, Client: r.client}, Endpoint: load.Chat, Pace: load.Flat,
		Prefix: "uncached-", Timeout: requestTimeout, Observe: bar.Observe,
	})
	if err != nil {
		return err
	}
	bar.End()
	r.prefiller, r.decoder = nil, nil
	r.notePeak(engine)
	r.report.Uncached = measure.Summarize(records)
	r.right = records
	for i := range r.report.Arms {
		a := &r.report.Arms[i]
		for j := range a.records {
			if a.records[j].Valid() && measure.SameAnswer(&a.records[j], &records[j]) {
				a.Correct++
			}
			if measure.SameAnswer(&a.records[j], &r.report.Arms[baseline].records[j]) {
				a.SameAsBaseline++
			}
		}
	}
	return r.sup.Stop(engine)
}

// join reads the trace files, which are complete now that their writers have ended.
func (r *runner) join() error {
	var files []string
	for _, name := range append(r.proxies, r.engines...) {
		files = append(files, r.p.Cluster.TraceFile(name))
	}
	traces, err := join.ReadFiles(files...)
	if err != nil {
		return err
	}
	for i := range r.report.Arms {
		r.report.Arms[i].join(traces, join.Expect{AppendPrefill: arms[i].routing == up.AppendPrefill, BytesPerBlock: r.blockBytes()}, max(r.p.Cluster.Decoder.Ranks, 1))
	}
	r.joinProbes(traces)
	return nil
}

// blockBytes is the weight of one KV block as the Decoder states it.
func (r *runner) blockBytes() int64 {
	for _, e := range r.report.Engines {
		if e.Name == decoderName {
			return e.BlockBytes
		}
	}
	return 0
}
