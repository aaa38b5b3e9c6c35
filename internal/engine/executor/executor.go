package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/graphs/replay"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/scheduler"
)

// Executor runs the steps of one rank. It belongs to one goroutine.
type Executor struct {
	c         Config
	dev       ascendrt.Device
	stream    ascendrt.Stream
	layout    ascendrt.WeightLayout
	maxTokens int // tokens of a padded step
	maxReqs   int // rows of a padded step

	buffers []ascendrt.Buffer
	ops     ops
	w       deviceWeights
	kv      []layerKV
	act     activations
	static  *replay.Static
	places  places
	cells   ascendrt.Tensor // [1+2·MaxSeqs] last sampled token of each running request; nobody has cell 0
	free    []int32         // cells that nobody holds
	outputs []output        // one per step in flight
	copier  *copier         // of the regions of connectors; nil where they need none
	next    int             // output of the next step
	seqs    []seq           // by slot

	dispatch *graphs.Dispatcher
	set      *replay.Set

	report Report
	booked int // bytes that the device had given at the last look

	rows     replay.Batch // scratch
	idle     replay.Batch // of steps without work
	to, from []ascendrt.View
	scratch  [][]float32 // logits of one place, per goroutine that chooses
	scores   scores
}

// output is where the tokens of a step in flight arrive.
type output struct {
	buf     ascendrt.HostBuffer
	tokens  []int32
	point   ascendrt.Point // when they are there
	busy    bool
	logits  ascendrt.HostBuffer // of the rows in choices, one after the other; nil before the first
	choices []choice            // not made yet
	plan    *scheduler.Plan     // valid until it is applied
	places  ascendrt.HostBuffer // nil without drafts
	at      []int               // by row: its first place
	counts  []int32             // by row: its tokens, from at on
}

