package tcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
)

// rawFrame is a whole frame with a correct header.
func rawFrame(h header, payload []byte) []byte {
	h.length = uint32(len(payload))
	b := make([]byte, headerSize, headerSize+len(payload))
	h.put(b)
	return append(b, payload...)
}

func rawHello() []byte {
	var b [helloSize]byte
	hello{}.put(b[:])
	return rawFrame(header{kind: kindHello}, b[:])
}

// hostile are streams that a server must answer by hanging up, or by an error
// frame, without harm.
func hostile() map[string][]byte {
	lying := func(k kind, n uint32) []byte {
		b := make([]byte, headerSize)
		header{kind: k, length: n}.put(b)
		if n > k.limit() { // header.put does not check
			binary.LittleEndian.PutUint32(b[4:], n)
		}
		return b
	}
	then := func(parts ...[]byte) []byte { return bytes.Join(append([][]byte{rawHello()}, parts...), nil) }
	req := appendRequest(nil, transport.Capability{1}, 4096, []span{{1, 0, 4096}})
	return map[string][]byte{
		"http":                  []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"zeros":                 make([]byte, 4096),
		"hello of 4 GiB":        lying(kindHello, 1<<32-1),
		"read before hello":     rawFrame(header{kind: kindRead}, req),
		"foreign magic":         rawFrame(header{kind: kindHello}, make([]byte, helloSize)),
		"second hello":          then(rawHello()),
		"read of 4 GiB":         then(lying(kindRead, 1<<32-1)),
		"read without segments": then(rawFrame(header{kind: kindRead}, make([]byte, requestBase))),
		"data without write":    then(rawFrame(header{kind: kindData}, make([]byte, 100))),
		"done out of turn":      then(rawFrame(header{kind: kindDone}, nil)),
		"write, foreign data":   then(rawFrame(header{kind: kindWrite, id: 1}, req), rawFrame(header{kind: kindData, id: 2}, make([]byte, 4096))),
		"write, too much data":  then(rawFrame(header{kind: kindWrite, id: 1}, req), rawFrame(header{kind: kindData, id: 1}, make([]byte, 4097))),
		"write, empty data":     then(rawFrame(header{kind: kindWrite, id: 1}, req), rawFrame(header{kind: kindData, id: 1}, nil)),
		"offer over plain tcp":  then(rawFrame(header{kind: kindOffer, id: 1}, append(binary.LittleEndian.AppendUint32(nil, uint32(len(req))), req...))),
		"lend to a server":      then(rawFrame(header{kind: kindLend, id: 1}, make([]byte, lendBase))),
		"back without a lend":   then(rawFrame(header{kind: kindBack, id: 1}, nil)),
		"wrong checksum":        then(rawFrame(header{kind: kindRead, flags: flagCRC, crc: 1}, req)),
	}
}

