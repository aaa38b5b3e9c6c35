package overlap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/progress"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/chain"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/up"
)

// Params says what is run.
type Params struct {
	Conversations workload.Conversations
	Cluster       up.Cluster
	Alone         up.Engine // the engine without any cache
	Runner        int       // generation of the Decoder's executors, 1 or 2; 0: 1
	Control       int       // sessions of the negative control
	Dir           string    // for logs, traces and the report
	Model         string
	Timeout       time.Duration // of one request
}

// hostTier is the connector of the Decoder: what is preempted goes to 64 MiB of
// host memory, first turns come from the Prefiller.
const hostTier = `{"kv_connector":"multi","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[` +
	`{"kv_connector":"offload","kv_connector_extra_config":{"cpu_bytes_to_use":67108864}},{"kv_connector":"pd"}]}}`

// Default is 24 sessions of three turns, 72 requests of 512 output tokens. A
// session ends with about 2,000 tokens, 130 blocks of its rank's 420, and a
// dozen share a rank.
func Default() Params {
	return Params{
		Conversations: workload.Conversations{
			Name: "overlap", Seed: 20261124, Content: workload.Text,
			Sessions: 24, Turns: 3, First: workload.Range{Low: 250, High: 350}, Next: workload.Range{Low: 30, High: 60},
			Arrival: 3 * time.Second, Think: 50 * time.Millisecond, MaxTokens: 512,
		},
		Cluster: up.Cluster{
			Profile:   "plain", // any prefix is appended to, however full the Decoder is: the overlap needs both at once
			Prefiller: up.Engine{MaxSeqs: 4, MaxLen: 4096, Workers: 1},
			Decoder:   up.Engine{Ranks: 2, Blocks: 420, MaxSeqs: 16, StepLimit: 256, MaxLen: 4096, Workers: 1, Extra: []string{"--enable-kv-noise"}, Transfer: hostTier},
		},
		Alone:   up.Engine{Caching: up.NoCaching, Blocks: 4096, MaxSeqs: 16, StepLimit: 512, MaxLen: 4096},
		Control: 8,
		Model:   "builtin",
		Timeout: 5 * time.Minute,
	}
}

// On puts all engines onto a device, of which there are so many from its ordinal on.
// The Decoder's pool keeps its tokens: with one device one rank has the pools of both,
// and a block of an Ascend device has 128 tokens.
func (p *Params) On(backend, device string, devices int) {
	p.Cluster.Device = device
	d := &p.Cluster.Decoder
	if backend != "host" && devices < d.Ranks {
		d.Blocks, d.MaxSeqs, d.Ranks = d.Blocks*d.Ranks, d.MaxSeqs*d.Ranks, 1
	}
	if backend == "ascend" {
		d.Blocks, d.BlockSize = d.Blocks*hostBlock/ascendBlock, ascendBlock
	}
}

// Tokens of a KV block, where none is asked for.
const hostBlock, ascendBlock = 16, 128

// Report is the outcome of a run.
type Report struct {
	Requests, Correct                   int
	Appends, Refused                    float64 // attempts on the Decoder
	Preemptions, Saves, NoRoom, Restore float64
	Chains                              []string // requests that went the whole way, in order
	HeldAfter                           float64  // KV blocks, leases and host blocks in use, of all engines
	Controlled, Changed                 int      // follow-ups over damaged KV, and how many of them answered differently
	Seconds                             float64
}

// Failed lists what does not hold.
func (r *Report) Failed() []string {
	var out []string
	bad := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	bad(r.Correct != r.Requests || r.Requests == 0, "%d of %d answers are those of the engine without a cache", r.Correct, r.Requests)
	bad(len(r.Chains) == 0, "no request went from an append attempt over preemption, save and restore to its last token")
	bad(r.Restore == 0, "nothing was restored from the host")
	bad(r.Appends == 0, "no append attempt was admitted")
	bad(r.HeldAfter != 0, "%v blocks or leases are held afterwards", r.HeldAfter)
	bad(r.Controlled == 0 || float64(r.Changed) < 0.95*float64(r.Controlled), "only %d of %d answers notice a damaged block: equal answers would prove nothing", r.Changed, r.Controlled)
	return out
}

// runner carries one run.
type runner struct {
	p      *Params
	out    io.Writer
	sup    *up.Supervisor
	client *http.Client
	w      *workload.Workload
	report *Report
}

const decoderName = "d0"

