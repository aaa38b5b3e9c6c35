package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/backends"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/kvcache"
)

// Config is what an operator can choose. The zero value of a field means the
// default that its comment names.
type Config struct {
	Model           string          // "builtin", the default: the model that the binary carries; "random:" and a shape; or a checkpoint's folder
	SkipTokenizer   bool            // leaves a checkpoint's tokenizer alone: prompts and answers are token ids
	ServedModelName string          // the name that requests use; default Model
	Generation      sample.Defaults // of requests that name none, over the model's own
	Device          string          // "host", the default, "ascend" or "cuda", with ":n" for another ordinal than 0
	DType           string          // "float32" or "bfloat16"; "auto", the default: float32 on the host, bfloat16 elsewhere
	BatchInvariant  bool            // the bits of a request depend on nothing that runs beside it, also where faster operations exist
	NamedOperations bool            // no fused operations: besides, the same bits on every device that computes as docs/numerics.md
	DeviceWorkers   int             // CPU cores per operation of the host device; default all

	BlockSize    int     // tokens per KV block; default 16, on Ascend 128
	KVBlocks     int     // blocks per rank besides the null block, enough for one sequence of MaxModelLen; default 2,048 on the host, elsewhere what fits the device's free memory
	NoPrefix     bool    // switches prefix caching off
	MaxSeqs      int     // requests that run at once per rank; default 64
	MaxTokens    int     // tokens per step and rank; default 512
	MaxModelLen  int     // tokens of prompt and output; default 4,096, at most the model's
	MaxQueue     int     // requests per rank, running or waiting, above which new ones get 429; default 4,096
	Watermark    float64 // share of blocks that admissions leave free; default 0
	DataParallel int     // ranks behind the one HTTP port; default 1

	ExpertParallel bool // the ranks have the model's experts among them; else each has all

	Speculative  Speculative       // drafts; none by default. With drafts steps do not overlap: how many count decides the next step
	Sync         bool              // plans one step at a time; the default plans the next one while a step runs
	GraphMode    graphs.ModeConfig // default FULL_AND_PIECEWISE
	GraphPolicy  graphs.Policy     // default one-new-token-hardened
	Eager        bool              // no graphs at all
	GraphMetrics bool              // logs a table of graph use every 10 s and at the end

	KVTransfer KVTransfer
	KVEvents   KVEvents
	HashSeed   string // text that the hashes of blocks in KV events begin with, vLLM's PYTHONHASHSEED: equal seeds give equal hashes
	Additional Additional
	KVPort     int // port of the connector's side channel of rank 0; rank r listens on KVPort+r; 0: any free port
	Runner     int // generation of executors that plans are made for, 1 or 2; default 1

	AppendRefusal     AppendRefusal // how a refused append attempt is reported; default 412
	CacheHitThreshold float64       // share of the prompt, 0 to 1, that must be cached unless a request says otherwise; default 0

	// StepLines are the lines of the last steps that each rank keeps for a dump.
	// Default 4,096 on the host device, whose steps take milliseconds, and none
	// elsewhere, where a line a step would be felt; -1: none.
	StepLines int
	DumpDir   string // where dumps go; default the system's folder for temporary files

	DrainTimeout time.Duration // how long running requests may go on after a stop; default 30 s
}

// AppendRefusal says how a refused append attempt reaches the client.
type AppendRefusal uint8

const (
	// RefuseStatus answers 412 before any other byte.
	RefuseStatus AppendRefusal = iota
	// RefuseInBand answers an ordinary completion without tokens and with the
	// stop reason append_prefill_miss.
	RefuseInBand
)

// String is the name that the flag uses.
func (r AppendRefusal) String() string {
	if r == RefuseInBand {
		return "in-band"
	}
	return "412"
}

// ParseAppendRefusal reads a name as String writes it.
func ParseAppendRefusal(s string) (AppendRefusal, error) {
	for _, r := range []AppendRefusal{RefuseStatus, RefuseInBand} {
		if s == r.String() {
			return r, nil
		}
	}
	return 0, fmt.Errorf("unknown append refusal %q (one of 412, in-band)", s)
}

// Additional is the value of --additional-config.
type Additional struct {
	Scheduler SchedulerOptions `json:"scheduler_config"`
}

// SchedulerOptions are the scheduler's switches. A member that is absent is off.
type SchedulerOptions struct {
	DecoderAppendPrefill bool          `json:"decoder_append_prefill_enable"`
	AppendProfile        AppendProfile `json:"decoder_append_prefill_profile"`
	AppendGuards         AppendGuards  `json:"decoder_append_prefill_guards"`
	Recompute            bool          `json:"recompute_scheduler_enable"`

	// Schedulers of vllm-ascend that this engine does not have: known, so that
	// what they exclude can be said.
	Balance        bool            `json:"enable_balance_scheduling"`
	ShortFirst     json.RawMessage `json:"short_request_first_config"`
	ProfilingChunk json.RawMessage `json:"profiling_chunk_config"`
	BatchJob       json.RawMessage `json:"batch_job_sched_config"`
	DyntraLB       json.RawMessage `json:"dyntra_lb_config"`
}

