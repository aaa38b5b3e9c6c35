package engine

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// metrics are the collectors of an engine. Names that vLLM has keep its prefix
// and meaning, others begin with sluice_. Labels are bounded: model, rank, and
// reasons from fixed lists.
type metrics struct {
	model    string
	registry prometheus.Registerer

	running, waiting, waitingBy, usage, cacheInfo, blocks, blockBytes, info *prometheus.GaugeVec

	queries, hits, externalQueries, externalHits, preemptions                                      *prometheus.CounterVec
	prompt, promptSource, promptCached, generated, success                                         *prometheus.CounterVec
	transferBytes, transferBlocks, transferWay, transferFar, appends, graphSteps, transferFailures *prometheus.CounterVec

	drafted, draftTokens, draftsAccepted, draftsAcceptedAt *prometheus.CounterVec

	promptLen, outputLen, iteration, maxTokens, ttft, gap, perToken, e2e, queued, inference, prefill, decode *prometheus.HistogramVec

	stepTime *prometheus.HistogramVec // also by graph mode

	leases, offloadBlocks, offloadFiles *prometheus.GaugeVec
	offload, offloadBytes               *prometheus.CounterVec

	attempts, appendTokens, sessionEvents       *prometheus.CounterVec
	turns, historyTokens                        *prometheus.CounterVec
	sessionLeases, sessionBlocks, offloadStates *prometheus.GaugeVec
}

var (
	lengthBuckets    = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}
	iterationBuckets = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	tokenTimeBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5}
	waitBuckets      = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}
)

