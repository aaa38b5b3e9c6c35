package offload

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

func TestPreemptedRequestContinuesWhereItWas(t *testing.T) {
	e := newEngine(t, 8, nil)
	r := request(1, tokens(0, 19), 10)
	tab := table(1, 5)
	for i := range 5 {
		e.compute(r, i, tab[0][i])
	}
	require.False(t, e.s.Recovering(r.ID))
	require.True(t, e.s.Preempting(r, tab, 18))
	require.True(t, e.s.Preempting(r, tab, 18), "asked twice it saves once")
	require.True(t, e.s.Recovering(r.ID))
	require.True(t, e.s.Lookup(r, 0).Pending, "not before the copy is reported")
	e.flush()
	e.scramble(tab[0]) // Submit has returned: the step's rows may write
	ev := e.next()
	require.Equal(t, connector.Saved, ev.Kind)
	require.Equal(t, 5, ev.Payload.(Report).Blocks)

	require.Equal(t, connector.Answer{Tokens: 10, Async: true, Timeout: 30 * time.Second}, e.s.Lookup(r, 8))
	back := table(20, 5)
	e.s.Allocated(r, back, 8, 10)
	require.Zero(t, e.s.Lookup(r, 8).Tokens)
	e.flush()
	ev = e.next()
	require.Equal(t, connector.Received, ev.Kind)
	require.Equal(t, 3, ev.Payload.(Report).Blocks, "only what is not local")
	for i := 2; i < 5; i++ {
		e.has(r, i, back[0][i])
	}
	require.Equal(t, make([]byte, blockBytes), e.block(0, back[0][1]))
	require.False(t, e.s.Recovering(r.ID))
	e.s.Allocated(r, back, 18, 0)
	require.Equal(t, connector.Hold{}, e.s.Finished(r, back, connector.End{Reason: connector.EndStop, Computed: 19}))
	st := e.s.Stats()
	require.Equal(t, 8, st.Free)
	require.Zero(t, st.Records+st.Jobs)
	require.EqualValues(t, 1, st.Restores)
}

func TestSavedWholeOrNotAtAll(t *testing.T) {
	e := newEngine(t, 4, nil)
	r := request(1, tokens(0, 20), 10)
	require.False(t, e.s.Preempting(r, table(1, 5), 20), "five blocks, four slots")
	require.False(t, e.s.Preempting(r, table(1, 5), 0), "nothing computed")
	require.False(t, e.s.Preempting(r, nil, 5), "no blocks")
	require.False(t, e.s.Preempting(r, connector.Tables{{0, 0}}, 8), "null blocks alone")
	require.True(t, e.s.Preempting(r, table(1, 5), 16))
	other := request(2, tokens(0, 4), 4)
	require.False(t, e.s.Preempting(other, table(9, 1), 4), "full: records are not evicted")
	require.Empty(t, e.s.pool.free)
	e.s.pool.check()
}

func TestRecordsEndInEveryState(t *testing.T) {
	end := connector.End{Reason: connector.EndAbort}
	t.Run("saving", func(t *testing.T) {
		e := newEngine(t, 4, nil)
		r := request(1, tokens(0, 8), 8)
		e.s.Preempting(r, table(1, 2), 8)
		e.s.Finished(r, nil, end)
		require.False(t, e.s.Recovering(r.ID))
		require.Equal(t, 2, e.s.Stats().Free, "the copy still uses them")
		e.flush()
		e.next()
		require.Equal(t, 4, e.s.Stats().Free)
	})
	t.Run("ready", func(t *testing.T) {
		e := newEngine(t, 4, nil)
		r := request(1, tokens(0, 8), 8)
		e.s.Preempting(r, table(1, 2), 8)
		e.flush()
		e.next()
		e.s.Finished(r, nil, end)
		require.Equal(t, 4, e.s.Stats().Free)
	})
	t.Run("restoring", func(t *testing.T) {
		e := newEngine(t, 4, nil)
		r := request(1, tokens(0, 8), 8)
		e.s.Preempting(r, table(1, 2), 8)
		e.flush()
		e.next()
		e.s.Allocated(r, table(5, 2), 0, 8)
		e.s.Finished(r, table(5, 2), end)
		require.Equal(t, 2, e.s.Stats().Free)
		e.flush()
		require.Equal(t, connector.Received, e.next().Kind)
		require.Equal(t, 4, e.s.Stats().Free)
		require.Zero(t, e.s.Stats().Records)
	})
	t.Run("the local prefix covers it", func(t *testing.T) {
		e := newEngine(t, 4, nil)
		r := request(1, tokens(0, 9), 8)
		e.s.Preempting(r, table(1, 2), 8)
		e.flush()
		e.next()
		require.Equal(t, connector.Answer{}, e.s.Lookup(r, 8))
		require.Equal(t, 4, e.s.Stats().Free)
	})
	t.Run("admitted without it", func(t *testing.T) {
		e := newEngine(t, 4, nil)
		r := request(1, tokens(0, 9), 8)
		e.s.Preempting(r, table(1, 2), 8)
		e.s.Allocated(r, table(1, 3), 0, 0) // the scheduler waited long enough
		e.flush()
		e.next()
		require.Equal(t, 4, e.s.Stats().Free)
		require.Zero(t, e.s.Stats().Records)
	})
}

