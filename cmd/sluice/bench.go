package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/internal/bench"
	"github.com/sluice-serving/sluice/internal/bench/chaos"
	"github.com/sluice-serving/sluice/internal/bench/demo"
	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/overlap"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/sim/trace"
	"github.com/sluice-serving/sluice/internal/up"
)

const (
	presetDemo      = "append-prefill-demo"
	presetOverlap   = "overlap"
	presetChaos     = "chaos"
	datasetSessions = "sessions"
	datasetRandom   = "random"
)

// benchFlags are the flags of `sluice bench` as they are written.
type benchFlags struct {
	preset, dir string
	port        int
	runner      int
	kills       int

	url, model, apiKey, endpoint, salt, watch, jsonOut string
	timeout                                            time.Duration
	concurrency, repeat                                int
	ignoreEOS, noTokenIDs, records                     bool

	dataset, file, save, first, next, vocab, system string
	seed                                            uint64
	sessions, turns, maxTokens                      int
	arrival, think                                  time.Duration
	requests, inputLen, outputLen                   int
	rate                                            float64
	trace                                           traceFlags
	points                                          pointFlags
}

func newBenchCmd() *cobra.Command {
	b := new(benchFlags)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Replay a frozen workload against an OpenAI-compatible server, or run a preset comparison",
		Long: `Without a preset, sends a workload to --url: conversations whose later turns carry the replies
that really came (--dataset sessions), independent requests of fixed lengths (--dataset random),
a workload file, or a recorded trace (--trace), whose prompts share prefixes where it says so.

With a preset, starts a cluster on this machine; a check that fails makes the exit status 1:
  ` + presetDemo + `  ordinary P/D compared with append-prefill
  ` + presetOverlap + `              a Decoder that preempts, saves and restores what it appended
  ` + presetChaos + `                engines that are killed while they serve
  ` + presetTails + `                prompt tails on FULL graphs, point by point, on GPUs
  ` + presetAppend + `   the published append-prefill experiment, arm by arm, on GPUs

The last two keep each point in a results file as soon as it is measured, and pass over what
the file has, so that they can be called again until every point is there.`,
		Example: `  sluice bench --url http://127.0.0.1:9000 --sessions 24 --turns 3 --json result.json
  sluice bench --preset ` + presetDemo,
		Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := unread(cmd, b.use()); err != nil || b.points.show || b.preset != presetTails && b.preset != presetAppend {
				return err
			}
			return b.points.choose(cmd, b)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&b.preset, "preset", "", "run a whole comparison: "+strings.Join([]string{presetDemo, presetOverlap, presetChaos, presetTails, presetAppend}, ", "))
	f.StringVar(&b.dir, "dir", "", "with a preset: folder for report, join file, logs and traces (default run/PRESET)")
	f.IntVar(&b.kills, "kills", 12, "with the preset "+presetChaos+": engines that are killed; --seed and --num-prompts (500) hold too")
	f.IntVar(&b.runner, "model-runner", 1, "with the preset "+presetOverlap+": generation of the Decoder's executors, 1 or 2")
	f.IntVar(&b.port, "port", 9000, "with the preset "+presetDemo+": port of the proxy")

	f.StringVar(&b.url, "url", "", "base address of the server, such as http://127.0.0.1:9000")
	f.StringVar(&b.model, "model", "", "model that requests name (empty: the first that the server lists); points: only those of this model")
	f.StringVar(&b.apiKey, "api-key", "", "bearer token (empty: $OPENAI_API_KEY)")
	f.StringVar(&b.endpoint, "endpoint", "", "chat or completions (default: chat for sessions, completions for random)")
	f.StringVar(&b.salt, "cache-salt", "", "namespace of the server's prefix cache")
	f.StringVar(&b.watch, "watch", "", "metrics page whose waiting requests are watched, such as http://127.0.0.1:8100/metrics")
	f.StringVar(&b.jsonOut, "json", "", "write the result to this file; - is standard output")
	f.BoolVar(&b.records, "records", false, "with --json: keep a record of every request in it")
	f.DurationVar(&b.timeout, "timeout", 10*time.Minute, "limit of one request (0: none)")
	f.IntVar(&b.concurrency, "max-concurrency", 0, "requests in flight (0: no limit)")
	f.IntVar(&b.repeat, "repeat", 1, "number of runs, of points 3 unless given; medians are reported")
	f.BoolVar(&b.ignoreEOS, "ignore-eos", false, "every answer has its full length")
	f.BoolVar(&b.noTokenIDs, "no-token-ids", false, "do not ask for token ids, for servers that refuse return_token_ids")

	f.StringVar(&b.dataset, "dataset", datasetSessions, "sessions or random")
	f.StringVar(&b.file, "workload", "", "replay this workload file instead of generating one")
	f.StringVar(&b.save, "save-workload", "", "write the generated workload to this file")
	f.StringVar(&b.trace.file, "trace", "", "replay this recorded trace, over completions and with answers of the recorded lengths; reads the forms of sluice sim --trace")
	f.StringVar(&b.trace.ids, "ids", "auto", "trace: where a block id names one block: file, session, or auto to tell by the ids")
	f.BoolVar(&b.trace.lenient, "lenient", false, "trace: leave broken lines out, and list them")
	f.Float64Var(&b.trace.tokens, "scale-tokens", 1, "trace: multiply all lengths by this")
	f.Float64Var(&b.trace.scaleTime, "scale-time", 1, "trace: multiply all times by this")
	f.Float64Var(&b.trace.gap, "gap", 60, "trace: seconds between the starts of sessions, where the trace does not say")
	f.Uint64Var(&b.seed, "seed", 1, "seed of the generated workload")
	f.StringVar(&b.vocab, "token-range", workload.TokenRange.String(), "completions: ids of generated tokens, low-high")
	f.IntVar(&b.sessions, "sessions", 24, "sessions: how many; trace: the first so many, all without this flag")
	f.IntVar(&b.turns, "turns", 3, "sessions: turns of each")
	f.StringVar(&b.first, "first-len", "400-480", "sessions: length of the first input, low-high, in characters or tokens")
	f.StringVar(&b.next, "next-len", "30-60", "sessions: length of later inputs, low-high")
	f.StringVar(&b.system, "system", "", "sessions: system prompt of every chat")
	f.DurationVar(&b.arrival, "arrival", 6*time.Second, "sessions, and the preset "+presetOverlap+": window over which they arrive")
	f.DurationVar(&b.think, "think", 500*time.Millisecond, "sessions, and the preset "+presetOverlap+": pause before a follow-up")
	f.IntVar(&b.maxTokens, "max-tokens", 32, "sessions: output limit of a turn")
	f.IntVar(&b.requests, "num-prompts", 100, "random: number of requests")
	f.IntVar(&b.inputLen, "input-len", 1024, "random: tokens (or characters) of a prompt")
	f.IntVar(&b.outputLen, "output-len", 128, "random: output limit in tokens")
	f.Float64Var(&b.rate, "request-rate", math.Inf(1), "random: requests a second (inf: all at once)")
	b.points.define(f)
	cmd.MarkFlagsOneRequired("preset", "url")
	return cmd
}

