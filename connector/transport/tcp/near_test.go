package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
)

// beside is a Near within this process: memory is found by its key.
type beside struct {
	name     string
	deaf     atomic.Bool  // it meets nobody
	far      atomic.Int64 // fetches that find the memory unreadable
	broken   atomic.Int64 // fetches whose copy fails
	fetched  atomic.Int64 // bytes
	blocks   atomic.Int64 // fetches by units
	open     atomic.Int64 // neighbours
	exposed  sync.Map     // key → transport.Memory
	closed   atomic.Bool
	fetching func() // called by Fetch ahead of the copy
}

var besides sync.Map // name → *beside

func newBeside() *beside {
	b := &beside{name: fmt.Sprintf("side %d", lastKey.Add(1)), fetching: func() {}}
	besides.Store(b.name, b)
	return b
}

func (b *beside) Card() []byte { return []byte(b.name) }

func (b *beside) Meet(card []byte) (Neighbour, error) {
	v, ok := besides.Load(string(card))
	if !ok || b.deaf.Load() {
		return nil, errors.New("not of this process")
	}
	b.open.Add(1)
	return &besideYou{b, v.(*beside)}, nil
}

func (b *beside) Expose(m transport.Memory) (Exposed, error) {
	key := binary.BigEndian.AppendUint64([]byte("near "), lastKey.Add(1))
	b.exposed.Store(string(key), m)
	return besideKey{b, key}, nil
}

func (b *beside) Close() error { b.closed.Store(true); return nil }

type besideKey struct {
	b   *beside
	key []byte
}

func (k besideKey) Key() []byte  { return k.key }
func (k besideKey) Close() error { k.b.exposed.Delete(string(k.key)); return nil }

type besideYou struct{ b, you *beside }

func (x *besideYou) Close() { x.b.open.Add(-1) }

func (x *besideYou) Fetch(ranges []NearRange) error {
	x.b.fetching()
	if x.b.far.Add(-1) >= 0 {
		return fmt.Errorf("%w: on this occasion", ErrFar)
	}
	if x.b.broken.Add(-1) >= 0 {
		return errors.New("device lost")
	}
	for _, r := range ranges {
		m, ok := x.you.exposed.Load(string(r.Key))
		if !ok {
			return fmt.Errorf("%w: no such key", ErrFar)
		}
		p := make([]byte, r.Length)
		if _, err := m.(transport.Memory).ReadAt(p, r.From); err != nil {
			return err
		}
		if _, err := r.Memory.WriteAt(p, r.Offset); err != nil {
			return err
		}
		x.b.fetched.Add(r.Length)
	}
	return nil
}

// unmapped hides that memory is mapped, as device memory is not.
type unmapped struct{ *Transport }

func (u unmapped) Register(m transport.Memory, unit int64) (transport.Descriptor, error) {
	return u.Transport.Register(struct{ transport.Memory }{m}, unit)
}

func TestConformanceOfNeighbours(t *testing.T) {
	t.Run("plain", func(t *testing.T) { neighbours(t, Config{}, asIs) })
	t.Run("by units", func(t *testing.T) {
		var sides []*beside
		neighbours(t, Config{}, func(b *beside) Near { sides = append(sides, b); return besideBlocks{b} })
		fetched := int64(0)
		for _, b := range sides {
			fetched += b.blocks.Load()
		}
		require.Positive(t, fetched)
	})
	t.Run("tls", func(t *testing.T) {
		ca := conformance.NewAuthority(t)
		cert, key := ca.Issue(t, "127.0.0.1")
		server, client, err := MutualTLS(cert, key, ca.File)
		require.NoError(t, err)
		neighbours(t, Config{ServerTLS: server, ClientTLS: client}, asIs)
	})
}

func neighbours(t *testing.T, cfg Config, as func(*beside) Near) {
	conformance.Run(t, func(t *testing.T, notified transport.Notified) transport.Transport {
		near := newBeside()
		cfg.Notified, cfg.Near, cfg.Grace = notified, as(near), 10*time.Second
		made, err := New(cfg)
		require.NoError(t, err)
		require.False(t, made.Guarded())
		t.Cleanup(func() {
			require.True(t, near.closed.Load())
			require.Zero(t, near.open.Load(), "all neighbours are closed")
		})
		return unmapped{made}
	})
}

