package base

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// queue is a stream that has passed done.
type queue struct {
	ascendrt.Stream
	last, done uint64
	stopped    bool
}

func (q *queue) Done(seq uint64) bool { return seq <= q.done }
func (q *queue) Stop() uint64         { q.stopped = true; return q.last }

func (q *queue) Wait(_ context.Context, seq uint64) error {
	if q.Done(seq) {
		return nil
	}
	return errors.New("still at work")
}

func newCore(o ascendrt.OpenOptions) *Core {
	c := &Core{}
	c.Init("test", o)
	return c
}

func TestLimits(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{MaxStreams: 2})
	require.NoError(t, c.Take(Streams))
	require.NoError(t, c.Take(Streams))
	err := c.Take(Streams)
	require.ErrorIs(t, err, ascendrt.ErrResourceLimit)
	require.ErrorContains(t, err, "2 exist")
	require.NoError(t, c.Take(Events), "no limit was asked for")
	c.Add(Ops)
	require.Equal(t, ascendrt.Limits{Streams: 2, Events: -1, EventsFree: 3, GraphNodes: -1, LargestAlloc: 7}, c.Limits(7, 5, 3), "the options' before the runtime's")
	c.Give(Streams)
	require.NoError(t, c.Take(Streams))
	var live ascendrt.Live
	c.FillLive(&live)
	require.Equal(t, ascendrt.Live{Streams: 2, Events: 1, Ops: 1}, live)
}

func TestLater(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	a, b := &queue{done: 1}, &queue{}
	var ran []string
	note := func(s string) func() { return func() { ran = append(ran, s) } }
	c.Later(nil, note("at once"))
	c.Later([]ascendrt.Point{{Stream: a, Seq: 1}}, note("passed"))
	c.Later([]ascendrt.Point{{Stream: a, Seq: 1}, {Stream: b, Seq: 1}}, note("both"))
	c.Later([]ascendrt.Point{{Stream: a, Seq: 2}}, note("drained"))
	c.Reap()
	require.Equal(t, []string{"at once", "passed"}, ran)
	b.done = 1
	c.Reap()
	c.Reap()
	require.Equal(t, []string{"at once", "passed", "both"}, ran)
	c.Drain()
	require.Equal(t, "drained", ran[3])
}

func TestLossAndClose(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	require.NoError(t, c.Alive())
	first := c.Invalid("step", "gone", ascendrt.ErrDeviceLost)
	c.Fail(first)
	c.Fail(errors.New("what followed"))
	require.Equal(t, first, c.Alive(), "the first error is the one that lost the device")
	<-c.Lost()

	var x StreamSet[*queue]
	q := &queue{last: 4}
	x.Add(q)
	require.NoError(t, Close(t.Context(), c, &x, func([]*queue) error { return errors.New("a lost device gives nothing back") }))
	require.True(t, q.stopped)
	require.ErrorIs(t, c.Alive(), ascendrt.ErrClosed)
	require.ErrorIs(t, c.Enter(), ascendrt.ErrClosed, "nothing is opened any more")
	require.ErrorIs(t, c.Take(Events), ascendrt.ErrClosed)
	c.Add(Ops)
	c.Give(Streams)
	var live ascendrt.Live
	c.FillLive(&live)
	require.Zero(t, live, "a closed device counts nothing")
	require.False(t, x.Drop(q))
}

// Whatever was being opened when Close began is part of what it closes.
func TestCloseMissesNothing(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	var x StreamSet[*queue]
	require.NoError(t, c.Enter())
	closing := make(chan error)
	go func() {
		closing <- Close(t.Context(), c, &x, func(all []*queue) error {
			require.Len(t, all, 1)
			return nil
		})
	}()
	for c.Life.TryRLock() { // until Close waits
		c.Life.RUnlock()
		runtime.Gosched()
	}
	q := &queue{}
	x.Add(q)
	c.Leave()
	require.NoError(t, <-closing)
	require.True(t, q.stopped)
}

