//go:build cgo && linux

package cuda

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Batches of many small copies are one kernel: every byte arrives, none beside it
// changes, and the lists are given back.
func TestCopyLists(t *testing.T) {
	dev, s := open(t, ascendrt.OpenOptions{})
	d := dev.(*device)
	d.wantLists()
	require.NotNil(t, d.lists.kernel.Load(), "the kernel was compiled")
	const size = 4 << 20
	from, err := d.Alloc(size, ascendrt.PlaceDefault)
	require.NoError(t, err)
	to, err := d.Alloc(size, ascendrt.PlaceShareable)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	require.NoError(t, ascendrt.Upload(context.Background(), d, s, from.View(), data))
	cases := []struct {
		name          string
		pieces, least int // bytes
		spread        int
		align         int
		kernel        bool
	}{
		{name: "blocks of one size", pieces: 100, least: 4096, align: 16, kernel: true},
		{name: "sizes of all kinds", pieces: 60, least: 16, spread: 65536, align: 16, kernel: true},
		{name: "parts of 32 KiB and a rest", pieces: 40, least: 70000 / 16 * 16, align: 16, kernel: true},
		{name: "few", pieces: listLeast - 1, least: 4096, align: 16},
		{name: "odd addresses", pieces: 100, least: 4096, align: 1},
		{name: "large ones among them", pieces: 40, least: 16, align: 16, kernel: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := make([]byte, size)
			submit(t, s, func(b *ascendrt.Commands) { b.Fill(to.View(), 0) })
			var dst, src []ascendrt.View
			at := 0
			for i := range c.pieces {
				n := c.least
				if c.spread > 0 {
					n += r.IntN(c.spread) / 16 * 16
				}
				if c.name == "large ones among them" {
					n = c.least
					if i == 7 {
						n = listLargest + 16
					}
				}
				gap := c.align * r.IntN(3)
				if c.align == 1 {
					gap = 1
				}
				if at+gap+n > size {
					break
				}
				at += gap
				f := r.IntN((size-n)/c.align+1) * c.align
				copy(want[at:at+n], data[f:f+n])
				dst, src = append(dst, to.Slice(at, n)), append(src, from.Slice(f, n))
				at += n
			}
			before := len(d.lists.inUse)
			var b ascendrt.Commands
			b.CopyBatch(dst, src)
			p, _, err := s.Submit(&b)
			require.NoError(t, err)
			require.Equal(t, c.kernel, len(d.lists.inUse) > before, "one kernel or not")
			require.NoError(t, p.Wait(context.Background()))
			got := make([]byte, size)
			require.NoError(t, ascendrt.Download(context.Background(), d, s, got, to.View()))
			require.Equal(t, want, got)
			d.lists.settle(d)
			require.Empty(t, d.lists.inUse)
		})
	}
}

// A batch with a wrong copy runs nothing and keeps no list.
func TestCopyListRefused(t *testing.T) {
	dev, s := open(t, ascendrt.OpenOptions{})
	d := dev.(*device)
	d.wantLists()
	x, err := d.Alloc(1<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var dst, src []ascendrt.View
	for i := range 64 {
		dst, src = append(dst, x.Slice(i*4096, 4096)), append(src, x.Slice(1<<19+i*4096, 4096))
	}
	src[63] = x.Slice(63*4096, 4096) // onto itself
	var b ascendrt.Commands
	b.CopyBatch(dst, src)
	_, n, err := s.Submit(&b)
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	require.Zero(t, n)
	require.Empty(t, d.lists.inUse)
}