func TestSlidingWindowTablesKeepTheirHoles(t *testing.T) {
	e := newEngine(t, 8, func(c *Config, _ *WorkerConfig) {
		c.Groups = []kvcache.GroupSpec{{Kind: kvcache.SlidingWindow, Window: 8}}
	})
	r := request(1, tokens(0, 16), 16)
	tab := connector.Tables{{0, 0, 7, 8}}
	e.compute(r, 2, 7)
	e.compute(r, 3, 8)
	require.True(t, e.s.Preempting(r, tab, 16))
	e.flush()
	require.Equal(t, 2, e.next().Payload.(Report).Blocks)
	require.Equal(t, 16, e.s.Lookup(r, 0).Tokens)
	back := connector.Tables{{0, 0, 17, 18}}
	e.s.Allocated(r, back, 0, 16)
	e.flush()
	require.Equal(t, connector.Received, e.next().Kind)
	e.has(r, 2, 17)
	e.has(r, 3, 18)
}

func TestTurnsAreSharedByContent(t *testing.T) {
	e := newEngine(t, 8, turns)
	r := request(1, tokens(0, 14), 8)
	tab := table(1, 4)
	for i := range 4 {
		e.compute(r, i, tab[0][i])
	}
	h := e.s.Finished(r, tab, connector.End{Reason: connector.EndStop, Computed: 13, Output: 6})
	require.True(t, h.Delay, "the blocks are held until their copy is complete")
	next := request(2, append(tokens(0, 12), 99, 98, 97, 96, 95), 17)
	require.True(t, e.s.Lookup(next, 0).Pending, "not before the copy is reported")
	e.flush()
	require.Equal(t, connector.Saved, e.next().Kind)
	require.Equal(t, connector.Sent, e.next().Kind)
	e.scramble(tab[0])
	require.Equal(t, 3, e.s.Stats().Cached, "full blocks alone")

	require.Equal(t, 12, e.s.Lookup(next, 0).Tokens)
	n, takes := e.s.Restorable(next, 4)
	require.Equal(t, 8, n)
	require.Zero(t, takes, "nothing measured yet")
	back := table(10, 5)
	e.s.Allocated(next, back, 4, 8)
	require.Equal(t, 1, e.s.Stats().Cached, "two are in use")
	e.flush()
	ev := e.next()
	require.Equal(t, connector.Received, ev.Kind)
	require.Equal(t, Report{Job: ev.Payload.(Report).Job, Tokens: 8, Blocks: 2, Bytes: 2 * 4 * blockBytes, Took: ev.Payload.(Report).Took}, ev.Payload)
	e.has(r, 1, back[0][1])
	e.has(r, 2, back[0][2])
	_, takes = e.s.Restorable(next, 4)
	require.Positive(t, takes)

	// Other namespaces, and requests that read nobody's KV, find nothing.
	alien := request(3, next.Tokens, 17)
	alien.Namespace.Salt = "x"
	require.Zero(t, e.s.Lookup(alien, 0).Tokens)
	shy := request(4, next.Tokens, 17)
	shy.SkipRead = true
	require.Zero(t, e.s.Lookup(shy, 0).Tokens)
	// What is there is not saved again.
	require.Equal(t, connector.Hold{}, e.s.Finished(next, back, connector.End{Reason: connector.EndStop, Computed: 13}))
	require.Equal(t, connector.Hold{}, e.s.Finished(alien, back, connector.End{Reason: connector.EndAbort, Computed: 13}), "aborted")
	require.True(t, e.s.ResetCache())
	require.Equal(t, 8, e.s.Stats().Free)
}