func TestCloseWaits(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	var x StreamSet[*queue]
	x.Add(&queue{last: 2, done: 2})
	drained := false
	c.Later([]ascendrt.Point{{Stream: &queue{}, Seq: 1}}, func() { drained = true })
	require.NoError(t, Close(t.Context(), c, &x, func(all []*queue) error {
		require.Len(t, all, 1)
		require.True(t, drained, "what waits is done before everything is given back")
		return nil
	}))
	require.True(t, drained)

	busy := newCore(ascendrt.OpenOptions{})
	var y StreamSet[*queue]
	y.Add(&queue{last: 2, done: 1})
	for range 2 { // the second call gives the same error
		err := Close(t.Context(), busy, &y, func([]*queue) error { return errors.New("not while work runs") })
		require.ErrorIs(t, err, ascendrt.ErrTimeout)
		require.ErrorContains(t, err, "still at work")
	}
}

// slow reaches what is submitted after some questions, or some slices.
type slow struct {
	polls, slices int // -1: never
	why           error
	most          time.Duration // the longest slice
}

func (s *slow) Reached(uint64) bool {
	s.polls--
	return s.polls == -1
}

func (s *slow) Block(_ uint64, most time.Duration) (bool, error) {
	s.slices--
	s.most = max(s.most, most)
	return s.slices == -1, s.why
}

func TestWait(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{WaitSpin: time.Hour})
	require.NoError(t, Wait(t.Context(), c, &slow{}, 1, 1), "at once")
	require.NoError(t, Wait(t.Context(), c, &slow{polls: 9}, 1, 1), "while it polls")
	require.ErrorIs(t, Wait(t.Context(), c, &slow{polls: 9}, 2, 1), ascendrt.ErrInvalid, "never submitted")

	c.Options.WaitSpin = -1
	s := &slow{polls: -2, slices: 3}
	require.NoError(t, Wait(t.Context(), c, s, 1, 1))
	require.Equal(t, waitSlice, s.most)
	why := errors.New("closed")
	require.Equal(t, why, Wait(t.Context(), c, &slow{polls: -2, slices: 3, why: why}, 1, 1))
	past, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	require.ErrorIs(t, Wait(past, c, &slow{polls: -2}, 1, 1), ascendrt.ErrTimeout)
	gone, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, Wait(gone, c, &slow{polls: -2}, 1, 1), context.Canceled)
	c.Fail(c.Invalid("device", "fault", ascendrt.ErrDeviceLost))
	require.ErrorIs(t, Wait(t.Context(), c, &slow{}, 1, 1), ascendrt.ErrDeviceLost)
}

func TestCloseStream(t *testing.T) {
	for _, busy := range []uint64{0, 1} {
		c := newCore(ascendrt.OpenOptions{})
		var x StreamSet[*queue]
		q := &queue{last: 2, done: 2 - busy}
		x.Add(q)
		var gone []bool
		err := CloseStream(c, &x, q, func(idle bool) {
			require.False(t, c.Life.TryRLock())
			gone = append(gone, idle)
		})
		require.Equal(t, busy == 0, err == nil)
		require.Equal(t, []bool{busy == 0}, gone)
		require.True(t, q.stopped)
		require.Empty(t, x.All())
	}
	c := newCore(ascendrt.OpenOptions{})
	c.Shut()
	var x StreamSet[*queue]
	require.NoError(t, CloseStream(c, &x, &queue{}, func(bool) { t.Error("the device's Close has the stream") }))
}

func TestAccepted(t *testing.T) {
	require.Equal(t, 2, Accepted(&ascendrt.Error{Command: 2, Class: ascendrt.ErrInvalid}, 5))
	require.Equal(t, 5, Accepted(&ascendrt.Error{Command: -1, Class: ascendrt.ErrInvalid}, 5), "of no command")
	require.Equal(t, 5, Accepted(&ascendrt.Error{Command: 2, Class: ascendrt.ErrDeviceLost}, 5))
}

func TestRecordsAndSlots(t *testing.T) {
	r := Records{Index: 7}
	r.Record(3, 2, 10, 11)
	require.Equal(t, []uint64{3 | 2<<32, 7, 10, 11, 0, 0, 0, 0}, r.Words)

	var s Slots
	require.NoError(t, s.Before(ascendrt.KindCopy))
	require.NoError(t, s.Set(ascendrt.Record{A: [ascendrt.HeaderWords - 1]uint64{1}, Payload: []uint64{5, ^uint64(0)}}))
	require.Equal(t, Slots{nil, {5, -1}}, s)
	require.NoError(t, s.Before(ascendrt.KindOp))
	require.ErrorIs(t, s.Before(ascendrt.KindCopy), ascendrt.ErrInvalid)
	require.ErrorContains(t, s.Set(ascendrt.Record{A: [ascendrt.HeaderWords - 1]uint64{32}}), "slot 32")
}

