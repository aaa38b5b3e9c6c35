package kvchain

import (
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// Config of an Engine.
type Config struct {
	Blocks    int // of the pool, the null block included
	BlockSize int
	Scheduler scheduler.Config
	// Settle is how long a step waits for the next event of the connector, as a
	// device would compute meanwhile; 0 does not wait.
	Settle time.Duration
	// Connect makes the connector, nil for none. The engine closes the worker.
	Connect func(connector.Layout, []connector.Region) (connector.Scheduler, connector.Worker, error)
}

type inFlight struct {
	plan *scheduler.Plan
	res  scheduler.Result
}

// Engine is a scheduler, a cache, a connector and the chain model, driven by
// one goroutine.
type Engine struct {
	Scheduler *scheduler.Scheduler
	cache     *kvcache.Cache
	conn      connector.Scheduler
	worker    connector.Worker
	exec      executor
	flight    []inFlight
	start     time.Time
	depth     int
	settle    time.Duration
	// Tokens and the end of each request, by its name.
	Tokens map[string][]kvcache.Token
	Ends   map[string]scheduler.Output
	// Log has a line per thing that happened to a request's KV.
	Log []string
}

// New makes an engine.
func New(c Config) (*Engine, error) {
	cache, err := kvcache.New(kvcache.Config{Blocks: c.Blocks, BlockSize: c.BlockSize})
	if err != nil {
		return nil, err
	}
	mem := newMemory(c.Blocks, c.BlockSize)
	e := &Engine{
		cache: cache, start: time.Now(), settle: c.Settle, Tokens: map[string][]kvcache.Token{}, Ends: map[string]scheduler.Output{},
		exec: executor{mem: mem, tables: map[uint32][]kvcache.BlockID{}, last: map[uint32]kvcache.Token{}},
	}
	var opts []scheduler.Option
	if c.Connect != nil {
		if e.conn, e.worker, err = c.Connect(mem.layout(c.Blocks)); err != nil {
			return nil, err
		}
		opts = append(opts, scheduler.WithConnector(e.conn))
	}
	if e.Scheduler, err = scheduler.New(c.Scheduler, cache, opts...); err != nil {
		return nil, err
	}
	e.depth = max(1, e.Scheduler.Config().InFlight)
	return e, nil
}

// Close ends the connector.
func (e *Engine) Close() error {
	if e.worker == nil {
		return nil
	}
	return e.worker.Close()
}

func (e *Engine) now() scheduler.Time { return scheduler.Time(time.Since(e.start)) }

// ops hands the connector's work over.
func (e *Engine) ops(step uint64) error {
	if e.conn == nil {
		return nil
	}
	list := e.conn.Ops(step, nil)
	for _, op := range list {
		if op.Kind == connector.OpSave || op.Kind == connector.OpLoad || op.Kind == connector.OpSend {
			e.log("%v %v", op.Request, op.Kind)
		}
	}
	return e.worker.Submit(list...)
}

func (e *Engine) log(format string, args ...any) { e.Log = append(e.Log, fmt.Sprintf(format, args...)) }

func (e *Engine) deliver(ev connector.Event) {
	e.log("%v %v", ev.Request, ev.Kind)
	e.Scheduler.Deliver(ev)
}

// Step plans, runs and applies what can be, and waits for an event when that
// is all there is to do. It reports whether there is work left.
func (e *Engine) Step() (bool, error) {
	for more := e.worker != nil; more; {
		more = e.take(e.settle)
	}
	if !e.Scheduler.HasWork() && len(e.flight) == 0 {
		if at, ok := e.Scheduler.NextDeadline(); !ok || at > e.now() {
			e.take(time.Millisecond)
			return e.Scheduler.Unfinished() > 0, nil
		}
	}
	p := e.Scheduler.Plan(e.now())
	for _, id := range p.Preempted {
		e.log("%v preempted", id)
	}
	if err := e.ops(p.Seq); err != nil {
		return false, err
	}
	e.flight = append(e.flight, inFlight{p, e.run(p)})
	for len(e.flight) >= e.depth || len(e.flight) > 0 && p.Rows() == 0 {
		if err := e.apply(); err != nil {
			return false, err
		}
	}
	if p.Rows() == 0 {
		e.take(time.Millisecond)
	}
	return true, nil
}

// take delivers one event, if one comes in time.
func (e *Engine) take(wait time.Duration) bool {
	var events <-chan connector.Event
	if e.worker != nil {
		events = e.worker.Events()
	}
	select {
	case ev, open := <-events:
		if open {
			e.deliver(ev)
		}
		return open
	default:
	}
	if wait == 0 {
		return false
	}
	select {
	case ev, open := <-events:
		if open {
			e.deliver(ev)
		}
		return open
	case <-time.After(wait):
		return false
	}
}

// run computes a plan and tells a worker that sends KV meanwhile.
func (e *Engine) run(p *scheduler.Plan) scheduler.Result {
	e.exec.tabulate(p)
	l, ok := e.worker.(connector.Layered)
	if !ok {
		return e.exec.run(p)
	}
	var rows []connector.Computing
	for i, id := range p.Requests {
		if p.Computed[i] < p.Prefill[i] && l.Wants(id) {
			table := connector.Tables{append([]kvcache.BlockID(nil), e.exec.tables[id.Slot()]...)}
			rows = append(rows, connector.Computing{Request: id, Tables: table, From: int(p.Computed[i]), To: int(p.Computed[i] + p.Scheduled[i])})
		}
	}
	l.Computing(p.Seq, rows)
	res := e.exec.run(p)
	l.LayerDone(p.Seq, 0)
	l.StepDone(p.Seq)
	return res
}

// apply ends the oldest plan in flight.
func (e *Engine) apply() error {
	f := e.flight[0]
	e.flight = e.flight[1:]
	outs, err := e.Scheduler.Apply(f.plan, f.res)
	if err != nil {
		return err
	}
	if err := e.ops(f.plan.Seq); err != nil {
		return err
	}
	for _, o := range outs {
		e.Tokens[o.ID] = append(e.Tokens[o.ID], o.Tokens...)
		if o.Finish != scheduler.NotFinished {
			o.Tokens = nil
			e.Ends[o.ID] = o
			e.log("%v finished %v", o.Request, o.Finish)
		}
	}
	return nil
}

// Run steps until every request has ended and every block is back, or the time
// is over.
func (e *Engine) Run(limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		more, err := e.Step()
		if err != nil {
			return err
		}
		if !more && e.cache.Available() == e.cache.Usable() {
			return nil
		}
	}
	return fmt.Errorf("not at rest after %v: %d requests, %d of %d blocks", limit, e.Scheduler.Unfinished(), e.cache.Available(), e.cache.Usable())
}
