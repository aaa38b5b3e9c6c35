package tcp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/faulty"
)

// besideStart is a beside whose neighbours copy while their caller does something else.
type besideStart struct {
	*beside
	starts *atomic.Int64 // copies that were begun so
	open   *atomic.Int64 // of them those that have not ended
}

func newBesideStart() besideStart {
	return besideStart{newBeside(), new(atomic.Int64), new(atomic.Int64)}
}

func (b besideStart) Meet(card []byte) (Neighbour, error) {
	n, err := b.beside.Meet(card)
	if err != nil {
		return nil, err
	}
	return startYou{blocksYou{n.(*besideYou)}, b, new(atomic.Int64)}, nil
}

type startYou struct {
	blocksYou
	s    besideStart
	mine *atomic.Int64 // of open
}

func (x startYou) StartBlocks(regions []NearRegion, local, remote []int32) (func() error, error) {
	if x.b.far.Add(-1) >= 0 {
		return nil, fmt.Errorf("%w: on this occasion", ErrFar)
	}
	x.s.starts.Add(1)
	x.s.open.Add(1)
	if x.mine.Add(1) > 1 {
		panic("two copies at once by one neighbour")
	}
	done := make(chan error, 1)
	go func() {
		err := x.FetchBlocks(regions, local, remote)
		x.mine.Add(-1)
		x.s.open.Add(-1)
		done <- err
	}()
	return func() error { return <-done }, nil
}

func (x startYou) Close() {
	if x.mine.Load() > 0 {
		panic("a neighbour is closed while it copies")
	}
	x.blocksYou.Close()
}

// aheadSides are sides of tickets of which the reader has read once.
func aheadSides(t *testing.T, a Config, near besideStart) (*unitSides, *desk, transport.TicketReader) {
	t.Helper()
	a.Near = near
	s, d := ticketSides(t, a, blocksSide())
	p := s.connect(t).(transport.TicketReader)
	require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
	s.check(t)
	require.Zero(t, near.starts.Load(), "nothing is known yet")
	s.forget()
	return s, d, p
}

// forget clears what was read.
func (s *unitSides) forget() {
	for _, m := range s.mx {
		clear(m)
	}
}

// A second read of the same regions copies ahead of the owner's answer, once.
func TestReadAhead(t *testing.T) {
	near := newBesideStart()
	s, d, p := aheadSides(t, Config{}, near)
	before := near.blocks.Load()
	d.opening = func() {
		for near.starts.Load() == 0 || near.open.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
	s.check(t)
	require.EqualValues(t, 1, near.starts.Load())
	require.Equal(t, before+1, near.blocks.Load())
	require.Equal(t, 2*s.total(), s.x.Stats().Fetched)
	require.Equal(t, 2*s.total(), s.x.Stats().ReadBytes)

	s.forget()
	require.NoError(t, transport.ReadBlocks(t.Context(), p.(transport.Peer), s.c, s.b))
	s.check(t)
	require.EqualValues(t, 1, near.starts.Load(), "by a capability the owner is waited for")
}

// What is known of some regions only, or is not to be used, is not fetched ahead.
func TestNotAhead(t *testing.T) {
	t.Run("another region", func(t *testing.T) {
		near := newBesideStart()
		s, _ := ticketSides(t, Config{Near: near}, blocksSide())
		p := s.connect(t).(transport.TicketReader)
		some := s.b
		some.Regions = some.Regions[:2]
		require.NoError(t, p.ReadTicket(t.Context(), []byte(good), some))
		require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
		require.Zero(t, near.starts.Load())
		s.check(t)
	})
	t.Run("as asked", func(t *testing.T) {
		near := newBesideStart()
		s, _, p := aheadSides(t, Config{NoAhead: true}, near)
		require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
		require.Zero(t, near.starts.Load())
		s.check(t)
	})
}

// What is refused, though it was fetched, fails, and its memory is not touched afterwards.
func TestAheadIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		ticket string
		spoil  func(s *unitSides, d *desk)
		want   error
	}{
		"of nobody":             {"a bad ticket", func(*unitSides, *desk) {}, transport.ErrDenied},
		"over":                  {good, func(_ *unitSides, d *desk) { d.end(good) }, transport.ErrDenied},
		"over at the end":       {good, func(_ *unitSides, d *desk) { d.opened = func() { d.end(good) } }, transport.ErrDenied},
		"with a revoked grant":  {good, func(s *unitSides, _ *desk) { s.y.Revoke(s.c) }, transport.ErrDenied},
		"for other units":       {good, func(s *unitSides, _ *desk) { s.b.Remote[3] = 0 }, transport.ErrDenied},
		"for a region too many": {good, func(s *unitSides, d *desk) { d.m[good] = s.mustGrant(transport.PeerReads, 1) }, transport.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			near := newBesideStart()
			s, d, p := aheadSides(t, Config{}, near)
			c.spoil(s, d)
			err := p.ReadTicket(t.Context(), []byte(c.ticket), s.b)
			s.forget() // the race detector sees a copy that goes on
			require.ErrorIs(t, err, c.want)
			require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
			require.EqualValues(t, 1, near.starts.Load())
			require.Zero(t, near.open.Load())
			require.Equal(t, s.total(), s.x.Stats().ReadBytes, "of the read before")
			require.Zero(t, s.x.Stats().Retries)
		})
	}
}