func TestHandleAndWrap(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	q := &queue{}
	ref := c.Refs.Add(q)
	got, err := Handle[*queue](c, uint64(ref), "stream")
	require.NoError(t, err)
	require.Same(t, q, got)
	_, err = Handle[*Core](c, uint64(ref), "event")
	require.ErrorContains(t, err, "the event was closed")

	wrapped := c.Wrap("copy", 3, err)
	var e *ascendrt.Error
	require.ErrorAs(t, wrapped, &e)
	require.Equal(t, 3, e.Command)
	require.Equal(t, ascendrt.ErrClosed, e.Class)
	require.Equal(t, wrapped, c.Wrap("again", 4, wrapped), "an error with a class stays")
	require.ErrorIs(t, c.Wrap("copy", 0, errors.New("odd")), ascendrt.ErrInvalid)
}

type gated struct {
	Gate
	ref ascendrt.Ref
}

func (g *gated) Ref() ascendrt.Ref { return g.ref }

func TestLockAll(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	a, b := &gated{ref: 2}, &gated{ref: 1}
	both := []*gated{a, b}
	require.NoError(t, LockAll(c, "submit", both))
	require.Equal(t, []*gated{b, a}, both, "in the order of their refs")
	require.False(t, a.mu.TryLock())
	UnlockAll(both)
	ran := false
	a.Shut(func() { ran = true })
	require.True(t, ran)
	require.ErrorIs(t, LockAll(c, "submit", both), ascendrt.ErrClosed)
	require.True(t, b.mu.TryLock(), "nothing stays locked")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		one := both[:1]
		_ = LockAll(c, "submit", one[:0])
		UnlockAll(one[:0])
	}))
}

// The order in which a buffer uses its streams stays, whatever the order of the locks.
func TestUsed(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	a, b := &gated{}, &gated{}
	b.ref = c.Refs.Add(b)
	a.ref = c.Refs.Add(a)
	var u Used[*gated]
	for range 2 {
		u.Begin(a)
		for _, s := range []*gated{b, a, b} {
			r := ascendrt.Record{}
			r.A[0] = uint64(s.ref)
			require.NoError(t, u.Switch(c, r))
			require.Same(t, s, u.Current)
		}
		require.Equal(t, []*gated{a, b}, u.All)
		require.NoError(t, u.Lock(c, "submit"))
		require.False(t, a.mu.TryLock())
		require.False(t, b.mu.TryLock())
		require.Equal(t, []*gated{a, b}, u.All)
		u.Unlock()
	}
	c.Refs.Remove(b.ref)
	require.ErrorIs(t, u.Switch(c, ascendrt.Record{A: [ascendrt.HeaderWords - 1]uint64{uint64(b.ref)}}), ascendrt.ErrClosed)
	b.Shut(nil)
	require.ErrorIs(t, u.Lock(c, "submit"), ascendrt.ErrClosed)
	require.True(t, a.mu.TryLock(), "nothing stays locked")
}

// A buffer is translated up to its first wrong command, of which nothing stays.
func TestEach(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	x := ascendrt.View{Addr: 1 << 20, Len: 64, Max: 64}
	var buffer ascendrt.Commands
	for v := range byte(3) {
		buffer.Fill(x, v)
	}
	var r Records
	refuse := -1
	f := func(x ascendrt.Record) error {
		r.Record(9, 0)
		if x.Index == refuse {
			return errors.New("odd")
		}
		return nil
	}
	n, err := r.Each(c, &buffer, f)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Len(t, r.Words, 3*HeaderWords)
	require.EqualValues(t, 2, r.Words[2*HeaderWords+1])

	r.Words, refuse = nil, 1
	n, err = r.Each(c, &buffer, f)
	var e *ascendrt.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Command)
	require.Equal(t, "fill", e.Call)
	require.Equal(t, 1, n)
	require.Len(t, r.Words, HeaderWords)

	r.Words, refuse = nil, -1
	buffer.Copy(x.Slice(0, 4), x.Slice(8, 8)) // wrong in itself
	buffer.Fill(x, 1)
	n, err = r.Each(c, &buffer, f)
	require.Error(t, err)
	require.Equal(t, 3, n)
	require.Len(t, r.Words, 3*HeaderWords)
}

