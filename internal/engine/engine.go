package engine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/backends"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

var builtinModel = model.Builtin()

// builtinSeed makes the weights of the built-in model.
const builtinSeed = 1

// builtinWeights are made once per process; nobody writes to them.
var builtinWeights = sync.OnceValue(func() model.Weights {
	return model.Generate(builtinModel, model.BuiltinScales(), builtinSeed, tokenizer.Speakable)
})

// Options are the seams of an engine that no flag sets.
type Options struct {
	Logger *slog.Logger // nil: silent
	Trace  *Trace       // nil: none; the caller closes it after the engine
	// Open opens the device of a rank, which the engine closes. Nil: the one
	// that the configuration names. Ranks that share experts are built at the same
	// time.
	Open func(rank int) (ascendrt.Device, error)
	// Capturing is told of every key of a rank whose graphs were captured, of all;
	// it may be nil.
	Capturing func(rank, done, all int)
	// Scheduler gives the caller's own scheduler of a rank, made from the
	// engine's. Nil: the engine's.
	Scheduler func(rank int, s *scheduler.Scheduler) Scheduler

	deaf bool // see party
}

// Engine serves one model on one or more data-parallel ranks. Its methods may
// be called from any goroutine.
type Engine struct {
	cfg      Config
	log      *slog.Logger
	registry *prometheus.Registry
	ranks    []*rank
	model    *loadedModel
	started  time.Time

	cancel context.CancelFunc
	done   <-chan struct{}
	group  *errgroup.Group

	mu       sync.Mutex
	draining bool
	closing  sync.Once
	closed   error
}

// New makes an engine and starts its ranks. Close ends it.
func New(ctx context.Context, cfg Config, o Options) (*Engine, error) {
	if err := (&choices{cfg, o.Scheduler != nil}).validate(); err != nil {
		return nil, err
	}
	return open(ctx, cfg.withDefaults(), o)
}

// open is New with a configuration that is complete and valid.
func open(ctx context.Context, cfg Config, o Options) (*Engine, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{cfg: cfg, log: o.Logger, registry: prometheus.NewRegistry(), started: time.Now()}
	for _, w := range cfg.Warnings() {
		e.log.Warn(w)
	}
	base := cfg.KVTransfer.EngineID
	if base != "" {
		base += "-"
	}
	base += randomHex(6)
	loaded, err := loadModel(cfg.Model, cfg.SkipTokenizer)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := loaded.close(); err != nil {
			e.log.Warn("the checkpoint did not close", "error", err)
		}
	}()
	if cfg.MaxModelLen > loaded.config.MaxPositions {
		return nil, fmt.Errorf("max-model-len is %d; model %s has %d positions", cfg.MaxModelLen, loaded.config.Name, loaded.config.MaxPositions)
	}
	if err := cfg.checkExperts(loaded.config); err != nil {
		return nil, err
	}
	e.model = loaded
	e.noteText()
	m := newMetrics(e.registry, cfg.ServedModelName)
	e.ranks, err = newRanks(cfg.DataParallel, cfg.sharesExperts(), func(i int, g *expertGroup) (*rank, error) {
		return newRank(ctx, cfg, i, base, loaded, m, o, g)
	})
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.group, run = errgroup.WithContext(run)
	e.done = run.Done()
	for _, r := range e.ranks {
		e.group.Go(func() error { return r.run(run) })
	}
	return e, nil
}

