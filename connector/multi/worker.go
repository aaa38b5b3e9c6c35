package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// childEvent is an event of one child.
type childEvent struct {
	Child int
	connector.Event
}

// joined is the payload of the events of a Worker: what the children reported.
type joined []childEvent

// Payloads returns the payloads of the children's events, or that of an event
// that is not of a composite.
func Payloads(ev connector.Event) []any {
	j, ok := ev.Payload.(joined)
	if !ok {
		if ev.Payload == nil {
			return nil
		}
		return []any{ev.Payload}
	}
	var out []any
	for _, e := range j {
		out = append(out, Payloads(e.Event)...)
	}
	return out
}

// WorkerStats are counters since the start.
type WorkerStats struct {
	Unknown   uint64 // reports that nobody waits for
	Duplicate uint64 // reports that came twice from one child
	Refused   uint64 // ops that a child did not take up
	Waiting   int    // loads and holds whose reports are not complete
}

// Worker is the worker's side.
type Worker struct {
	rank     int
	children []connector.Worker
	events   chan connector.Event
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup // one forwarder per child, and those of refused work
	closing  sync.Once
	unknown  atomic.Uint64
	again    atomic.Uint64
	refused  atomic.Uint64

	mu    sync.Mutex
	waits map[wait]*progress
	loads map[connector.RequestID]map[int][]kvcache.BlockID // the blocks of each child's part
}

var (
	_ connector.Worker  = (*Worker)(nil)
	_ connector.Layered = (*Worker)(nil)
)

// wait names an event that is to become complete.
type wait struct {
	request connector.RequestID
	kind    connector.EventKind
}

type progress struct {
	want, seen uint64
	over       time.Time // nobody waits any more
	events     joined
}

// NewWorker joins children. rank is that of the children in their engine.
func NewWorker(rank int, children ...connector.Worker) (*Worker, error) {
	if len(children) == 0 || len(children) > 64 {
		return nil, errors.New("multi: want 1 to 64 children")
	}
	if slices.Contains(children, nil) {
		return nil, errors.New("multi: a child is nil")
	}
	w := &Worker{
		rank: rank, children: slices.Clone(children), events: make(chan connector.Event, 64),
		waits: map[wait]*progress{}, loads: map[connector.RequestID]map[int][]kvcache.BlockID{},
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for i, c := range w.children {
		w.wg.Go(func() {
			for ev := range c.Events() {
				w.take(i, ev)
			}
		})
	}
	return w, nil
}

// SubWorkers returns the children.
func (w *Worker) SubWorkers() []connector.Worker { return slices.Clone(w.children) }

// Stats returns counters and gauges.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return WorkerStats{Unknown: w.unknown.Load(), Duplicate: w.again.Load(), Refused: w.refused.Load(), Waiting: len(w.waits)}
}

// Register tells every child.
func (w *Worker) Register(layout connector.Layout, regions []connector.Region) error {
	for i, c := range w.children {
		if err := c.Register(layout, regions); err != nil {
			return fmt.Errorf("connector %d: %w", i, err)
		}
	}
	return nil
}

// Submit hands each child its work: saves of all children, then the rest.
func (w *Worker) Submit(ops ...connector.Op) error {
	saves := make([][]connector.Op, len(w.children))
	rest := make([][]connector.Op, len(w.children))
	var failed []connector.Op
	w.mu.Lock()
	for _, op := range ops {
		switch p := op.Payload.(type) {
		case expectation:
			w.expect(op, p)
		case idle:
			w.expect(op, p.want)
			failed = append(failed, op)
		case routed:
			if p.child < 0 || p.child >= len(w.children) {
				w.mu.Unlock()
				return fmt.Errorf("multi: op for child %d of %d", p.child, len(w.children))
			}
			op.Payload = p.payload
			if op.Kind == connector.OpSave {
				saves[p.child] = append(saves[p.child], op)
				continue
			}
			if op.Kind == connector.OpLoad {
				w.remember(p.child, op)
			}
			rest[p.child] = append(rest[p.child], op)
		default:
			w.mu.Unlock()
			return fmt.Errorf("multi: %v of %v comes from no child", op.Kind, op.Request)
		}
	}
	w.mu.Unlock()
	w.fail(failed)
	for _, lists := range [][][]connector.Op{saves, rest} {
		for i, list := range lists {
			if len(list) == 0 {
				continue
			}
			if err := w.children[i].Submit(list...); err != nil {
				w.refuse(i, list, fmt.Errorf("connector %d: %w", i, err))
			}
		}
	}
	return nil
}

// expect begins to wait for children's reports. The lock is held.
func (w *Worker) expect(op connector.Op, children expectation) {
	k := connector.Received
	if op.Kind == connector.OpSend {
		k = connector.Sent
	}
	now := time.Now()
	if len(w.waits) >= sweepAt {
		for k, p := range w.waits {
			if now.After(p.over) {
				delete(w.waits, k)
				delete(w.loads, k.request)
			}
		}
	}
	life := op.Timeout
	if life <= 0 {
		life = time.Hour
	}
	w.waits[wait{op.Request, k}] = &progress{want: uint64(children), over: now.Add(2 * life)}
}

