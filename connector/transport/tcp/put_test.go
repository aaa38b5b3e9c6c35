package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
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

// What is not granted, or is no unit of the region, is refused as a whole and touches
// nothing.
func TestPutsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *unitSides)
		want  error
	}{
		"a unit that is not granted":   {func(s *unitSides) { s.b.Remote[3] = 0 }, transport.ErrDenied},
		"beyond all granted units":     {func(s *unitSides) { s.b.Remote[3] = unitCount - 1 }, transport.ErrDenied},
		"out of the region":            {func(s *unitSides) { s.b.Remote[3] = unitCount }, transport.ErrRegion},
		"far out of the region":        {func(s *unitSides) { s.b.Remote[3] = math.MaxInt32 }, transport.ErrRegion},
		"no such region":               {func(s *unitSides) { s.b.Regions[1].Remote = 99 }, transport.ErrRegion},
		"a region of other units":      {func(s *unitSides) { s.b.Regions[1].Remote = s.b.Regions[0].Remote }, transport.ErrRegion},
		"units of another size":        {func(s *unitSides) { s.b.Regions[1].Bytes /= 2 }, transport.ErrRegion},
		"a local unit out of region":   {func(s *unitSides) { s.b.Local[3] = unitCount }, transport.ErrRegion},
		"a local region that is not":   {func(s *unitSides) { s.b.Regions[1].Local = 99 }, transport.ErrRegion},
		"a revoked capability":         {func(s *unitSides) { s.y.Revoke(s.c) }, transport.ErrDenied},
		"a capability of nobody":       {func(s *unitSides) { s.c[0] ^= 1 }, transport.ErrDenied},
		"a capability to read":         {func(s *unitSides) { s.c = s.mustGrant(transport.PeerReads, -1) }, transport.ErrDenied},
		"a capability of some regions": {func(s *unitSides) { s.c = s.mustGrant(transport.PeerWrites, 1) }, transport.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPutSides(t, blocksSide(), blocksSide())
			p := s.connect(t)
			good, key := s.b, s.c
			s.b = transport.Blocks{Regions: append([]transport.RegionPair(nil), good.Regions...), Local: append([]int32(nil), good.Local...), Remote: append([]int32(nil), good.Remote...)}
			c.spoil(s)
			require.ErrorIs(t, transport.WriteBlocks(t.Context(), p, s.c, s.b), c.want)
			s.untouched(t)
			require.Zero(t, s.y.Stats().Fetched)
			require.Zero(t, s.y.Stats().ServedWrites)
			require.Zero(t, s.x.Stats().WrittenBytes)
			require.Zero(t, s.x.Stats().Retries)
			if name == "a revoked capability" {
				return
			}
			s.b = good
			require.NoError(t, transport.WriteBlocks(t.Context(), p, key, s.b), "the connection still works")
			s.checkPut(t)
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
	goOn := make(chan struct{})
	nb.fetching = func() { <-goOn }
	err := transport.WriteBlocks(t.Context(), p, s.c, s.b)
	require.ErrorIs(t, err, transport.ErrStalled)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
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

// Offering a thousand blocks of many regions allocates as often as offering one.
func TestPutAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("it counts allocations of its own")
	}
	u := &unitsPart{bytes: 56 * 32 << 10}
	for i := range 56 {
		u.regions = append(u.regions, transport.RegionPair{Remote: transport.RegionID(i), Bytes: 32 << 10})
	}
	for i := range int32(768) {
		u.remote, u.local = append(u.remote, i), append(u.local, 768-i)
	}
	lend := rawLend(56, 32<<10)
	var p put
	var buf []byte
	count := func() float64 {
		return testing.AllocsPerRun(20, func() {
			buf = append(appendPut(buf[:0], transport.Capability{}, u), lend...)
			if err := parsePut(buf, &p); err != nil {
				t.Error(err)
			}
		})
	}
	many := count()
	require.Len(t, p.from, 768)
	u.remote, u.local = u.remote[:1], u.local[:1]
	require.Equal(t, many, count())
}

// rawLend is lent memory of so many pieces, all under one key.
func rawLend(pieces int, size uint32) []byte {
	b := []byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 'k'}
	for range pieces {
		b = binary.LittleEndian.AppendUint32(append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), size)
	}
	return b
}

// rawPut is an offer of any parts.
func rawPut(claimed int, parts ...[]byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(claimed)), bytes.Join(parts, nil)...)
}

