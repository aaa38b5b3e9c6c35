package tcp

import (
	"context"
	"encoding/binary"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

// besideBlocks is a beside that takes units as they are named.
type besideBlocks struct{ *beside }

func (b besideBlocks) Meet(card []byte) (Neighbour, error) {
	n, err := b.beside.Meet(card)
	if err != nil {
		return nil, err
	}
	return blocksYou{n.(*besideYou)}, nil
}

type blocksYou struct{ *besideYou }

func (x blocksYou) FetchBlocks(regions []NearRegion, local, remote []int32) error {
	var ranges []NearRange
	for _, r := range regions {
		for i := range local {
			ranges = append(ranges, NearRange{
				Memory: r.Memory, Offset: int64(local[i]) * r.Bytes, Key: r.Key, From: r.From + int64(remote[i])*r.Bytes, Length: r.Bytes,
			})
		}
	}
	x.b.blocks.Add(1)
	return x.Fetch(ranges)
}

// unitSides are two sides with the same regions of memory that is not mapped.
type unitSides struct {
	x, y   *Transport
	mx, my []transport.Host
	b      transport.Blocks
	c      transport.Capability
}

var unitSizes = []int64{64, 4096, 13}

const unitCount = 40

func newUnitSides(t *testing.T, a, b Config) *unitSides {
	t.Helper()
	s := &unitSides{}
	var err error
	s.x, err = New(a)
	require.NoError(t, err)
	t.Cleanup(func() { s.x.Close() })
	s.y, err = New(b)
	require.NoError(t, err)
	t.Cleanup(func() { s.y.Close() })
	var ids []transport.RegionID
	for k, size := range unitSizes {
		mx, my := make(transport.Host, unitCount*size), make(transport.Host, unitCount*size)
		for i := range my {
			my[i] = byte(1 + (i*i>>4+i+k)%255)
		}
		dx, err := s.x.Register(struct{ transport.Memory }{mx}, size)
		require.NoError(t, err)
		dy, err := s.y.Register(struct{ transport.Memory }{my}, size)
		require.NoError(t, err)
		s.mx, s.my = append(s.mx, mx), append(s.my, my)
		s.b.Regions = append(s.b.Regions, transport.RegionPair{Local: dx.Region, Remote: dy.Region, Bytes: size})
		ids = append(ids, dy.Region)
	}
	var units []int32
	for i := range int32(unitCount) {
		if i%3 != 0 {
			units = append(units, i)
			s.b.Remote, s.b.Local = append(s.b.Remote, i), append(s.b.Local, (i*7+5)%unitCount)
		}
	}
	s.c, err = s.y.Grant(transport.PeerReads, ids, units)
	require.NoError(t, err)
	return s
}

func (s *unitSides) total() (n uint64) {
	for _, size := range unitSizes {
		n += uint64(size) * uint64(len(s.b.Local))
	}
	return n
}

// check compares all that was to arrive, and that nothing else did.
func (s *unitSides) check(t *testing.T) {
	t.Helper()
	for k, size := range unitSizes {
		want := make(transport.Host, len(s.mx[k]))
		for i, u := range s.b.Local {
			copy(want[int64(u)*size:][:size], s.my[k][int64(s.b.Remote[i])*size:])
		}
		require.Equal(t, want, s.mx[k], "region %d", k)
	}
}

func (s *unitSides) connect(t *testing.T) transport.Peer {
	t.Helper()
	p, err := s.x.Connect(t.Context(), s.y.Address())
	require.NoError(t, err)
	return p
}

// Blocks of all regions arrive whether or not both sides speak of units, are near, or
// find the memory unreadable; what a side does not know it is not told.
func TestReadUnits(t *testing.T) {
	both := func(b *beside) Near { return besideBlocks{b} }
	for _, c := range []struct {
		name      string
		a, b      func(*beside) Near
		pa, pb    bool // named piece by piece
		units     bool // one request, by units
		connected bool // bytes travel on the connections
	}{
		{name: "both", a: both, b: both, units: true},
		{name: "an owner that does not fetch by units", a: both, b: asIs, units: true},
		{name: "a reader that does not fetch by units", a: asIs, b: both},
		{name: "a reader as before", a: both, b: both, pa: true},
		{name: "an owner as before", a: both, b: both, pb: true},
		{name: "no neighbours", a: none, b: none, connected: true},
		{name: "owner has none", a: both, b: none, connected: true},
		{name: "unreadable", a: func(b *beside) Near { b.far.Store(1 << 40); return besideBlocks{b} }, b: both, units: true, connected: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			na := newBeside()
			s := newUnitSides(t, Config{Near: c.a(na), Pieces: c.pa}, Config{Near: c.b(newBeside()), Pieces: c.pb})
			p := s.connect(t)
			require.NoError(t, transport.ReadBlocks(t.Context(), p, s.c, s.b))
			s.check(t)
			require.Equal(t, c.units, na.blocks.Load() > 0)
			fetched := s.total()
			if c.connected {
				fetched = 0
			}
			require.Equal(t, fetched, s.x.Stats().Fetched)
			require.Equal(t, s.total(), s.x.Stats().ReadBytes)
			require.Eventually(t, func() bool { return s.y.Stats().ServedReads == s.total() }, 20*time.Second, time.Millisecond, "it counts behind the last byte")
			require.NoError(t, p.(transport.BlockReader).ReadBlocks(t.Context(), s.c, transport.Blocks{}))
		})
	}
}