// nearSides are two sides with memory that is not mapped, of the same bytes.
func nearSides(t *testing.T, a, b Config) (x, y *Transport, segs []transport.Segment, read, write transport.Capability, mx, my transport.Host) {
	t.Helper()
	x, y, segs, _, _, _ = twoSides(t, a, b)
	mx, my = make(transport.Host, len(segs)*4096), make(transport.Host, len(segs)*4096)
	for i := range my {
		my[i] = byte(i*i>>8 + i)
	}
	dx, err := x.Register(struct{ transport.Memory }{mx}, 4096)
	require.NoError(t, err)
	dy, err := y.Register(struct{ transport.Memory }{my}, 4096)
	require.NoError(t, err)
	units := make([]int32, len(segs))
	for i := range segs {
		units[i] = int32(i)
		segs[i].Local, segs[i].Remote = dx.Region, dy.Region
	}
	read, err = y.Grant(transport.PeerReads, []transport.RegionID{dy.Region}, units)
	require.NoError(t, err)
	write, err = y.Grant(transport.PeerWrites, []transport.RegionID{dy.Region}, units)
	require.NoError(t, err)
	return x, y, segs, read, write, mx, my
}

func same(t *testing.T, segs []transport.Segment, mx, my []byte) {
	t.Helper()
	for _, s := range segs {
		if !bytes.Equal(my[s.RemoteOffset:s.RemoteOffset+s.Length], mx[s.LocalOffset:s.LocalOffset+s.Length]) {
			require.FailNow(t, "bytes differ", "%+v", s)
		}
	}
}

// Memory that is not mapped moves past the connections, in both directions, and
// over them where one side has no Near, meets nobody, or finds the memory
// unreadable at last; a transfer never fails for it.
func TestNearAndFar(t *testing.T) {
	for _, c := range []struct {
		name        string
		a, b        func(*beside) Near
		reads, puts int // of the two transfers, how many go past the connections
		far         bool
	}{
		{name: "both near", a: asIs, b: asIs, reads: 1, puts: 1},
		{name: "reader has none", a: none, b: asIs},
		{name: "owner has none", a: asIs, b: none},
		{name: "reader meets nobody", a: deaf, b: asIs, puts: 1, far: true},
		{name: "owner meets nobody", a: asIs, b: deaf, reads: 1, far: true},
		{name: "unreadable", a: blind, b: blind, far: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			na, nb := newBeside(), newBeside()
			x, y, segs, read, write, mx, my := nearSides(t, Config{Near: c.a(na)}, Config{Near: c.b(nb)})
			p, err := x.Connect(t.Context(), y.Address())
			require.NoError(t, err)
			require.NoError(t, p.Read(t.Context(), read, segs))
			same(t, segs, mx, my)
			clear(my)
			require.NoError(t, p.Write(t.Context(), write, segs))
			same(t, segs, mx, my)
			total := uint64(len(mx))
			require.Equal(t, uint64(c.reads)*total, x.Stats().Fetched)
			require.Equal(t, uint64(c.puts)*total, y.Stats().Fetched)
			require.Equal(t, c.far, x.Stats().Far+y.Stats().Far > 0)
			require.Eventually(t, func() bool { return y.Stats().ServedReads == total }, 20*time.Second, time.Millisecond, "it counts behind the last byte")
			require.Equal(t, total, y.Stats().ServedWrites)
		})
	}
}

func asIs(b *beside) Near  { return b }
func none(*beside) Near    { return nil }
func deaf(b *beside) Near  { b.deaf.Store(true); return b }
func blind(b *beside) Near { b.far.Store(1 << 40); return b }

// A copy that the device fails is an error of the memory, on either side, and is
// not tried again by another way.
func TestNearCopyFails(t *testing.T) {
	na, nb := newBeside(), newBeside()
	x, y, segs, read, write, mx, my := nearSides(t, Config{Near: na}, Config{Near: nb})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	na.broken.Store(1 << 40)
	require.ErrorIs(t, p.Read(t.Context(), read, segs), transport.ErrMemory)
	require.Equal(t, make([]byte, len(mx)), []byte(mx))
	nb.broken.Store(1 << 40)
	clear(my)
	require.ErrorIs(t, p.Write(t.Context(), write, segs), transport.ErrMemory)
	require.Equal(t, make([]byte, len(my)), []byte(my))
	na.broken.Store(0)
	require.NoError(t, p.Read(t.Context(), read, segs), "the connection still works")
}

