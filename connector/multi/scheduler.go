package multi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/connector"
)

// SchedulerStats are counters since the start.
type SchedulerStats struct {
	Recovered      uint64 // lookups that a child with recovery state answered
	Combined       uint64 // loads in which more than one child had a part
	ParamConflicts uint64 // finished requests for which two children had parameters
	Idle           uint64 // parts of a load that their child did not take up
}

// Scheduler is the scheduler's side. Like its children it is called from one
// goroutine and does no I/O.
type Scheduler struct {
	children []connector.Scheduler
	block    int // tokens
	plans    map[connector.RequestID][]part
	own      []connector.Op // expectations, before the children's work
	stats    SchedulerStats
}

var (
	_ connector.Scheduler = (*Scheduler)(nil)
	_ connector.Composite = (*Scheduler)(nil)
	_ connector.Delivery  = (*Scheduler)(nil)
	_ connector.Resetter  = (*Scheduler)(nil)
)

// part is what one child loads: tokens [from, to).
type part struct {
	child    int
	from, to int
}

// NewScheduler joins children. Their order is the order of lookups and must be
// that of the worker's children. blockSize is in tokens.
func NewScheduler(blockSize int, children ...connector.Scheduler) (*Scheduler, error) {
	if blockSize < 1 {
		return nil, fmt.Errorf("multi: block size %d", blockSize)
	}
	if len(children) == 0 || len(children) > 64 {
		return nil, errors.New("multi: want 1 to 64 children")
	}
	if slices.Contains(children, nil) {
		return nil, errors.New("multi: a child is nil")
	}
	return &Scheduler{children: slices.Clone(children), block: blockSize, plans: map[connector.RequestID][]part{}}, nil
}

// SubConnectors returns the children.
func (s *Scheduler) SubConnectors() []connector.Scheduler { return slices.Clone(s.children) }

// RequiresDelivery is true if it is for any child.
func (s *Scheduler) RequiresDelivery() bool {
	return slices.ContainsFunc(s.children, func(c connector.Scheduler) bool {
		d, ok := c.(connector.Delivery)
		return ok && d.RequiresDelivery()
	})
}

// ResetCache has every child forget what it keeps, and is true if all of them
// could.
func (s *Scheduler) ResetCache() bool {
	all := true
	for _, c := range s.children {
		if r, ok := c.(connector.Resetter); ok {
			all = r.ResetCache() && all
		}
	}
	return all
}

// Stats returns the counters.
func (s *Scheduler) Stats() SchedulerStats { return s.stats }

// Added tells all children.
func (s *Scheduler) Added(r *connector.Request) {
	for _, c := range s.children {
		c.Added(r)
	}
}

// Lookup asks children with recovery state, else all in order, and remembers
// who offered what.
func (s *Scheduler) Lookup(r *connector.Request, local int) connector.Answer {
	delete(s.plans, r.ID)
	for i, c := range s.children {
		if !connector.HasRecovery(c, r.ID) {
			continue
		}
		a := c.Lookup(r, local)
		if a.Pending || a.Tokens > 0 {
			s.stats.Recovered++
			if a.Tokens > 0 && !a.Pending {
				s.plans[r.ID] = []part{{i, local, local + a.Tokens}}
			}
			return a
		}
	}
	var parts []part
	var total connector.Answer
	at := local // where the hits so far end
	for i, c := range s.children {
		from := at - at%s.block
		a := c.Lookup(r, from)
		if a.Pending {
			return a
		}
		if from+a.Tokens <= at { // nothing, or less than the partial block that another one has
			continue
		}
		if k := len(parts); from < at {
			if parts[k-1].to = from; parts[k-1].from == from {
				parts = parts[:k-1]
			}
		}
		parts = append(parts, part{i, from, from + a.Tokens})
		total.Async = total.Async || a.Async
		total.Timeout = max(total.Timeout, a.Timeout)
		at = from + a.Tokens
	}
	if len(parts) == 0 {
		return connector.Answer{}
	}
	total.Tokens = at - local
	s.plans[r.ID] = parts
	return total
}