// newRank builds everything that one rank owns.
func newRank(ctx context.Context, cfg Config, index int, base string, loaded *loadedModel, m *metrics, o Options, group *expertGroup) (_ *rank, err error) {
	r := &rank{
		index: index, id: fmt.Sprintf("%s_dp%d", base, index), cfg: cfg, model: loaded, log: o.Logger.With("rank", index), trace: o.Trace,
		metrics: m.rank(index, cfg.KVTransfer.Role), streams: map[scheduler.RequestID]*Stream{}, loads: map[scheduler.RequestID]*load{}, saves: map[scheduler.RequestID]*save{},
		wake: make(chan struct{}, 1), limit: 2, dirty: true, histories: newHistories(cfg.BlockSize),
	}
	defer func() {
		if err != nil {
			if group != nil {
				group.fail(index, err)
			}
			r.close()
		}
	}()
	if cfg.Sync {
		r.limit = 1
	}
	if err := r.openEvents(); err != nil { // before what takes long
		return nil, err
	}
	if o.Open == nil {
		o.Open = func(int) (ascendrt.Device, error) {
			b, ordinal, err := backends.Find(cfg.Device)
			if err != nil {
				return nil, err
			}
			if b.Name() != "host" {
				ordinal += index // the host has one device, for any number of ranks
			}
			return b.Open(ordinal, ascendrt.OpenOptions{Workers: cfg.DeviceWorkers, Logger: r.log})
		}
	}
	dev, err := o.Open(index)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := dev.Close(ctx); err != nil {
			r.log.Warn("device did not close", "error", err)
		}
	})
	blocks := 0 // from what the device has left
	if cfg.KVBlocks > 0 {
		blocks = cfg.KVBlocks + 1
	}
	shape := executor.Config{
		Model: loaded.config, Type: cfg.storage(), Blocks: blocks, BlockSize: cfg.BlockSize, MaxSeqs: cfg.MaxSeqs, MaxTokens: cfg.MaxTokens,
		MaxLen: cfg.MaxModelLen, InFlight: r.limit, Sampler: r, Scorer: r, Ops: cfg.ops(),
		Graphs: graphs.Config{
			Mode: cfg.GraphMode, Policy: cfg.GraphPolicy, MaxNumSeqs: cfg.MaxSeqs, MaxNumBatchedTokens: cfg.MaxTokens, K: cfg.Speculative.Tokens,
			KV: cfg.KVTransfer.graphs(),
		},
	}
	if cfg.KVTransfer.deviceIPC() && dev.Caps().IPCMemory {
		shape.KV = ascendrt.PlaceShareable
	}
	if group != nil {
		if r.party, err = group.join(ctx, index, dev); err != nil {
			return nil, err
		}
		r.party.deaf = o.deaf
		r.closers = append(r.closers, func() { r.leave(nil) })
		shape.Group = r.party.comm
	}
	if o.Capturing != nil && (group == nil || index == 0) { // a group captures together
		shape.Capturing = func(done, all int) { o.Capturing(index, done, all) }
	}
	if r.exec, err = executor.New(ctx, dev, shape, loaded.source); err != nil {
		return nil, err
	}
	r.logMemory()
	r.closers = append(r.closers, func() {
		if err := r.exec.Close(); err != nil {
			r.log.Warn("executor did not close", "error", err)
		}
	})
	blocks = r.exec.PoolBlocks()
	r.cfg.KVBlocks = blocks - 1
	cfg = r.cfg
	caching := kvcache.CachingOn
	if cfg.NoPrefix {
		caching = kvcache.CachingOff
	}
	r.cache, err = kvcache.New(kvcache.Config{
		Blocks: blocks, BlockSize: cfg.BlockSize, Caching: caching, MaxInFlight: cfg.MaxTokens * r.limit, LeaseShare: cfg.leaseShare(), Events: cfg.cacheEvents(),
	})
	if err != nil {
		return nil, err
	}
	opts := []scheduler.Option{scheduler.WithGraphs(r.exec.Dispatcher())}
	if cfg.StepLines > 0 {
		r.steps = newStepLog(cfg.StepLines)
		opts = append(opts, scheduler.WithRecorder(scheduler.NewRecorder(r.steps)))
	}
	if cfg.KVTransfer.Connector != "" {
		if err := r.connect(dev); err != nil {
			return nil, err
		}
		opts = append(opts, scheduler.WithConnector(r.conn))
	}
	opts = append(opts, scheduler.WithDecisions(r.decided))
	own, err := scheduler.New(r.schedulerConfig(), r.cache, opts...)
	if err != nil {
		return nil, err
	}
	r.sched = own
	if o.Scheduler != nil {
		r.sched = o.Scheduler(index, own)
	}
	r.metrics.configured(cfg, shape.BlockBytes(), r.sched.Config().Scheduling.String())
	r.gauges()
	return r, nil
}

// logMemory says what the rank takes of its device.
func (r *rank) logMemory() {
	m := r.exec.Report()
	mib := func(bytes int) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
	r.log.Info("device memory", "weights", mib(m.Weights), "activations", mib(m.Activations), "inputs", mib(m.Inputs),
		"kv", mib(m.KV), "kv_blocks", m.Blocks-1, "graphs", mib(m.Graphs), "free", mib(int(m.Free)), "total", mib(int(m.Total)),
		"captured", fmt.Sprintf("%d of %d keys", m.Captured, m.Keys), "capture", m.Capture.Round(time.Millisecond))
}

