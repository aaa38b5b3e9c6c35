package tcp

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

// newPutSides are sides of units of which the first writes to the second, whose memory is
// empty.
func newPutSides(t *testing.T, a, b Config) *unitSides {
	t.Helper()
	s := newUnitSides(t, a, b)
	var ids []transport.RegionID
	for k := range s.mx {
		copy(s.mx[k], s.my[k])
		clear(s.my[k])
		ids = append(ids, s.b.Regions[k].Remote)
	}
	var err error
	s.c, err = s.y.Grant(transport.PeerWrites, ids, s.b.Remote)
	require.NoError(t, err)
	return s
}

// checkPut compares all that was to arrive, and that nothing else did.
func (s *unitSides) checkPut(t *testing.T) {
	t.Helper()
	for k, size := range unitSizes {
		want := make(transport.Host, len(s.my[k]))
		for i, u := range s.b.Remote {
			copy(want[int64(u)*size:][:size], s.mx[k][int64(s.b.Local[i])*size:])
		}
		require.Equal(t, want, s.my[k], "region %d", k)
	}
}

func (s *unitSides) untouched(t *testing.T) {
	t.Helper()
	for k := range s.my {
		require.Equal(t, make(transport.Host, len(s.my[k])), s.my[k])
	}
}

// Blocks of all regions go out whether or not both sides know of offers of units, are near,
// or find the memory unreadable; what a side does not know it is not told.
func TestWriteUnits(t *testing.T) {
	both := func(b *beside) Near { return besideBlocks{b} }
	for _, c := range []struct {
		name      string
		a, b      func(*beside) Near
		pa, pb    bool // named piece by piece
		units     bool // one request, by units
		connected bool // bytes travel on the connections
	}{
		{name: "both", a: both, b: both, units: true},
		{name: "a writer that does not fetch by units", a: asIs, b: both, units: true},
		{name: "a writer that meets nobody", a: deaf, b: both, units: true},
		{name: "an owner that does not fetch by units", a: both, b: asIs},
		{name: "a writer as before", a: both, b: both, pa: true},
		{name: "an owner as before", a: both, b: both, pb: true},
		{name: "no neighbours", a: none, b: none, connected: true},
		{name: "owner has none", a: both, b: none, connected: true},
		{name: "owner meets nobody", a: both, b: func(b *beside) Near { b.deaf.Store(true); return besideBlocks{b} }, connected: true},
		{name: "unreadable", a: both, b: func(b *beside) Near { b.far.Store(1 << 40); return besideBlocks{b} }, units: true, connected: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			nb := newBeside()
			s := newPutSides(t, Config{Near: c.a(newBeside()), Pieces: c.pa}, Config{Near: c.b(nb), Pieces: c.pb})
			p := s.connect(t)
			for n := range uint64(3) {
				for k := range s.my {
					clear(s.my[k])
				}
				require.NoError(t, transport.WriteBlocks(t.Context(), p, s.c, s.b))
				s.checkPut(t)
				require.Equal(t, (n+1)*s.total(), s.x.Stats().WrittenBytes)
				require.Equal(t, (n+1)*s.total(), s.y.Stats().ServedWrites)
			}
			fetched, puts := 3*s.total(), int64(3)
			if c.connected {
				fetched, puts = 0, 1 // it is not tried again
			}
			if !c.units {
				puts = 0
			}
			require.Equal(t, puts, nb.blocks.Load())
			require.Equal(t, fetched, s.y.Stats().Fetched)
			require.NoError(t, p.(transport.BlockWriter).WriteBlocks(t.Context(), s.c, transport.Blocks{}))
		})
	}
}

// A refused write touches nothing.
func TestPutsRefused(t *testing.T) {
	for name, x := range refusals(transport.PeerWrites, transport.PeerReads) {
		t.Run(name, func(t *testing.T) {
			s := newPutSides(t, blocksSide(), blocksSide())
			s.refuses(t, x, transport.WriteBlocks, func(t *testing.T) {
				s.untouched(t)
				require.Zero(t, s.y.Stats().Fetched)
				require.Zero(t, s.y.Stats().ServedWrites)
				require.Zero(t, s.x.Stats().WrittenBytes)
			}, s.checkPut)
		})
	}
}

// A copy that the owner's device fails fails the units of its request, and is not tried
// again by another way.
func TestPutCopyFails(t *testing.T) {
	nb := newBeside()
	s := newPutSides(t, blocksSide(), Config{Near: besideBlocks{nb}})
	p := s.connect(t)
	nb.broken.Store(1)
	err := transport.WriteBlocks(t.Context(), p, s.c, s.b)
	require.ErrorIs(t, err, transport.ErrMemory)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
	s.untouched(t)
	require.NoError(t, transport.WriteBlocks(t.Context(), p, s.c, s.b))
	s.checkPut(t)
}

