package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two ends of a connection; the first is a short one.
func pair(t testing.TB) (*Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	other, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { other.Close() })
	c, err := Listen(l).Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	short, ok := c.(*Conn)
	require.True(t, ok)
	return short, other.(*net.TCPConn)
}

// A Conn is a net.Conn in all that the contract asks.
func TestIsAConnection(t *testing.T) {
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		c, other := pair(t)
		return c, other, func() { c.Close(); other.Close() }, nil
	})
}

func TestReadsAndErrors(t *testing.T) {
	c, other := pair(t)
	n, err := c.Read(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	require.Equal(t, "read", op.Op)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	require.NoError(t, other.CloseWrite())
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.Close())
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorAs(t, err, &op)
	require.Equal(t, "write", op.Op)
	require.Nil(t, New(nil))
}

func TestReset(t *testing.T) {
	c, other := pair(t)
	require.NoError(t, other.SetLinger(0))
	require.NoError(t, other.Close())
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, errors.Is(err, io.EOF))
	require.False(t, c.Quiet())
}

// More than the socket takes, in parts of every size, comes out in order.
func TestWriteParts(t *testing.T) {
	c, other := pair(t)
	var parts [][]byte
	var want []byte
	for i := range 300 {
		p := bytes.Repeat([]byte{byte(i)}, i*i%7000)
		if i == 150 {
			p = bytes.Repeat([]byte{1, 2, 3}, 1<<20)
		}
		parts, want = append(parts, p), append(want, p...)
	}
	var got []byte
	var reading sync.WaitGroup
	reading.Go(func() {
		got, _ = io.ReadAll(other)
	})
	require.NoError(t, c.WriteParts(nil))
	require.NoError(t, c.WriteParts(parts))
	require.Len(t, parts, 300)
	n, err := c.Write([]byte("end"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.NoError(t, c.CloseWrite())
	reading.Wait()
	require.True(t, bytes.Equal(append(want, "end"...), got))
}

func TestWritesWaitUntilTheDeadline(t *testing.T) {
	c, other := pair(t)
	var setting sync.WaitGroup
	setting.Go(func() {
		_, _ = other.Read(make([]byte, 1))
		_ = c.SetWriteDeadline(time.Now())
	})
	n, err := c.Write(make([]byte, 64<<20))
	setting.Wait()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Positive(t, n)
	require.Less(t, n, 64<<20)
}

// What comes in pieces is read in pieces, without a look at an empty socket.
func TestPoll(t *testing.T) {
	c, other := pair(t)
	require.True(t, c.Quiet())
	var got []byte
	steps, waits := 0, 0
	buf := make([]byte, 4096)
	err := c.Poll(func() bool {
		if steps++; steps == 1 { // an answer to what a step writes is not missed
			_, err := c.Write([]byte("go"))
			require.NoError(t, err)
			_, err = io.ReadFull(other, buf[:2])
			require.NoError(t, err)
			_, err = other.Write([]byte("one"))
			require.NoError(t, err)
			return false
		}
		for {
			n, err := c.TryRead(buf, true)
			if errors.Is(err, ErrWait) {
				waits++
				if string(got) == "one" {
					_, err = other.Write([]byte("two"))
					require.NoError(t, err)
				}
				return false
			}
			got = append(got, buf[:n]...)
			if string(got) == "onetwo" {
				return true
			}
			require.NoError(t, err)
		}
	})
	require.NoError(t, err)
	require.Positive(t, waits)
}

func TestPollEndsWithTheConnection(t *testing.T) {
	c, _ := pair(t)
	time.AfterFunc(10*time.Millisecond, func() { c.Close() })
	require.ErrorIs(t, c.Poll(func() bool { return false }), net.ErrClosed)
}

// An end that comes together with the last bytes is read where the bytes do not
// tell it. Where they do the poller need not tell of it: who asks finds it.
func TestEndWithTheLastBytes(t *testing.T) {
	for _, framed := range []bool{true, false} {
		c, other := pair(t)
		_, err := other.Write([]byte("last"))
		require.NoError(t, err)
		require.NoError(t, other.CloseWrite())
		require.False(t, c.Ended())
		over := make(chan struct{})
		var asking sync.WaitGroup
		asking.Go(func() {
			for !c.Ended() {
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
			}
			c.Close()
		})
		var got []byte
		buf := make([]byte, 16)
		err = c.Poll(func() bool {
			for {
				n, err := c.TryRead(buf, framed)
				got = append(got, buf[:n]...)
				switch {
				case err == io.EOF:
					return true
				case errors.Is(err, ErrWait):
					return false
				}
				require.NoError(t, err)
			}
		})
		close(over)
		asking.Wait()
		require.Equal(t, "last", string(got))
		if err != nil {
			require.ErrorIs(t, err, net.ErrClosed)
			require.True(t, framed)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	c, other := pair(t)
	one, buf := []byte("0123456789"), make([]byte, 64)
	parts := [][]byte{one, one}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		_, err := c.Write(one)
		require.NoError(t, err)
		require.NoError(t, c.WriteParts(parts))
		_, err = io.ReadFull(other, buf[:30])
		require.NoError(t, err)
		_, err = other.Write(one)
		require.NoError(t, err)
		_, err = c.Read(buf)
		require.NoError(t, err)
	}))
}
