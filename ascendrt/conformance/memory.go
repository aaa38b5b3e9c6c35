package conformance

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

func testMemory(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	align := b.d.Caps().Align
	require.Positive(t, align)
	free, total, err := b.d.MemInfo()
	require.NoError(t, err)
	require.LessOrEqual(t, free, total)
	var all []ascendrt.Buffer
	seen := map[ascendrt.Addr]bool{}
	for _, n := range []int{1, 3, 512, 4097, 1 << 20, 0} {
		x := b.alloc(n)
		all = append(all, x)
		require.Equal(t, n, x.Len())
		require.Equal(t, n, x.View().Len)
		require.True(t, x.View().Valid())
		if n > 0 {
			require.Zero(t, int(x.Addr())%align, "alignment")
			require.False(t, seen[x.Addr()], "two buffers at one address")
			seen[x.Addr()] = true
		}
	}
	require.Equal(t, len(all), b.d.Live().Buffers)
	require.GreaterOrEqual(t, b.d.Live().Bytes, 1<<20)
	for _, x := range all {
		b.free(x)
	}
	h := b.pinned(1000)
	require.Len(t, h.Bytes(), 1000)
	require.Equal(t, make([]byte, 1000), h.Bytes(), "pinned memory is zeroed")
	require.Equal(t, 1, b.d.Live().HostBuffers)
	b.free(h)
	_, err = b.d.Alloc(-1, ascendrt.PlaceDefault)
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	b.closed()
}

func testCopies(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	const n = 100_003
	h, back := b.pinned(n), b.pinned(n)
	x, y := b.alloc(n), b.alloc(n)
	copy(h.Bytes(), ramp(n, 3))
	b.do(func(c *ascendrt.Commands) {
		c.Fill(y.View(), 0xee)
		c.Copy(x.View(), h.View())
		c.Copy(y.Slice(5, 1001), x.Slice(77, 1001)) // odd offsets and sizes
		c.Fill(y.Slice(2000, 3), 0x11)
		c.Copy(back.View(), y.View())
	})
	want := bytes.Repeat([]byte{0xee}, n)
	copy(want[5:], ramp(n, 3)[77:77+1001])
	copy(want[2000:], []byte{0x11, 0x11, 0x11})
	require.True(t, bytes.Equal(want, back.Bytes()))

	dst := []ascendrt.View{x.Slice(0, 10), x.Slice(100, 20), x.Slice(50, 0)}
	src := []ascendrt.View{h.Slice(500, 10), h.Slice(700, 20), h.Slice(0, 0)}
	b.do(func(c *ascendrt.Commands) { c.CopyBatch(dst, src) })
	got := b.read(x.View())
	require.Equal(t, h.Bytes()[500:510], got[:10])
	require.Equal(t, h.Bytes()[700:720], got[100:120])

	// The source may be shorter than the destination, and is copied whole.
	b.do(func(c *ascendrt.Commands) { c.Copy(x.View(), h.Slice(0, 4)) })
	require.Equal(t, h.Bytes()[:4], b.read(x.Slice(0, 4)))
	b.free(x, y, h, back)
	b.closed()
}

func testRangeErrors(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	x, y := b.alloc(100), b.alloc(50)
	freed := b.alloc(64)
	old := freed.View()
	b.free(freed)
	bad := func(name string, f func(c *ascendrt.Commands)) {
		t.Helper()
		var c ascendrt.Commands
		f(&c)
		_, n, err := b.s.Submit(&c)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, name)
		require.Zero(t, n, name)
	}
	bad("slice past the end", func(c *ascendrt.Commands) { c.Fill(x.Slice(90, 11), 0) })
	bad("negative offset", func(c *ascendrt.Commands) { c.Fill(x.Slice(-1, 4), 0) })
	bad("slice of a slice", func(c *ascendrt.Commands) { c.Fill(x.Slice(50, 10).Slice(5, 6), 0) })
	bad("longer than the destination", func(c *ascendrt.Commands) { c.Copy(y.View(), x.View()) })
	bad("made-up view", func(c *ascendrt.Commands) {
		c.Fill(ascendrt.View{Addr: x.Addr(), Len: 1 << 20, Max: 1 << 20}, 0)
	})
	bad("address of nobody", func(c *ascendrt.Commands) { c.Fill(ascendrt.View{Addr: 64, Len: 8, Max: 8}, 0) })
	bad("freed buffer", func(c *ascendrt.Commands) { c.Fill(old, 0) })
	bad("overlapping copy", func(c *ascendrt.Commands) { c.Copy(x.Slice(10, 20), x.Slice(0, 20)) })
	bad("batch of unequal lengths", func(c *ascendrt.Commands) {
		c.CopyBatch([]ascendrt.View{x.View()}, nil)
	})
	require.ErrorIs(t, freed.FreeAfter(ascendrt.Point{}), ascendrt.ErrClosed, "double free")
	b.do(func(c *ascendrt.Commands) { c.Fill(x.View(), 1) }) // the stream still works
	b.free(x, y)
	b.closed()
}

func testOutOfMemory(t *testing.T, s Suite) {
	const limit = 64 << 20
	b := s.bench(t, ascendrt.OpenOptions{MemoryBytes: limit})
	x := b.alloc(limit / 2)
	before := b.d.Live()
	_, err := b.d.Alloc(limit, ascendrt.PlaceDefault)
	require.ErrorIs(t, err, ascendrt.ErrOutOfMemory)
	require.ErrorContains(t, err, "free", "the text tells free and total bytes")
	require.Equal(t, before, b.d.Live(), "nothing has changed")
	y := b.alloc(limit / 4)
	b.do(func(c *ascendrt.Commands) { c.Fill(y.View(), 3) })
	b.free(x, y)
	z := b.alloc(limit / 2) // the memory came back
	b.free(z)
	b.closed()
}

func testFreeAfter(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	slow, release := b.slow(20 * time.Millisecond)
	x, h := b.alloc(1<<16), b.pinned(1<<16)
	slow.Fill(x.View(), 0x5a)
	slow.Copy(h.View(), x.View())
	p := b.submit(b.s, slow)
	begin := time.Now()
	require.NoError(t, x.FreeAfter(p))
	require.Less(t, time.Since(begin), 10*time.Second, "FreeAfter does not wait for the point")
	require.ErrorIs(t, x.FreeAfter(p), ascendrt.ErrClosed)
	// New memory must not be the freed one while the point is ahead.
	y := b.alloc(1 << 16)
	other := b.stream()
	var c ascendrt.Commands
	c.Fill(y.View(), 0)
	b.wait(b.submit(other, &c))
	b.wait(p)
	require.Equal(t, bytes.Repeat([]byte{0x5a}, 1<<16), h.Bytes())
	require.Eventually(t, func() bool { return b.d.Live().Buffers == 3 }, 10*time.Second, time.Millisecond)
	b.free(y, h)
	release()
	require.NoError(t, other.Close())
	b.closed()
}
