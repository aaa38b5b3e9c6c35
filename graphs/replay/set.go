package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

// LengthSource says from where attention takes the KV lengths.
type LengthSource uint8

const (
	LengthsByDevice  LengthSource = iota // default: as Caps.HostLengths says
	LengthsFromHost                      // host values, replaced before every launch
	LengthsInBuffers                     // static inputs in device memory
)

// OnExhausted says what to do when the device cannot take a graph.
type OnExhausted uint8

const (
	FailCapture OnExhausted = iota // default: report it; the operator decides
	KeepSmaller                    // go on with the graphs that fit; others run as larger ones or eagerly
)

// Addresses says whether launches compare the addresses of their inputs.
type Addresses uint8

const (
	AddressesTrusted Addresses = iota // default: launches do not look
	AddressesChecked                  // a launch names its inputs; one that moved since capture is ErrMoved
)

// Config describes a set.
type Config struct {
	Dispatcher *graphs.Dispatcher
	Program    Program
	Stream     ascendrt.Stream // of the steps; the set submits to it

	ResultType   ascendrt.DType // default Float32
	ResultWidth  int            // elements per row of the result
	ResultSlots  int            // results that may be held at a time; 0 = 2
	MaxTokens    int            // largest eager pass; 0 = the dispatcher's MaxNumBatchedTokens
	MaxReqs      int            // most rows of an eager pass; 0 = the dispatcher's MaxNumSeqs
	Workspace    int            // bytes of scratch memory that one operation needs at most
	WarmUps      int            // eager passes before each capture; 0 = 1
	Lengths      LengthSource
	OnExhausted  OnExhausted
	Addresses    Addresses
	Updater      *Updater // shared with other sets of the same stream; nil = own
	Progress     func(done, all int, k graphs.Key)
	BeforeFreeze func() error // called before the first capture: side streams must be idle from here
}

// entry is what was captured for one key.
type entry struct {
	segments []segment
	updates  []ascendrt.OpRef
	inputs   []ascendrt.View
	bytes    uint64
}

// Set holds the graphs of one program. It belongs to one goroutine.
type Set struct {
	cfg       Config
	dev       ascendrt.Device
	captures  ascendrt.Stream // captures go here, never to the stream of the steps
	result    ascendrt.Tensor
	workspace ascendrt.View
	buffers   []ascendrt.Buffer
	slots     []resultSlot
	lengths   []int64  // of the rows of the pass; nil where the runtime reads them itself
	starts    []int64  // first token of each row, and the end
	entries   []*entry // by KeyID
	updater   *Updater
	sealed    bool
	capturing bool
	slotBuf   []ascendrt.Slot
	cmd       ascendrt.Commands
	captured  int
}

// New allocates what all passes share. The device, the stream and the program
// stay the caller's; Close releases the rest.
func New(dev ascendrt.Device, c Config) (_ *Set, err error) {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("replay: "+what))
		}
	}
	need(c.Dispatcher != nil, "no dispatcher")
	need(c.Program != nil, "no program")
	need(c.Stream != nil, "no stream")
	need(c.ResultWidth > 0, "the result has no width")
	need(c.ResultSlots >= 0 && c.MaxTokens >= 0 && c.MaxReqs >= 0 && c.Workspace >= 0 && c.WarmUps >= 0, "a size is negative")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if c.ResultType == 0 {
		c.ResultType = ascendrt.Float32
	}
	if c.ResultSlots == 0 {
		c.ResultSlots = 2
	}
	if c.WarmUps == 0 {
		c.WarmUps = 1
	}
	g := c.Dispatcher.Config()
	if c.MaxTokens == 0 {
		c.MaxTokens = g.MaxNumBatchedTokens
	}
	if c.MaxReqs == 0 {
		c.MaxReqs = g.MaxNumSeqs
	}
	if c.Updater == nil {
		c.Updater = NewUpdater(dev)
	}
	s := &Set{cfg: c, dev: dev, updater: c.Updater, entries: make([]*entry, len(c.Dispatcher.Keys()))}
	tokens, reqs := c.MaxTokens, c.MaxReqs
	for _, k := range c.Dispatcher.Keys() {
		tokens, reqs = max(tokens, int(k.Tokens)), max(reqs, int(k.Reqs))
	}
	s.cfg.MaxTokens, s.cfg.MaxReqs = tokens, reqs
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.captures, err = dev.NewStream(ascendrt.StreamOptions{Role: "capture"}); err != nil {
		return nil, fmt.Errorf("capture stream: %w", err)
	}
	rows := max(c.Program.ResultRows(Shape{Tokens: tokens, Reqs: reqs}), 1)
	bytes := rows * c.ResultWidth * c.ResultType.Size()
	b, err := s.alloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	s.result = ascendrt.NewTensor(b.View(), c.ResultType, rows, c.ResultWidth)
	for range c.ResultSlots {
		if b, err = s.alloc(bytes); err != nil {
			return nil, fmt.Errorf("result slot: %w", err)
		}
		s.slots = append(s.slots, resultSlot{tensor: ascendrt.NewTensor(b.View(), c.ResultType, rows, c.ResultWidth)})
	}
	if c.Workspace > 0 {
		if b, err = s.alloc(c.Workspace); err != nil {
			return nil, fmt.Errorf("workspace: %w", err)
		}
		s.workspace = b.View()
	}
	if c.Lengths == LengthsFromHost || c.Lengths == LengthsByDevice && dev.Caps().HostLengths {
		s.lengths, s.starts = make([]int64, reqs), make([]int64, reqs+1)
	}
	return s, nil
}