func TestSlots(t *testing.T) {
	infos := []ascendrt.SlotInfo{{Name: "lens", Kind: ascendrt.SlotInts}, {Name: "x", Kind: ascendrt.SlotAddr}}
	args := []ascendrt.Tensor{ascendrt.NewTensor(ascendrt.View{Addr: 64, Len: 16, Max: 16}, ascendrt.Float32, 1, 4)}
	var ints [][]int64
	require.NoError(t, SetSlot(infos, args, &ints, ascendrt.Slot{Slot: 0, I64: []int64{3}}))
	require.Equal(t, [][]int64{{3}}, ints)
	require.ErrorContains(t, SetSlot(infos, args, nil, ascendrt.Slot{Slot: 0, I64: []int64{3}}), "slot lens: this device reads its tensor")
	to := ascendrt.View{Addr: 128, Len: 16, Max: 16}
	require.NoError(t, SetSlot(infos, args, nil, ascendrt.Slot{Slot: 1, Addr: to}))
	require.Equal(t, to, args[0].View)
	to.Len = 8
	require.ErrorContains(t, SetSlot(infos, args, nil, ascendrt.Slot{Slot: 1, Addr: to}), "slot x: the new place is shorter")
	for _, slot := range []int{-1, 2} {
		require.ErrorContains(t, SetSlot(infos, args, &ints, ascendrt.Slot{Slot: slot}), "does not exist")
	}

	record := make([]uint64, HeaderWords+2)
	require.NoError(t, SetWord(record, ascendrt.Slot{Slot: 1, I64: []int64{-1}}))
	require.Equal(t, ^uint64(0), record[HeaderWords+1])
	for _, s := range []ascendrt.Slot{{Slot: 2, I64: []int64{1}}, {Slot: -1, I64: []int64{1}}, {Slot: 0}} {
		require.ErrorContains(t, SetWord(record, s), "2 argument words")
	}
}

// noted is a graph that notes what is asked of it.
type noted struct {
	Graph
	ran []string
}

func (g *noted) Update(u []ascendrt.Slot) error {
	if len(u) == 0 {
		return errors.New("nothing")
	}
	g.ran = append(g.ran, "update")
	return nil
}
func (g *noted) Drop() { g.ran = append(g.ran, "drop") }
func (g *noted) Free() { g.ran = append(g.ran, "free") }

func TestGraphClosesOnce(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	s, err := Make(c, Graphs, func() (*noted, error) { return &noted{}, nil })
	require.NoError(t, err)
	s.Info = ascendrt.GraphInfo{Nodes: 3, Streams: 2}
	g := NewGraph(c, s)
	require.Equal(t, s.Info, g.Info())
	own, err := Handle[*noted](c, uint64(g.Ref()), "graph")
	require.NoError(t, err)
	require.Same(t, s, own)
	q := &queue{done: 1}
	s.Launched(ascendrt.Point{Stream: q, Seq: 1})
	s.Launched(ascendrt.Point{Stream: q, Seq: 2})
	require.NoError(t, g.Update([]ascendrt.Slot{{}}))
	require.ErrorContains(t, g.Update(nil), "nothing")
	for range 2 {
		require.NoError(t, g.Close())
	}
	require.ErrorIs(t, g.Update([]ascendrt.Slot{{}}), ascendrt.ErrClosed)
	require.Equal(t, []string{"update", "drop"}, s.ran, "it may still run")
	q.done = 2
	c.Reap()
	require.Equal(t, []string{"update", "drop", "free"}, s.ran)
	var live ascendrt.Live
	c.FillLive(&live)
	require.Zero(t, live)
	_, err = Handle[*noted](c, uint64(g.Ref()), "graph")
	require.ErrorIs(t, err, ascendrt.ErrClosed)
}

// A handle that could not be made is not counted.
func TestMake(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{MaxEvents: 1})
	odd := errors.New("odd")
	for range 2 {
		_, err := Make(c, Events, func() (int, error) { return 0, odd })
		require.Equal(t, odd, err)
	}
	v, err := Make(c, Events, func() (int, error) { return 5, nil })
	require.NoError(t, err)
	require.Equal(t, 5, v)
	_, err = Make(c, Events, func() (int, error) { panic("at the limit") })
	require.ErrorIs(t, err, ascendrt.ErrResourceLimit)
}