// A grant that is revoked while a neighbour copies is told before the read
// counts as done; Revoke waits for the copy, or cuts the connection.
func TestRevokeWhileNeighbourCopies(t *testing.T) {
	na := newBeside()
	x, y, segs, read, _, mx, my := nearSides(t, Config{Near: na, Conns: 1, Retries: -1}, Config{Near: newBeside(), Grace: 10 * time.Millisecond})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	begun, go_on := make(chan struct{}), make(chan struct{})
	var once sync.Once
	na.fetching = func() { once.Do(func() { close(begun); <-go_on }) }
	done := make(chan error, 1)
	go func() { done <- p.Read(t.Context(), read, segs) }()
	<-begun
	y.Revoke(read) // returns although the copy has not begun
	for i := range my {
		my[i] = 0xee // the blocks are another request's now
	}
	close(go_on)
	err = <-done
	require.Error(t, err)
	bad := map[int]bool{}
	for _, i := range transport.FailedSegments(err, len(segs)) {
		bad[i] = true
	}
	for i, s := range segs {
		require.True(t, bad[i] || mx[s.LocalOffset] != 0xee, "segment %d has the other request's bytes and is not reported", i)
	}
}

// A write whose owner fetches longer than the writer waits fails, and is not sent again: the
// first fetch would end behind the second, when the memory is another's.
func TestStalledFetchIsNotRepeated(t *testing.T) {
	nb := newBeside()
	x, y, segs, _, write, _, _ := nearSides(t, Config{Near: newBeside(), StallTimeout: 200 * time.Millisecond}, Config{Near: nb})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	begun, goOn := make(chan struct{}, 9), make(chan struct{})
	fetches := 0
	nb.fetching = func() { fetches++; begun <- struct{}{}; <-goOn }
	err = p.Write(t.Context(), write, segs[:1])
	require.ErrorIs(t, err, transport.ErrStalled)
	require.Equal(t, []int{0}, transport.FailedSegments(err, 1))
	<-begun // it had all of the offer, however late it comes to it
	close(goOn)
	require.NoError(t, p.Close())
	require.NoError(t, y.Close())
	require.Equal(t, 1, fetches)
	require.Zero(t, x.Stats().Retries)
}

// The same when the connection breaks while the owner fetches, be it the first request
// behind a pause.
func TestBrokenFetchIsNotRepeated(t *testing.T) {
	nb := newBeside()
	var mine net.Conn
	x, y, segs, _, write, _, _ := nearSides(t, Config{Near: newBeside(), Conns: 1, WrapConn: func(c net.Conn) net.Conn { mine = c; return c }}, Config{Near: nb})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	var fetches atomic.Int64
	for i := range 2 { // other segments each time: the fetch before may still run
		nb.fetching = func() { fetches.Add(1) }
		require.NoError(t, p.Write(t.Context(), write, segs[2*i:2*i+1]))
		nb.fetching = func() { fetches.Add(1); mine.Close() }
		err = p.Write(t.Context(), write, segs[2*i+1:2*i+2])
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.Equal(t, []int{0}, transport.FailedSegments(err, 1))
		require.EqualValues(t, 2*(i+1), fetches.Load())
	}
	require.Zero(t, x.Stats().Retries)
	require.NoError(t, p.Close())
}

// hungUp sees the end of a connection at once, whatever lies between it and the socket.
func TestHungUp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"socket":  func(c net.Conn) net.Conn { return c },
		"wrapped": func(c net.Conn) net.Conn { return struct{ net.Conn }{c} },
	} {
		here, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		there, err := ln.Accept()
		require.NoError(t, err)
		w := newWire(wrap(here), time.Minute)
		for range 3 {
			require.False(t, w.hungUp(), name)
		}
		require.NoError(t, there.Close())
		require.Eventually(t, w.hungUp, 20*time.Second, time.Millisecond, name)
		require.True(t, w.hungUp(), name)
		require.NoError(t, here.Close())
		require.True(t, w.hungUp(), name)
	}
}