// Run starts the cluster, replays the workload on it and on an engine without a
// cache, and gives the report. An error means that the run could not be
// finished. Every process has ended when Run returns.
func Run(ctx context.Context, p Params, out io.Writer) (report *Report, err error) {
	begin := time.Now()
	w, err := p.Conversations.Generate()
	if err != nil {
		return nil, err
	}
	p.Cluster.TraceDir = p.Dir
	trace := p.Cluster.TraceFile(decoderName)
	if err := os.Remove(trace); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	sup, stop, err := up.NewIn(p.Dir, up.Overwrite, up.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	client := load.NewHTTPClient()
	defer client.CloseIdleConnections()
	if p.Runner != 0 {
		p.Cluster.Decoder.Extra = append(p.Cluster.Decoder.Extra, "--model-runner", strconv.Itoa(p.Runner))
	}
	r := &runner{p: &p, out: out, sup: sup, client: client, w: w, report: &Report{Requests: w.Requests()}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // a process that dies ends the run
		select {
		case err := <-sup.Deaths():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	if err := r.all(ctx); err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	f, err := os.Open(trace)
	if err != nil {
		return nil, err
	}
	r.report.Chains = chain.Complete(f, p.Conversations.MaxTokens)
	r.report.Seconds = time.Since(begin).Seconds()
	return r.report, errors.Join(f.Close(), r.print())
}

func (r *runner) all(ctx context.Context) error {
	cluster, err := r.p.Cluster.Start(ctx, r.sup, up.AppendPrefill)
	if err != nil {
		return err
	}
	got, err := r.replay(ctx, "append-prefill and offload", cluster.Proxy.URL(), "right-", "right", nil)
	if err != nil {
		return err
	}
	if err := r.settle(ctx, cluster); err != nil {
		return err
	}
	noisy, err := r.control(ctx, cluster.Decoder.URL())
	if err != nil {
		return err
	}
	if err := r.sup.StopAll(); err != nil {
		return err
	}
	alone, err := r.sup.Start(ctx, r.p.Cluster.AloneCommand("alone", r.p.Alone))
	if err != nil {
		return err
	}
	want, err := r.replay(ctx, "one engine without any cache", alone.URL(), "alone-", "", nil)
	if err != nil {
		return err
	}
	right := map[string]*measure.Record{}
	for i := range want {
		right[fmt.Sprint(want[i].Session, want[i].Turn)] = &want[i]
	}
	for i := range got {
		if got[i].Valid() && got[i].OutputTokens == r.p.Conversations.MaxTokens && measure.SameAnswer(&got[i], &want[i]) {
			r.report.Correct++
		}
	}
	for i := range noisy {
		if n := &noisy[i]; n.Turn == 1 && n.Valid() {
			r.report.Controlled++
			if !measure.SameAnswer(n, right[fmt.Sprint(n.Session, n.Turn)]) {
				r.report.Changed++
			}
		}
	}
	return nil
}

func (r *runner) replay(ctx context.Context, title, url, prefix, salt string, prepare func(string, int, *load.Call)) ([]measure.Record, error) {
	bar := progress.Start(r.out, title)
	defer bar.End()
	w := r.w
	if prepare != nil {
		w = w.Cut(2)
		w.Sessions = w.Sessions[:min(len(w.Sessions), r.p.Control)]
	}
	return load.Run(ctx, w, load.Config{
		Server: load.Server{URL: url, Model: r.p.Model, Client: r.client}, Endpoint: load.Chat, EOS: load.IgnoreEOS,
		Prefix: prefix, CacheSalt: salt, Timeout: r.p.Timeout, Observe: bar.Observe, Prepare: prepare,
	})
}

// control asks the Decoder follow-ups over KV of which one block was overwritten.
func (r *runner) control(ctx context.Context, url string) ([]measure.Record, error) {
	ranks := max(r.p.Cluster.Decoder.Ranks, 1)
	rank := map[string]string{}
	for i := range r.w.Sessions {
		rank[r.w.Sessions[i].ID] = strconv.Itoa(i % ranks)
	}
	return r.replay(ctx, "negative control: wrong KV", url, "wrong-", "wrong", func(session string, turn int, call *load.Call) {
		call.Header.Set("X-data-parallel-rank", rank[session])
		if req, ok := call.Body.(*openai.ChatRequest); ok && turn == 1 {
			call.Body = struct {
				*openai.ChatRequest
				Noise bool `json:"kv_noise"`
			}{req, true}
		}
	})
}

// settle waits until nothing is held, and takes the Decoder's counters.
func (r *runner) settle(ctx context.Context, c *up.Running) error {
	for deadline := time.Now().Add(15 * time.Second); ; {
		r.report.HeldAfter = 0
		for _, e := range []*up.Child{c.Prefiller, c.Decoder} {
			page, err := scrape.Fetch(ctx, r.client, e.URL()+"/metrics")
			if err != nil {
				return err
			}
			r.report.HeldAfter += page.Sum("sluice_kv_blocks", map[string]string{"state": "held"}) + page.Sum("sluice_kv_leases", nil) +
				page.Sum("sluice_kv_offload_blocks", map[string]string{"state": "used"})
			if e != c.Decoder {
				continue
			}
			r.report.Preemptions = page.Sum("vllm:num_preemptions_total", nil)
			r.report.Appends = page.Sum("sluice_append_prefill_total", map[string]string{"result": "hit"})
			r.report.Refused = page.Sum("sluice_append_prefill_total", map[string]string{"result": "refused"})
			for name, v := range map[string]*float64{"save": &r.report.Saves, "no_room": &r.report.NoRoom, "restore": &r.report.Restore} {
				*v = page.Sum("sluice_kv_offload_total", map[string]string{"event": name})
			}
		}
		if r.report.HeldAfter == 0 || time.Now().After(deadline) {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *runner) print() error {
	x := r.report
	first := "none"
	if len(x.Chains) > 0 {
		first = x.Chains[0]
	}
	_, err := fmt.Fprintf(r.out, `answers equal to those without a cache   %d of %d
append attempts admitted / refused       %.0f / %.0f
preemptions, saved on the host, restored %.0f, %.0f, %.0f (no room: %.0f)
append → preempt → save → ready → restore → %d tokens, in this order: %d requests, the first %s
held afterwards                          %.0f
answers changed by one damaged block     %d of %d
time                                     %.1f s
`, x.Correct, x.Requests, x.Appends, x.Refused, x.Preemptions, x.Saves, x.Restore, x.NoRoom, r.p.Conversations.MaxTokens, len(x.Chains), first,
		x.HeldAfter, x.Changed, x.Controlled, x.Seconds)
	return err
}