func (s *Set) alloc(bytes int) (ascendrt.Buffer, error) {
	b, err := s.dev.Alloc(bytes, ascendrt.PlaceDefault)
	if err == nil {
		s.buffers = append(s.buffers, b)
	}
	return b, err
}

// Workspace is the passes' scratch memory. Operations between two launches on the
// set's stream may use it too.
func (s *Set) Workspace() ascendrt.View { return s.workspace }

// Captured is the number of keys whose graphs exist.
func (s *Set) Captured() int { return s.captured }

// Sealed reports whether capturing is over.
func (s *Set) Sealed() bool { return s.sealed }

// Close releases the graphs and the memory once the submitted launches have
// passed. It may be called twice.
func (s *Set) Close() error {
	errs := []error{s.drop()}
	after := s.updater.last
	for _, b := range s.buffers {
		errs = append(errs, b.FreeAfter(after))
	}
	s.buffers = nil
	if s.captures != nil {
		errs = append(errs, s.captures.Close())
		s.captures = nil
	}
	return errors.Join(errs...)
}

// Capture captures every key of the dispatcher in its order, tells the
// dispatcher what exists, and seals the set. It waits for the device.
func (s *Set) Capture(ctx context.Context) error {
	if s.sealed {
		return ErrSealed
	}
	keys := s.cfg.Dispatcher.Keys()
	var exhausted *ExhaustedError
	for i, k := range keys {
		err := s.CaptureKey(ctx, graphs.KeyID(i))
		switch {
		case err == nil:
		case errors.As(err, &exhausted) && s.cfg.OnExhausted == KeepSmaller:
		default:
			return err
		}
		if s.cfg.Progress != nil {
			s.cfg.Progress(i+1, len(keys), k)
		}
	}
	s.Seal()
	return nil
}

// Seal ends capturing. Keys without a graph are not chosen any more.
func (s *Set) Seal() {
	s.sealed = true
	switch {
	case s.captured == len(s.entries):
		s.cfg.Dispatcher.SetCaptureState(graphs.AllCaptured)
	case s.captured == 0:
		s.cfg.Dispatcher.SetCaptureState(graphs.NothingCaptured)
	default:
		s.cfg.Dispatcher.SetCaptureState(graphs.PartlyCaptured)
	}
}

// Reopen drops every graph and allows capturing again: after memory that the
// graphs name has moved, as when a sleeping engine gives its memory back and
// wakes. No step may be in flight. Until Capture every step is eager.
func (s *Set) Reopen() error {
	if s.capturing {
		return ErrNested
	}
	if !s.updater.last.Done() {
		return fmt.Errorf("%w: launch %d still runs", ErrBusy, s.updater.launched)
	}
	err := s.drop()
	s.sealed = false
	s.cfg.Dispatcher.Unmark()
	s.cfg.Dispatcher.SetCaptureState(graphs.NothingCaptured)
	return err
}

// drop closes what was captured.
func (s *Set) drop() error {
	var errs []error
	for i, e := range s.entries {
		if e != nil {
			errs = append(errs, closeSegments(e.segments))
			s.entries[i] = nil
		}
	}
	s.captured = 0
	return errors.Join(errs...)
}