// New loads the weights onto the device, allocates everything that a step
// needs, and captures the graphs that the configuration asks for. The device
// stays the caller's; Close releases what New took.
func New(ctx context.Context, dev ascendrt.Device, c Config, w model.Source) (_ *Executor, err error) {
	if c.InFlight == 0 {
		c.InFlight = 1
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Type = c.storage()
	e := &Executor{c: c, dev: dev, maxTokens: c.MaxTokens, maxReqs: c.MaxSeqs}
	if dev.Caps().Backend == "host" {
		e.layout = ascendrt.WeightsKM
	}
	if e.dispatch, err = graphs.New(c.Graphs); err != nil {
		return nil, err
	}
	for _, k := range e.dispatch.Keys() {
		e.maxTokens, e.maxReqs = max(e.maxTokens, int(k.Tokens)), max(e.maxReqs, int(k.Reqs))
	}
	if e.stream, err = dev.NewStream(ascendrt.StreamOptions{Role: "steps", Priority: 1}); err != nil {
		return nil, fmt.Errorf("executor stream: %w", err)
	}
	if err := e.build(ctx, w); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Executor) build(ctx context.Context, w model.Source) (err error) {
	if e.ops, err = e.planOps(); err != nil {
		return err
	}
	e.stage()
	if e.w, err = e.loadWeights(ctx, w); err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	e.report.Weights = e.stage()
	if e.act, err = e.allocActivations(); err != nil {
		return fmt.Errorf("activations: %w", err)
	}
	e.report.Activations = e.stage()
	static := replay.StaticConfig{
		MaxTokens: e.maxTokens, MaxReqs: e.maxReqs, TableWidth: e.c.tableWidth(), InFlight: e.c.InFlight, Width: e.c.Graphs.DecodeWidth(),
	}
	if e.dev.Caps().HostLengths {
		static.Padding = replay.PadDummyRows
		static.TableWidth += (e.maxTokens + e.c.BlockSize - 1) / e.c.BlockSize
	}
	e.static, err = replay.NewStatic(e.dev, static)
	if err != nil {
		return err
	}
	if err := e.allocTokens(); err != nil {
		return fmt.Errorf("token buffers: %w", err)
	}
	e.report.Inputs = e.stage()
	if e.c.Blocks == 0 { // everything else that a step needs is there
		if e.c.Blocks, err = e.fitBlocks(); err != nil {
			return err
		}
	}
	if e.kv, err = e.allocKV(ctx); err != nil {
		return err
	}
	e.report.KV, e.report.Blocks = e.stage(), e.c.Blocks
	e.set, err = replay.New(e.dev, replay.Config{
		Dispatcher: e.dispatch, Program: program{e}, Stream: e.stream,
		ResultType: ascendrt.Int32, ResultWidth: 1, ResultSlots: e.c.InFlight,
		MaxTokens: e.maxTokens, MaxReqs: e.maxReqs, Workspace: e.ops.workspace, OnExhausted: replay.KeepSmaller,
		Progress: func(done, all int, _ graphs.Key) {
			if e.c.Capturing != nil {
				e.c.Capturing(done, all)
			}
		},
	})
	if err != nil {
		return err
	}
	e.report.Inputs += e.stage() // the set's results
	return e.capture(func() error { return e.set.Capture(ctx) })
}

// Dispatcher is the one whose graphs the executor has; the scheduler's plans
// choose from it.
func (e *Executor) Dispatcher() *graphs.Dispatcher { return e.dispatch }

// Graphs is the number of keys with captured graphs.
func (e *Executor) Graphs() int { return e.set.Captured() }

// Close waits for the submitted steps and releases everything. The regions are
// invalid from then on. It may be called twice.
func (e *Executor) Close() error {
	if e.stream == nil {
		return nil
	}
	var errs []error
	if e.set != nil {
		errs = append(errs, e.set.Close())
	}
	errs = append(errs, e.stream.Close())
	if e.copier != nil {
		errs = append(errs, e.copier.close())
	}
	if e.static != nil {
		errs = append(errs, e.static.Close())
	}
	errs = append(errs, e.ops.close())
	for _, b := range e.buffers {
		errs = append(errs, b.FreeAfter(ascendrt.Point{}))
	}
	for _, o := range e.outputs {
		for _, b := range []ascendrt.HostBuffer{o.buf, o.logits, o.places} {
			if b != nil {
				errs = append(errs, b.FreeAfter(ascendrt.Point{}))
			}
		}
	}
	errs = append(errs, e.scores.free())
	e.stream, e.buffers, e.outputs, e.copier = nil, nil, nil, nil
	return errors.Join(errs...)
}

func (e *Executor) alloc(bytes int) (ascendrt.Buffer, error) {
	b, err := e.dev.Alloc(bytes, ascendrt.PlaceDefault)
	if err != nil {
		return nil, err
	}
	e.buffers = append(e.buffers, b)
	return b, nil
}

// allocRow takes n buffers of the same size.
func (e *Executor) allocRow(n, bytes int, p ascendrt.Placement) ([]ascendrt.Buffer, error) {
	b, err := ascendrt.AllocRow(e.dev, n, bytes, p)
	if err != nil && p == ascendrt.PlaceShareable && !errors.Is(err, ascendrt.ErrOutOfMemory) {
		b, err = ascendrt.AllocRow(e.dev, n, bytes, ascendrt.PlaceDefault) // it moves through the host then
	}
	e.buffers = append(e.buffers, b...)
	return b, err
}

// allocTokens makes the places of sampled tokens: on the device for the next
// step, pinned for the host.
func (e *Executor) allocTokens() error {
	n := e.c.MaxSeqs * 2 // a request that left may have one for as long as its last step runs
	buf, err := e.alloc(4 * (n + 1))
	if err != nil {
		return err
	}
	e.cells = ascendrt.NewTensor(buf.View(), ascendrt.Int32, n+1)
	for i := range n {
		e.free = append(e.free, int32(n-i))
	}
	e.outputs = make([]output, e.c.InFlight)
	for i := range e.outputs {
		o := &e.outputs[i]
		if o.buf, err = e.dev.AllocHost(4 * e.placesOf(e.maxTokens, e.maxReqs)); err != nil {
			return err
		}
		o.tokens = intWords(o.buf.Bytes())
	}
	if err := e.allocScores(); err != nil {
		return err
	}
	return e.allocPlaces()
}

// ErrTooManySteps reports a submission beyond Config.InFlight.
var ErrTooManySteps = errors.New("executor: too many steps in flight")

// PlanError reports a plan that the executor cannot run.
type PlanError struct {
	Step   uint64
	Row    int // -1 if the fault is not of one row
	Reason string
}

func (err *PlanError) Error() string {
	return fmt.Sprintf("executor: step %d, row %d: %s", err.Step, err.Row, err.Reason)
}

func planError(p *scheduler.Plan, row int, format string, args ...any) error {
	return &PlanError{Step: p.Seq, Row: row, Reason: fmt.Sprintf(format, args...)}
}