func (b *benchFlags) run(cmd *cobra.Command) error {
	if b.preset != "" {
		return b.runPreset(cmd)
	}
	client := load.NewHTTPClient()
	defer client.CloseIdleConnections()
	o, err := b.options(cmd)
	if err != nil {
		return err
	}
	o.Load.Server.Client = client
	out := cmd.OutOrStdout()
	if b.jsonOut == "-" {
		out = cmd.ErrOrStderr()
	}
	res, err := bench.Run(cmd.Context(), *o, out)
	if err != nil {
		return err
	}
	if err := b.writeResult(cmd.OutOrStdout(), res); err != nil {
		return err
	}
	if n := res.Invalid(); n > 0 {
		return fmt.Errorf("%d requests had no valid answer", n)
	}
	return nil
}

// use is the way in which the command is called.
func (b *benchFlags) use() string {
	switch {
	case b.preset != "":
		return "--preset " + b.preset
	case b.file != "":
		return "--workload"
	case b.trace.file != "":
		return "--trace"
	}
	return "--dataset " + b.dataset
}

func (b *benchFlags) writeResult(stdout io.Writer, res *bench.Result) error {
	switch b.jsonOut {
	case "":
		return nil
	case "-":
		return res.Write(stdout)
	}
	return res.WriteFile(b.jsonOut)
}