// A write finds that the owner has hung up on an idle connection, and takes another one.
func TestWriteBehindALongPause(t *testing.T) {
	x, y, segs, _, write, mx, my := nearSides(t, Config{Near: newBeside(), Conns: 1}, Config{Near: newBeside(), IdleTimeout: 200 * time.Millisecond})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	for i := range 2 {
		mx[i]++
		require.NoError(t, p.Write(t.Context(), write, segs))
		require.Eventually(t, func() bool { return y.Stats().OpenConns == 0 }, 20*time.Second, time.Millisecond)
	}
	same(t, segs, mx, my)
}

// So does a read of units, by a ticket or a capability: it goes as before the pause.
func TestUnitsBehindALongPause(t *testing.T) {
	near := newBeside()
	s, d := ticketSides(t, Config{Near: besideBlocks{near}, Conns: 1}, Config{Near: besideBlocks{newBeside()}, IdleTimeout: 50 * time.Millisecond})
	p := s.connect(t)
	for i := range int64(3) {
		require.NoError(t, p.(transport.TicketReader).ReadTicket(t.Context(), []byte(good), s.b))
		s.check(t)
		require.EqualValues(t, i+1, d.opens.Load())
		require.Eventually(t, func() bool { return near.open.Load() == 0 }, 20*time.Second, time.Millisecond)
		s.forget()
		require.NoError(t, transport.ReadBlocks(t.Context(), p, s.c, s.b))
		s.check(t)
		require.Equal(t, 2*(i+1), near.blocks.Load(), "named once")
		require.Eventually(t, func() bool { return near.open.Load() == 0 }, 20*time.Second, time.Millisecond)
		s.forget()
	}
	require.Zero(t, s.x.Stats().Far)
}

// A neighbour that goes away while nothing is asked of it is let go of at once,
// and a new one is met at the next use.
func TestIdleNeighbourGoesAway(t *testing.T) {
	na := newBeside()
	x, y, segs, read, write, mx, my := nearSides(t, Config{Near: na}, Config{Near: newBeside()})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), read, segs))
	same(t, segs, mx, my)
	require.Positive(t, na.open.Load())
	require.NoError(t, y.Close())
	for na.open.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	require.ErrorIs(t, p.Write(t.Context(), write, segs), transport.ErrUnreachable)
}

// Idle connections that are watched carry the next request as if they were not.
func TestWatchedConnections(t *testing.T) {
	na := newBeside()
	x, y, segs, read, write, mx, my := nearSides(t, Config{Near: na}, Config{Near: newBeside()})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	for i := range 50 {
		my[i]++
		require.NoError(t, p.Read(t.Context(), read, segs))
		same(t, segs, mx, my)
		mx[i]++
		require.NoError(t, p.Write(t.Context(), write, segs))
		same(t, segs, mx, my)
	}
	require.Zero(t, x.Stats().Retries)
	require.Equal(t, uint64(x.cfg.Conns), x.Stats().Dials, "none was lost")
	require.Equal(t, int64(50*len(mx)), na.fetched.Load())
}

// parked waits until so many of a peer's connections are watched.
func parked(t *testing.T, p transport.Peer, n int) {
	t.Helper()
	q := p.(*peer)
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		k := 0
		for _, s := range q.slots {
			if s.parked {
				k++
			}
		}
		return k == n
	}, 20*time.Second, 10*time.Microsecond)
}

// A request takes the connection that is there and idle, and no other is made for it.
func TestIdleConnectionIsTaken(t *testing.T) {
	na := newBeside()
	x, y, segs, read, _, mx, my := nearSides(t, Config{Near: na}, Config{Near: newBeside()})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	for i := range 50 {
		parked(t, p, 1)
		my[i]++
		require.NoError(t, p.Read(t.Context(), read, segs[:1]))
		same(t, segs[:1], mx, my)
	}
	require.EqualValues(t, 1, x.Stats().Dials)
}

