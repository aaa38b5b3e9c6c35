package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
)

// oneSided is a Direct network within this process: TCP streams, and memory
// that is found by its key.
type oneSided struct {
	plain
	spoil  atomic.Int64 // fetches that deliver a wrong byte
	hang   atomic.Bool  // fetches do nothing until the connection closes
	unable bool         // to fetch
}

var exposedHere sync.Map // key → []byte

type exposedSlice struct{ key string }

func (e exposedSlice) Key() []byte  { return []byte(e.key) }
func (e exposedSlice) Close() error { exposedHere.Delete(e.key); return nil }

var lastKey atomic.Uint64

func (o *oneSided) Name() string { return "one-sided" }

func (o *oneSided) Expose(mem []byte) (Exposed, error) {
	e := exposedSlice{string(binary.BigEndian.AppendUint64([]byte("key "), lastKey.Add(1)))}
	exposedHere.Store(e.key, mem)
	return e, nil
}

func (o *oneSided) Listen(address string) (net.Listener, error) {
	l, err := o.plain.Listen(address)
	return fetchListener{l, o}, err
}

func (o *oneSided) Dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := o.plain.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return &fetchConn{Conn: c, o: o, done: make(chan struct{})}, nil
}

type fetchListener struct {
	net.Listener
	o *oneSided
}

func (l fetchListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &fetchConn{Conn: c, o: l.o, done: make(chan struct{})}, nil
}

type fetchConn struct {
	net.Conn
	o    *oneSided
	once sync.Once
	done chan struct{}
}

func (c *fetchConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

func (c *fetchConn) CanFetch() bool { return !c.o.unable }

func (c *fetchConn) Fetch(ranges []Range, stall time.Duration) error {
	if c.o.hang.Load() {
		select {
		case <-c.done:
			return net.ErrClosed
		case <-time.After(stall):
			return context.DeadlineExceeded
		}
	}
	for _, r := range ranges {
		v, ok := exposedHere.Load(string(r.Key))
		if !ok {
			return errors.New("no such key")
		}
		mem := v.([]byte)
		off := r.Address - uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
		copy(r.Local, mem[off:off+uint64(len(r.Local))])
		if c.o.spoil.Add(-1) >= 0 {
			r.Local[0] ^= 1
		}
	}
	return nil
}

func TestConformanceOfDirectNetworks(t *testing.T) {
	conformance.Run(t, func(t *testing.T, notified transport.Notified) transport.Transport {
		made, err := New(Config{Notified: notified, Network: &oneSided{}, ChunkBytes: 1 << 20, Grace: 10 * time.Second})
		require.NoError(t, err)
		require.False(t, made.Guarded())
		return made
	})
}

// Mapped memory moves past the streams, in both directions; what is not mapped
// is staged where it is received and travels on the stream where it is sent.
func TestWhatIsFetched(t *testing.T) {
	x, y, segs, c, mx, my := twoSides(t, Config{Network: &oneSided{}}, Config{Network: &oneSided{}})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), c, segs))
	total := uint64(len(mx))
	require.Equal(t, total, x.Stats().Fetched)
	require.Eventually(t, func() bool { return y.Stats().ServedReads == total }, 20*time.Second, time.Millisecond, "it counts behind the last byte")

	hidden := make(transport.Host, len(mx))
	d, err := x.Register(struct{ transport.Memory }{hidden}, 4096)
	require.NoError(t, err)
	for i := range segs {
		segs[i].Local = d.Region
	}
	require.NoError(t, p.Read(t.Context(), c, segs))
	require.Equal(t, 2*total, x.Stats().Fetched, "into memory that is not mapped")
	require.Equal(t, []byte(mx), []byte(hidden))

	units := make([]int32, len(segs))
	for i := range units {
		units[i] = int32(i)
	}
	w, err := y.Grant(transport.PeerWrites, []transport.RegionID{segs[0].Remote}, units)
	require.NoError(t, err)
	clear(my)
	require.NoError(t, p.Write(t.Context(), w, segs))
	require.Zero(t, y.Stats().Fetched, "out of memory that is not mapped")
	for i := range segs {
		segs[i].Local = 1
	}
	clear(my)
	require.NoError(t, p.Write(t.Context(), w, segs))
	require.Equal(t, total, y.Stats().Fetched)
	for _, s := range segs {
		require.Equal(t, []byte(my[s.RemoteOffset:s.RemoteOffset+s.Length]), []byte(mx[s.LocalOffset:s.LocalOffset+s.Length]))
	}
}

// A side that cannot fetch, or meets one that cannot, uses the streams.
func TestWhoCannotFetch(t *testing.T) {
	for _, which := range []string{"reader", "server", "both"} {
		a, b := &oneSided{unable: which != "server"}, &oneSided{unable: which != "reader"}
		x, y, segs, c, mx, my := twoSides(t, Config{Network: a}, Config{Network: b})
		p, err := x.Connect(t.Context(), y.Address())
		require.NoError(t, err)
		require.NoError(t, p.Read(t.Context(), c, segs))
		require.Equal(t, which == "server", x.Stats().Fetched > 0, which)
		units := make([]int32, len(segs))
		for i := range units {
			units[i] = int32(i)
		}
		w, err := y.Grant(transport.PeerWrites, []transport.RegionID{segs[0].Remote}, units)
		require.NoError(t, err)
		clear(my)
		require.NoError(t, p.Write(t.Context(), w, segs))
		require.Equal(t, which == "reader", y.Stats().Fetched > 0, which)
		for _, s := range segs {
			require.Equal(t, []byte(my[s.RemoteOffset:s.RemoteOffset+s.Length]), []byte(mx[s.LocalOffset:s.LocalOffset+s.Length]))
		}
	}
}

