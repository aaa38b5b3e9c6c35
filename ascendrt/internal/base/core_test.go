package base

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

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

// slow reaches what is submitted after some questions, or some slices.
// The order in which a buffer uses its streams stays, whatever the order of the locks.
// A buffer is translated up to its first wrong command, of which nothing stays.
// noted is a graph that notes what is asked of it.
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
