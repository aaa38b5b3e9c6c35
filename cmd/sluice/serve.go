package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/progress"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/server"
)

// deviceLost is the exit status of an engine whose device is lost: whoever
// started it starts it again.
const deviceLost = 75

func newServeCmd() *cobra.Command {
	var (
		cfg                                                                               engine.Config
		run                                                                               server.RunOptions
		transfer, additional, refusal, graphMode, policy, generation, speculative, events string
		prefix, noPrefix, async, noAsync, noise                                           bool
		level                                                                             logLevel
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model over the OpenAI HTTP interface",
		Long: `Serves a model with the reference engine: OpenAI's completions and chat on --host and
--port, metrics on /metrics, readiness on /health. The built-in model needs no download.

In a cluster of Prefillers and Decoders --kv-transfer-config says the role and how KV
moves; a Decoder appends to prefixes that it holds with --additional-config. SIGTERM
drains. Exit status 75 means that the device is lost and a restart is needed.`,
		Example: `  sluice serve --port 8100 --kv-transfer-config '{"kv_connector":"pd","kv_role":"kv_producer"}'
  sluice serve --port 8200 --data-parallel-size 2 \
    --kv-transfer-config '{"kv_connector":"pd","kv_role":"kv_consumer"}' \
    --additional-config '{"scheduler_config":{"decoder_append_prefill_enable":true}}'`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			var errs [8]error
			cfg.KVTransfer, errs[0] = engine.ParseKVTransfer(transfer)
			cfg.Additional, errs[1] = engine.ParseAdditional(additional)
			cfg.AppendRefusal, errs[2] = engine.ParseAppendRefusal(refusal)
			cfg.GraphMode, errs[3] = graphs.ParseModeConfig(graphMode)
			cfg.GraphPolicy, errs[4] = graphs.ParsePolicy(policy)
			cfg.Speculative, errs[6] = engine.ParseSpeculative(speculative)
			cfg.Generation, errs[5] = engine.ParseGeneration(generation)
			cfg.KVEvents, errs[7] = engine.ParseKVEvents(events)
			return errors.Join(errs[:]...)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.NoPrefix = noPrefix || !prefix
			cfg.Sync = noAsync || !async
			cfg.HashSeed = os.Getenv("PYTHONHASHSEED")
			if noise {
				run.Noise = server.NoiseAllowed
			}
			run.Out = cmd.OutOrStdout()
			run.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.Level(level)}))
			if out := cmd.ErrOrStderr(); progress.IsTerminal(out) {
				run.Capturing = captureBar(out)
			}
			err := server.Run(cmd.Context(), cfg, run)
			if errors.Is(err, ascendrt.ErrDeviceLost) {
				return &exitError{deviceLost, err}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&run.Host, "host", "127.0.0.1", "address to listen on")
	f.IntVar(&run.Port, "port", 8000, "port to listen on; 0: any free one")
	f.StringVar(&cfg.Model, "model", "builtin", "model to serve: builtin, random:qwen3-0.6b, random:llama3-8b, random:tiny, random:tiny-moe, or the folder of a checkpoint")
	f.BoolVar(&cfg.SkipTokenizer, "skip-tokenizer-init", false, "do not read a checkpoint's tokenizer: token ids in and out only")
	f.StringVar(&cfg.ServedModelName, "served-model-name", "", "name that requests use (default the model's)")
	f.StringVar(&generation, "override-generation-config", "", "JSON object: sampling parameters of requests that name none (temperature, top_k, top_p, min_p, repetition_penalty), over the model's own")
	f.StringVar(&cfg.Device, "device", "host", "device to run on: host, ascend or cuda, with :n for another than the first")
	f.StringVar(&cfg.DType, "dtype", "auto", "storage of weights, activations and KV: float32, bfloat16; auto: float32 on the host, else bfloat16")
	f.BoolVar(&cfg.BatchInvariant, "batch-invariant", false, "use operations with which the bits of a request depend on nothing that runs beside it, also where faster ones exist (bfloat16 on Hopper)")
	f.BoolVar(&cfg.NamedOperations, "named-operations", false, "compute with the slow operations of docs/numerics.md alone: the bits of the host device (bfloat16 on Hopper; float32 always has them)")
	f.IntVar(&cfg.DeviceWorkers, "device-workers", 0, "CPU cores per operation of the host device; 0: all")
	f.IntVar(&cfg.DataParallel, "data-parallel-size", 1, "ranks behind the port")
	f.BoolVar(&cfg.ExpertParallel, "enable-expert-parallel", false, "the ranks of --data-parallel-size have a model's experts among them (on the host device)")
	f.IntVar(&cfg.BlockSize, "block-size", 0, "tokens per KV block; 0: 16, on Ascend 128")
	f.IntVar(&cfg.KVBlocks, "num-kv-blocks", 0, "KV blocks per rank; 0: 2048 on the host, else what fits the device's free memory")
	f.IntVar(&cfg.MaxSeqs, "max-num-seqs", 64, "requests that run at once per rank")
	f.IntVar(&cfg.MaxTokens, "max-num-batched-tokens", 512, "tokens per step and rank")
	f.IntVar(&cfg.MaxModelLen, "max-model-len", 4096, "tokens of prompt and output")
	f.IntVar(&cfg.MaxQueue, "max-queue", 4096, "requests per rank, running or waiting, above which new ones get 429")
	f.Float64Var(&cfg.Watermark, "watermark", 0, "share of KV blocks that admissions leave free")
	f.BoolVar(&prefix, "enable-prefix-caching", true, "reuse the KV of equal prefixes")
	f.BoolVar(&noPrefix, "no-enable-prefix-caching", false, "compute every prompt in full")
	f.BoolVar(&async, "async-scheduling", true, "plan the next step while one runs")
	f.BoolVar(&noAsync, "no-async-scheduling", false, "plan a step after the one before it")
	f.StringVar(&graphMode, "cudagraph-mode", graphs.ModeFullAndPiecewise.String(), "graphs to capture: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE")
	f.StringVar(&policy, "graph-policy", graphs.OneNewTokenHardened.String(), "prefilling rows that decode graphs take: one-new-token-hardened, strict, consumer-one-token, one-new-token, shape-only")
	f.BoolVar(&cfg.GraphMetrics, "cudagraph-metrics", false, "log a table of graph use every 10 s and at the end")
	f.BoolVar(&cfg.Eager, "enforce-eager", false, "use no graphs")
	f.StringVar(&speculative, "speculative-config", "", `JSON object: method "ngram", num_speculative_tokens, prompt_lookup_max, prompt_lookup_min; steps then do not overlap`)
	f.StringVar(&transfer, "kv-transfer-config", "", "JSON object: kv_connector, kv_role and their options")
	f.StringVar(&events, "kv-events-config", "", "JSON object: enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic, event_form")
	f.StringVar(&additional, "additional-config", "", "JSON object: scheduler_config")
	f.IntVar(&cfg.Runner, "model-runner", 1, "generation of executors that steps are planned for: 1, resumed requests are known; 2, they come as new ones")
	f.IntVar(&cfg.KVPort, "kv-port", 0, "port of the connector's side channel of rank 0; 0: any free one")
	f.StringVar(&refusal, "append-refusal", engine.RefuseStatus.String(), "how a refused append attempt is reported: 412 or in-band")
	f.Float64Var(&cfg.CacheHitThreshold, "global-cache-hit-threshold", 0, "share of a prompt, 0 to 1, that must be cached")
	f.IntVar(&cfg.StepLines, "step-lines", 0, "lines of the last steps that each rank keeps for a dump (SIGQUIT, a broken invariant); 0: 4096 on the host device, none elsewhere; -1: none")
	f.StringVar(&cfg.DumpDir, "dump-dir", "", "folder of dumps, for sluice replay (default the system's for temporary files)")
	f.StringVar(&run.TraceFile, "trace-file", "", "append a JSON line per decision to this file")
	f.Var(&level, "log-level", "least level of the log: debug, info, warning or error; debug has a line per append attempt")
	f.DurationVar(&cfg.DrainTimeout, "drain-timeout", 30*time.Second, "how long running requests may go on after a stop")
	f.BoolVar(&noise, "enable-kv-noise", false, "let requests with kv_noise run on KV that was overwritten: the control of identity checks")
	return cmd
}