func hostilePuts() map[string][]byte {
	c := transport.Capability{1}
	one := rawUnits(c, 1, 1, 5, 4096, 1)
	zero := make([]byte, 4)
	out := map[string][]byte{
		"empty":                    {},
		"half a length":            {1, 0},
		"request of 4 GiB":         rawPut(math.MaxUint32, one),
		"request longer than all":  rawPut(len(one)+1, one),
		"request shorter":          rawPut(len(one)-1, one, zero, rawLend(1, 4096)),
		"nothing behind":           rawPut(len(one), one),
		"half a unit":              rawPut(len(one), one, []byte{1, 0}),
		"no memory":                rawPut(len(one), one, zero),
		"negative unit":            rawPut(len(one), one, []byte{0, 0, 0, 128}, rawLend(1, 4096)),
		"fewer units than asked":   rawPut(len(one)+4, rawUnits(c, 1, 2, 5, 4096, 1, 2), zero, rawLend(1, 4096)),
		"more units than asked":    rawPut(len(one), one, zero, zero, rawLend(1, 4096)),
		"memory too short":         rawPut(len(one), one, zero, rawLend(1, 4095)),
		"memory too long":          rawPut(len(one), one, zero, rawLend(1, 4097)),
		"memory of two":            rawPut(len(one), one, zero, rawLend(2, 4096)),
		"memory of 4 GiB":          rawPut(len(one), one, zero, rawLend(1, math.MaxUint32)),
		"key nobody has":           rawPut(len(one), one, zero, append(rawLend(0, 0), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0)),
		"as many keys as there be": rawPut(len(one), one, zero, []byte{0, 0, 0, 0, 255, 255, 255, 255}),
	}
	for name, raw := range hostileUnits() {
		out["units: "+name] = rawPut(len(raw), raw, zero, rawLend(1, 4096))
	}
	return out
}

func TestPutRoundTrip(t *testing.T) {
	u := &unitsPart{
		regions: []transport.RegionPair{{Remote: 9, Bytes: 100}, {Remote: 1, Bytes: 100}}, remote: []int32{3, 0, math.MaxInt32, 2}, local: []int32{7, 7, 0, 5},
	}
	p := put{to: make([]int32, 9), from: make([]int32, 1), spans: make([]span, 7)}
	require.NoError(t, parsePut(append(appendPut(nil, transport.Capability{4}, u), rawLend(2, 100)...), &p))
	require.Equal(t, transport.Capability{4}, p.key)
	require.Equal(t, []span{{9, 0, 100}, {1, 0, 100}}, p.spans)
	require.Equal(t, u.remote, p.to)
	require.Equal(t, u.local, p.from)
	require.EqualValues(t, math.MaxInt32, p.most)
	require.EqualValues(t, 800, p.total)
	require.Equal(t, []int64{100, 100}, p.lent.length)
	for name, raw := range hostilePuts() {
		require.ErrorIs(t, parsePut(raw, &p), transport.ErrProtocol, name)
	}
}

func FuzzParsePut(f *testing.F) {
	u := &unitsPart{regions: []transport.RegionPair{{Remote: 9, Bytes: 100}}, remote: []int32{3, 0}, local: []int32{1, 2}}
	f.Add(append(appendPut(nil, transport.Capability{4}, u), rawLend(1, 100)...))
	f.Add(append(appendPut(nil, transport.Capability{4}, u), rawLend(2, 50)...))
	for _, raw := range hostilePuts() {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p put
		if err := parsePut(raw, &p); err != nil {
			require.ErrorIs(t, err, transport.ErrProtocol)
			return
		}
		u := &unitsPart{remote: p.to, local: p.from}
		each := int64(0)
		for _, s := range p.spans {
			each += s.length
			u.regions = append(u.regions, transport.RegionPair{Remote: s.region, Bytes: s.length})
		}
		require.Len(t, p.from, len(p.to))
		for i := range p.to {
			require.True(t, p.to[i] >= 0 && p.to[i] <= p.most && p.from[i] >= 0)
		}
		require.Equal(t, each*int64(len(p.to)), p.total)
		require.LessOrEqual(t, p.total, int64(maxLent))
		for _, n := range p.lent.length {
			each -= n
		}
		require.Zero(t, each, "it lends one unit of each region")
		head := appendPut(nil, p.key, u)
		require.Equal(t, raw[:len(head)], head)
	})
}

// greeting is what a neighbour sends that asks for all there is.
func greeting(near *beside) []byte {
	var hi [helloSize]byte
	hello{near: 1}.put(hi[:])
	return append(rawFrame(header{kind: kindHello}, hi[:]), rawFrame(header{kind: kindCard}, []byte("\x0e"+near.name))...)
}