func (b *benchFlags) runPreset(cmd *cobra.Command) error {
	switch b.preset {
	case presetDemo:
	case presetOverlap:
		return b.runOverlap(cmd)
	case presetChaos:
		return b.runChaos(cmd)
	case presetTails, presetAppend:
		return b.points.run(cmd, b)
	default:
		return fmt.Errorf("unknown preset %q; there are %s, %s, %s, %s, %s", b.preset, presetDemo, presetOverlap, presetChaos, presetTails, presetAppend)
	}
	p := demo.Default()
	p.Dir, p.Cluster.Port = b.folder(), b.port
	report, err := demo.Run(cmd.Context(), p, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	if failed := report.Failed(); len(failed) > 0 {
		names := make([]string, 0, len(failed))
		for _, c := range failed {
			names = append(names, c.Name)
		}
		return fmt.Errorf("%d checks failed: %s", len(failed), strings.Join(names, ", "))
	}
	return nil
}

func (b *benchFlags) runOverlap(cmd *cobra.Command) error {
	p := overlap.Default()
	p.Dir, p.Runner = b.folder(), b.runner
	if cmd.Flags().Changed("device") {
		if err := b.points.on(cmd.Context(), &p); err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("arrival") {
		p.Conversations.Arrival = b.arrival
	}
	if cmd.Flags().Changed("think") {
		p.Conversations.Think = b.think
	}
	for _, e := range []*up.Engine{&p.Cluster.Prefiller, &p.Cluster.Decoder, &p.Alone} {
		e.Extra = append(e.Extra, strings.Fields(b.points.engine)...)
	}
	report, err := overlap.Run(cmd.Context(), p, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	if failed := report.Failed(); len(failed) > 0 {
		return errors.New(strings.Join(failed, "; "))
	}
	return nil
}

func (b *benchFlags) runChaos(cmd *cobra.Command) error {
	p := chaos.Params{Seed: b.seed, Requests: b.requests, Kills: b.kills, Dir: b.folder()}
	if !cmd.Flags().Changed("num-prompts") {
		p.Requests = 0
	}
	report, err := chaos.Run(cmd.Context(), p, cmd.OutOrStdout())
	if err != nil {
		return fmt.Errorf("seed %d: %w", b.seed, err)
	}
	if broken := report.Broken(); len(broken) > 0 {
		return fmt.Errorf("seed %d: %s", b.seed, strings.Join(broken, "; "))
	}
	return nil
}

// folder is where a preset writes.
func (b *benchFlags) folder() string {
	if b.dir != "" {
		return b.dir
	}
	return filepath.Join("run", b.preset)
}

func (b *benchFlags) options(cmd *cobra.Command) (*bench.Options, error) {
	errs := []error{baseURL("url", b.url)}
	if b.records && b.jsonOut == "" {
		errs = append(errs, errors.New("--records needs --json, where the records go"))
	}
	if b.watch != "" {
		errs = append(errs, baseURL("watch", b.watch))
	}
	if _, err := trace.ParseIDs(b.trace.ids); err != nil {
		errs = append(errs, fmt.Errorf("--ids: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if b.apiKey == "" {
		b.apiKey = os.Getenv("OPENAI_API_KEY")
	}
	o := &bench.Options{Repeat: b.repeat, Records: b.records, Watch: b.watch, Load: load.Config{
		Server: load.Server{URL: b.url, Model: b.model, APIKey: b.apiKey}, CacheSalt: b.salt, Timeout: b.timeout, MaxConcurrency: b.concurrency,
	}}
	if b.ignoreEOS || b.trace.file != "" {
		o.Load.EOS = load.IgnoreEOS
	}
	if b.noTokenIDs {
		o.Load.TokenIDs = load.WithoutTokenIDs
	}
	if b.endpoint == "" {
		b.endpoint = load.Chat.String()
		if b.dataset == datasetRandom || b.trace.file != "" {
			b.endpoint = load.Completions.String()
		}
	}
	var err error
	if o.Load.Endpoint, err = load.ParseEndpoint(b.endpoint); err != nil {
		return nil, err
	}
	if given := cmd.Flags().Lookup("token-range"); given.Changed && o.Load.Endpoint == load.Chat {
		return nil, fmt.Errorf("--token-range is %s, which --endpoint chat does not read: it goes with --endpoint completions", b.vocab)
	}
	if b.system != "" && o.Load.Endpoint != load.Chat {
		return nil, fmt.Errorf("--system is %q, which --endpoint completions does not read: it goes with --endpoint chat", b.system)
	}
	if o.Workload, err = b.workload(cmd, o.Load.Endpoint); err != nil {
		return nil, err
	}
	if b.save != "" {
		if err := writeWorkload(b.save, o.Workload); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// baseURL reports what is wrong with an address that a flag names.
func baseURL(flag, text string) error {
	if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--%s %q: give an address of the server, such as http://127.0.0.1:9000", flag, text)
	}
	return nil
}

func writeWorkload(path string, w *workload.Workload) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(w.Write(f), f.Close())
}

func (b *benchFlags) workload(cmd *cobra.Command, e load.Endpoint) (*workload.Workload, error) {
	if b.file != "" {
		f, err := os.Open(b.file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return workload.Read(f)
	}
	content := workload.Text
	if e == load.Completions {
		content = workload.Tokens
	}
	vocab, err := parseRange("token-range", b.vocab)
	if err != nil {
		return nil, err
	}
	if b.trace.file != "" {
		sessions := 0
		if cmd.Flags().Changed("sessions") {
			sessions = b.sessions
		}
		return b.trace.workload(sessions, vocab, cmd.ErrOrStderr())
	}
	switch b.dataset {
	case datasetRandom:
		return (&workload.RandomPrompts{
			Seed: b.seed, Content: content, Requests: b.requests, InputLen: b.inputLen, OutputLen: b.outputLen, Rate: b.rate, Vocab: vocab,
		}).Generate()
	case datasetSessions:
		first, err := parseRange("first-len", b.first)
		if err != nil {
			return nil, err
		}
		next, err := parseRange("next-len", b.next)
		if err != nil {
			return nil, err
		}
		return (&workload.Conversations{
			Name: datasetSessions, Seed: b.seed, Content: content, Sessions: b.sessions, Turns: b.turns, First: first, Next: next,
			Vocab: vocab, System: b.system, Arrival: b.arrival, Think: b.think, MaxTokens: b.maxTokens,
		}).Generate()
	}
	return nil, fmt.Errorf("dataset %q is neither %s nor %s", b.dataset, datasetSessions, datasetRandom)
}

// parseRange reads "low-high", or one number for both.
func parseRange(flag, s string) (workload.Range, error) {
	low, high, two := strings.Cut(s, "-")
	if !two {
		high = low
	}
	a, errA := strconv.Atoi(low)
	z, errZ := strconv.Atoi(high)
	if errA != nil || errZ != nil {
		return workload.Range{}, fmt.Errorf("--%s %q is not of the form low-high", flag, s)
	}
	return workload.Range{Low: a, High: z}, nil
}