func TestTurnsEvictTheOldest(t *testing.T) {
	e := newEngine(t, 4, turns)
	save := func(slot uint32, from int) connector.Hold {
		r := request(slot, tokens(from, 9), 9)
		h := e.s.Finished(r, table(1, 3), connector.End{Reason: connector.EndLength, Computed: 8})
		e.flush()
		if h.Delay {
			e.next()
			e.next()
		}
		return h
	}
	save(1, 0)
	save(2, 100)
	require.Equal(t, 8, e.s.Lookup(request(9, tokens(0, 20), 20), 0).Tokens)
	// The first is loaded, and so used last.
	r := request(3, tokens(0, 9), 9)
	e.s.Allocated(r, table(10, 3), 0, 8)
	e.flush()
	e.next()
	save(4, 200)
	require.Equal(t, 8, e.s.Lookup(request(9, tokens(0, 20), 20), 0).Tokens)
	require.Zero(t, e.s.Lookup(request(8, tokens(100, 20), 20), 0).Tokens)
	// Preempted requests take room from turns, but never from each other.
	require.True(t, e.s.Preempting(request(5, tokens(300, 16), 16), table(1, 4), 16))
	require.Zero(t, e.s.Lookup(request(7, tokens(0, 20), 20), 0).Tokens)
	require.Equal(t, connector.Hold{}, save(6, 400), "no room left")
}

func TestPreemptionSharesFullBlocks(t *testing.T) {
	e := newEngine(t, 6, turns)
	r := request(1, tokens(0, 12), 12)
	e.s.Finished(r, table(1, 3), connector.End{Reason: connector.EndStop, Computed: 12})
	e.flush()
	e.next()
	e.next()
	p := request(2, append(tokens(0, 12), 50, 51), 12)
	require.True(t, e.s.Preempting(p, table(1, 4), 14))
	require.Equal(t, 2, e.s.Stats().Free, "the tail alone is new")
	e.flush()
	require.Equal(t, 1, e.next().Payload.(Report).Blocks)
	require.Equal(t, 14, e.s.Lookup(p, 0).Tokens)
	// All of it there: ready at once.
	q := request(3, append(tokens(0, 12), 60), 12)
	require.True(t, e.s.Preempting(q, table(1, 3), 12))
	require.Equal(t, 12, e.s.Lookup(q, 0).Tokens)
	e.s.Finished(p, nil, connector.End{})
	e.s.Finished(q, nil, connector.End{})
	require.Equal(t, 3, e.s.Stats().Cached)
}

func TestWhatWentSinceTheLookupIsReportedAsFailed(t *testing.T) {
	e := newEngine(t, 2, turns)
	r := request(1, tokens(0, 9), 9)
	e.s.Finished(r, table(1, 3), connector.End{Reason: connector.EndStop, Computed: 8})
	e.flush()
	e.next()
	e.next()
	n := request(2, tokens(0, 20), 20)
	require.Equal(t, 8, e.s.Lookup(n, 0).Tokens)
	require.True(t, e.s.Preempting(request(3, tokens(90, 4), 4), table(9, 1), 4)) // evicts one
	back := table(10, 5)
	e.s.Allocated(n, back, 0, 8)
	e.flush()
	require.Equal(t, connector.Saved, e.next().Kind)
	ev := e.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.Len(t, ev.Blocks, 1)
	require.ErrorIs(t, ev.Err, errGone)
	require.Equal(t, connector.Received, e.next().Kind)
	e.s.pool.check()
}

