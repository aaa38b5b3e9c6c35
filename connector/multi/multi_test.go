package multi

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bs = 4

// fake is a child's scheduler side. It offers tokens up to a position.
type fake struct {
	connector.Base
	name      string
	upTo      int // offers tokens below this position
	async     bool
	pending   bool
	recovery  bool
	saves     bool
	delivery  bool
	hold      connector.Hold
	busy      bool
	resets    int
	lazy      bool // promises and stages nothing
	asked     []int
	allocated [][2]int
	completed []connector.Event
	ops       []connector.Op
}

func (f *fake) Lookup(_ *connector.Request, local int) connector.Answer {
	f.asked = append(f.asked, local)
	if f.pending {
		return connector.Answer{Pending: true, Timeout: time.Second}
	}
	if f.upTo <= local {
		return connector.Answer{}
	}
	return connector.Answer{Tokens: f.upTo - local, Async: f.async}
}

func (f *fake) Allocated(r *connector.Request, tables connector.Tables, local, external int) {
	f.allocated = append(f.allocated, [2]int{local, external})
	if external > 0 && !f.lazy {
		blocks := tables[0][local/bs : (local+external+bs-1)/bs]
		f.ops = append(f.ops, connector.Op{Kind: connector.OpLoad, Request: r.ID, Blocks: connector.Tables{blocks}, Payload: f.name})
	}
}

func (f *fake) Preempting(r *connector.Request, _ connector.Tables, _ int) bool {
	if f.saves {
		f.ops = append(f.ops, connector.Op{Kind: connector.OpSave, Request: r.ID, Payload: f.name})
	}
	return f.saves
}

func (f *fake) Finished(r *connector.Request, _ connector.Tables, _ connector.End) connector.Hold {
	if f.hold.Delay {
		f.ops = append(f.ops, connector.Op{Kind: connector.OpSend, Request: r.ID, Payload: f.name})
	}
	return f.hold
}

func (f *fake) Completed(ev connector.Event) { f.completed = append(f.completed, ev) }

func (f *fake) Ops(_ uint64, dst []connector.Op) []connector.Op {
	dst = append(dst, f.ops...)
	f.ops = nil
	return dst
}

func (f *fake) Recovering(connector.RequestID) bool { return f.recovery }
func (f *fake) RequiresDelivery() bool              { return f.delivery }
func (f *fake) ResetCache() bool                    { f.resets++; return !f.busy }

// fakeWorker records what it is given.
type fakeWorker struct {
	events chan connector.Event
	got    []connector.Op
	log    *[]string
	err    error
	closed error
}

func (f *fakeWorker) Register(connector.Layout, []connector.Region) error { return f.err }
func (f *fakeWorker) Submit(ops ...connector.Op) error {
	if f.err != nil {
		return f.err
	}
	f.got = append(f.got, ops...)
	for _, op := range ops {
		*f.log = append(*f.log, op.Payload.(string)+" "+op.Kind.String())
	}
	return nil
}
func (f *fakeWorker) Events() <-chan connector.Event { return f.events }
func (f *fakeWorker) Close() error                   { close(f.events); return f.closed }

type rig struct {
	t   *testing.T
	s   *Scheduler
	w   *Worker
	c   []*fake
	cw  []*fakeWorker
	log []string
	r   *connector.Request
	tab connector.Tables
}

func newRig(t *testing.T, children ...*fake) *rig {
	t.Helper()
	x := &rig{t: t, c: children, r: &connector.Request{ID: connector.NewRequestID(3, 1), Name: "r", Tokens: make([]kvcache.Token, 40), Prompt: 40}}
	x.tab = connector.Tables{{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}}
	var ss []connector.Scheduler
	var ws []connector.Worker
	for i, c := range children {
		c.name = string(rune('a' + i))
		ss = append(ss, c)
		fw := &fakeWorker{events: make(chan connector.Event), log: &x.log}
		x.cw = append(x.cw, fw)
		ws = append(ws, fw)
	}
	var err error
	x.s, err = NewScheduler(bs, ss...)
	require.NoError(t, err)
	x.w, err = NewWorker(0, ws...)
	require.NoError(t, err)
	t.Cleanup(func() { x.w.Close() })
	return x
}

func (x *rig) flush() {
	x.t.Helper()
	require.NoError(x.t, x.w.Submit(x.s.Ops(1, nil)...))
}

func (x *rig) next() connector.Event {
	x.t.Helper()
	select {
	case ev := <-x.w.Events():
		x.s.Completed(ev)
		return ev
	case <-time.After(20 * time.Second):
		require.FailNow(x.t, "no event")
		return connector.Event{}
	}
}

func (x *rig) report(child int, k connector.EventKind, blocks ...kvcache.BlockID) {
	x.cw[child].events <- connector.Event{Kind: k, Request: x.r.ID, Blocks: blocks, Payload: x.c[child].name}
}

