package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/kvcache/publish"
	"github.com/sluice-serving/sluice/scheduler"
)

// rank is one data-parallel rank. Its loop is the only one that touches the
// scheduler, the cache, the executor and streams; the other methods may be
// called from any goroutine.
type rank struct {
	index   int
	id      string // changes at every start
	cfg     Config
	model   *loadedModel
	log     *slog.Logger
	trace   *Trace
	metrics *rankMetrics

	party   *party // nil: its steps are its own
	sched   Scheduler
	cache   *kvcache.Cache
	pub     *publish.Publisher // of KV events; nil: none
	exec    *executor.Executor
	conn    connector.Scheduler // nil if the engine has no connector
	worker  connector.Worker    // nil if the engine has no connector
	events  <-chan connector.Event
	closers []func()

	histories *histories

	steps *stepLog // nil: none
	links links
	parse func(raw []byte) (transferParams, error) // reads kv_transfer_params; nil if they have no meaning

	streams map[scheduler.RequestID]*Stream
	loads   map[scheduler.RequestID]*load
	saves   map[scheduler.RequestID]*save
	flight  []inFlight
	limit   int  // plans in flight
	dirty   bool // something has changed since the last plan
	waits   scheduler.Wait
	ops     []connector.Op
	seq     uint64      // number of the newest plan
	busy    atomic.Bool // the newest plan has rows
	over    time.Time   // when the last step ended
	tokens  []scheduler.Token
	drafts  []scheduler.Token // proposed for the next step

	draftCounts []int32         // of drafts, by row
	counted     scheduler.Stats // as the metrics have them

	graphs graphTable

	noNumber atomic.Bool // a stream has its mark

	live   atomic.Int64 // requests submitted and not ended
	serial atomic.Uint64

	mu     sync.Mutex
	inbox  []func()
	closed bool
	wake   chan struct{}
}

type inFlight struct {
	plan *scheduler.Plan
	step executor.Step
	at   time.Time // when it was submitted
}

// load is a transfer into this rank that has not ended.
type load struct {
	name   string // the request's, in traces
	failed string // why it failed, empty if it did not
}

// post runs f on the rank's goroutine, between two steps. It reports false when
// the rank has ended.
func (r *rank) post(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.inbox = append(r.inbox, f)
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return true
}

// call runs f on the rank's goroutine and waits for it.
func (r *rank) call(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if !r.post(func() { f(); close(done) }) {
		return ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is the loop. It ends when ctx ends, or with the error of a device.
func (r *rank) run(ctx context.Context) error {
	defer func() {
		if why := recover(); why != nil { // a broken invariant
			r.broken(why)
			panic(why)
		}
	}()
	err := r.loop(ctx)
	r.leave(err)
	if err != nil && !errors.Is(err, ascendrt.ErrDeviceLost) {
		r.broken(err)
	}
	r.logGraphs()
	r.mu.Lock()
	r.closed = true
	late := r.inbox
	r.inbox = nil
	r.mu.Unlock()
	for _, f := range late { // callers that wait get their answer: the streams they add end below
		f()
	}
	for _, s := range r.streams {
		s.fail(ErrClosed)
	}
	return err
}

func (r *rank) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		r.takeInbox()
		r.takeEvents()
		planned := false
		if len(r.flight) < r.limit && (r.dirty || r.called()) {
			var err error
			if planned, err = r.plan(ctx); err != nil {
				return err
			}
		}
		switch {
		case len(r.flight) > 0 && (len(r.flight) == r.limit || !planned):
			if err := r.settle(ctx); err != nil {
				return err
			}
		case !planned:
			r.gauges()
			r.sleep(ctx)
		}
	}
	return nil
}

func (r *rank) takeInbox() {
	r.mu.Lock()
	inbox := r.inbox
	r.inbox = nil
	r.mu.Unlock()
	for _, f := range inbox {
		f()
		r.dirty = true
	}
}

// takeEvents delivers what the connector has reported so far.
func (r *rank) takeEvents() {
	for {
		select {
		case ev, ok := <-r.events:
			if !ok {
				r.events = nil
				return
			}
			r.deliver(ev)
		default:
			return
		}
	}
}

func (r *rank) deliver(ev connector.Event) {
	r.dirty = true
	r.noteEvent(ev)
	r.sched.Deliver(ev)
}

// sleep waits until something arrives or is due.
func (r *rank) sleep(ctx context.Context) {
	var due <-chan time.Time
	wait := time.Duration(-1)
	if at, ok := r.sched.NextDeadline(); ok {
		wait = max(0, at.Sub(scheduler.At(time.Now())))
	}
	if r.waits == scheduler.ForLookup && (wait < 0 || wait > lookupPoll) {
		wait = lookupPoll
	}
	if wait >= 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-r.calls():
	case ev, ok := <-r.events:
		if ok {
			r.deliver(ev)
		} else {
			r.events = nil
		}
	case <-due:
		r.dirty = true
	}
}