func TestHostileStreams(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, err := New(Config{StallTimeout: 200 * time.Millisecond, DialTimeout: 200 * time.Millisecond, IdleTimeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer s.Close()
	mem := make(transport.Host, 1<<20)
	_, err = s.Register(mem, 4096)
	require.NoError(t, err)
	for name, raw := range hostile() {
		c, err := net.Dial("tcp", s.Address())
		require.NoError(t, err)
		_, _ = c.Write(raw)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = io.Copy(io.Discard, c)
		if err != nil {
			require.ErrorContains(t, err, "reset", name)
		}
		c.Close()
	}
	require.Equal(t, make([]byte, 1<<20), []byte(mem), "nothing was written")
	require.NotZero(t, s.Stats().Malformed)
}

// TestSlowPeersAreBounded opens many connections that announce much and send
// little.
func TestSlowPeersAreBounded(t *testing.T) {
	s, err := New(Config{MaxConns: 200})
	require.NoError(t, err)
	defer s.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var conns []net.Conn
	b := make([]byte, headerSize)
	header{kind: kindNotify, length: transport.MaxNotify}.put(b)
	for range 300 {
		c, err := net.Dial("tcp", s.Address())
		require.NoError(t, err)
		_, _ = c.Write(append(rawHello(), b...))
		conns = append(conns, c)
	}
	time.Sleep(100 * time.Millisecond)
	runtime.ReadMemStats(&after)
	require.Less(t, after.HeapAlloc, before.HeapAlloc+200*(256<<10), "at most a quarter of a MiB a connection")
	require.LessOrEqual(t, s.Stats().OpenConns, int64(200))
	for _, c := range conns {
		c.Close()
	}
}

// tell sends a server a stream, and nothing behind it, and returns what it answers until it
// hangs up, which it may do in the middle.
func tell(t *testing.T, name string, to *Transport, stream []byte) []byte {
	t.Helper()
	c, err := net.Dial("tcp", to.Address())
	require.NoError(t, err)
	defer c.Close()
	_, _ = c.Write(stream)
	_ = c.(*net.TCPConn).CloseWrite()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	answer, err := io.ReadAll(c)
	if err != nil {
		require.ErrorContains(t, err, "reset", name)
	}
	return answer
}

// said is a connection on which a peer has said all that it will, and hears nothing.
type said struct{ *bytes.Reader }

func (said) Write(p []byte) (int, error)      { return len(p), nil }
func (said) Close() error                     { return nil }
func (said) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (said) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (said) SetDeadline(time.Time) error      { return nil }
func (said) SetReadDeadline(time.Time) error  { return nil }
func (said) SetWriteDeadline(time.Time) error { return nil }

// feed serves a peer that says this.
func (t *Transport) feed(raw []byte) {
	c := said{bytes.NewReader(raw)}
	t.serve(c, c)
}

// FuzzServe feeds a whole stream to a server connection that holds memory
// nobody was granted.
func FuzzServe(f *testing.F) {
	for _, raw := range hostile() {
		f.Add(raw)
	}
	s, err := New(Config{DialTimeout: time.Second, StallTimeout: time.Second, IdleTimeout: time.Second})
	require.NoError(f, err)
	f.Cleanup(func() { s.Close() })
	mem := make(transport.Host, 64<<10)
	_, err = s.Register(mem, 4096)
	require.NoError(f, err)
	s.feed(append(rawHello(), rawFrame(header{kind: kindRead, id: 1}, appendRequest(nil, transport.Capability{1}, 4096, []span{{1, 0, 4096}}))...))
	require.EqualValues(f, 1, s.Stats().Denied, "it gets as far as the grants")
	f.Fuzz(func(t *testing.T, raw []byte) {
		s.feed(raw)
		require.Equal(t, make([]byte, len(mem)), []byte(mem))
	})
}

// pair is two transports with a granted region each way.
func twoSides(t *testing.T, a, b Config) (*Transport, *Transport, []transport.Segment, transport.Capability, transport.Host, transport.Host) {
	t.Helper()
	const n, unit = 1024, 4096
	x, err := New(a)
	require.NoError(t, err)
	t.Cleanup(func() { x.Close() })
	y, err := New(b)
	require.NoError(t, err)
	t.Cleanup(func() { y.Close() })
	mx, my := make(transport.Host, n*unit), make(transport.Host, n*unit)
	_, err = rand.Read(my)
	require.NoError(t, err)
	dx, err := x.Register(mx, unit)
	require.NoError(t, err)
	dy, err := y.Register(my, unit)
	require.NoError(t, err)
	units := make([]int32, n)
	segs := make([]transport.Segment, n)
	for i := range segs {
		units[i] = int32(i)
		segs[i] = transport.Segment{Local: dx.Region, Remote: dy.Region, LocalOffset: int64(i) * unit, RemoteOffset: int64(n-1-i) * unit, Length: unit}
	}
	c, err := y.Grant(transport.PeerReads, []transport.RegionID{dy.Region}, units)
	require.NoError(t, err)
	return x, y, segs, c, mx, my
}

// flip damages one byte of the stream, once, after skip bytes were written.
type flip struct {
	net.Conn
	left *atomic.Int64
}

func (f flip) Write(p []byte) (int, error) {
	if at := f.left.Add(-int64(len(p))) + int64(len(p)); at >= 0 && at < int64(len(p)) && len(p) > headerSize {
		q := append([]byte(nil), p...)
		q[at] ^= 0xff
		return f.Conn.Write(q)
	}
	return f.Conn.Write(p)
}

func TestCorruptionIsFoundAndRepaired(t *testing.T) {
	var left atomic.Int64
	left.Store(1_000_000)
	x, y, segs, c, mx, my := twoSides(t, Config{}, Config{WrapConn: func(c net.Conn) net.Conn { return flip{c, &left} }})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), c, segs))
	for _, s := range segs {
		require.Equal(t, []byte(my[s.RemoteOffset:s.RemoteOffset+s.Length]), []byte(mx[s.LocalOffset:s.LocalOffset+s.Length]))
	}
	require.NotZero(t, x.Stats().Retries)
	require.Negative(t, left.Load())
}