// Allocated tells each child of the plan its part, clipped to what is really
// loaded, and the others that they load nothing.
func (s *Scheduler) Allocated(r *connector.Request, tables connector.Tables, local, external int) {
	parts := s.plans[r.ID]
	delete(s.plans, r.ID)
	end := local + external
	var loaders uint64
	for i, c := range s.children {
		at, n := end, 0 // a child without a part has everything, as it seems to it
		for _, p := range parts {
			if p.child == i && p.from < end && external > 0 {
				at, n = p.from, min(p.to, end)-p.from
				loaders |= 1 << i
			}
		}
		c.Allocated(r, tables, at, n)
	}
	if loaders == 0 {
		return
	}
	if loaders&(loaders-1) != 0 {
		s.stats.Combined++
	}
	s.expect(connector.Op{Kind: connector.OpLoad, Request: r.ID}, loaders)
}

// expect tells the worker whose reports make an event complete.
func (s *Scheduler) expect(op connector.Op, children uint64) {
	op.Payload = expectation(children)
	s.own = append(s.own, op)
}

// expectation is the set of children that must report.
type expectation uint64

// routed is an op of one child.
type routed struct {
	child   int
	payload any
}

// Preempting asks every child to save; one that does is enough.
func (s *Scheduler) Preempting(r *connector.Request, tables connector.Tables, computed int) bool {
	saved := false
	for _, c := range s.children {
		saved = c.Preempting(r, tables, computed) || saved
	}
	return saved
}

// Finished tells every child and joins their answers.
func (s *Scheduler) Finished(r *connector.Request, tables connector.Tables, end connector.End) connector.Hold {
	delete(s.plans, r.ID)
	var hold connector.Hold
	var holders uint64
	for i, c := range s.children {
		h := c.Finished(r, tables, end)
		if h.Delay {
			hold.Delay = true
			hold.Timeout = max(hold.Timeout, h.Timeout)
			holders |= 1 << i
		}
		if h.Params == nil {
			continue
		}
		if hold.Params != nil {
			s.stats.ParamConflicts++
			continue
		}
		hold.Params = h.Params
	}
	if holders != 0 {
		s.expect(connector.Op{Kind: connector.OpSend, Request: r.ID, Timeout: hold.Timeout}, holders)
	}
	return hold
}

// Completed hands each child the events that are its own.
func (s *Scheduler) Completed(ev connector.Event) {
	j, ok := ev.Payload.(joined)
	if !ok {
		return
	}
	for _, e := range j {
		s.children[e.Child].Completed(e.Event)
	}
}

// Ops collects the children's work: what to expect, saves, the rest.
func (s *Scheduler) Ops(step uint64, dst []connector.Op) []connector.Op {
	begin := len(dst)
	dst = append(dst, s.own...)
	work := len(dst)
	clear(s.own)
	s.own = s.own[:0]
	for i, c := range s.children {
		from := len(dst)
		dst = c.Ops(step, dst)
		for k := from; k < len(dst); k++ {
			dst[k].Payload = routed{i, dst[k].Payload}
		}
	}
	for k := begin; k < work; k++ {
		dst[k].Step = step
		s.verify(&dst[k], dst[work:])
	}
	slices.SortStableFunc(dst[work:], func(a, b connector.Op) int { return order(a.Kind) - order(b.Kind) })
	return dst
}

// verify takes a child out of a load's expectation that has staged no part of
// it, so that nobody waits for its report. With no child left the worker
// reports the load as failed.
func (s *Scheduler) verify(e *connector.Op, work []connector.Op) {
	if e.Kind != connector.OpLoad {
		return
	}
	var staged expectation
	for i := range work {
		if p, ok := work[i].Payload.(routed); ok && work[i].Kind == connector.OpLoad && work[i].Request == e.Request {
			staged |= 1 << p.child
			e.Timeout = max(e.Timeout, work[i].Timeout)
		}
	}
	if want := e.Payload.(expectation); want&^staged != 0 {
		s.stats.Idle++
		e.Payload = idle{want: want & staged}
	}
}

// idle is the expectation of a load of which some part was not taken up: all
// of it counts as failed.
type idle struct{ want expectation }

func order(k connector.OpKind) int {
	if k == connector.OpSave {
		return 0
	}
	return 1
}