// logLevel is a flag's value with the names that the proxy's has too.
type logLevel slog.Level

func (l *logLevel) Type() string { return "string" }

func (l *logLevel) String() string {
	if slog.Level(*l) == slog.LevelWarn {
		return "warning"
	}
	return strings.ToLower(slog.Level(*l).String())
}

func (l *logLevel) Set(s string) error {
	switch strings.ToLower(s) {
	case "debug":
		*l = logLevel(slog.LevelDebug)
	case "info":
		*l = logLevel(slog.LevelInfo)
	case "warning", "warn":
		*l = logLevel(slog.LevelWarn)
	case "error":
		*l = logLevel(slog.LevelError)
	default:
		return errors.New("give debug, info, warning or error")
	}
	return nil
}

// captureBar shows on a terminal how many graphs of a rank are captured.
func captureBar(out io.Writer) func(rank, done, all int) {
	var observe func(done, all int)
	var end func()
	return func(rank, done, all int) {
		if observe == nil {
			observe, end = bar(out, fmt.Sprintf("rank %d: capture graphs", rank))
		}
		observe(done, all)
		if done == all {
			end()
			observe = nil
		}
	}
}

// bar shows how much of something is done, as package progress does.
func bar(out io.Writer, label string) (observe func(done, all int), end func()) {
	b := progress.Start(out, label)
	return func(done, all int) { b.Observe(load.Progress{Total: all, Sent: done, Done: done}) }, b.End
}