func (r *rank) schedulerConfig() scheduler.Config {
	c := scheduler.Config{
		MaxNumSeqs: r.cfg.MaxSeqs, MaxBatchedTokens: r.cfg.MaxTokens, MaxModelLen: r.cfg.MaxModelLen, VocabSize: r.model.config.Vocab,
		Watermark: r.cfg.Watermark, InFlight: r.limit, LoadFailure: scheduler.RecomputeLoad,
		Drafts: r.cfg.Speculative.Tokens, TailPadding: scheduler.PadAlways,
	}
	if r.cfg.appendPrefill() {
		c.Append = r.cfg.appendGuards()
	}
	if !r.cfg.Sync {
		c.Scheduling = scheduler.Async
	}
	if r.cfg.KVTransfer.LoadFailure == "fail" {
		c.LoadFailure = scheduler.FailRequest
	}
	if r.cfg.Additional.Scheduler.Recompute && r.cfg.KVTransfer.Role == RoleConsumer {
		c.Recompute = scheduler.RecomputeAway
	}
	if r.cfg.Runner == 2 {
		c.Executor = scheduler.NewResume
	}
	return c
}

// closeTimeout bounds how long a device may take to end its work.
const closeTimeout = 10 * time.Second

// close releases what the rank owns, last built first. The loop has ended.
func (r *rank) close() {
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
	r.closers = nil
}

// Config is the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Ranks is the number of data-parallel ranks.
func (e *Engine) Ranks() int { return len(e.ranks) }

// ID names one rank of this engine; it changes at every start.
func (e *Engine) ID(rank int) string { return e.ranks[rank].id }

// Started is when the engine was made.
func (e *Engine) Started() time.Time { return e.started }

// Metrics gathers the engine's metrics.
func (e *Engine) Metrics() prometheus.Gatherer { return e.registry }

// MaxModelLen is the longest sequence in tokens, prompt and output, that the
// model and the KV pool of a rank allow.
func (e *Engine) MaxModelLen() int { return e.ranks[0].sched.MaxLen() }

// Err reports whether the engine can serve: nil, ErrDraining or ErrClosed.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining {
		return ErrDraining
	}
	for _, r := range e.ranks {
		if r.ended() {
			return ErrClosed
		}
	}
	return nil
}

// Discard releases the KV that a peer keeps for a request which was refused
// before it reached Submit.
func (e *Engine) Discard(rank int, params []byte) {
	r, err := e.pick(rank)
	if err != nil {
		r = e.ranks[0]
	}
	if p, err := r.params(params); err == nil {
		r.drop(p)
	}
}

// EndSession gives up what is kept for a session between its turns.
func (e *Engine) EndSession(session string) {
	for _, r := range e.ranks {
		r.post(func() { r.endSession(session) })
	}
}

// ErrBusy: the prefix cache cannot be reset while requests hold blocks.
var ErrBusy = scheduler.ErrBusy

// ResetPrefixCache forgets all cached prefixes of all ranks. It fails on ranks
// whose blocks are held, and resets the others.
func (e *Engine) ResetPrefixCache(ctx context.Context) error {
	var errs []error
	for _, r := range e.ranks {
		var reset error
		err := r.call(ctx, func() { reset = r.sched.ResetCache(scheduler.ResetIdle) })
		if err = errors.Join(err, reset); err != nil {
			errs = append(errs, fmt.Errorf("rank %d: %w", r.index, err))
		}
	}
	return errors.Join(errs...)
}

// Drain refuses new requests and waits until the running ones have ended and
// peers have taken the KV that is kept for them, or until ctx ends.
func (e *Engine) Drain(ctx context.Context) error {
	e.mu.Lock()
	e.draining = true
	e.mu.Unlock()
	for _, r := range e.ranks {
		r.post(r.drain)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, r := range e.ranks {
		for {
			idle := false
			if err := r.call(ctx, func() { idle = r.idle() }); err != nil {
				return err
			}
			if idle {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// Wait blocks until a rank has failed or the engine is closed, and returns the
// failure. ascendrt.ErrDeviceLost means that the process must be restarted.
func (e *Engine) Wait() error { return e.group.Wait() }

// Done is closed when a rank has failed or Close was called.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Close ends every request, waits for the goroutines and releases devices and
// connections. It may be called more than once.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.mu.Lock()
		e.draining = true
		e.mu.Unlock()
		e.cancel()
		e.closed = e.group.Wait()
		for _, r := range e.ranks {
			r.close()
		}
	})
	return e.closed
}

// fingerprint is a digest of the weights: engines whose digests differ do not
// read each other's KV.
var fingerprint = sync.OnceValue(func() string {
	w := builtinWeights()
	h := sha256.New()
	for _, t := range builtinModel.Tensors() {
		fmt.Fprintf(h, "%s %v\n", t.Name, t.Shape)
		h.Write(model.Bytes(w[t.Name]))
	}
	return builtinModel.Name + ":" + hex.EncodeToString(h.Sum(nil)[:12])
})

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