// An owner that says now that its memory lies elsewhere is believed.
func TestAheadFromElsewhere(t *testing.T) {
	for name, move := range map[string]func(place) place{
		"another key": func(x place) place { x.key = append([]byte{1}, x.key...); return x },
		"another address": func(x place) place {
			x.from++
			return x
		},
	} {
		t.Run(name, func(t *testing.T) {
			near := newBesideStart()
			s, _, p := aheadSides(t, Config{}, near)
			x := p.(*peer)
			x.mu.Lock()
			x.places[s.b.Regions[1]] = move(x.places[s.b.Regions[1]])
			x.mu.Unlock()
			require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
			s.check(t)
			s.forget()
			require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
			s.check(t)
			require.EqualValues(t, 2, near.starts.Load())
			require.Equal(t, 3*s.total(), s.x.Stats().Fetched)
		})
	}
}

// A read whose connection breaks, or that is given up, returns when its copy ahead of the
// answer has ended.
func TestAheadOutlastsItsConnection(t *testing.T) {
	for name, cut := range map[string]func(s *unitSides, cancel func()){
		"owner closes": func(s *unitSides, _ func()) { s.y.Close() },
		"reader stops": func(_ *unitSides, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			near := newBesideStart()
			begun, goOn := make(chan struct{}), make(chan struct{})
			s, d, p := aheadSides(t, Config{Retries: -1, Grace: time.Millisecond}, near)
			d.opening = func() { <-begun }
			var once sync.Once
			near.fetching = func() {
				once.Do(func() { close(begun); <-goOn })
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- p.ReadTicket(ctx, []byte(good), s.b) }()
			<-begun
			cut(s, cancel)
			select {
			case err := <-done:
				require.FailNow(t, "the memory is still touched", "%v", err)
			case <-time.After(20 * time.Millisecond):
			}
			close(goOn)
			require.Error(t, <-done)
			require.Zero(t, near.open.Load())
			s.forget()
		})
	}
}

// bent is a connection of which, once it is on, nothing is received as it was sent.
type bent struct {
	net.Conn
	on *atomic.Bool
}

func (b bent) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if n > 0 && b.on.Load() {
		p[0] ^= 0xff
	}
	return n, err
}