func (x *rig) quiet() {
	x.t.Helper()
	select {
	case ev := <-x.w.Events():
		require.FailNow(x.t, "unexpected event", "%+v", ev)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestPartialHitsOfTwoChildrenMakeOnePlan(t *testing.T) {
	x := newRig(t, &fake{upTo: 12, async: true}, &fake{upTo: 39, async: true}, &fake{})
	require.Equal(t, connector.Answer{Tokens: 35, Async: true}, x.s.Lookup(x.r, 4))
	require.Equal(t, []int{12}, x.c[1].asked, "each is asked for what follows the others' hits")
	x.s.Allocated(x.r, x.tab, 4, 35)
	require.Equal(t, [][2]int{{4, 8}}, x.c[0].allocated)
	require.Equal(t, [][2]int{{12, 27}}, x.c[1].allocated)
	require.Equal(t, [][2]int{{39, 0}}, x.c[2].allocated, "the others know that all will be there")
	x.flush()
	require.Equal(t, []string{"a load", "b load"}, x.log)
	x.report(1, connector.Received)
	x.quiet()
	x.report(0, connector.Failed) // all of a's part
	ev := x.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.Equal(t, []kvcache.BlockID{12, 13}, ev.Blocks, "a's part alone")
	x.report(0, connector.Received)
	ev = x.next()
	require.Equal(t, connector.Received, ev.Kind)
	require.ElementsMatch(t, []any{"a", "b"}, Payloads(ev))
	require.Len(t, x.c[0].completed, 2)
	require.Len(t, x.c[1].completed, 1)
	require.Empty(t, x.c[2].completed)
	require.EqualValues(t, 1, x.s.Stats().Combined)
	require.Zero(t, x.w.Stats().Waiting)
	// The second admission.
	x.s.Allocated(x.r, x.tab, 39, 0)
	require.Equal(t, [2]int{39, 0}, x.c[1].allocated[1])
	x.flush()
}

func TestPartialBlockOfTheFirstIsLeftToTheSecond(t *testing.T) {
	// 9248 tokens in blocks of 128, of which a pool holds 9216, a multiple of
	// the block: the other child sends the rest and no more.
	x := newRig(t, &fake{upTo: 10, async: true}, &fake{upTo: 39, async: true})
	require.Equal(t, 39, x.s.Lookup(x.r, 0).Tokens)
	x.s.Allocated(x.r, x.tab, 0, 39)
	require.Equal(t, [][2]int{{0, 8}}, x.c[0].allocated, "cut back to whole blocks")
	require.Equal(t, [][2]int{{8, 31}}, x.c[1].allocated)

	x = newRig(t, &fake{upTo: 10}, &fake{upTo: 9})
	require.Equal(t, 10, x.s.Lookup(x.r, 0).Tokens)
	x.s.Allocated(x.r, x.tab, 0, 10)
	require.Equal(t, [][2]int{{0, 10}}, x.c[0].allocated)
	require.Equal(t, [][2]int{{10, 0}}, x.c[1].allocated)

	x = newRig(t, &fake{upTo: 3}, &fake{upTo: 39})
	x.s.Lookup(x.r, 0)
	x.s.Allocated(x.r, x.tab, 0, 20)
	require.Equal(t, [][2]int{{20, 0}}, x.c[0].allocated, "no whole block left of it")
	require.Equal(t, [][2]int{{0, 20}}, x.c[1].allocated, "clipped to what is loaded")
}

func TestRecoveryStateGoesFirst(t *testing.T) {
	x := newRig(t, &fake{upTo: 39, async: true}, &fake{upTo: 30, async: true, recovery: true})
	require.Equal(t, 30, x.s.Lookup(x.r, 0).Tokens)
	require.Empty(t, x.c[0].asked)
	x.s.Allocated(x.r, x.tab, 0, 30)
	require.Equal(t, [][2]int{{30, 0}}, x.c[0].allocated)
	require.Equal(t, [][2]int{{0, 30}}, x.c[1].allocated)
	require.True(t, connector.HasRecovery(x.s, x.r.ID))
	x.c[1].pending = true
	require.Equal(t, connector.Answer{Pending: true, Timeout: time.Second}, x.s.Lookup(x.r, 0))
	x.c[1].pending, x.c[1].upTo = false, 0
	require.Equal(t, 39, x.s.Lookup(x.r, 0).Tokens, "nothing to recover: the usual order")
}

func TestPendingChildDefers(t *testing.T) {
	x := newRig(t, &fake{upTo: 8}, &fake{pending: true})
	require.True(t, x.s.Lookup(x.r, 0).Pending)
	x.c[1].pending = false
	require.Equal(t, 8, x.s.Lookup(x.r, 0).Tokens)
}

func TestReportsOfOthersAndSecondReportsAreDropped(t *testing.T) {
	x := newRig(t, &fake{upTo: 39, async: true}, &fake{})
	x.s.Lookup(x.r, 0)
	x.s.Allocated(x.r, x.tab, 0, 39)
	x.flush()
	x.report(1, connector.Received) // not chosen
	x.report(1, connector.Failed, 12)
	x.report(0, connector.Received)
	require.Equal(t, connector.Received, x.next().Kind)
	x.report(1, connector.Received) // one step later
	x.report(0, connector.Received)
	x.report(0, connector.Sent)
	x.quiet()
	require.EqualValues(t, 5, x.w.Stats().Unknown)
}

func TestHoldsEndTogether(t *testing.T) {
	x := newRig(t,
		&fake{hold: connector.Hold{Delay: true, Timeout: time.Second}},
		&fake{hold: connector.Hold{Delay: true, Timeout: time.Minute, Params: "p"}},
		&fake{hold: connector.Hold{Params: "q"}})
	h := x.s.Finished(x.r, x.tab, connector.End{})
	require.Equal(t, connector.Hold{Delay: true, Timeout: time.Minute, Params: "p"}, h)
	require.EqualValues(t, 1, x.s.Stats().ParamConflicts)
	x.flush()
	x.report(1, connector.Sent)
	x.report(1, connector.Sent)
	x.quiet()
	require.EqualValues(t, 1, x.w.Stats().Duplicate)
	x.report(0, connector.Sent)
	require.Equal(t, connector.Sent, x.next().Kind)
	require.Len(t, x.c[0].completed, 1)
	require.Len(t, x.c[1].completed, 1)
}

func TestSavesOfAllChildrenGoFirst(t *testing.T) {
	x := newRig(t, &fake{upTo: 8}, &fake{saves: true}, &fake{saves: true})
	x.s.Lookup(x.r, 0)
	x.s.Allocated(x.r, x.tab, 0, 8)
	require.True(t, x.s.Preempting(x.r, x.tab, 8), "one is enough, all are asked")
	x.flush()
	require.Equal(t, []string{"b save", "c save", "a load"}, x.log)
	x.report(1, connector.Saved)
	require.Equal(t, connector.Saved, x.next().Kind)
	require.Len(t, x.c[1].completed, 1)
	require.Empty(t, x.c[2].completed)
}

func TestChildThatRefusesWork(t *testing.T) {
	x := newRig(t, &fake{upTo: 8, async: true}, &fake{upTo: 39, async: true, hold: connector.Hold{Delay: true}})
	x.cw[1].err = errors.New("full")
	x.s.Lookup(x.r, 0)
	x.s.Allocated(x.r, x.tab, 0, 39)
	x.flush()
	ev := x.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.ErrorContains(t, ev.Err, "full")
	require.Equal(t, x.tab[0][2:], ev.Blocks)
	x.report(0, connector.Received)
	require.Equal(t, connector.Received, x.next().Kind)
	x.s.Finished(x.r, x.tab, connector.End{})
	x.flush()
	require.Equal(t, connector.Sent, x.next().Kind)
	require.EqualValues(t, 2, x.w.Stats().Refused)
	require.ErrorContains(t, x.w.Register(connector.Layout{}, nil), "connector 1: full")
}

func TestChildThatStagesNothing(t *testing.T) {
	x := newRig(t, &fake{upTo: 8, async: true}, &fake{upTo: 39, async: true, lazy: true})
	x.s.Lookup(x.r, 0)
	x.s.Allocated(x.r, x.tab, 0, 39)
	x.flush()
	ev := x.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.Empty(t, ev.Blocks, "all of the load")
	x.report(0, connector.Received)
	require.Equal(t, connector.Received, x.next().Kind)

	x = newRig(t, &fake{upTo: 8, async: true, lazy: true})
	x.s.Lookup(x.r, 0)
	x.s.Allocated(x.r, x.tab, 0, 8)
	x.flush()
	require.Equal(t, connector.Failed, x.next().Kind)
	require.Equal(t, connector.Received, x.next().Kind)
	require.Zero(t, x.w.Stats().Waiting)
}

func TestShape(t *testing.T) {
	x := newRig(t, &fake{}, &fake{delivery: true})
	require.True(t, x.s.RequiresDelivery())
	require.True(t, x.s.ResetCache())
	x.c[0].busy = true
	require.False(t, x.s.ResetCache())
	require.Equal(t, 2, x.c[1].resets, "all are asked")
	subs := x.s.SubConnectors()
	subs[0] = nil
	require.Equal(t, connector.Scheduler(x.c[0]), x.s.SubConnectors()[0], "a fresh list")
	require.Len(t, x.w.SubWorkers(), 2)
	require.Error(t, x.w.Submit(connector.Op{Kind: connector.OpLoad}), "of no child")
	_, err := NewScheduler(bs)
	require.Error(t, err)
	_, err = NewScheduler(0, &fake{})
	require.Error(t, err)
	_, err = NewScheduler(bs, nil)
	require.Error(t, err)
	_, err = NewWorker(0, nil)
	require.Error(t, err)
	x.cw[1].closed = errors.New("stuck")
	require.ErrorContains(t, x.w.Close(), "connector 1: stuck")
	_, open := <-x.w.Events()
	require.False(t, open)
}

func TestAbandonedWaitsAreSwept(t *testing.T) {
	x := newRig(t, &fake{hold: connector.Hold{Delay: true, Timeout: time.Nanosecond}})
	for i := range uint32(sweepAt + 10) {
		x.r.ID = connector.NewRequestID(i, 1)
		x.s.Finished(x.r, x.tab, connector.End{})
		x.flush()
	}
	require.Less(t, x.w.Stats().Waiting, sweepAt)
}
