package socket

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// joined is a connection in a pump, and its other end.
func joined(t testing.TB) (*Conn, *net.TCPConn, *Pump) {
	t.Helper()
	p, err := NewPump()
	require.NoError(t, err)
	t.Cleanup(p.Close)
	c, other := pair(t)
	require.NoError(t, c.Join(p))
	t.Cleanup(func() {
		if c.Joined() {
			_ = c.Close()
			require.ErrorIs(t, c.Leave(), net.ErrClosed)
		}
		require.Zero(t, p.Len())
	})
	return c, other, p
}

// take is a step that appends what is there to got until that ends with last,
// or until the connection ends.
func (c *Conn) take(t testing.TB, got *[]byte, last string) func() bool {
	buf := make([]byte, 5)
	return func() bool {
		for {
			n, err := c.TryRead(buf, true)
			*got = append(*got, buf[:n]...)
			switch {
			case errors.Is(err, ErrWait):
				return false
			case err == io.EOF || strings.HasSuffix(string(*got), last):
				return true
			}
			require.NoError(t, err)
		}
	}
}

func send(t testing.TB, c io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

// What comes is the Quick's first; what it does not take wakes the owner, again and
// again.
func TestQuickAndOwnerTakeTurns(t *testing.T) {
	c, other, p := joined(t)
	const rounds = 200
	var log []byte
	var writing sync.WaitGroup
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	writing.Go(func() {
		for i := range rounds {
			<-turn
			send(t, other, string(rune('a'+i%3)))
		}
	})
	buf := make([]byte, 8)
	require.NoError(t, c.Poll(func() bool {
		c.Quick(func(b []byte, _ *Work) bool {
			log = append(log, b...)
			if b[len(b)-1] == 'b' {
				return false // the owner goes on
			}
			turn <- struct{}{}
			return len(log) < rounds
		})
		if n := len(log); n > 0 && log[n-1] == 'b' {
			turn <- struct{}{}
		}
		for {
			n, err := c.TryRead(buf, true)
			if errors.Is(err, ErrWait) {
				return len(log) == rounds
			}
			require.NoError(t, err)
			log = append(log, buf[:n]...)
			if log[len(log)-1] != 'b' {
				turn <- struct{}{}
			}
		}
	}))
	writing.Wait()
	require.Equal(t, strings.Repeat("abc", rounds/3+1)[:rounds], string(log))
	require.Positive(t, p.Passed())
}

// However a connection ends, Poll is told: with its last bytes, after them, by
// a reset, and by Close.
func TestEndsInAPump(t *testing.T) {
	for _, quick := range []bool{false, true} {
		for name, end := range map[string]func(c *Conn, other *net.TCPConn){
			"with the last bytes": func(_ *Conn, other *net.TCPConn) { send(t, other, "last"); _ = other.CloseWrite() },
			"alone":               func(_ *Conn, other *net.TCPConn) { _ = other.CloseWrite() },
			"reset":               func(_ *Conn, other *net.TCPConn) { _ = other.SetLinger(0); _ = other.Close() },
			"closed here":         func(c *Conn, _ *net.TCPConn) { _ = c.Close() },
		} {
			t.Run(fmt.Sprint(name, quick), func(t *testing.T) {
				c, other, _ := joined(t)
				var got []byte
				buf := make([]byte, 16)
				var failed error
				var ending sync.WaitGroup
				var once sync.Once
				err := c.Poll(func() bool {
					if quick {
						c.Quick(func(b []byte, _ *Work) bool { got = append(got, b...); return true })
					}
					once.Do(func() { ending.Go(func() { end(c, other) }) })
					for {
						n, err := c.TryRead(buf, true)
						got = append(got, buf[:n]...)
						if errors.Is(err, ErrWait) {
							return false
						}
						if err != nil {
							failed = err
							return true
						}
					}
				})
				ending.Wait()
				switch name {
				case "closed here":
					if err == nil { // it was closed while step read
						err = failed
					}
					require.ErrorIs(t, err, net.ErrClosed)
					require.ErrorIs(t, c.Close(), net.ErrClosed)
					require.ErrorIs(t, c.Leave(), net.ErrClosed)
					_, err = c.Read(buf)
					require.Error(t, err)
				case "reset":
					require.NoError(t, err)
					require.Error(t, failed)
					require.NotErrorIs(t, failed, io.EOF)
				case "alone":
					require.NoError(t, err)
					require.ErrorIs(t, failed, io.EOF)
				default:
					require.NoError(t, err)
					require.ErrorIs(t, failed, io.EOF)
					require.Equal(t, "last", string(got))
				}
			})
		}
	}
}

// A connection that has left is one as before, and may come again. Its slot is
// the next one's.
func TestLeaveAndComeAgain(t *testing.T) {
	c, other, p := joined(t)
	buf := make([]byte, 16)
	for i := range 5 {
		require.Equal(t, 1, p.Len())
		require.True(t, c.Quiet())
		send(t, other, "in")
		var got []byte
		require.NoError(t, c.Poll(c.take(t, &got, "in")))
		require.NoError(t, c.Leave())
		require.False(t, c.Joined())
		require.Zero(t, p.Len())
		send(t, other, "out")
		n, err := c.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "out", string(buf[:n]))
		send(t, c, "answer")
		_, err = io.ReadFull(other, buf[:6])
		require.NoError(t, err)
		require.True(t, c.Quiet())
		require.NoError(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
		_, err = c.Read(buf)
		require.Error(t, err)
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		require.NoError(t, c.Join(p), i)
	}
	require.NoError(t, other.Close())
	require.NoError(t, c.Poll(func() bool { return !c.Quiet() }))
}

// A write that the socket does not take at once leaves the pump, outside of a
// step and inside.
func TestWriteThatWaitsLeaves(t *testing.T) {
	for _, inside := range []bool{false, true} {
		c, other, p := joined(t)
		const size = 32 << 20
		var reading sync.WaitGroup
		reading.Go(func() {
			for p.Len() > 0 { // nothing is read before
				time.Sleep(time.Millisecond)
			}
			n, err := io.Copy(io.Discard, io.LimitReader(other, size))
			require.NoError(t, err)
			require.EqualValues(t, size, n)
			send(t, other, "thanks")
		})
		write := func() {
			require.NoError(t, c.WriteParts([][]byte{make([]byte, 1), make([]byte, size-1)}))
			require.False(t, c.Joined())
		}
		send(t, c, "")
		require.True(t, c.Joined())
		if !inside {
			write()
		}
		var got []byte
		take := c.take(t, &got, "thanks")
		first := true
		require.NoError(t, c.Poll(func() bool {
			if first && inside {
				first = false
				write()
				return false
			}
			return take()
		}))
		reading.Wait()
		require.NoError(t, c.Join(p))
	}
}

func TestPumpThatIsClosed(t *testing.T) {
	p, err := NewPump()
	require.NoError(t, err)
	p.Close()
	p.Close()
	c, other := pair(t)
	require.ErrorIs(t, c.Join(p), net.ErrClosed)
	require.False(t, c.Joined())
	send(t, other, "x")
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err)
	p, err = NewPump()
	require.NoError(t, err)
	defer p.Close()
	require.NoError(t, c.Close())
	require.Error(t, c.Join(p))
	require.Zero(t, p.Len())
}