func TestSpoiledFetchIsFoundAndRepaired(t *testing.T) {
	n := &oneSided{}
	x, y, segs, c, mx, my := twoSides(t, Config{Network: n}, Config{Network: &oneSided{}})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	n.spoil.Store(2)
	require.NoError(t, p.Read(t.Context(), c, segs))
	for _, s := range segs {
		require.Equal(t, []byte(my[s.RemoteOffset:s.RemoteOffset+s.Length]), []byte(mx[s.LocalOffset:s.LocalOffset+s.Length]))
	}
	require.NotZero(t, x.Stats().Retries)
	require.NotZero(t, x.Stats().Corrupt)
}

// A fetch that hangs ends with the deadline of the call, and Revoke does not
// wait for it for ever.
func TestHangingFetch(t *testing.T) {
	n := &oneSided{}
	cfg := Config{StallTimeout: time.Minute, Grace: 10 * time.Millisecond}
	a := cfg
	a.Network, cfg.Network = n, &oneSided{}
	x, y, segs, c, _, _ := twoSides(t, a, cfg)
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	n.hang.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Read(ctx, c, segs), context.DeadlineExceeded)

	done := make(chan error, 1)
	go func() { done <- p.Read(t.Context(), c, segs) }()
	for y.Stats().OpenConns == 0 || x.Stats().OpenTransfers == 0 {
		time.Sleep(time.Millisecond)
	}
	y.Revoke(c)
	n.hang.Store(false)
	require.NoError(t, p.Close()) // ends what still hangs
	require.Error(t, <-done)
}

func TestLendRoundTrip(t *testing.T) {
	tr, err := New(Config{Network: &oneSided{}})
	require.NoError(t, err)
	defer tr.Close()
	mem := make(transport.Host, 8192)
	fill := func(i int) { mem[i] = byte(i) }
	for i := range mem {
		fill(i)
	}
	d, err := tr.Register(mem, 4096)
	require.NoError(t, err)
	r, err := tr.regions.Acquire(d.Region)
	require.NoError(t, err)
	defer r.Release()
	b, ok := tr.appendLend(nil, []piece{{r, 4096, 100}, {r, 0, 7}}, true)
	require.True(t, ok)
	l, err := parseLend(b, 107)
	require.NoError(t, err)
	require.Equal(t, []int64{100, 7}, l.length)
	require.Equal(t, uint64(4096), l.pieces[0].Address-l.pieces[1].Address)
	require.Equal(t, l.pieces[0].Key, l.pieces[1].Key)
	for n := range b {
		_, err := parseLend(b[:n], 107)
		require.ErrorIs(t, err, transport.ErrProtocol, "%d bytes", n)
	}
	for _, total := range []int64{0, 106, 108} {
		_, err := parseLend(b, total)
		require.ErrorIs(t, err, transport.ErrProtocol)
	}
	keyless := binary.LittleEndian.AppendUint32(make([]byte, 4), 1<<31)
	_, err = parseLend(keyless, 1)
	require.ErrorIs(t, err, transport.ErrProtocol)
}

func TestHostileOffers(t *testing.T) {
	n := &oneSided{}
	s, err := New(Config{Network: n, StallTimeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer s.Close()
	mem := make(transport.Host, 8192)
	d, err := s.Register(mem, 4096)
	require.NoError(t, err)
	w, err := s.Grant(transport.PeerWrites, []transport.RegionID{d.Region}, []int32{0})
	require.NoError(t, err)
	r, err := s.Grant(transport.PeerReads, []transport.RegionID{d.Region}, []int32{0})
	require.NoError(t, err)
	write := appendRequest(nil, w, 4096, []span{{d.Region, 0, 4096}})
	read := appendRequest(nil, r, 4096, []span{{d.Region, 0, 4096}})
	with := func(claimed uint32, rest []byte) []byte {
		return append(append(binary.LittleEndian.AppendUint32(nil, claimed), write...), rest...)
	}
	lend := []byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 'k', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0}
	size := uint32(len(write))
	for name, raw := range map[string][]byte{
		"empty":                rawFrame(header{kind: kindOffer, id: 1}, nil),
		"request of 4 GiB":     rawFrame(header{kind: kindOffer, id: 1}, with(1<<32-1, lend)),
		"without lent memory":  rawFrame(header{kind: kindOffer, id: 1}, with(size, nil)),
		"lent memory too long": rawFrame(header{kind: kindOffer, id: 1}, with(size, append(lend, lend[11:]...))),
		"key nobody has":       rawFrame(header{kind: kindOffer, id: 1}, with(size, lend)),
		"lend not given back":  append(rawFrame(header{kind: kindRead, flags: flagFetch, id: 1}, read), rawFrame(header{kind: kindRead, flags: flagFetch, id: 2}, read)...),
		"another given back":   append(rawFrame(header{kind: kindRead, flags: flagFetch, id: 1}, read), rawFrame(header{kind: kindBack, id: 2}, nil)...),
		"nothing given back":   rawFrame(header{kind: kindRead, flags: flagFetch, id: 1}, read),
	} {
		c, err := net.Dial("tcp", s.Address())
		require.NoError(t, err)
		_, err = c.Write(append(rawHello(), raw...))
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		if _, err := io.Copy(io.Discard, c); err != nil {
			require.ErrorContains(t, err, "reset", name)
		}
		c.Close()
	}
	require.Equal(t, make([]byte, len(mem)), []byte(mem), "nothing was written")
	for s.Stats().OpenConns > 0 {
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, s.Deregister(d.Region), "nobody uses it any more")
}