// CaptureKey captures one key. The same key twice, a sealed set, and a call
// from within a pass are errors.
func (s *Set) CaptureKey(ctx context.Context, id graphs.KeyID) error {
	k := s.cfg.Dispatcher.Keys()[id]
	switch {
	case s.sealed:
		return fmt.Errorf("%w: %v", ErrSealed, k)
	case s.capturing:
		return fmt.Errorf("%w: capture of %v within a capture", ErrNested, k)
	case s.entries[id] != nil:
		return fmt.Errorf("%w: %v", ErrTwice, k)
	}
	s.capturing = true
	defer func() { s.capturing = false }() // also when a pass panics
	if s.captured == 0 && s.cfg.BeforeFreeze != nil {
		if err := s.cfg.BeforeFreeze(); err != nil {
			return fmt.Errorf("before the first capture: %w", err)
		}
	}
	e, err := s.capture(ctx, k)
	if err != nil {
		if advice, ok := Advice(err); ok {
			return &ExhaustedError{Key: k, Captured: s.captured, Advice: advice, Err: err}
		}
		return fmt.Errorf("capture %v: %w", k, err)
	}
	s.entries[id] = e
	s.captured++
	s.cfg.Dispatcher.MarkCaptured(id)
	return nil
}

// shapeOf is the shape of a key's dummy batch.
func (s *Set) shapeOf(k graphs.Key) Shape {
	reqs := int(k.Reqs)
	if reqs == 0 {
		reqs = min(int(k.Tokens), s.cfg.Dispatcher.Config().MaxNumSeqs)
	}
	return Shape{Tokens: int(k.Tokens), Reqs: reqs, Bound: int(graphs.QueryBound(k)), Key: k}
}

func (s *Set) capture(ctx context.Context, k graphs.Key) (e *entry, err error) {
	shape := s.shapeOf(k)
	if s.lengths != nil {
		for i, n := range graphs.CaptureRows(k, s.cfg.Dispatcher.Config().MaxNumSeqs) {
			s.lengths[i], s.starts[i+1] = int64(n), s.starts[i]+int64(n)
		}
	}
	for range s.cfg.WarmUps {
		s.cmd.Reset()
		if err := s.cfg.Program.Prepare(&s.cmd, shape); err != nil {
			return nil, fmt.Errorf("prepare the warm-up: %w", err)
		}
		p := &Pass{set: s, kind: passEager, shape: shape, cmd: &s.cmd, lengths: s.lengths, starts: s.starts}
		if err := s.record(p); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		if err := s.flush(ctx); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	// The warm-up may have changed its inputs.
	s.cmd.Reset()
	if err := s.cfg.Program.Prepare(&s.cmd, shape); err != nil {
		return nil, fmt.Errorf("prepare the capture: %w", err)
	}
	if err := s.flush(ctx); err != nil {
		return nil, err
	}
	free, _, _ := s.dev.MemInfo() // a hint: 0 where the driver cannot answer
	kind := passFull
	if k.Mode == graphs.Piecewise {
		kind = passPieces
	}
	var cmd ascendrt.Commands
	p := &Pass{set: s, kind: kind, shape: shape, cmd: &cmd, lengths: s.lengths, starts: s.starts}
	done := false
	defer func() {
		if !done {
			err = errors.Join(err, closeSegments(p.segments))
		}
	}()
	if err := s.record(p); err != nil {
		return nil, err
	}
	if err := p.endSegment(); err != nil {
		return nil, err
	}
	if len(p.segments) == 0 {
		return nil, fmt.Errorf("%w: the pass recorded nothing", ErrShape)
	}
	done = true
	e = &entry{segments: p.segments, updates: p.updates}
	if i, ok := s.cfg.Program.(Inputs); ok && s.cfg.Addresses == AddressesChecked {
		e.inputs = i.Inputs(shape)
	}
	e.bytes = s.cost(e, free)
	return e, nil
}

// cost is the device memory of an entry in bytes: what the runtime says, or
// else what became less.
func (s *Set) cost(e *entry, before uint64) (bytes uint64) {
	for _, g := range e.segments {
		if g.graph != nil {
			bytes += g.graph.Info().DeviceBytes
		}
	}
	if after, _, err := s.dev.MemInfo(); bytes == 0 && err == nil && after < before {
		bytes = before - after
	}
	return bytes
}

func (s *Set) record(p *Pass) error {
	if err := s.cfg.Program.Record(p); err != nil {
		return err
	}
	return p.err
}

// runBreak runs the work of a break now, with the dummy batch.
func (s *Set) runBreak(f func(*Pass) error, shape Shape) error {
	s.cmd.Reset()
	p := &Pass{set: s, kind: passEager, shape: shape, cmd: &s.cmd, lengths: s.lengths, starts: s.starts}
	if err := p.runBreak(f); err != nil {
		return err
	}
	return s.flush(context.Background())
}

// flush submits what s.cmd holds and waits for it: nothing, side streams that
// joined included, may still run when a capture begins.
func (s *Set) flush(ctx context.Context) error {
	p, _, err := s.cfg.Stream.Submit(&s.cmd)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}