func TestCorruptionWithoutRepairNamesSegments(t *testing.T) {
	var left atomic.Int64
	left.Store(1_000_000)
	x, y, segs, c, mx, my := twoSides(t, Config{Retries: -1, Conns: 1, ChunkBytes: 256 << 10}, Config{WrapConn: func(c net.Conn) net.Conn { return flip{c, &left} }})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	err = p.Read(t.Context(), c, segs)
	require.ErrorIs(t, err, transport.ErrCorrupt)
	failed := map[int]bool{}
	for _, i := range transport.FailedSegments(err, len(segs)) {
		failed[i] = true
	}
	require.Len(t, failed, 64, "one part of 256 KiB")
	for i, s := range segs {
		if !failed[i] {
			require.Equal(t, []byte(my[s.RemoteOffset:s.RemoteOffset+s.Length]), []byte(mx[s.LocalOffset:s.LocalOffset+s.Length]))
		}
	}
}

// stall stops sending after some bytes, as a half-open connection does.
type stall struct {
	net.Conn
	left *atomic.Int64
}

func (s stall) Write(p []byte) (int, error) {
	if s.left.Add(-int64(len(p))) < 0 {
		return len(p), nil // swallowed
	}
	return s.Conn.Write(p)
}

func TestHalfOpenConnection(t *testing.T) {
	var left atomic.Int64
	left.Store(500_000)
	x, y, segs, c, _, _ := twoSides(t, Config{StallTimeout: 300 * time.Millisecond, DialTimeout: 500 * time.Millisecond}, Config{WrapConn: func(c net.Conn) net.Conn { return stall{c, &left} }})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	begin := time.Now()
	err = p.Read(t.Context(), c, segs)
	require.Error(t, err)
	require.Less(t, time.Since(begin), time.Minute)
	require.NotEmpty(t, transport.FailedSegments(err, len(segs)))
}

func TestRestartedPeer(t *testing.T) {
	x, y, segs, c, _, _ := twoSides(t, Config{}, Config{})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), c, segs))
	addr := y.Address()
	require.NoError(t, y.Close())
	z, err := New(Config{Listen: addr})
	require.NoError(t, err)
	defer z.Close()
	require.ErrorIs(t, p.Read(t.Context(), c, segs), transport.ErrPeerRestarted)
}

func TestLongIdleConnectionIsReplaced(t *testing.T) {
	x, y, segs, c, _, _ := twoSides(t, Config{}, Config{IdleTimeout: 20 * time.Millisecond})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, p.Read(t.Context(), c, segs))
		time.Sleep(60 * time.Millisecond)
	}
}