// refusal is a request for units that is refused as a whole: what is not granted, or is no
// unit of the region.
type refusal struct {
	spoil   func(s *unitSides)
	want    error
	revoked bool // nothing can be had by the capability afterwards
}

// refusals are those of what needs one access, where there is another.
func refusals(access, other transport.Access) map[string]refusal {
	return map[string]refusal{
		"a unit that is not granted":   {func(s *unitSides) { s.b.Remote[3] = 0 }, transport.ErrDenied, false},
		"beyond all granted units":     {func(s *unitSides) { s.b.Remote[3] = unitCount - 1 }, transport.ErrDenied, false},
		"out of the region":            {func(s *unitSides) { s.b.Remote[3] = unitCount }, transport.ErrRegion, false},
		"far out of the region":        {func(s *unitSides) { s.b.Remote[3] = math.MaxInt32 }, transport.ErrRegion, false},
		"no such region":               {func(s *unitSides) { s.b.Regions[1].Remote = 99 }, transport.ErrRegion, false},
		"a region of other units":      {func(s *unitSides) { s.b.Regions[1].Remote = s.b.Regions[0].Remote }, transport.ErrRegion, false},
		"units of another size":        {func(s *unitSides) { s.b.Regions[1].Bytes /= 2 }, transport.ErrRegion, false},
		"a local unit out of region":   {func(s *unitSides) { s.b.Local[3] = unitCount }, transport.ErrRegion, false},
		"a local region that is not":   {func(s *unitSides) { s.b.Regions[1].Local = 99 }, transport.ErrRegion, false},
		"a revoked capability":         {func(s *unitSides) { s.y.Revoke(s.c) }, transport.ErrDenied, true},
		"a capability of nobody":       {func(s *unitSides) { s.c[0] ^= 1 }, transport.ErrDenied, false},
		"a capability for the other":   {func(s *unitSides) { s.c = s.mustGrant(other, -1) }, transport.ErrDenied, false},
		"a capability of some regions": {func(s *unitSides) { s.c = s.mustGrant(access, 1) }, transport.ErrDenied, false},
	}
}

// refuses shows that a spoiled request is refused, after which untouched looks at both
// sides, and that the connection works all the same.
func (s *unitSides) refuses(t *testing.T, x refusal, move func(context.Context, transport.Peer, transport.Capability, transport.Blocks) error, untouched, check func(*testing.T)) {
	p := s.connect(t)
	good, key := s.b, s.c
	s.b = transport.Blocks{Regions: slices.Clone(good.Regions), Local: slices.Clone(good.Local), Remote: slices.Clone(good.Remote)}
	x.spoil(s)
	require.ErrorIs(t, move(t.Context(), p, s.c, s.b), x.want)
	untouched(t)
	require.Zero(t, s.x.Stats().Retries)
	if s.b = good; x.revoked {
		require.ErrorIs(t, move(t.Context(), p, key, s.b), transport.ErrDenied)
		return
	}
	require.NoError(t, move(t.Context(), p, key, s.b), "the connection still works")
	check(t)
}

