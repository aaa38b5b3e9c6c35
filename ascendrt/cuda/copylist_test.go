//go:build cgo && linux

package cuda

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
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

// Small copies between device and pinned memory are a kernel's: every byte arrives,
// none beside it changes.
func TestSmallCopies(t *testing.T) {
	dev, s := open(t, ascendrt.OpenOptions{})
	d := dev.(*device)
	const size = 2*smallLargest + 4096
	buf, err := d.Alloc(size, ascendrt.PlaceDefault)
	require.NoError(t, err)
	pinned, err := d.AllocHost(size)
	require.NoError(t, err)
	host := pinned.Bytes()
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		n, at  int
		kernel bool
	}{
		{n: 1, kernel: true}, {n: 15, kernel: true}, {n: 16, at: 16, kernel: true}, {n: 4 * 129, at: 4096, kernel: true}, {n: smallPart, kernel: true},
		{n: smallPart + 20, kernel: true}, {n: smallLargest, at: 32, kernel: true}, {n: smallLargest + 1}, {n: 100, at: 4},
	} {
		for _, down := range []bool{false, true} {
			want := make([]byte, size)
			for i := range host {
				host[i] = byte(r.Uint32())
			}
			fill := byte(0x5a)
			var b ascendrt.Commands
			b.Fill(buf.View(), fill)
			up, out := buf.View().Slice(c.at, c.n), pinned.View().Slice(c.at, c.n)
			require.Equal(t, c.kernel, recorded(t, d, s, up, out) == recLaunch, "%+v: a kernel or not", c)
			if down {
				copy(want, host)
				for i := range c.n {
					want[c.at+i] = fill
				}
				b.Copy(out, up)
			} else {
				for i := range want {
					want[i] = fill
				}
				copy(want[c.at:], host[c.at:c.at+c.n])
				b.Copy(up, out)
			}
			p, _, err := s.Submit(&b)
			require.NoError(t, err)
			require.NoError(t, p.Wait(t.Context()))
			got := host
			if !down {
				got = make([]byte, size)
				require.NoError(t, ascendrt.Download(t.Context(), d, s, got, buf.View()))
			}
			require.Equal(t, want, got[:size], "%+v, down %v", c, down)
		}
	}
	require.NoError(t, errors.Join(buf.FreeAfter(ascendrt.Point{}), pinned.FreeAfter(ascendrt.Point{})))
}

// recorded is what a copy becomes.
func recorded(t *testing.T, d *device, s ascendrt.Stream, to, from ascendrt.View) uint32 {
	t.Helper()
	tr := new(translator)
	tr.reset(d, s.(*stream), base.Submitting)
	require.NoError(t, tr.copy(uint64(to.Addr), uint64(from.Addr), to.Len))
	return uint32(tr.Words[0])
}