func TestCompletionsAreIdempotent(t *testing.T) {
	e := newEngine(t, 4, func(c *Config, _ *WorkerConfig) { c.Workers = 2 })
	r := request(1, tokens(0, 8), 8)
	e.s.Preempting(r, table(1, 2), 8)
	e.flush()
	ev := e.next()
	e.s.Completed(ev)
	require.EqualValues(t, 1, e.s.Stats().Duplicate)
	require.True(t, e.s.Lookup(r, 0).Pending, "one of two workers")
	second := ev
	second.Worker = 1
	e.s.Completed(second)
	require.Equal(t, 8, e.s.Lookup(r, 0).Tokens)
	e.s.Completed(ev)
	second.Worker = 7
	e.s.Completed(second)
	second.Request = connector.NewRequestID(1, 2)
	e.s.Completed(second)
	require.EqualValues(t, 3, e.s.Stats().Unknown)
	e.s.Completed(connector.Event{Kind: connector.Saved, Request: r.ID, Payload: "another connector's"})
}

// moody fails or blocks.
type moody struct {
	memoryMover
	err   error
	enter chan struct{}
	leave chan struct{}
	quit  chan struct{} // the test has failed: nobody enters or leaves
}

func (m *moody) Save(ctx context.Context, v Copies) error {
	if m.enter != nil {
		select {
		case m.enter <- struct{}{}:
		case <-m.quit:
		}
		select {
		case <-m.leave:
		case <-m.quit:
		}
		<-ctx.Done() // the deadline has passed, whenever the clock's goroutine ran
	}
	if m.err != nil {
		return m.err
	}
	return m.memoryMover.Save(ctx, v)
}

func (m *moody) Load(ctx context.Context, v Copies) error {
	if m.err != nil {
		return m.err
	}
	return m.memoryMover.Load(ctx, v)
}

func TestCopyErrors(t *testing.T) {
	m := &moody{err: errors.New("dma")}
	e := newEngine(t, 4, func(c *Config, w *WorkerConfig) { w.Mover, c.Sharing = m, Turns })
	m.regions = e.regions
	r := request(1, tokens(0, 8), 8)
	require.True(t, e.s.Preempting(r, table(1, 2), 8))
	e.flush()
	require.ErrorContains(t, e.next().Err, "dma")
	require.False(t, e.s.Recovering(r.ID), "it recomputes")
	require.Zero(t, e.s.Lookup(r, 0).Tokens)
	require.Equal(t, 4, e.s.Stats().Free)
	require.True(t, e.s.Finished(r, table(1, 2), connector.End{Reason: connector.EndStop, Computed: 8}).Delay)
	e.flush()
	require.Error(t, e.next().Err)
	require.Equal(t, connector.Sent, e.next().Kind, "the blocks return")
	require.Equal(t, 4, e.s.Stats().Free)

	m.err = nil
	require.True(t, e.s.Preempting(r, table(1, 2), 8))
	e.flush()
	e.next()
	m.err = errors.New("dma")
	e.s.Allocated(r, table(5, 2), 0, 8)
	e.flush()
	ev := e.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.Empty(t, ev.Blocks, "all of the load")
	require.Equal(t, connector.Received, e.next().Kind)
	require.Zero(t, e.s.Stats().Records)
	require.EqualValues(t, 3, e.s.Stats().Failed)
}

func TestDeadlineInTheQueue(t *testing.T) {
	m := &moody{enter: make(chan struct{}), leave: make(chan struct{}), quit: make(chan struct{})}
	e := newEngine(t, 8, func(c *Config, w *WorkerConfig) {
		w.Mover, w.Threads, c.Sharing, c.Save = m, 1, Turns, 10*time.Millisecond
	})
	m.regions = e.regions
	t.Cleanup(func() { close(m.quit) })
	for i := range uint32(2) {
		e.s.Finished(request(i, tokens(int(i)*50, 8), 8), table(1, 2), connector.End{Reason: connector.EndStop, Computed: 8})
	}
	e.flush()
	<-m.enter
	time.Sleep(20 * time.Millisecond)
	m.leave <- struct{}{}
	require.ErrorContains(t, e.next().Err, "not finished within 10ms")
	require.Equal(t, connector.Sent, e.next().Kind)
	<-m.enter
	m.leave <- struct{}{}
	require.Error(t, e.next().Err)
	e.next()
	require.Equal(t, 8, e.s.Stats().Free)
}