// FuzzServePuts feeds a stream behind the cards to a server of which the neighbour may
// write some units: it writes no others.
func FuzzServePuts(f *testing.F) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}, DialTimeout: time.Second, StallTimeout: time.Second, IdleTimeout: time.Second})
	require.NoError(f, err)
	f.Cleanup(func() { s.Close() })
	mem := make(transport.Host, 64<<10)
	d, err := s.Register(struct{ transport.Memory }{mem}, 4096)
	require.NoError(f, err)
	c, err := s.Grant(transport.PeerWrites, []transport.RegionID{d.Region}, []int32{3})
	require.NoError(f, err)
	lend := make(transport.Host, 64<<10)
	for i := range lend {
		lend[i] = 1
	}
	x, err := near.Expose(struct{ transport.Memory }{lend})
	require.NoError(f, err)
	for _, raw := range hostilePuts() {
		f.Add(raw)
	}
	for _, unit := range []uint32{0, 3} {
		request := rawUnits(c, 1, 1, uint32(d.Region), 4096, unit)
		key := append([]byte{0, 0, 0, 0, 1, 0, 0, 0, byte(len(x.Key())), 0}, x.Key()...)
		f.Add(rawPut(len(request), request, make([]byte, 4), key, rawLend(1, 4096)[11:]))
	}
	before := greeting(near)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) >= 4+16 && raw[0]&1 == 0 { // the grant of this process, where another one found the input
			copy(raw[4:], c[:])
		}
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() { defer close(done); s.serve(there, there); there.Close() }()
		go io.Copy(io.Discard, here)
		_, _ = here.Write(append(before[:len(before):len(before)], rawFrame(header{kind: kindPut, flags: flagNear, id: 1}, raw)...))
		here.Close()
		<-done
		for i, b := range mem {
			require.True(t, b == 0 || i/4096 == 3, "byte %d", i)
		}
		require.Zero(t, near.open.Load(), "the neighbour was let go of")
	})
}

// Streams with wrong offers of units end, cost no memory of anybody's and write nothing.
func TestHostilePuts(t *testing.T) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}, StallTimeout: 200 * time.Millisecond, DialTimeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer s.Close()
	bare, err := New(Config{StallTimeout: 200 * time.Millisecond, DialTimeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer bare.Close()
	send := func(to *Transport, stream []byte) (answer []byte) {
		t.Helper()
		c, err := net.Dial("tcp", to.Address())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(stream)
		require.NoError(t, err)
		require.NoError(t, c.(*net.TCPConn).CloseWrite())
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		answer, err = io.ReadAll(c)
		require.False(t, isTimeout(err), "it hangs up: %v", err)
		return answer
	}
	for _, raw := range hostilePuts() {
		frame := rawFrame(header{kind: kindPut, flags: flagNear, id: 1}, raw)
		send(s, append(greeting(near), frame...))
		send(bare, append(rawHello(), frame...))
	}
	require.Equal(t, uint64(len(hostilePuts())), s.Stats().Malformed)
	require.Equal(t, uint64(len(hostilePuts())), bare.Stats().Malformed)
	require.Zero(t, s.Stats().Denied)

	// Offers that can be, of somebody who may write, from memory that cannot be.
	mem := make(transport.Host, 8*4096)
	d, err := s.Register(struct{ transport.Memory }{mem}, 4096)
	require.NoError(t, err)
	w, err := s.Grant(transport.PeerWrites, []transport.RegionID{d.Region}, []int32{0, 1, 2})
	require.NoError(t, err)
	small, err := near.Expose(struct{ transport.Memory }{make(transport.Host, 4096)})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		key  []byte
		from uint32
		at   uint64
		card string
		want status
	}{
		"a key of nobody":        {key: []byte("k"), want: statusFar},
		"behind the memory":      {key: small.Key(), from: 1, want: statusMemory},
		"far behind the memory":  {key: small.Key(), from: math.MaxInt32, want: statusMemory},
		"beyond all memory":      {key: small.Key(), at: math.MaxUint64, want: statusMemory},
		"of nobody that was met": {key: small.Key(), card: "\x0enobody", want: statusFar},
	} {
		t.Run(name, func(t *testing.T) {
			request := rawUnits(w, 1, 2, uint32(d.Region), 4096, 1, 2)
			lend := append([]byte{0, 0, 0, 0, 1, 0, 0, 0, byte(len(c.key)), 0}, c.key...)
			lend = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(append(lend, 0, 0, 0, 0), c.at), 4096)
			units := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, c.from), c.from)
			stream := greeting(near)
			if c.card != "" {
				stream = append(stream[:headerSize+helloSize], rawFrame(header{kind: kindCard}, []byte(c.card))...)
			}
			answer := send(s, append(stream, rawFrame(header{kind: kindPut, flags: flagNear, id: 9}, rawPut(len(request), request, units, lend))...))
			at := bytes.LastIndex(answer, []byte{9, 0, 0, 0, 0, 0, 0, 0}) - 8
			require.Positive(t, at, "%q", answer)
			h, err := parseHeader(answer[at:])
			require.NoError(t, err)
			require.Equal(t, kindDone, h.kind)
			require.Equal(t, c.want, h.status)
		})
	}
	require.Equal(t, make(transport.Host, len(mem)), mem)
	require.Zero(t, s.Stats().ServedWrites)
	require.Zero(t, s.Stats().Fetched)
	require.Eventually(t, func() bool { return near.open.Load() == 0 }, 20*time.Second, time.Millisecond)
	require.NoError(t, s.Deregister(d.Region), "nobody uses it any more")
}