func newMetrics(reg prometheus.Registerer, model string) *metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, append([]string{"model_name", "engine"}, labels...))
		reg.MustRegister(v)
		return v
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"model_name", "engine"}, labels...))
		reg.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, append([]string{"model_name", "engine"}, labels...))
		reg.MustRegister(v)
		return v
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "go_goroutines", Help: "Goroutines of the process."},
		func() float64 { return float64(runtime.NumGoroutine()) }))
	return &metrics{
		model: model, registry: reg,

		running:    gauge("vllm:num_requests_running", "Requests that run."),
		waiting:    gauge("vllm:num_requests_waiting", "Requests that wait to run."),
		waitingBy:  gauge("vllm:num_requests_waiting_by_reason", "Requests that wait, by what for: room, or something else.", "reason"),
		usage:      gauge("vllm:kv_cache_usage_perc", "Share of KV blocks that are held, 0 to 1."),
		cacheInfo:  gauge("vllm:cache_config_info", "Configuration of the KV cache; always 1.", "block_size", "num_gpu_blocks", "enable_prefix_caching"),
		blocks:     gauge("sluice_kv_blocks", "KV blocks by state: free, cached (matchable and held by nobody), held.", "state"),
		blockBytes: gauge("sluice_kv_block_bytes", "Bytes of one KV block over all layers."),
		info:       gauge("sluice_engine_info", "Configuration of the engine; always 1.", "scheduling", "runner", "role", "device", "model"),

		queries:          counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache."),
		hits:             counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache."),
		externalQueries:  counter("vllm:external_prefix_cache_queries_total", "Tokens asked of the connector."),
		externalHits:     counter("vllm:external_prefix_cache_hits_total", "Tokens that the connector brings."),
		preemptions:      counter("vllm:num_preemptions_total", "Preemptions of running requests."),
		prompt:           counter("vllm:prompt_tokens_total", "Prompt tokens of requests that have begun to answer."),
		promptSource:     counter("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.", "source"),
		promptCached:     counter("vllm:prompt_tokens_cached_total", "Prompt tokens that were not computed."),
		generated:        counter("vllm:generation_tokens_total", "Tokens generated."),
		success:          counter("vllm:request_success_total", "Requests that ended, by reason.", "finished_reason"),
		transferBytes:    counter("sluice_kv_transfer_bytes_total", "Bytes of KV moved between engines.", "direction"),
		transferWay:      counter("sluice_kv_transfer_way_bytes_total", "Bytes of KV received, by their way: direct (read by the device, or by RDMA), or over a connection, through the host.", "way"),
		transferFar:      counter("sluice_kv_transfer_far_total", "Times that a peer's device memory was found not to be readable directly; the log has the reasons."),
		transferBlocks:   counter("sluice_kv_transfer_blocks_total", "KV blocks moved between engines.", "direction"),
		appends:          counter("sluice_append_prefill_total", "Append attempts, by result (hit, refused, gone before a decision) and reason of refusal.", "result", "reason"),
		attempts:         counter("sluice_append_prefill_attempts_total", "Append attempts that came, decided or not."),
		appendTokens:     counter("sluice_append_prefill_tokens_total", "Prompt tokens of hits: cached here, restored from a host tier, or of the suffix that is computed.", "kind"),
		graphSteps:       counter("sluice_graph_steps_total", "Steps by graph mode, and why not FULL.", "mode", "reason"),
		transferFailures: counter("sluice_kv_transfer_failures_total", "Transfers of KV that failed.", "direction"),

		turns:         counter("sluice_session_turns_total", "Turns of sessions by how their tokens go on from the turn before: new, intact, rewritten, shorter.", "history"),
		historyTokens: counter("sluice_session_prefix_tokens_total", "Tokens of the turn before that stayed cached (expected), and those of them that the next turn found.", "kind"),
		sessionLeases: gauge("sluice_session_leases", "Sessions between two turns whose prefix is kept."),
		sessionBlocks: gauge("sluice_session_lease_blocks", "Blocks that these leases cover, each once."),
		sessionEvents: counter("sluice_session_leases_total", "Leases of sessions' prefixes: granted at the end of a turn, displaced by others, evicted for want of blocks.", "event"),
		offloadStates: gauge("sluice_kv_offload_requests", "Preempted requests in the host tier, by state: saving, ready, restoring.", "state"),

		leases:        gauge("sluice_kv_leases", "Finished prompts whose blocks are kept for a peer."),
		offload:       counter("sluice_kv_offload_total", "What the host tier did: preempted requests saved, without room, restored; finished turns saved, loads of shared content; saves and loads that failed.", "event"),
		offloadBytes:  counter("sluice_kv_offload_bytes_total", "Bytes of KV copied to and from the host tier.", "direction"),
		offloadBlocks: gauge("sluice_kv_offload_blocks", "Host blocks by state: free, cached (shared content without a user), used.", "state"),
		offloadFiles:  gauge("sluice_kv_offload_file_bytes", "Bytes of the file tier."),

		drafted:          counter("vllm:spec_decode_num_drafts_total", "Rows that verified drafts."),
		draftTokens:      counter("vllm:spec_decode_num_draft_tokens_total", "Drafts verified."),
		draftsAccepted:   counter("vllm:spec_decode_num_accepted_tokens_total", "Drafts accepted."),
		draftsAcceptedAt: counter("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Drafts accepted, by their position in the row.", "position"),

		stepTime: histogram("sluice_step_seconds", "Time of a step, in seconds, by graph mode.", tokenTimeBuckets, "mode"),

		promptLen: histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", lengthBuckets),
		outputLen: histogram("vllm:request_generation_tokens", "Generated tokens per request.", lengthBuckets),
		iteration: histogram("vllm:iteration_tokens_total", "Tokens per step.", iterationBuckets),
		maxTokens: histogram("vllm:request_params_max_tokens", "max_tokens of requests.", lengthBuckets),
		ttft:      histogram("vllm:time_to_first_token_seconds", "Time to the first token, in seconds.", waitBuckets),
		gap:       histogram("vllm:inter_token_latency_seconds", "Time between two tokens, in seconds.", tokenTimeBuckets),
		perToken:  histogram("vllm:request_time_per_output_token_seconds", "Mean time per token after the first, in seconds.", tokenTimeBuckets),
		e2e:       histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the last token, in seconds.", waitBuckets),
		queued:    histogram("vllm:request_queue_time_seconds", "Time from arrival to the first step, in seconds.", waitBuckets),
		inference: histogram("vllm:request_inference_time_seconds", "Time from the first step to the last token, in seconds.", waitBuckets),
		prefill:   histogram("vllm:request_prefill_time_seconds", "Time from the first step to the first token, in seconds.", waitBuckets),
		decode:    histogram("vllm:request_decode_time_seconds", "Time from the first to the last token, in seconds.", waitBuckets),
	}
}