// sweepAt is how many waits may be there before those are dropped that the
// scheduler has given up by its own deadline.
const sweepAt = 1024

// fail reports loads of which a part was not taken up as failed as a whole,
// and as received where nobody else is at work.
func (w *Worker) fail(ops []connector.Op) {
	if len(ops) == 0 {
		return
	}
	w.wg.Go(func() {
		for _, op := range ops {
			w.emit(connector.Event{Kind: connector.Failed, Request: op.Request, Worker: w.rank, Err: errIdle})
			w.mu.Lock()
			k := wait{op.Request, connector.Received}
			alone := w.waits[k] != nil && w.waits[k].want == 0
			if alone {
				delete(w.waits, k)
			}
			w.mu.Unlock()
			if alone {
				w.emit(connector.Event{Kind: connector.Received, Request: op.Request, Worker: w.rank})
			}
		}
	})
}

var errIdle = errors.New("multi: a connector did not take up its part of the load")

// remember keeps the blocks of a child's part. The lock is held.
func (w *Worker) remember(child int, op connector.Op) {
	var blocks []kvcache.BlockID
	for _, list := range op.Blocks {
		for _, b := range list {
			if b != kvcache.NullBlock {
				blocks = append(blocks, b)
			}
		}
	}
	m := w.loads[op.Request]
	if m == nil {
		m = map[int][]kvcache.BlockID{}
		w.loads[op.Request] = m
	}
	m[child] = blocks
}

// refuse reports the end of work that a child did not take up.
func (w *Worker) refuse(child int, ops []connector.Op, err error) {
	w.refused.Add(uint64(len(ops)))
	w.wg.Go(func() {
		for _, op := range ops {
			switch op.Kind {
			case connector.OpLoad:
				w.take(child, connector.Event{Kind: connector.Failed, Request: op.Request, Worker: w.rank, Err: err})
				w.take(child, connector.Event{Kind: connector.Received, Request: op.Request, Worker: w.rank})
			case connector.OpSend:
				w.take(child, connector.Event{Kind: connector.Sent, Request: op.Request, Worker: w.rank})
			case connector.OpSave:
				w.take(child, connector.Event{Kind: connector.Saved, Request: op.Request, Worker: w.rank, Err: err})
			}
		}
	})
}

// take accounts a child's event and passes on what is complete.
func (w *Worker) take(child int, ev connector.Event) {
	if out, ok := w.join(child, ev); ok {
		w.emit(out)
	}
}

func (w *Worker) emit(ev connector.Event) {
	select {
	case w.events <- ev:
	case <-w.ctx.Done():
	}
}

func (w *Worker) join(child int, ev connector.Event) (connector.Event, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch ev.Kind {
	case connector.Received, connector.Sent:
		k := wait{ev.Request, ev.Kind}
		p := w.waits[k]
		bit := uint64(1) << child
		switch {
		case p == nil || p.want&bit == 0:
			w.unknown.Add(1)
			return ev, false
		case p.seen&bit != 0:
			w.again.Add(1)
			return ev, false
		}
		p.seen |= bit
		p.events = append(p.events, childEvent{child, ev})
		if p.seen != p.want {
			return ev, false
		}
		delete(w.waits, k)
		if ev.Kind == connector.Received {
			delete(w.loads, ev.Request)
		}
		return connector.Event{Kind: ev.Kind, Request: ev.Request, Worker: ev.Worker, Payload: p.events}, true
	case connector.Failed:
		blocks, load := w.loads[ev.Request][child]
		if !load {
			w.unknown.Add(1)
			return ev, false
		}
		out := ev
		if len(ev.Blocks) == 0 {
			out.Blocks = blocks // all of this child's part, which may not be all of the load
		}
		out.Payload = joined{{child, ev}}
		return out, true
	}
	out := ev
	out.Payload = joined{{child, ev}}
	return out, true
}

// Events delivers what is complete.
func (w *Worker) Events() <-chan connector.Event { return w.events }

// Wants is true if a child needs to hear of the request's rows.
func (w *Worker) Wants(id connector.RequestID) bool {
	for _, c := range w.children {
		if l, ok := c.(connector.Layered); ok && l.Wants(id) {
			return true
		}
	}
	return false
}

// Computing tells the children that send KV while it is computed.
func (w *Worker) Computing(step uint64, rows []connector.Computing) {
	w.layered(func(l connector.Layered) { l.Computing(step, rows) })
}

// LayerDone tells them of a layer.
func (w *Worker) LayerDone(step uint64, layer int) {
	w.layered(func(l connector.Layered) { l.LayerDone(step, layer) })
}

// StepDone tells them of all layers.
func (w *Worker) StepDone(step uint64) { w.layered(func(l connector.Layered) { l.StepDone(step) }) }

func (w *Worker) layered(f func(connector.Layered)) {
	for _, c := range w.children {
		if l, ok := c.(connector.Layered); ok {
			f(l)
		}
	}
}

// Close closes the children and waits for their last events.
func (w *Worker) Close() error {
	var errs []error
	w.closing.Do(func() {
		w.cancel()
		for i, c := range w.children {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("connector %d: %w", i, err))
			}
		}
		w.wg.Wait()
		close(w.events)
	})
	return errors.Join(errs...)
}
