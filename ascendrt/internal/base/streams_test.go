package base

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

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