// A read whose answer cannot be returns when its copy ahead of the answer has ended.
func TestAheadOutlastsAnAnswerThatCannotBe(t *testing.T) {
	near := newBesideStart()
	var on atomic.Bool
	s, d, p := aheadSides(t, Config{Conns: 1, Retries: -1, WrapConn: func(c net.Conn) net.Conn { return bent{c, &on} }}, near)
	begun, goOn := make(chan struct{}), make(chan struct{})
	d.opening = func() { <-begun }
	near.fetching = func() { on.Store(true); close(begun); <-goOn }
	done := make(chan error, 1)
	go func() { done <- p.ReadTicket(t.Context(), []byte(good), s.b) }()
	<-begun
	select {
	case err := <-done:
		require.FailNow(t, "the memory is still touched", "%v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(goOn)
	require.ErrorIs(t, <-done, transport.ErrProtocol)
	require.Zero(t, near.open.Load())
	s.forget()
}

// What was known of an owner is not taken for known of who comes to its address: neither by
// the peer that led to the first, nor by one that is made then.
func TestAheadOfASuccessor(t *testing.T) {
	near := newBesideStart()
	s, d, p := aheadSides(t, Config{}, near)
	addr := s.y.Address()
	require.NoError(t, s.y.Close())
	y, err := New(Config{Listen: addr, Near: besideBlocks{newBeside()}})
	require.NoError(t, err)
	defer y.Close()
	y.ServeTickets(d)
	var ids []transport.RegionID
	for k := len(unitSizes) - 1; k >= 0; k-- { // in another order
		my := make(transport.Host, len(s.my[k]))
		for i, b := range s.my[k] {
			my[i] = ^b
		}
		s.my[k] = my
		x, err := y.Register(struct{ transport.Memory }{my}, unitSizes[k])
		require.NoError(t, err)
		s.b.Regions[k].Remote = x.Region
		ids = append(ids, x.Region)
	}
	c, err := y.Grant(transport.PeerReads, ids, s.b.Remote)
	require.NoError(t, err)
	d.mu.Lock()
	d.m[good] = c
	d.mu.Unlock()
	require.ErrorIs(t, p.ReadTicket(t.Context(), []byte(good), s.b), transport.ErrPeerRestarted)
	require.Zero(t, near.open.Load())
	s.forget()
	require.NoError(t, p.(transport.Peer).Close())
	next, err := s.x.Connect(t.Context(), addr)
	require.NoError(t, err)
	before := near.starts.Load()
	for i := range int64(2) {
		require.NoError(t, next.(transport.TicketReader).ReadTicket(t.Context(), []byte(good), s.b))
		s.check(t)
		s.forget()
		require.Equal(t, before+i, near.starts.Load())
	}
}

// A copy that fails ahead of the answer fails as any other, and one that cannot be begun
// is left to the answer.
func TestAheadFails(t *testing.T) {
	near := newBesideStart()
	s, _, p := aheadSides(t, Config{}, near)
	near.broken.Store(1)
	err := p.ReadTicket(t.Context(), []byte(good), s.b)
	require.ErrorIs(t, err, transport.ErrMemory)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
	near.far.Store(1)
	require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
	require.EqualValues(t, 1, near.starts.Load())
	s.check(t)
}

// Nothing is fetched ahead of an owner that has hung up.
func TestNotAheadOfOneWhoIsGone(t *testing.T) {
	near := newBesideStart()
	s, _, p := aheadSides(t, Config{}, near)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	here, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer here.Close()
	there, err := ln.Accept()
	require.NoError(t, err)
	you, err := near.Meet(s.y.cfg.Near.Card())
	require.NoError(t, err)
	defer you.Close()
	x := &slot{p: p.(*peer), w: newWire(here, time.Minute)}
	x.w.near = you
	begin := func() bool {
		c := &chunk{op: &op{ticket: []byte(good)}, units: &unitsPart{regions: s.b.Regions, local: s.b.Local, remote: s.b.Remote}}
		x.begin(c)
		began := c.ahead != nil
		require.NoError(t, c.land())
		return began
	}
	require.True(t, begin())
	require.NoError(t, there.Close())
	require.Eventually(t, func() bool { return !begin() }, 20*time.Second, time.Millisecond)
}

// What is remembered of a peer has a bound.
func TestPlacesAreBounded(t *testing.T) {
	near := newBesideStart()
	s, _, p := aheadSides(t, Config{}, near)
	x := p.(*peer)
	u := &unitsPart{regions: make([]transport.RegionPair, maxPlaces-1)}
	for i := range u.regions {
		u.regions[i] = transport.RegionPair{Local: 1, Remote: transport.RegionID(1000 + i), Bytes: 1}
	}
	x.remember(u, make([]NearRegion, len(u.regions)))
	require.Len(t, x.places, len(u.regions))
	require.NoError(t, p.ReadTicket(t.Context(), []byte(good), s.b))
	s.check(t)
	require.Len(t, x.places, len(s.b.Regions))
}

// Several reads at once, with tickets of their own for units of their own, through
// connections that break: what arrives is right, and nothing is read by another's ticket.
func TestSeveralAhead(t *testing.T) {
	near := newBesideStart()
	script, err := faulty.Parse("conn%2 cut 4000", 1)
	require.NoError(t, err)
	s, d, p := aheadSides(t, Config{Conns: 4, Retries: 8, WrapConn: script.WrapConn}, near)
	const readers, rounds = 6, 40
	var wg sync.WaitGroup
	per := len(s.b.Local) / readers
	for r := range readers {
		part := transport.Blocks{Regions: s.b.Regions, Local: s.b.Local[r*per : (r+1)*per], Remote: s.b.Remote[r*per : (r+1)*per]}
		var ids []transport.RegionID
		for _, x := range s.b.Regions {
			ids = append(ids, x.Remote)
		}
		c, err := s.y.Grant(transport.PeerReads, ids, part.Remote)
		require.NoError(t, err)
		ticket := fmt.Sprint("of reader ", r)
		d.mu.Lock()
		d.m[ticket] = c
		d.mu.Unlock()
		wg.Go(func() {
			for range rounds {
				for k, size := range unitSizes {
					for _, u := range part.Local {
						clear(s.mx[k][int64(u)*size:][:size])
					}
				}
				if err := p.ReadTicket(t.Context(), []byte(ticket), part); err != nil {
					t.Errorf("reader %d: %v", r, err)
					return
				}
				for k, size := range unitSizes {
					for i, u := range part.Local {
						if string(s.mx[k][int64(u)*size:][:size]) != string(s.my[k][int64(part.Remote[i])*size:][:size]) {
							t.Errorf("reader %d: unit %d of region %d", r, u, k)
							return
						}
					}
				}
				other := part
				other.Local, other.Remote = part.Local[:1], []int32{s.b.Remote[(r+1)%readers*per]}
				if err := p.ReadTicket(t.Context(), []byte(ticket), other); err == nil {
					t.Errorf("reader %d has read another's unit", r)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, near.starts.Load())
	require.Zero(t, near.open.Load())
	require.Positive(t, s.x.Stats().Retries)
}
