package conformance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Each goroutine's buffer writes its mark to shared memory and copies it out
// several times: an interleaved buffer would copy another one's mark.
func testAtomicSubmit(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	const goroutines, rounds, copies = 8, 20, 6
	x := b.alloc(64)
	out := b.pinned(goroutines * rounds * copies)
	var wg sync.WaitGroup
	errs := make(chan error, goroutines)
	for g := range goroutines {
		wg.Go(func() {
			var c ascendrt.Commands
			var last ascendrt.Point
			for r := range rounds {
				c.Reset()
				c.Fill(x.View(), byte(g+1))
				for k := range copies {
					c.Copy(out.Slice((g*rounds+r)*copies+k, 1), x.Slice(k, 1))
				}
				p, _, err := b.s.Submit(&c)
				if err != nil {
					errs <- err
					return
				}
				if p.Seq <= last.Seq {
					errs <- errors.New("points do not ascend")
					return
				}
				last = p
			}
			errs <- last.Wait(context.Background())
		})
	}
	wg.Wait()
	for range goroutines {
		require.NoError(t, <-errs)
	}
	for g := range goroutines {
		for _, v := range out.Bytes()[g*rounds*copies : (g+1)*rounds*copies] {
			require.Equal(t, byte(g+1), v)
		}
	}
	b.free(x, out)
	b.closed()
}

func testPoints(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	require.True(t, ascendrt.Point{}.Done())
	require.NoError(t, ascendrt.Point{}.Wait(context.Background()))
	slow, release := b.slow(20 * time.Millisecond)
	x, h := b.alloc(16), b.pinned(16)
	other := b.stream()
	slow.Fill(x.View(), 9)
	p := b.submit(b.s, slow)
	var c ascendrt.Commands
	c.WaitPoint(ascendrt.Point{}) // has passed
	c.WaitPoint(p)
	c.Copy(h.View(), x.View())
	q := b.submit(other, &c)
	b.wait(q)
	require.True(t, p.Done(), "the other stream waited for the point")
	require.Equal(t, byte(9), h.Bytes()[15])

	// Points of one stream pass in order.
	var points []ascendrt.Point
	for range 20 {
		c.Reset()
		c.Fill(x.View(), 1)
		points = append(points, b.submit(b.s, &c))
	}
	b.wait(points[len(points)-1])
	for _, p := range points {
		require.True(t, p.Done())
	}
	require.ErrorIs(t, b.s.Wait(context.Background(), points[19].Seq+100), ascendrt.ErrInvalid, "a point never submitted")
	require.False(t, b.s.Done(points[19].Seq+100))
	require.NoError(t, other.Close())
	b.free(x, h)
	release()
	b.closed()
}

func testWaits(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	slow, release := b.slow(200 * time.Millisecond)
	p := b.submit(b.s, slow)
	ctx, stop := context.WithTimeout(context.Background(), time.Millisecond)
	err := p.Wait(ctx)
	stop()
	require.ErrorIs(t, err, ascendrt.ErrTimeout)
	ctx, stop = context.WithCancel(context.Background())
	stop()
	require.ErrorIs(t, p.Wait(ctx), context.Canceled)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := p.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.True(t, p.Done(), "a timeout does not stop the work")
	release()
	b.closed()
}

func testEventOrder(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	other := b.stream()
	slow, release := b.slow(10 * time.Millisecond)
	e := b.event(ascendrt.EventOrder)
	done, err := e.Done()
	require.NoError(t, err)
	require.True(t, done, "an event never recorded holds nobody")
	x, h := b.alloc(1<<12), b.pinned(1<<12)
	var c ascendrt.Commands
	c.WaitEvent(e) // never recorded: passes
	c.Fill(x.View(), 1)
	b.wait(b.submit(other, &c))

	// Ping-pong: each stream adds its value behind the other's.
	for i := range 10 {
		v := byte(i + 10)
		producer := &ascendrt.Commands{}
		if i == 0 {
			producer = slow
		}
		producer.Fill(x.View(), v)
		producer.Record(e)
		b.submit(b.s, producer)
		c.Reset()
		c.WaitEvent(e)
		c.Copy(h.View(), x.View())
		c.Record(e)
		p := b.submit(other, &c)
		c.Reset()
		c.WaitEvent(e) // the consumer's record
		b.submit(b.s, &c)
		b.wait(p)
		require.Equal(t, v, h.Bytes()[0])
		require.Equal(t, v, h.Bytes()[1<<12-1])
	}
	b.do(func(c *ascendrt.Commands) { c.Record(e) })
	done, err = e.Done()
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close(), "Close is idempotent")
	require.NoError(t, other.Close())
	b.free(x, h)
	release()
	b.closed()
}

func testEventTiming(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	from, to, plain := b.event(ascendrt.EventTiming), b.event(ascendrt.EventTiming), b.event(ascendrt.EventOrder)
	_, err := to.Elapsed(from)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "never recorded")
	slow, release := b.slow(5 * time.Millisecond)
	var c ascendrt.Commands
	c.Record(from)
	b.submit(b.s, &c)
	b.submit(b.s, slow)
	c.Reset()
	c.Record(to)
	c.Record(plain)
	begin := time.Now()
	b.wait(b.submit(b.s, &c))
	d, err := to.Elapsed(from)
	require.NoError(t, err)
	require.Positive(t, d)
	require.Less(t, d, time.Since(begin)+10*time.Second)
	_, err = plain.Elapsed(from)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "an event of kind order has no time")
	require.NoError(t, from.Close())
	_, err = to.Elapsed(from)
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	require.NoError(t, to.Close())
	require.NoError(t, plain.Close())
	release()
	b.closed()
}

// One buffer forks to another stream and joins it again.
func testBranches(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	other := b.stream()
	fork, join := b.event(ascendrt.EventOrder), b.event(ascendrt.EventOrder)
	x, h := b.alloc(96), b.pinned(96)
	slow, release := b.slow(5 * time.Millisecond)
	b.do(func(c *ascendrt.Commands) {
		c.Fill(x.Slice(0, 32), 1)
		c.Record(fork)
		c.OnStream(other)
		c.WaitEvent(fork)
	})
	c := slow
	c.Fill(x.Slice(0, 32), 1)
	c.Record(fork)
	c.OnStream(other)
	c.WaitEvent(fork)
	c.Copy(x.Slice(32, 32), x.Slice(0, 32))
	c.Record(join)
	c.OnStream(b.s)
	c.Fill(x.Slice(64, 32), 7) // beside the branch
	c.WaitEvent(join)
	c.Copy(h.View(), x.View())
	b.wait(b.submit(b.s, c))
	require.Equal(t, byte(1), h.Bytes()[63])
	require.Equal(t, byte(7), h.Bytes()[95])
	require.NoError(t, fork.Close())
	require.NoError(t, join.Close())
	require.NoError(t, other.Close())
	b.free(x, h)
	release()
	b.closed()
}
