package tcp

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

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
	before := greeting(near, cardUnits|cardTickets|cardPuts)
	feed := func(raw []byte) {
		s.feed(append(before[:len(before):len(before)], rawFrame(header{kind: kindPut, flags: flagNear, id: 1}, raw)...))
	}
	for _, unit := range []uint32{0, 3} {
		request := rawUnits(c, 1, 1, uint32(d.Region), 4096, unit)
		key := append([]byte{0, 0, 0, 0, 1, 0, 0, 0, byte(len(x.Key())), 0}, x.Key()...)
		fits := rawPut(len(request), request, make([]byte, 4), key, rawLend(1, 4096)[11:])
		f.Add(fits)
		feed(fits)
	}
	require.EqualValues(f, 1, s.Stats().Denied, "of the one unit")
	require.Equal(f, lend[:4096], mem[3*4096:4*4096], "and written to the other")
	nothing := make([]byte, len(mem))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) >= 4+16 && raw[0]&1 == 0 { // the grant of this process, where another one found the input
			copy(raw[4:], c[:])
		}
		feed(raw)
		require.Equal(t, nothing[:3*4096], []byte(mem[:3*4096]))
		require.Equal(t, nothing[4*4096:], []byte(mem[4*4096:]))
		require.Zero(t, near.open.Load(), "the neighbour was let go of")
	})
}

// Streams with wrong offers of units end, cost no memory of anybody's and write nothing.
func TestHostilePuts(t *testing.T) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}})
	require.NoError(t, err)
	defer s.Close()
	bare, err := New(Config{})
	require.NoError(t, err)
	defer bare.Close()
	for name, raw := range hostilePuts() {
		frame := rawFrame(header{kind: kindPut, flags: flagNear, id: 1}, raw)
		tell(t, name, s, append(greeting(near, cardUnits|cardTickets|cardPuts), frame...))
		tell(t, name, bare, append(rawHello(), frame...))
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
			stream := greeting(near, cardUnits|cardTickets|cardPuts)
			if c.card != "" {
				stream = append(stream[:headerSize+helloSize], rawFrame(header{kind: kindCard}, []byte(c.card))...)
			}
			answer := tell(t, name, s, append(stream, rawFrame(header{kind: kindPut, flags: flagNear, id: 9}, rawPut(len(request), request, units, lend))...))
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