func TestBudget(t *testing.T) {
	l := testLayout() // 512 bytes a slot, 32 blocks
	for _, c := range []struct {
		b     Budget
		ranks int
		want  int
	}{
		{Budget{}, 1, 32},
		{Budget{Ratio: 0.5}, 1, 16},
		{Budget{Ratio: 0.001}, 1, 1},
		{Budget{Bytes: 10240}, 2, 10},
		{Budget{BytesPerRank: 2048, Bytes: 10240, Ratio: 9}, 2, 4},
		{Budget{BytesPerRank: 1}, 1, 1},
	} {
		n, err := Slots(l, c.b, c.ranks)
		require.NoError(t, err)
		require.Equal(t, c.want, n, "%+v", c)
	}
	for _, b := range []Budget{{Ratio: -1}, {Bytes: -1}, {BytesPerRank: -5}} {
		_, err := Slots(l, b, 1)
		require.Error(t, err)
	}
}

func TestBadConfig(t *testing.T) {
	_, err := NewScheduler(Config{})
	require.ErrorContains(t, err, "0 host blocks")
	_, err = NewScheduler(Config{Slots: 1, Sharing: Turns, Groups: []kvcache.GroupSpec{{}, {Kind: kvcache.SlidingWindow, Window: 4}}})
	require.ErrorContains(t, err, "sharing of turns needs full attention, KV group 1 is sliding_window")
	_, err = NewWorker(WorkerConfig{})
	require.Error(t, err)
	w, err := NewWorker(WorkerConfig{Slots: 1 << 40})
	require.NoError(t, err)
	require.ErrorContains(t, w.Register(testLayout(), regionsOf(testLayout())), "lower cpu_bytes_to_use")
	require.Error(t, w.Submit())
	require.NoError(t, w.Close())
	w, err = NewWorker(WorkerConfig{Slots: 1})
	require.NoError(t, err)
	require.ErrorContains(t, w.Register(testLayout(), nil), "0 bytes a block, the layout says 512")
	require.NoError(t, w.Close())
	_, open := <-w.Events()
	require.False(t, open)
}

func regionsOf(l connector.Layout) []connector.Region {
	return []connector.Region{{Name: "kv", BlockBytes: l.Groups[0].BlockBytes, Memory: hostRegion(nil)}}
}

// order records which copies begin while others are under way.
type order struct {
	memoryMover
	saving, mixed bool
	mu            sync.Mutex
}

func (o *order) Save(ctx context.Context, v Copies) error {
	o.set(func() { o.saving = true })
	time.Sleep(10 * time.Millisecond)
	defer o.set(func() { o.saving = false })
	return o.memoryMover.Save(ctx, v)
}

func (o *order) Load(ctx context.Context, v Copies) error {
	o.set(func() { o.mixed = o.mixed || o.saving })
	return o.memoryMover.Load(ctx, v)
}

func (o *order) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// A plan may give a preempted request's blocks to a load: the load begins
// after they were saved.
func TestLoadsBeginAfterTheSavesOfTheirCall(t *testing.T) {
	o := &order{}
	e := newEngine(t, 8, func(_ *Config, w *WorkerConfig) { w.Mover = o })
	o.regions = e.regions
	a, b := request(1, tokens(0, 8), 8), request(2, tokens(50, 8), 8)
	e.compute(a, 0, 1)
	e.compute(a, 1, 2)
	require.True(t, e.s.Preempting(a, table(1, 2), 8))
	e.flush()
	e.next()
	e.compute(b, 0, 5)
	e.compute(b, 1, 6)
	require.True(t, e.s.Preempting(b, table(5, 2), 8))
	e.s.Allocated(a, table(5, 2), 0, 8) // into b's blocks
	e.flush()
	require.Equal(t, connector.Saved, e.next().Kind)
	require.Equal(t, connector.Received, e.next().Kind)
	e.has(a, 0, 5)
	e.s.Allocated(b, table(10, 2), 0, 8)
	e.flush()
	require.Equal(t, connector.Received, e.next().Kind)
	e.has(b, 0, 10)
	e.has(b, 1, 11)
	require.False(t, o.mixed)
}