// Several requests at a time take several connections, which are all watched afterwards
// and used again.
func TestWatchedConnectionsAtOnce(t *testing.T) {
	na := newBeside()
	x, y, segs, read, _, mx, my := nearSides(t, Config{Near: na}, Config{Near: newBeside()})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	n := x.cfg.Conns
	for range 20 {
		var together, done sync.WaitGroup
		together.Add(n)
		na.fetching = func() { together.Done(); together.Wait() }
		errs := make([]error, n)
		for i := range n {
			done.Go(func() { errs[i] = p.Read(t.Context(), read, segs[i:i+1]) })
		}
		done.Wait()
		require.NoError(t, errors.Join(errs...))
		same(t, segs[:n], mx, my)
		parked(t, p, n)
	}
	require.Zero(t, x.Stats().Retries)
	require.EqualValues(t, n, x.Stats().Dials)
	require.NoError(t, p.Close())
	require.Zero(t, na.open.Load())
}

// Without requests a peer is closed at once, over TLS too, where no request has set what
// breaks the connection off.
func TestCloseWatchedConnections(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			na := newBeside()
			a, b := Config{Near: na}, Config{Near: newBeside()}
			if secure {
				ca := conformance.NewAuthority(t)
				cert, key := ca.Issue(t, "127.0.0.1")
				server, client, err := MutualTLS(cert, key, ca.File)
				require.NoError(t, err)
				a.ServerTLS, a.ClientTLS, b.ServerTLS, b.ClientTLS = server, client, server, client
			}
			x, y, _, _, _, _, _ := nearSides(t, a, b)
			p, err := x.Connect(t.Context(), y.Address())
			require.NoError(t, err)
			parked(t, p, 1)
			require.NoError(t, p.Close())
			require.Zero(t, na.open.Load())
		})
	}
}

func TestHostileNeighbours(t *testing.T) {
	near := newBeside()
	s, err := New(Config{Near: near})
	require.NoError(t, err)
	defer s.Close()
	mem := make(transport.Host, 8192)
	d, err := s.Register(struct{ transport.Memory }{mem}, 4096)
	require.NoError(t, err)
	w, err := s.Grant(transport.PeerWrites, []transport.RegionID{d.Region}, []int32{0})
	require.NoError(t, err)
	var hi [helloSize]byte
	hello{near: 1}.put(hi[:])
	greeting := rawFrame(header{kind: kindHello}, hi[:])
	card := func(text string) []byte {
		return append(append([]byte(nil), greeting...), rawFrame(header{kind: kindCard}, []byte(text))...)
	}
	write := appendRequest(nil, w, 4096, []span{{d.Region, 0, 4096}})
	offer := func(rest []byte) []byte {
		return rawFrame(header{kind: kindOffer, flags: flagNear, id: 1}, append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(write))), write...), rest...))
	}
	lend := []byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 'k', 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 16, 0, 0}
	long := make([]byte, headerSize)
	header{kind: kindCard, length: kindCard.limit() + 1}.put(long)
	for name, raw := range map[string][]byte{
		"no card":                  greeting,
		"empty card":               card(""),
		"card too long":            append(append([]byte(nil), greeting...), long...),
		"read instead of a card":   append(append([]byte(nil), greeting...), rawFrame(header{kind: kindRead}, make([]byte, requestBase))...),
		"offer of a stranger":      append(card("\x00nobody"), offer(lend)...),
		"offer of a neighbour":     append(card("\x00"+near.name), offer(lend)...),
		"offer that lends nothing": append(card("\x00"+near.name), offer(nil)...),
		"card without a near hello": append(append([]byte(nil), rawHello()...),
			rawFrame(header{kind: kindCard}, []byte("\x00"+near.name))...),
	} {
		tell(t, name, s, raw)
	}
	require.Equal(t, make([]byte, len(mem)), []byte(mem), "nothing was written")
	for s.Stats().OpenConns > 0 {
		time.Sleep(time.Millisecond)
	}
	require.Zero(t, near.open.Load())
	require.NoError(t, s.Deregister(d.Region), "nobody uses it any more")
	_, err = s.Connect(context.Background(), s.Address())
	require.NoError(t, err, "it still serves")
}