func TestChanged(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	captured := map[ascendrt.OpRef]int{4: 40, 7: 70}
	copied := func(ref ascendrt.OpRef) (*int, bool) {
		v, ok := captured[ref]
		return &v, ok
	}
	set := func(x *int, v ascendrt.Slot) error {
		if v.Slot > 9 {
			return errors.New("no such slot")
		}
		*x += v.Slot
		return nil
	}
	refs, next, err := Changed(c, []ascendrt.Slot{{Op: 7, Slot: 1}, {Op: 4, Slot: 2}, {Op: 7, Slot: 3}}, copied, set)
	require.NoError(t, err)
	require.Equal(t, []ascendrt.OpRef{7, 4}, refs)
	require.Equal(t, []int{74, 42}, []int{*next[0], *next[1]})
	require.Equal(t, map[ascendrt.OpRef]int{4: 40, 7: 70}, captured)
	for says, u := range map[string]ascendrt.Slot{"command 5 was not captured as updatable": {Op: 5}, "command 4: no such slot": {Op: 4, Slot: 10}} {
		_, _, err = Changed(c, []ascendrt.Slot{{Op: 7}, u}, copied, set)
		require.ErrorIs(t, err, ascendrt.ErrGraphUpdate)
		require.ErrorContains(t, err, says)
	}
}

func TestUncaptured(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	require.ErrorIs(t, Uncaptured(c.Invalid("capture", "odd", ascendrt.ErrInvalid)), ascendrt.ErrCapture)
	require.ErrorIs(t, Uncaptured(c.Invalid("capture", "full", ascendrt.ErrResourceLimit)), ascendrt.ErrResourceLimit)
}

func TestRank(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	require.NoError(t, c.CheckRank(make([]byte, 4), 4, 1, 2))
	for _, bad := range [][3]int{{3, 0, 1}, {4, -1, 1}, {4, 1, 1}, {4, 0, 0}} {
		require.ErrorIs(t, c.CheckRank(make([]byte, bad[0]), 4, bad[1], bad[2]), ascendrt.ErrInvalid)
	}
	var left []string
	leave := func(raw string, lost bool) error {
		left = append(left, fmt.Sprint(raw, lost))
		return nil
	}
	var all []ascendrt.Communicator
	for i := range 3 {
		all = append(all, NewRank(c, string(rune('a'+i)), i, 3, leave))
	}
	x, err := Handle[*Rank[string]](c, uint64(all[1].Ref()), "communicator")
	require.NoError(t, err)
	require.Equal(t, "b", x.Raw)
	require.Equal(t, []int{1, 3}, []int{x.Rank(), x.Size()})
	require.NoError(t, all[0].Close())
	require.NoError(t, all[0].Close())
	c.Fail(c.Invalid("device", "fault", ascendrt.ErrDeviceLost))
	require.NoError(t, all[1].Close())
	var l ascendrt.Live
	c.FillLive(&l)
	require.Equal(t, 1, l.Communicators)
	c.Shut()
	require.NoError(t, all[2].Close(), "its device's Close has it")
	require.Equal(t, []string{"afalse", "btrue"}, left)
}

func TestLibraryReports(t *testing.T) {
	var r ascendrt.Report
	(&Library{Path: "/lib/a.so", OK: true, Version: "1.2", Absent: []string{"newCall"}}).Report(&r, "a.so", "")
	(&Library{Problem: "not there", Absent: []string{"all"}}).Report(&r, "b.so", "b: install it")
	(&Library{Problem: "not there"}).Report(&r, "c.so", "")
	require.Equal(t, ascendrt.Report{
		Libraries: []ascendrt.Library{{Name: "a.so", Path: "/lib/a.so", Version: "1.2"}, {Name: "b.so", Problem: "not there"}, {Name: "c.so", Problem: "not there"}},
		Missing:   []string{"newCall is absent from /lib/a.so", "b: install it"},
	}, r)
	require.NoError(t, (&Library{OK: true}).Need("test", "plan", "b.so", "install it"))
	err := (&Library{Problem: "not there"}).Need("test", "plan", "b.so", "install it")
	require.ErrorIs(t, err, ascendrt.ErrUnavailable)
	require.ErrorContains(t, err, "test: plan")
	require.ErrorContains(t, err, "b.so: not there: install it")
}