// A grant that is revoked while the owner's device fetches: Revoke returns when nothing can
// be written any more, and the write does not count.
func TestRevokeWhilePutIsFetched(t *testing.T) {
	nb := newBeside()
	s := newPutSides(t, blocksSide(), Config{Near: besideBlocks{nb}, Grace: 10 * time.Millisecond})
	p := s.connect(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	nb.fetching = func() { once.Do(func() { close(begun); <-goOn }) }
	wrote, revoked := make(chan error, 1), make(chan struct{})
	go func() { wrote <- transport.WriteBlocks(t.Context(), p, s.c, s.b) }()
	<-begun
	go func() {
		defer close(revoked)
		s.y.Revoke(s.c)
		for k := range s.my { // the blocks are another request's now
			clear(s.my[k])
		}
	}()
	err := <-wrote // its connection is cut, as the copy is slow
	require.Error(t, err)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
	select {
	case <-revoked:
		require.FailNow(t, "revoked while the device writes")
	case <-time.After(20 * time.Millisecond):
	}
	close(goOn)
	<-revoked
	require.NoError(t, p.Close())
	require.NoError(t, s.y.Close())
	s.untouched(t)
	require.Zero(t, s.y.Stats().ServedWrites)
}

// A grant that is revoked while the owner's device fetches, which is done within the time
// of grace: the connection stays, and the write does not count.
func TestRevokeWithGraceWhilePutIsFetched(t *testing.T) {
	nb := newBeside()
	s := newPutSides(t, blocksSide(), Config{Near: besideBlocks{nb}, Grace: time.Minute})
	p := s.connect(t)
	revoked := make(chan struct{})
	var once sync.Once
	nb.fetching = func() {
		once.Do(func() {
			go func() { defer close(revoked); s.y.Revoke(s.c) }()
			for { // until it is under way
				h, err := s.y.grants.Acquire(s.c, transport.PeerWrites, func() {})
				if err != nil {
					return
				}
				h.Release()
				time.Sleep(time.Millisecond)
			}
		})
	}
	require.ErrorIs(t, transport.WriteBlocks(t.Context(), p, s.c, s.b), transport.ErrDenied)
	<-revoked
	require.Zero(t, s.y.Stats().ServedWrites)
	require.Zero(t, s.y.Stats().Fetched)
}

// A write ends with its context although the owner still fetches; it is not begun a second
// time, and once it is revoked nothing of it arrives.
func TestCancelWhilePutIsFetched(t *testing.T) {
	for name, write := range map[string]func(context.Context, transport.Peer, transport.Capability, transport.Blocks) error{
		"units": transport.WriteBlocks, "pieces": transport.WritePieces,
	} {
		t.Run(name, func(t *testing.T) {
			nb := newBeside()
			s := newPutSides(t, Config{Near: besideBlocks{newBeside()}, Grace: 10 * time.Millisecond}, Config{Near: besideBlocks{nb}, Grace: 10 * time.Millisecond})
			p := s.connect(t)
			goOn := make(chan struct{})
			ctx, cancel := context.WithCancelCause(t.Context())
			mine := errors.New("changed my mind")
			nb.fetching = func() { cancel(mine); <-goOn }
			err := write(ctx, p, s.c, s.b)
			require.ErrorIs(t, err, mine)
			require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
			close(goOn)
			s.y.Revoke(s.c)
			for k := range s.my {
				clear(s.my[k])
			}
			require.NoError(t, p.Close())
			require.NoError(t, s.y.Close())
			s.untouched(t)
			require.Zero(t, s.x.Stats().Retries)
		})
	}
}

// Likewise of units: see TestStalledFetchIsNotRepeated.
func TestStalledPutIsNotRepeated(t *testing.T) {
	nb := newBeside()
	s := newPutSides(t, Config{Near: besideBlocks{newBeside()}, StallTimeout: 200 * time.Millisecond}, Config{Near: besideBlocks{nb}})
	p := s.connect(t)
	begun, goOn := make(chan struct{}, 9), make(chan struct{})
	nb.fetching = func() { begun <- struct{}{}; <-goOn }
	err := transport.WriteBlocks(t.Context(), p, s.c, s.b)
	require.ErrorIs(t, err, transport.ErrStalled)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
	<-begun // it had all of the offer, however late it comes to it
	close(goOn)
	require.NoError(t, p.Close())
	require.NoError(t, s.y.Close())
	require.EqualValues(t, 1, nb.blocks.Load())
	require.Zero(t, s.x.Stats().Retries)
}

// A write of units finds that the owner has hung up on an idle connection, and takes another
// one.
func TestPutBehindALongPause(t *testing.T) {
	s := newPutSides(t, Config{Near: besideBlocks{newBeside()}, Conns: 1}, Config{Near: besideBlocks{newBeside()}, IdleTimeout: 200 * time.Millisecond})
	p := s.connect(t)
	for range 2 {
		require.NoError(t, transport.WriteBlocks(t.Context(), p, s.c, s.b))
		require.Eventually(t, func() bool { return s.y.Stats().OpenConns == 0 }, 20*time.Second, time.Millisecond)
	}
	s.checkPut(t)
}

// More units than one request may name are written by several.
func TestManyPuts(t *testing.T) {
	const n = 2*maxUnits + 17
	nb := newBeside()
	x, err := New(blocksSide())
	require.NoError(t, err)
	defer x.Close()
	y, err := New(Config{Near: besideBlocks{nb}})
	require.NoError(t, err)
	defer y.Close()
	mx, my := make(transport.Host, n), make(transport.Host, n)
	b := transport.Blocks{}
	for i := range mx {
		mx[i] = byte(i ^ i>>8)
		b.Local, b.Remote = append(b.Local, int32(i)), append(b.Remote, int32(n-1-i))
	}
	dx, err := x.Register(struct{ transport.Memory }{mx}, 1)
	require.NoError(t, err)
	dy, err := y.Register(struct{ transport.Memory }{my}, 1)
	require.NoError(t, err)
	b.Regions = []transport.RegionPair{{Local: dx.Region, Remote: dy.Region, Bytes: 1}}
	c, err := y.Grant(transport.PeerWrites, []transport.RegionID{dy.Region}, b.Remote)
	require.NoError(t, err)
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, transport.WriteBlocks(t.Context(), p, c, b))
	for i := range mx {
		if mx[i] != my[n-1-i] {
			require.FailNow(t, "bytes differ", "unit %d", i)
		}
	}
	require.EqualValues(t, 3, nb.blocks.Load())
	require.Equal(t, uint64(2*n), y.Stats().Fetched+x.Stats().WrittenBytes)
}