// rankMetrics are the collectors of one rank.
type rankMetrics struct {
	m      *metrics
	engine string
	role   Role

	granted, displaced, evicted uint64 // leases that the counters have
}

func (m *metrics) rank(index int, role Role) *rankMetrics {
	r := &rankMetrics{m: m, engine: strconv.Itoa(index), role: role}
	for _, c := range []*prometheus.CounterVec{
		m.queries, m.hits, m.externalQueries, m.externalHits, m.preemptions, m.prompt, m.promptCached, m.generated, m.attempts,
	} {
		r.counter(c) // shown from the start, at 0
	}
	for _, d := range []string{"received", "sent"} {
		r.counter(m.transferBytes, d)
		r.counter(m.transferBlocks, d)
	}
	r.counter(m.transferFailures, "received")
	r.counter(m.appends, "hit", "")
	r.counter(m.appends, "gone", "")
	for why := scheduler.NoPrefix; why <= scheduler.BelowThreshold; why++ {
		r.counter(m.appends, "refused", why.String())
	}
	for _, kind := range []string{"cached", "restored", "suffix"} {
		r.counter(m.appendTokens, kind)
	}
	for h := historyNew; h <= historyShorter; h++ {
		r.counter(m.turns, h.String())
	}
	for _, kind := range []string{"expected", "found"} {
		r.counter(m.historyTokens, kind)
	}
	for _, event := range []string{"granted", "displaced", "evicted"} {
		r.counter(m.sessionEvents, event)
	}
	return r
}

func (r *rankMetrics) counter(v *prometheus.CounterVec, labels ...string) prometheus.Counter {
	return v.WithLabelValues(append([]string{r.m.model, r.engine}, labels...)...)
}

func (r *rankMetrics) gauge(v *prometheus.GaugeVec, labels ...string) prometheus.Gauge {
	return v.WithLabelValues(append([]string{r.m.model, r.engine}, labels...)...)
}

func (r *rankMetrics) observe(v *prometheus.HistogramVec, x float64) {
	v.WithLabelValues(r.m.model, r.engine).Observe(x)
}

func (r *rankMetrics) seconds(v *prometheus.HistogramVec, d time.Duration) { r.observe(v, d.Seconds()) }

// state sets the gauges.
func (r *rankMetrics) state(s scheduler.Stats, c kvcache.Stats) {
	r.gauge(r.m.running).Set(float64(s.Running))
	r.gauge(r.m.waiting).Set(float64(s.Waiting + s.Skipped))
	r.gauge(r.m.waitingBy, "capacity").Set(float64(s.Waiting))
	r.gauge(r.m.waitingBy, "deferred").Set(float64(s.Skipped))
	r.gauge(r.m.usage).Set(float64(c.Held) / float64(max(1, c.Usable)))
	r.gauge(r.m.blocks, "free").Set(float64(c.Free))
	r.gauge(r.m.blocks, "cached").Set(float64(c.Cached))
	r.gauge(r.m.blocks, "held").Set(float64(c.Held))
	r.gauge(r.m.sessionLeases).Set(float64(c.Leases))
	r.gauge(r.m.sessionBlocks).Set(float64(c.LeasedPositions))
	for _, e := range []struct {
		name string
		now  uint64
		had  *uint64
	}{{"granted", s.Leases, &r.granted}, {"displaced", c.LeasesDisplaced, &r.displaced}, {"evicted", c.LeasesEvicted, &r.evicted}} {
		r.counter(r.m.sessionEvents, e.name).Add(float64(e.now - *e.had))
		*e.had = e.now
	}
}

// offloadEvents are the counters of the host tier by the names of their label.
func offloadEvents(s offload.Stats) map[string]uint64 {
	return map[string]uint64{"save": s.Saves, "no_room": s.NoRoom, "restore": s.Restores, "turn": s.Turns, "hit": s.Hits, "failed": s.Failed}
}

