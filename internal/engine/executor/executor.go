package executor

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
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
	meta    metadata
	cells   ascendrt.Tensor // last sampled token of each running request
	free    []int32         // cells that nobody holds
	images  []image
	next    int // image of the next step
	seqs    []seq

	dispatch *graphs.Dispatcher
	graphs   []captured // by KeyID

	cmd         ascendrt.Commands
	to, from    []ascendrt.View
	hostLengths []int64 // nil unless attention wants lengths as values
}

// New loads the weights onto the device, allocates everything that a step
// needs, and captures the graphs that the configuration asks for. The device
// stays the caller's; Close releases what New took.
func New(ctx context.Context, dev ascendrt.Device, c Config, w model.Weights) (_ *Executor, err error) {
	if c.InFlight == 0 {
		c.InFlight = 1
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	e := &Executor{c: c, dev: dev, maxTokens: c.MaxTokens, maxReqs: c.MaxSeqs}
	if dev.Caps().Backend == "host" {
		e.layout = ascendrt.WeightsKM
	}
	if e.dispatch, err = graphs.New(c.Graphs); err != nil {
		return nil, err
	}
	for _, k := range e.dispatch.Keys() {
		e.maxTokens = max(e.maxTokens, int(k.Tokens))
		e.maxReqs = max(e.maxReqs, int(k.Reqs))
	}
	if dev.Caps().HostLengths {
		e.hostLengths = make([]int64, e.maxReqs)
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.stream, err = dev.NewStream(ascendrt.StreamOptions{Role: "steps"}); err != nil {
		return nil, fmt.Errorf("executor stream: %w", err)
	}
	if e.ops, err = e.planOps(); err != nil {
		return nil, err
	}
	if e.w, err = e.loadWeights(ctx, w); err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	if e.kv, err = e.allocKV(ctx); err != nil {
		return nil, err
	}
	if e.act, err = e.allocActivations(); err != nil {
		return nil, fmt.Errorf("activations: %w", err)
	}
	if e.meta, err = e.allocMeta(); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	if err = e.allocCells(); err != nil {
		return nil, err
	}
	if err = e.allocImages(); err != nil {
		return nil, err
	}
	if err = e.capture(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// Dispatcher is the one whose graphs the executor has; the scheduler's plans
// choose from it.
func (e *Executor) Dispatcher() *graphs.Dispatcher { return e.dispatch }

// Graphs is the number of captured graphs.
func (e *Executor) Graphs() int {
	n := 0
	for _, g := range e.graphs {
		n += len(g.segments)
	}
	return n
}

// Close waits for the submitted steps and releases everything. The regions are
// invalid from then on. It may be called twice.
func (e *Executor) Close() {
	if e.stream == nil {
		return
	}
	for _, g := range e.graphs {
		g.close()
	}
	_ = e.stream.Close() // waits for what was submitted; a lost device has nothing to wait for
	e.ops.close()
	for _, b := range e.buffers {
		_ = b.FreeAfter(ascendrt.Point{})
	}
	for _, img := range e.images {
		for _, b := range []ascendrt.HostBuffer{img.meta, img.sampled} {
			if b != nil {
				_ = b.FreeAfter(ascendrt.Point{})
			}
		}
	}
	e.stream, e.graphs, e.buffers, e.images = nil, nil, nil, nil
}

func (e *Executor) alloc(bytes int) (ascendrt.Buffer, error) {
	b, err := e.dev.Alloc(bytes, ascendrt.PlaceDefault)
	if err != nil {
		return nil, err
	}
	e.buffers = append(e.buffers, b)
	return b, nil
}

func (e *Executor) allocCells() error {
	n := e.c.MaxSeqs * 2
	buf, err := e.alloc(4 * n)
	if err != nil {
		return fmt.Errorf("token cells: %w", err)
	}
	e.cells = ascendrt.NewTensor(buf.View(), ascendrt.Int32, n)
	for i := range n {
		e.free = append(e.free, int32(n-1-i))
	}
	return nil
}

func (e *Executor) allocImages() error {
	e.images = make([]image, e.c.InFlight)
	for i := range e.images {
		img := &e.images[i]
		var err error
		if img.meta, err = e.dev.AllocHost(4 * e.meta.words); err != nil {
			return fmt.Errorf("pinned metadata: %w", err)
		}
		if img.sampled, err = e.dev.AllocHost(4 * e.maxReqs); err != nil {
			return fmt.Errorf("pinned tokens: %w", err)
		}
		img.words, img.tokens = intWords(img.meta.Bytes()), intWords(img.sampled.Bytes())
	}
	return nil
}

func (e *Executor) submitAndWait(ctx context.Context) error {
	p, _, err := e.stream.Submit(&e.cmd)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// asWords views block ids as the int32 values that they are.
func asWords(b []kvcache.BlockID) []int32 {
	return unsafe.Slice((*int32)(unsafe.SliceData(b)), len(b))
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