// lookupPoll is how often a connector is asked again that could not answer.
const lookupPoll = 2 * time.Millisecond

// plan makes one plan and starts it. It reports whether the plan has rows.
func (r *rank) plan(ctx context.Context) (bool, error) {
	now := time.Now()
	p := r.sched.Plan(scheduler.At(now))
	if p == nil {
		return false, fmt.Errorf("rank %d: no plan with %d of %d in flight", r.index, len(r.flight), r.limit)
	}
	r.dirty, r.waits, r.seq = p.Rows() > 0, p.Waits, p.Seq
	r.busy.Store(p.Rows() > 0)
	r.note(p, now)
	if err := r.transferOps(p.Seq); err != nil {
		return false, err
	}
	if err := r.noise(ctx, p); err != nil {
		return false, err
	}
	r.computing(p)
	step, err := r.submit(ctx, p)
	if err != nil {
		if r.party != nil && ctx.Err() != nil {
			return false, nil // the others may have ended before this one
		}
		return false, fmt.Errorf("rank %d: submit step %d: %w", r.index, p.Seq, err)
	}
	r.flight = append(r.flight, inFlight{p, step, now})
	return p.Rows() > 0, nil
}

// transferOps hands what the connector has staged to its worker.
func (r *rank) transferOps(step uint64) error {
	if r.conn == nil {
		return nil
	}
	r.ops = r.conn.Ops(step, r.ops[:0])
	if len(r.ops) == 0 {
		return nil
	}
	r.noteOps(r.ops)
	if err := r.quiet(); err != nil {
		return err
	}
	if err := r.worker.Submit(r.ops...); err != nil {
		return fmt.Errorf("rank %d: connector: %w", r.index, err)
	}
	r.noteSaved(r.ops)
	return nil
}

// quiet waits for the steps in flight that may still write to the last block
// of what is about to be read, behind what is read: all of them for a preempted
// request that is saved, and those with a row of a request that is sent.
func (r *rank) quiet() error {
	for i := range r.ops {
		op := &r.ops[i]
		for _, f := range r.flight {
			switch {
			case op.Kind == connector.OpSave && !r.saves[op.Request].ofTurn:
			case op.Kind == connector.OpSend && slices.Contains(f.plan.Requests, op.Request):
			default:
				continue
			}
			if err := f.step.Ran(context.Background()); err != nil {
				return fmt.Errorf("rank %d: step %d: %w", r.index, f.plan.Seq, err)
			}
		}
	}
	return nil
}

// flushOps hands over what was staged outside of a step.
func (r *rank) flushOps() {
	if err := r.transferOps(r.seq); err != nil {
		r.log.Error("connector", "error", err)
	}
}

// settle waits for the oldest step, applies it and passes on its outputs.
func (r *rank) settle(ctx context.Context) error {
	f := r.flight[0]
	var err error
	r.tokens, err = f.step.Wait(ctx, r.tokens[:0])
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("rank %d: step %d: %w", r.index, f.plan.Seq, err)
	}
	r.flight = append(r.flight[:0], r.flight[1:]...)
	counts := f.step.Counts()
	r.dropNaN(f.plan, counts)
	now := time.Now()
	begun := f.at // a step begins when the one before it is over
	if begun.Before(r.over) {
		begun = r.over
	}
	r.over = now
	if f.plan.Rows() > 0 {
		r.dirty = true
		r.computed(f.plan, now.Sub(begun))
		r.metrics.step(f.plan, now.Sub(begun))
		r.countGraph(f.plan.Graph, now)
	}
	res := scheduler.Result{Tokens: r.tokens, Elapsed: now.Sub(begun)}
	if r.cfg.Speculative.on() && f.plan.Rows() > 0 {
		res.Counts = counts
		r.propose(f.plan, &res)
	}
	outs, err := r.sched.Apply(f.plan, res)
	if err != nil {
		return fmt.Errorf("rank %d: apply step %d: %w", r.index, f.plan.Seq, err)
	}
	// A last output may tell a peer where blocks are: they are offered first.
	if err := r.transferOps(r.seq); err != nil {
		return err
	}
	r.tell()
	r.gauges() // whoever has an answer finds its end in the metrics
	now = time.Now()
	for i := range outs {
		r.output(&outs[i], now)
	}
	return nil
}

// ended reports whether the loop has ended.
func (r *rank) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// idle reports whether no request runs, waits or holds blocks for a peer.
func (r *rank) idle() bool {
	return r.sched.Unfinished() == 0 && len(r.flight) == 0 && r.cache.Stats().Held == 0
}