// A refused read touches nothing.
func TestUnitsRefused(t *testing.T) {
	for name, x := range refusals(transport.PeerReads, transport.PeerWrites) {
		t.Run(name, func(t *testing.T) {
			s := newUnitSides(t, blocksSide(), blocksSide())
			s.refuses(t, x, transport.ReadBlocks, func(t *testing.T) {
				for k := range s.mx {
					require.Equal(t, make(transport.Host, len(s.mx[k])), s.mx[k])
				}
				require.Zero(t, s.x.Stats().Fetched)
			}, s.check)
		})
	}
}

// mustGrant opens all units of some regions, all of them for -1.
func (s *unitSides) mustGrant(a transport.Access, regions int) transport.Capability {
	var ids []transport.RegionID
	for i, r := range s.b.Regions {
		if regions < 0 || i < regions {
			ids = append(ids, r.Remote)
		}
	}
	var units []int32
	for i := range int32(unitCount) {
		units = append(units, i)
	}
	c, err := s.y.Grant(a, ids, units)
	if err != nil {
		panic(err)
	}
	return c
}

// A copy that the device fails fails the units of its request, and is not tried again
// by another way.
func TestUnitsCopyFails(t *testing.T) {
	na := newBeside()
	s := newUnitSides(t, Config{Near: besideBlocks{na}}, Config{Near: besideBlocks{newBeside()}})
	p := s.connect(t)
	na.broken.Store(1)
	err := transport.ReadBlocks(t.Context(), p, s.c, s.b)
	require.ErrorIs(t, err, transport.ErrMemory)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
	require.NoError(t, transport.ReadBlocks(t.Context(), p, s.c, s.b))
	s.check(t)
}

// A grant that is revoked while a neighbour copies units is told before the read counts
// as done.
func TestRevokeWhileUnitsAreCopied(t *testing.T) {
	na := newBeside()
	s := newUnitSides(t, Config{Near: besideBlocks{na}, Conns: 1, Retries: -1}, Config{Near: besideBlocks{newBeside()}, Grace: 10 * time.Millisecond})
	p := s.connect(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	na.fetching = func() { once.Do(func() { close(begun); <-goOn }) }
	done := make(chan error, 1)
	go func() { done <- transport.ReadBlocks(t.Context(), p, s.c, s.b) }()
	<-begun
	s.y.Revoke(s.c) // returns although the copy has not begun
	close(goOn)
	err := <-done
	require.Error(t, err)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
}

// More units than one request may name are read by several.
func TestManyUnits(t *testing.T) {
	const n = 2*maxUnits + 17
	x, err := New(Config{Near: besideBlocks{newBeside()}})
	require.NoError(t, err)
	defer x.Close()
	y, err := New(Config{Near: besideBlocks{newBeside()}})
	require.NoError(t, err)
	defer y.Close()
	mx, my := make(transport.Host, n), make(transport.Host, n)
	b := transport.Blocks{}
	for i := range my {
		my[i] = byte(i ^ i>>8)
		b.Local, b.Remote = append(b.Local, int32(i)), append(b.Remote, int32(n-1-i))
	}
	dx, err := x.Register(struct{ transport.Memory }{mx}, 1)
	require.NoError(t, err)
	dy, err := y.Register(struct{ transport.Memory }{my}, 1)
	require.NoError(t, err)
	b.Regions = []transport.RegionPair{{Local: dx.Region, Remote: dy.Region, Bytes: 1}}
	c, err := y.Grant(transport.PeerReads, []transport.RegionID{dy.Region}, b.Local)
	require.NoError(t, err)
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, transport.ReadBlocks(t.Context(), p, c, b))
	for i := range mx {
		if mx[i] != my[n-1-i] {
			require.FailNow(t, "bytes differ", "unit %d", i)
		}
	}
	require.Equal(t, uint64(2*n), x.Stats().Fetched+x.Stats().ReadBytes)
}

// Naming a thousand blocks of many regions allocates as often as naming one.
func TestUnitsAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("it counts allocations of its own")
	}
	x, err := New(Config{Near: besideBlocks{newBeside()}})
	require.NoError(t, err)
	defer x.Close()
	u := &unitsPart{bytes: 56 * 32 << 10}
	for i := range 56 {
		u.regions = append(u.regions, transport.RegionPair{Remote: transport.RegionID(i), Bytes: 32 << 10})
	}
	for i := range int32(768) {
		u.remote = append(u.remote, i)
	}
	var buf []byte
	var spans []span
	var units []int32
	require.Zero(t, testing.AllocsPerRun(20, func() {
		buf = appendUnits(buf[:0], transport.Capability{}, u)
		var err error
		if _, spans, units, _, _, err = parseUnits(buf, spans, units); err != nil {
			t.Error(err)
		}
	}))
	require.Len(t, spans, 56)
	require.Len(t, units, 768)
}