// tier counts what the host tier did since the last look.
func (r *rankMetrics) tier(now, before offload.Stats) {
	old := offloadEvents(before)
	for name, n := range offloadEvents(now) {
		r.counter(r.m.offload, name).Add(float64(n - old[name]))
	}
	r.gauge(r.m.offloadBlocks, "free").Set(float64(now.Free))
	r.gauge(r.m.offloadBlocks, "cached").Set(float64(now.Cached))
	r.gauge(r.m.offloadBlocks, "used").Set(float64(now.Slots - now.Free - now.Cached))
	r.gauge(r.m.offloadStates, "saving").Set(float64(now.Saving))
	r.gauge(r.m.offloadStates, "ready").Set(float64(now.Ready))
	r.gauge(r.m.offloadStates, "restoring").Set(float64(now.Restoring))
}

// step counts an executed step and the time that it took.
func (r *rankMetrics) step(p *scheduler.Plan, took time.Duration) {
	r.m.stepTime.WithLabelValues(r.m.model, r.engine, p.Graph.Mode.String()).Observe(took.Seconds())
	r.observe(r.m.iteration, float64(p.Total))
	r.counter(r.m.graphSteps, p.Graph.Mode.String(), p.Graph.Reason.String()).Inc()
}

// output counts what one output says.
func (r *rankMetrics) output(s *Stream, o *scheduler.Output, now time.Time) {
	t := &s.times
	n := len(o.Tokens)
	if n > 0 {
		r.counter(r.m.generated).Add(float64(n))
		if t.first.IsZero() {
			t.first = now
			r.seconds(r.m.ttft, now.Sub(t.arrived))
			r.seconds(r.m.prefill, now.Sub(t.scheduled))
			r.firstOutput(s, o)
		} else {
			for range n {
				r.seconds(r.m.gap, now.Sub(t.last)/time.Duration(n))
			}
		}
		t.last = now
	}
	if o.Finish == scheduler.NotFinished {
		return
	}
	if o.Finish == scheduler.FinishRefused {
		if s.route == scheduler.AppendPrefill {
			r.counter(r.m.appends, "refused", o.Refusal.Reason.String()).Inc()
		} else { // by its own threshold
			r.counter(r.m.success, o.Refusal.Reason.String()).Inc()
		}
		return
	}
	r.counter(r.m.success, o.Finish.String()).Inc()
	r.observe(r.m.promptLen, float64(s.prompt))
	r.observe(r.m.outputLen, float64(s.count))
	r.observe(r.m.maxTokens, float64(s.req.MaxTokens))
	r.seconds(r.m.e2e, now.Sub(t.arrived))
	if !t.first.IsZero() {
		r.seconds(r.m.inference, now.Sub(t.scheduled))
		r.seconds(r.m.decode, now.Sub(t.first))
		if s.count > 1 {
			r.seconds(r.m.perToken, now.Sub(t.first)/time.Duration(s.count-1))
		}
	}
}

// firstOutput accounts for the prompt.
func (r *rankMetrics) firstOutput(s *Stream, o *scheduler.Output) {
	cached, external := float64(o.Cached), float64(o.External)
	r.counter(r.m.prompt).Add(float64(s.prompt))
	r.counter(r.m.promptCached).Add(cached + external)
	r.counter(r.m.promptSource, "local_cache_hit").Add(cached)
	r.counter(r.m.promptSource, "external_kv_transfer").Add(external)
	r.counter(r.m.promptSource, "local_compute").Add(max(0, float64(s.prompt)-cached-external))
}

// aborted counts a request whose caller has gone.
func (r *rankMetrics) aborted(s *Stream) {
	r.counter(r.m.success, scheduler.FinishAbort.String()).Inc()
	if s.route == scheduler.AppendPrefill && s.times.scheduled.IsZero() {
		r.counter(r.m.appends, "gone", "").Inc()
	}
}

func yesNo(v bool) string {
	if v {
		return "True"
	}
	return "False"
}

// configured states the configuration.
func (r *rankMetrics) configured(c Config, blockBytes int, scheduling string) {
	r.gauge(r.m.blockBytes).Set(float64(blockBytes))
	r.gauge(r.m.cacheInfo, strconv.Itoa(c.BlockSize), strconv.Itoa(c.KVBlocks), yesNo(!c.NoPrefix)).Set(1)
	r.gauge(r.m.info, scheduling, strconv.Itoa(c.Runner), string(c.KVTransfer.Role), c.Device, c.Model).Set(1)
}