// AppendProfile names a set of guards around append attempts.
type AppendProfile string

// The profiles. Plain admits every attempt that finds a prefix and is the
// default; guarded adds thresholds, the governor, leases and the comparison
// with the other route.
const (
	AppendPlain   AppendProfile = "plain"
	AppendGuarded AppendProfile = "guarded"
)

// ParseGeneration reads the value of --override-generation-config. Unknown
// members are errors.
func ParseGeneration(s string) (sample.Defaults, error) {
	var d sample.Defaults
	err := parseStrict("override-generation-config", s, &d)
	return d, err
}

// ParseAdditional reads the value of --additional-config. Unknown members are errors.
func ParseAdditional(s string) (Additional, error) {
	var a Additional
	err := parseStrict("additional-config", s, &a)
	return a, err
}

func parseStrict(what, s string, v any) error {
	if s == "" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", what, memberError(err, v))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%s: more than one JSON value", what)
	}
	return nil
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Model == "" {
		c.Model = "builtin"
	}
	if c.ServedModelName == "" {
		c.ServedModelName = c.Model
	}
	if c.Device == "" {
		c.Device = "host"
	}
	if c.DType == "" {
		c.DType = "auto"
	}
	if c.ascend() {
		def(&c.BlockSize, ascendBlock)
	}
	def(&c.BlockSize, kvcache.DefaultBlockSize)
	if name, _, _ := strings.Cut(c.Device, ":"); name == "host" || name == "ascend" {
		def(&c.KVBlocks, 2048)
	}
	def(&c.MaxSeqs, 64)
	def(&c.MaxTokens, 512)
	def(&c.MaxModelLen, 4096)
	def(&c.MaxQueue, 4096)
	def(&c.DataParallel, 1)
	def(&c.Runner, 1)
	if c.Speculative.on() {
		c.Speculative = c.Speculative.withDefaults()
		c.Sync = true
	}
	if c.Device == "host" {
		def(&c.StepLines, defaultStepLines)
	}
	if c.Eager {
		c.GraphMode = graphs.ModeNone
	}
	if c.KVTransfer.IP == "" {
		c.KVTransfer.IP = "127.0.0.1"
	}
	if c.KVPort == 0 {
		c.KVPort = c.KVTransfer.Port
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 30 * time.Second
	}
	return c
}

// Limit is what a number of the configuration may be, when its default is filled in.
type Limit struct{ Least, Most int }

// Limits are those of the numbers, by the name that the operator writes.
var Limits = map[string]Limit{
	"block-size": {1, kvcache.MaxBlockSize}, "num-kv-blocks": {0, kvcache.MaxBlocks - 1}, "max-num-seqs": {1, 1 << 16}, "max-num-batched-tokens": {1, 1 << 20},
	"max-model-len": {1, 1 << 20}, "max-queue": {1, 1 << 20}, "data-parallel-size": {1, 256}, "kv-port": {0, 65535}, "device-workers": {0, 1 << 12},
	"model-runner": {1, 2}, "step-lines": {-1, 1 << 20},
}

// Validate joins everything that is wrong with the configuration. Values out of
// range are *SettingError, pairs that exclude each other *ConflictError.
func (c Config) Validate() error { return (&choices{Config: c}).validate() }