func TestWrongCertificatesAreRefused(t *testing.T) {
	ca, other := conformance.NewAuthority(t), conformance.NewAuthority(t)
	serve := func(name string, a *conformance.Authority) Config {
		cert, key := a.Issue(t, name)
		server, client, err := MutualTLS(cert, key, ca.File)
		require.NoError(t, err)
		return Config{ServerTLS: server, ClientTLS: client}
	}
	for _, c := range []struct {
		name   string
		client Config
		server Config
		want   string
	}{
		{"both right", serve("127.0.0.1", ca), serve("127.0.0.1", ca), ""},
		{"server of another name", serve("127.0.0.1", ca), serve("10.9.9.9", ca), "10.9.9.9"},
		{"server of another authority", serve("127.0.0.1", ca), serve("127.0.0.1", other), "unknown authority"},
		{"client of another authority", serve("127.0.0.1", other), serve("127.0.0.1", ca), ""},
		{"client without TLS", Config{}, serve("127.0.0.1", ca), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			x, err := New(c.client)
			require.NoError(t, err)
			defer x.Close()
			y, err := New(c.server)
			require.NoError(t, err)
			defer y.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			p, err := x.Connect(ctx, y.Address())
			if c.name == "both right" {
				require.NoError(t, err)
				require.NoError(t, p.Close())
				return
			}
			require.ErrorIs(t, err, transport.ErrUnreachable)
			require.ErrorContains(t, err, c.want)
		})
	}
	cert, key := ca.Issue(t, "127.0.0.1")
	for _, files := range [][3]string{{"none", key, ca.File}, {cert, "none", ca.File}, {cert, key, "none"}, {cert, key, key}} {
		_, _, err := MutualTLS(files[0], files[1], files[2])
		require.Error(t, err)
	}
	t.Run("conformance", func(t *testing.T) {
		conformance.Run(t, open(serve("127.0.0.1", ca)))
	})
}

// inFlight is an op of a peer that answers nothing, and the peer's end of the connection.
func inFlight(t *testing.T, ctx context.Context) (*peer, *op, net.Conn, <-chan error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	conns := make(chan net.Conn, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write(rawHello())
		conns <- c
		_, _ = io.Copy(io.Discard, c)
	}()
	x, err := New(Config{Grace: time.Minute, Conns: 1})
	require.NoError(t, err)
	t.Cleanup(func() { x.Close() })
	conn, err := x.Connect(t.Context(), ln.Addr().String())
	require.NoError(t, err)
	p := conn.(*peer)
	o := &op{kind: kindNotify, open: 1, done: make(chan struct{})}
	o.chunks = []*chunk{{op: o, msg: []byte("anybody there?")}}
	o.all = o.chunks
	done := make(chan error, 1)
	go func() { done <- p.wait(ctx, o) }()
	p.until(func() bool {
		s := o.all[0].slot
		if s == nil {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.kill != nil // connected, too
	})
	return p, o, <-conns, done
}

func (p *peer) until(holds func() bool) {
	for {
		p.mu.Lock()
		yes := holds()
		p.mu.Unlock()
		if yes {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestEndedOpNamesItsReason has a connection break after the time of the op on it was
// up, but before the patience with what is in flight was: the caller is told of both.
func TestEndedOpNamesItsReason(t *testing.T) {
	mine := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	p, o, server, done := inFlight(t, ctx)
	cancel(mine)
	p.until(func() bool { return o.stopped })
	server.Close()
	err := <-done
	require.ErrorIs(t, err, mine)
	require.ErrorIs(t, err, transport.ErrUnreachable)
}

// TestCutLeavesOthersAlone: a connection is broken for the op that is on it, not for one
// that was on it before.
func TestCutLeavesOthersAlone(t *testing.T) {
	p, o, _, done := inFlight(t, t.Context())
	s := o.all[0].slot
	s.mu.Lock()
	kill, cuts := s.kill, 0
	s.mu.Unlock()
	s.setKill(func() { cuts++ })
	ended := &op{}
	ended.all = []*chunk{{op: ended}}
	p.cut(ended)
	require.Zero(t, cuts)
	p.cut(o)
	require.Equal(t, 1, cuts)
	s.setKill(kill)
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-done, transport.ErrClosed)
}