// greeting is what a neighbour sends that asks for these bits.
func greeting(near *beside, asks byte) []byte {
	var hi [helloSize]byte
	hello{near: 1}.put(hi[:])
	return append(rawFrame(header{kind: kindHello}, hi[:]), rawFrame(header{kind: kindCard}, append([]byte{asks}, near.name...))...)
}

// A peer that knows of no units takes a first byte of a card other than 1 for none of
// it, and is sent none.
func TestCardOfOldPeers(t *testing.T) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}})
	require.NoError(t, err)
	defer s.Close()
	s.ServeTickets(&desk{})
	for head, want := range map[byte]byte{
		0: cardFetches, cardUnits: cardFetches | cardUnits, 0xfc: cardFetches, 0xff: cardFetches | cardUnits | cardTickets | cardPuts,
		cardTickets: cardFetches, cardUnits | cardTickets: cardFetches | cardUnits | cardTickets,
		cardPuts: cardFetches, cardUnits | cardPuts: cardFetches | cardUnits | cardPuts,
	} {
		c, err := net.Dial("tcp", s.Address())
		require.NoError(t, err)
		_, err = c.Write(greeting(near, head))
		require.NoError(t, err)
		w := newWire(c, 10*time.Second)
		h, err := w.readHeader(10 * time.Second)
		require.NoError(t, err)
		_, err = w.readPayload(h, make([]byte, helloSize))
		require.NoError(t, err)
		card, err := w.readCard(s)
		require.NoError(t, err)
		require.Equal(t, want, card[0], "after %#x", head)
		c.Close()
	}
}

// What is lent in answer is what was asked for.
func TestLentUnits(t *testing.T) {
	s := newUnitSides(t, Config{Near: besideBlocks{newBeside()}}, Config{Near: besideBlocks{newBeside()}})
	u := &unitsPart{regions: s.b.Regions, local: s.b.Local, remote: s.b.Remote}
	for name, l := range map[string]*lent{
		"fewer regions": {pieces: make([]Range, 2), length: unitSizes[:2]},
		"more regions":  {pieces: make([]Range, 4), length: append(unitSizes[:3:3], 5)},
		"other sizes":   {pieces: make([]Range, 3), length: []int64{64, 4097, 12}},
	} {
		_, err := s.x.nearRegions(l, u)
		require.ErrorIs(t, err, transport.ErrProtocol, name)
	}
}