func (c *choices) validate() error {
	d := &choices{c.withDefaults(), c.own}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if shape, ok := strings.CutPrefix(d.Model, randomPrefix); ok {
		m, err := model.Shape(shape)
		if err == nil {
			err = d.checkExperts(m)
		}
		errs = append(errs, err)
	} else if d.Model == "builtin" {
		errs = append(errs, d.checkExperts(builtinModel))
	} else if info, err := os.Stat(d.Model); err != nil || !info.IsDir() {
		bad("unknown model %q (\"builtin\", \"random:\" and a shape, or a checkpoint's folder)", d.Model)
	}
	if _, _, err := backends.Find(d.Device); err != nil {
		errs = append(errs, err)
	}
	if d.DType != "auto" && d.DType != "float32" && d.DType != "bfloat16" {
		bad("unknown dtype %q (one of auto, float32, bfloat16)", d.DType)
	}
	if d.ascend() {
		if d.BlockSize%ascendBlock != 0 || d.BlockSize > 4*ascendBlock {
			bad("block-size is %d, must be 128, 256, 384 or 512 on Ascend", d.BlockSize)
		}
	}
	for _, f := range []struct {
		name string
		v    int
	}{
		{"block-size", d.BlockSize}, {"num-kv-blocks", d.KVBlocks}, {"max-num-seqs", d.MaxSeqs}, {"max-num-batched-tokens", d.MaxTokens},
		{"max-model-len", d.MaxModelLen}, {"max-queue", d.MaxQueue}, {"data-parallel-size", d.DataParallel}, {"kv-port", d.KVPort},
		{"device-workers", d.DeviceWorkers}, {"model-runner", d.Runner}, {"step-lines", d.StepLines},
	} {
		l := Limits[f.name]
		if f.name == "max-model-len" && d.Model == "builtin" {
			l.Most = builtinModel.MaxPositions
		}
		if f.v < l.Least || f.v > l.Most {
			errs = append(errs, within(f.name, f.v, l.Least, l.Most))
		}
	}
	if size := d.BlockSize; size > 0 && d.KVBlocks > 0 && d.KVBlocks < (d.MaxModelLen+size-1)/size {
		need := (d.MaxModelLen + size - 1) / size
		errs = append(errs, &SettingError{"num-kv-blocks", d.KVBlocks, fmt.Sprintf("at least %d: what one sequence of max-model-len %d takes in blocks of %d", need, d.MaxModelLen, size)})
	}
	if !(d.Watermark >= 0 && d.Watermark < 1) {
		errs = append(errs, &SettingError{"watermark", d.Watermark, "at least 0 and below 1"})
	}
	if d.DumpDir != "" {
		if info, err := os.Stat(d.DumpDir); err != nil || !info.IsDir() {
			errs = append(errs, &SettingError{"dump-dir", d.DumpDir, "a folder that exists"})
		}
	}
	if !(d.CacheHitThreshold >= 0 && d.CacheHitThreshold <= 1) {
		errs = append(errs, within("global-cache-hit-threshold", d.CacheHitThreshold, 0, 1))
	}
	if d.DrainTimeout < 0 {
		bad("drain-timeout is %v, must not be negative", d.DrainTimeout)
	}
	switch p := d.Additional.Scheduler.AppendProfile; p {
	case "", AppendPlain, AppendGuarded:
	default:
		bad("unknown decoder_append_prefill_profile %q (%s or %s)", p, AppendPlain, AppendGuarded)
	}
	if err := d.KVTransfer.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := d.Generation.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("override-generation-config: %w", err))
	}
	errs = append(errs, d.Additional.Scheduler.AppendGuards.validate(&d.Config)...)
	errs = append(errs, d.Speculative.validate(&d.Config)...)
	errs = append(errs, d.KVEvents.validate(&d.Config)...)
	errs = append(errs, d.foreign()...)
	return errors.Join(append(errs, d.conflicts()...)...)
}

// appendPrefill reports whether append attempts are checked here.
func (c Config) appendPrefill() bool {
	return c.Additional.Scheduler.DecoderAppendPrefill && c.KVTransfer.Role == RoleConsumer
}

// ascendBlock is what the KV blocks of an Ascend device hold a multiple of, in tokens.
const ascendBlock = 128

func (c Config) ascend() bool {
	name, _, _ := strings.Cut(c.Device, ":")
	return name == "ascend"
}

// storage is the type of weights, activations and cache; defaults are filled in.
func (c Config) storage() ascendrt.DType {
	name, _, _ := strings.Cut(c.Device, ":")
	if c.DType == "bfloat16" || c.DType == "auto" && name != "host" {
		return ascendrt.BFloat16
	}
	return ascendrt.Float32
}

func (c Config) ops() executor.Ops {
	switch {
	case c.NamedOperations:
		return executor.OpsNamed
	case c.BatchInvariant:
		return executor.OpsPerRow
	}
	return executor.OpsFused
}

// Warnings lists choices that have no effect.
func (c Config) Warnings() []string {
	var out []string
	if c.ExpertParallel && c.DataParallel == 1 {
		out = append(out, "enable-expert-parallel has no effect on one rank")
	}
	if c.BatchInvariant && c.NamedOperations {
		out = append(out, "batch-invariant has no effect beside named-operations, which are so too")
	}
	if c.KVEvents.idle() {
		out = append(out, "kv-events-config has no effect without enable_kv_cache_events")
	}
	if c.KVEvents.on() && c.NoPrefix {
		out = append(out, "kv-events-config: without prefix caching nothing is cached, so there are no events")
	}
	if c.KVTransfer.Role == RoleProducer {
		if c.Additional.Scheduler.DecoderAppendPrefill {
			out = append(out, "decoder_append_prefill_enable has no effect on a prefiller")
		}
		if c.Additional.Scheduler.Recompute {
			out = append(out, "recompute_scheduler_enable has no effect on a prefiller")
		}
		if c.Additional.Scheduler.AppendGuards.set() {
			out = append(out, "decoder_append_prefill_guards has no effect on a prefiller")
		}
	}
	return out
}