// Many connections are closed at any time while they join, wait and leave.
func TestCloseAtAnyTime(t *testing.T) {
	p, err := NewPump()
	require.NoError(t, err)
	defer p.Close()
	var all sync.WaitGroup
	for i := range 32 {
		c, other := pair(t)
		r := rand.New(rand.NewPCG(7, uint64(i)))
		all.Go(func() {
			for range r.IntN(200) {
				if _, err := other.Write([]byte("x")); err != nil {
					return
				}
			}
			_ = c.Close()
		})
		all.Go(func() {
			buf := make([]byte, 4)
			for n := 0; ; n++ {
				if c.Join(p) != nil {
					return
				}
				reads := 0
				err := c.Poll(func() bool {
					if n%2 == 0 {
						c.Quick(func(b []byte, _ *Work) bool { return len(b)%2 == 0 })
					}
					_, err := c.TryRead(buf, true)
					reads++
					return err != nil && !errors.Is(err, ErrWait) || reads > 3
				})
				if c.Leave() != nil || err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, p.Len())
}

// A twin writes what the socket takes and no more; the connection takes the rest.
func TestTwin(t *testing.T) {
	c, other := pair(t)
	twin, err := c.Twin()
	require.NoError(t, err)
	defer twin.Close()
	part := make([]byte, 1<<20)
	total := 0
	for {
		n := twin.TryWrite(part)
		if total += n; n < len(part) {
			break
		}
	}
	require.Zero(t, twin.TryWrite(part[:1]))
	var reading sync.WaitGroup
	reading.Go(func() {
		n, err := io.Copy(io.Discard, other)
		require.NoError(t, err)
		require.EqualValues(t, total+3, n)
	})
	send(t, c, "end")
	require.NoError(t, c.CloseWrite())
	reading.Wait()
	require.NoError(t, other.Close())
	require.NoError(t, c.Close())
	_, err = c.Twin()
	require.Error(t, err)
}

func TestPumpAllocatesNothing(t *testing.T) {
	c, other, p := joined(t)
	one := []byte("0123456789")
	answered := make(chan struct{}, 1)
	over := make(chan error, 1)
	buf := make([]byte, 16)
	go func() {
		over <- c.Poll(func() bool {
			if n, _ := c.TryRead(buf, false); n > 0 {
				answered <- struct{}{}
			}
			c.Quick(func(b []byte, w *Work) bool {
				w.Out = append(w.Out[:0], b...)
				answered <- struct{}{}
				return b[0] != '!'
			})
			return p.Passed() > 100
		})
	}()
	send(t, other, "+")
	<-answered
	require.Zero(t, testing.AllocsPerRun(200, func() {
		_, err := other.Write(one)
		require.NoError(t, err)
		<-answered
	}))
	send(t, other, "!")
	require.NoError(t, <-over)
}