// rawUnits is a request with any numbers.
func rawUnits(c transport.Capability, regions, units uint32, words ...uint32) []byte {
	b := binary.LittleEndian.AppendUint32(append([]byte(nil), c[:]...), regions)
	b = binary.LittleEndian.AppendUint32(b, units)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func hostileUnits() map[string][]byte {
	c := transport.Capability{1}
	return map[string][]byte{
		"empty":              {},
		"short":              c[:],
		"no regions":         rawUnits(c, 0, 1, 5),
		"no units":           rawUnits(c, 1, 0, 5, 4096),
		"cut":                rawUnits(c, 1, 2, 5, 4096, 1),
		"longer":             rawUnits(c, 1, 1, 5, 4096, 1, 1),
		"numbers of others":  rawUnits(c, 1<<31, 1<<31, 5, 4096, 1),
		"product overflows":  rawUnits(c, math.MaxUint32, math.MaxUint32),
		"too many regions":   rawUnits(c, maxSegments+1, 1, make([]uint32, 2*(maxSegments+1)+1)...),
		"too many units":     rawUnits(c, 1, maxUnits+1, make([]uint32, 2+maxUnits+1)...),
		"zero stride":        rawUnits(c, 1, 1, 5, 0, 1),
		"negative unit":      rawUnits(c, 1, 1, 5, 4096, 1<<31),
		"more than may lent": rawUnits(c, 3, 1, 5, math.MaxUint32, 6, math.MaxUint32, 7, math.MaxUint32, 1),
		"a large product":    rawUnits(c, 1, 3, 5, math.MaxUint32, 1, 2, 3),
	}
}

func TestUnitsRoundTrip(t *testing.T) {
	u := &unitsPart{regions: []transport.RegionPair{{Remote: 9, Bytes: 100}, {Remote: 1, Bytes: 7}}, remote: []int32{3, 0, math.MaxInt32, 3}}
	c, spans, units, most, total, err := parseUnits(appendUnits(nil, transport.Capability{4}, u), make([]span, 5), make([]int32, 9))
	require.NoError(t, err)
	require.Equal(t, transport.Capability{4}, c)
	require.Equal(t, []span{{9, 0, 100}, {1, 0, 7}}, spans)
	require.Equal(t, u.remote, units)
	require.EqualValues(t, math.MaxInt32, most)
	require.EqualValues(t, 428, total)
	for name, raw := range hostileUnits() {
		_, _, _, _, _, err := parseUnits(raw, nil, nil)
		require.ErrorIs(t, err, transport.ErrProtocol, name)
	}
}

func FuzzParseUnits(f *testing.F) {
	f.Add(appendUnits(nil, transport.Capability{4}, &unitsPart{regions: []transport.RegionPair{{Remote: 9, Bytes: 100}}, remote: []int32{3, 0}}))
	for _, raw := range hostileUnits() {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, spans, units, most, total, err := parseUnits(raw, nil, nil)
		if err != nil {
			require.ErrorIs(t, err, transport.ErrProtocol)
			return
		}
		u := &unitsPart{remote: units}
		sum := int64(0)
		for _, s := range spans {
			require.Positive(t, s.length)
			sum += s.length
			u.regions = append(u.regions, transport.RegionPair{Remote: s.region, Bytes: s.length})
		}
		for _, x := range units {
			require.True(t, x >= 0 && x <= most)
		}
		require.Equal(t, sum*int64(len(units)), total)
		require.LessOrEqual(t, total, int64(maxLent))
		require.Equal(t, raw, appendUnits(nil, c, u))
	})
}

// FuzzServeUnits feeds a stream behind the cards to a server whose units nobody was
// granted: none is lent, and what is read of them is nothing.
func FuzzServeUnits(f *testing.F) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}, DialTimeout: time.Second, StallTimeout: time.Second, IdleTimeout: time.Second})
	require.NoError(f, err)
	f.Cleanup(func() { s.Close() })
	d, err := s.Register(struct{ transport.Memory }{make(transport.Host, 64<<10)}, 4096)
	require.NoError(f, err)
	for _, raw := range hostileUnits() {
		f.Add(rawFrame(header{kind: kindUnits, id: 1}, raw))
	}
	fits := rawFrame(header{kind: kindUnits, id: 1}, rawUnits(transport.Capability{1}, 1, 2, uint32(d.Region), 4096, 0, 3))
	f.Add(fits)
	before := greeting(near, cardUnits)
	s.feed(append(before[:len(before):len(before)], fits...))
	require.EqualValues(f, 1, s.Stats().Denied, "it gets as far as the grants")
	f.Fuzz(func(t *testing.T, raw []byte) {
		s.feed(append(before[:len(before):len(before)], raw...))
		require.Zero(t, s.Stats().ServedReads)
		require.Zero(t, near.open.Load(), "the neighbour was let go of")
	})
}

// Streams with wrong requests of units end, and cost no memory of anybody's.
func TestHostileUnits(t *testing.T) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}})
	require.NoError(t, err)
	defer s.Close()
	bare, err := New(Config{})
	require.NoError(t, err)
	defer bare.Close()
	for name, raw := range hostileUnits() {
		streams := map[*Transport][]byte{
			s:    append(greeting(near, cardUnits), rawFrame(header{kind: kindUnits, id: 1}, raw)...),
			bare: append(rawHello(), rawFrame(header{kind: kindUnits, id: 1}, raw)...),
		}
		for to, stream := range streams {
			c, err := net.Dial("tcp", to.Address())
			require.NoError(t, err)
			_, err = c.Write(stream)
			require.NoError(t, err)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
			buf := make([]byte, 4096)
			for err == nil {
				_, err = c.Read(buf)
			}
			require.False(t, isTimeout(err), "%s: it hangs up: %v", name, err)
			c.Close()
		}
	}
	require.Equal(t, uint64(len(hostileUnits())), s.Stats().Malformed)
	require.Equal(t, uint64(len(hostileUnits())), bare.Stats().Malformed)
}

func isTimeout(err error) bool {
	n, ok := err.(net.Error)
	return ok && n.Timeout()
}
