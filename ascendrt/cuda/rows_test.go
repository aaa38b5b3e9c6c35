//go:build cgo && linux

package cuda

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// rowBench has random bytes in regions of a device, and a tier in which a slot has a
// block of each of them.
type rowBench struct {
	t    *testing.T
	d    *device
	s    ascendrt.Stream
	bufs []ascendrt.Buffer
	data [][]byte
	host ascendrt.HostBuffer
	r    *rand.Rand
}

const rowBlocks = 12

func newRowBench(t *testing.T, n, bytes int, row bool) *rowBench {
	dev, s := open(t, ascendrt.OpenOptions{})
	b := &rowBench{t: t, d: dev.(*device), s: s, r: rand.New(rand.NewPCG(1, 2))}
	var err error
	if row {
		b.bufs, err = ascendrt.AllocRow(dev, n, rowBlocks*bytes, ascendrt.PlaceShareable)
		require.NoError(t, err)
	} else {
		for range n {
			x, err := dev.Alloc(rowBlocks*bytes, ascendrt.PlaceShareable)
			require.NoError(t, err)
			b.bufs = append(b.bufs, x)
		}
	}
	for range n {
		raw := make([]byte, rowBlocks*bytes)
		for i := range raw {
			raw[i] = byte(b.r.Uint32())
		}
		b.data = append(b.data, raw)
	}
	b.host, err = dev.AllocHost(rowBlocks * n * bytes)
	require.NoError(t, err)
	return b
}

// regions are all of them, each with its place in a slot.
func (b *rowBench) regions(bytes int, load bool) (out []ascendrt.BlockRegion) {
	slot := len(b.bufs) * bytes
	for i, x := range b.bufs {
		r := ascendrt.BlockRegion{Dst: b.host.Slice(i*bytes, rowBlocks*slot-i*bytes), Src: x.View(), DstStride: slot, SrcStride: bytes, Bytes: bytes}
		if load {
			r.Dst, r.Src, r.DstStride, r.SrcStride = r.Src, r.Dst, r.SrcStride, r.DstStride
		}
		out = append(out, r)
	}
	return out
}

// records are the numbers of copies of rows, and of those of other batches.
func (b *rowBench) records(c *ascendrt.BlockCopy) (rows, others int) {
	var cmd ascendrt.Commands
	cmd.CopyBlocks(c)
	t := new(translator)
	t.reset(b.d, b.s.(*stream), base.Submitting)
	_, err := t.translate(&cmd)
	require.NoError(b.t, err)
	for w := t.Words; len(w) > 0; w = w[recWords+w[0]>>32:] {
		switch uint32(w[0]) {
		case recRows:
			rows++
		case recBatch:
			others += int(w[2])
		default:
			b.t.Errorf("record of kind %d", uint32(w[0]))
		}
	}
	return rows, others
}

// check copies blocks out and back to others, and compares all bytes.
func (b *rowBench) check(size int) {
	ctx := context.Background()
	for i, x := range b.bufs {
		require.NoError(b.t, ascendrt.Upload(ctx, b.d, b.s, x.View(), b.data[i]))
	}
	blocks := make([]int32, 0, rowBlocks)
	for _, i := range b.r.Perm(rowBlocks)[:rowBlocks-1] {
		blocks = append(blocks, int32(i))
	}
	slots := make([]int32, 0, rowBlocks)
	for _, i := range b.r.Perm(rowBlocks)[:rowBlocks-1] {
		slots = append(slots, int32(i))
	}
	run := func(c *ascendrt.BlockCopy) {
		p, err := submitted(b.s, c)
		require.NoError(b.t, err)
		require.NoError(b.t, p.Wait(ctx))
	}
	host := b.host.Bytes()
	for i := range host {
		host[i] = 0x5a
	}
	want := bytes.Clone(host)
	slot := len(b.bufs) * size
	for i := range b.bufs {
		for k := range blocks {
			copy(want[int(slots[k])*slot+i*size:][:size], b.data[i][int(blocks[k])*size:])
		}
	}
	run(&ascendrt.BlockCopy{Regions: b.regions(size, false), Dst: slots, Src: blocks, By: ascendrt.CopyByEngine})
	require.True(b.t, bytes.Equal(want, host), "to the host")
	for k := range blocks { // each to its neighbour
		blocks[k] = (blocks[k] + 1) % rowBlocks
		for i := range b.bufs {
			copy(b.data[i][int(blocks[k])*size:], host[int(slots[k])*slot+i*size:][:size])
		}
	}
	run(&ascendrt.BlockCopy{Regions: b.regions(size, true), Dst: blocks, Src: slots, By: ascendrt.CopyByEngine})
	for i, x := range b.bufs {
		got := make([]byte, len(b.data[i]))
		require.NoError(b.t, ascendrt.Download(ctx, b.d, b.s, got, x.View()))
		require.True(b.t, bytes.Equal(b.data[i], got), "back to region %d", i)
	}
}

func submitted(s ascendrt.Stream, b *ascendrt.BlockCopy) (ascendrt.Point, error) {
	var c ascendrt.Commands
	c.CopyBlocks(b)
	p, _, err := s.Submit(&c)
	return p, err
}

// A block's parts in regions of a row are one copy, and all bytes get to their places,
// those beside them stay; regions by themselves are copied piece by piece.
func TestCopyBlocksByRows(t *testing.T) {
	for _, c := range []struct {
		name     string
		n, bytes int
		row      bool
		rows     int // copies of one block
	}{
		{name: "a row", n: 10, bytes: 1024, row: true, rows: 1},
		{name: "odd sizes", n: 7, bytes: 1000, row: true, rows: 1},
		{name: "cut", n: 5, bytes: 200 << 10, row: true, rows: 3},
		{name: "apart", n: 10, bytes: 1024},
		{name: "pieces of the largest size", n: 3, bytes: rowsLargest, row: true},
		{name: "one", n: 1, bytes: 1024, row: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newRowBench(t, c.n, c.bytes, c.row)
			blocks, slots := []int32{3, 9, 0}, []int32{7, 1, 2}
			rows, others := b.records(&ascendrt.BlockCopy{Regions: b.regions(c.bytes, false), Dst: slots, Src: blocks, By: ascendrt.CopyByEngine})
			require.Equal(t, 3*c.rows, rows)
			if c.rows > 0 {
				require.Zero(t, others)
			} else {
				require.Equal(t, 3*c.n, others)
			}
			b.check(c.bytes)
		})
	}
}

// Rows are regions of one size at equal distances; others are rows of their own, or not.
func TestRowsAreRegular(t *testing.T) {
	const n, bytes = 8, 1024
	b := newRowBench(t, n, bytes, true)
	good := func() *ascendrt.BlockCopy {
		return &ascendrt.BlockCopy{Regions: b.regions(bytes, false), Dst: []int32{4, 2}, Src: []int32{1, 3}, By: ascendrt.CopyByEngine}
	}
	for name, x := range map[string]struct {
		change       func(c *ascendrt.BlockCopy)
		rows, others int
	}{
		"all":               {func(*ascendrt.BlockCopy) {}, 2, 0},
		"less of one":       {func(c *ascendrt.BlockCopy) { c.Regions[3].Bytes = 512 }, 4, 2},
		"another distance":  {func(c *ascendrt.BlockCopy) { c.Regions[4].Src = b.bufs[4].Slice(16, (rowBlocks-1)*bytes) }, 6, 0},
		"another stride":    {func(c *ascendrt.BlockCopy) { c.Regions[7].SrcStride = 2 * bytes }, 2, 2},
		"another order":     {func(c *ascendrt.BlockCopy) { c.Regions[0], c.Regions[1] = c.Regions[1], c.Regions[0] }, 4, 2},
		"one left out":      {func(c *ascendrt.BlockCopy) { c.Regions = append(c.Regions[:3], c.Regions[4:]...) }, 4, 0},
		"within the device": {func(c *ascendrt.BlockCopy) { inDevice(c) }, 0, 2 * n / 2},
	} {
		c := good()
		x.change(c)
		rows, others := b.records(c)
		require.Equal(t, [2]int{x.rows, x.others}, [2]int{rows, others}, name)
	}
}

// inDevice copies from the first half of the regions to the second.
func inDevice(c *ascendrt.BlockCopy) {
	n := len(c.Regions) / 2
	for i := range n {
		r := &c.Regions[i]
		r.Dst, r.DstStride = c.Regions[n+i].Src, r.SrcStride
	}
	c.Regions = c.Regions[:n]
}

// A copy of rows that the driver does not take is one of each row.
func TestRowsThatAreRefused(t *testing.T) {
	const rows = 70
	b := newRowBench(t, rows, 48, true)
	b.check(48)
	dst, src := uint64(b.host.View().Addr), uint64(b.bufs[0].Addr())
	distance := uint64(b.bufs[1].Addr()) - src
	require.NoError(t, b.d.replay(b.s.(*stream).raw, []uint64{recRows, 0, dst, src, 16, distance, 32, rows})) // rows that overlap
	p, _, err := b.s.Submit(&ascendrt.Commands{})
	require.NoError(t, err)
	require.NoError(t, p.Wait(t.Context()))
	host := b.host.Bytes()
	require.Equal(t, b.data[0][:16], host[:16], "the first alone writes these")
	require.Equal(t, b.data[rows-1][16:32], host[16*rows:][:16], "and the last these")
}

// Buffers of a row lie at equal distances, have ends of their own, and are freed one by
// one: the memory goes back with the last.
func TestAllocRow(t *testing.T) {
	dev, s := open(t, ascendrt.OpenOptions{})
	before := dev.Live()
	const n, size = 5, 3000
	for _, p := range []ascendrt.Placement{ascendrt.PlaceDefault, ascendrt.PlaceShareable, ascendrt.PlacePool} {
		row, err := ascendrt.AllocRow(dev, n, size, p)
		require.NoError(t, err)
		require.Len(t, row, n)
		for i, b := range row {
			require.Equal(t, size, b.Len())
			require.Equal(t, row[0].Addr()+ascendrt.Addr(i*3072), b.Addr())
			require.Zero(t, int(b.Addr())%memory.Align)
		}
		live := dev.Live()
		require.Equal(t, before.Buffers+n, live.Buffers)
		require.Equal(t, before.Bytes+n*size, live.Bytes)
		var c ascendrt.Commands
		v := row[1].View()
		v.Len, v.Max = size+1, size+1
		c.Fill(v, 1)
		_, _, err = s.Submit(&c)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, "behind its end")
		require.NoError(t, row[0].FreeAfter(ascendrt.Point{}))
		require.ErrorIs(t, row[0].FreeAfter(ascendrt.Point{}), ascendrt.ErrClosed)
		c.Reset()
		c.Fill(row[0].View(), 1)
		_, _, err = s.Submit(&c)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, "freed")
		c.Reset()
		c.Fill(row[4].View(), 1)
		at, _, err := s.Submit(&c)
		require.NoError(t, err, "the others live")
		if p == ascendrt.PlaceShareable {
			x, err := dev.Export(row[2])
			require.NoError(t, err)
			y, err := dev.Export(row[3])
			require.NoError(t, err)
			require.NotEqual(t, x, y)
		}
		for _, b := range row[1:] {
			require.NoError(t, b.FreeAfter(at))
		}
		require.NoError(t, at.Wait(t.Context()))
		require.Equal(t, before, dev.Live())
	}
	for _, x := range [][2]int{{0, 1}, {1, 0}, {-1, 5}, {1 << 40, 1 << 40}, {2, 1 << 47}} {
		_, err := ascendrt.AllocRow(dev, x[0], x[1], ascendrt.PlaceDefault)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, "%v", x)
	}
}

// What a save of 768 blocks of 56 tensors by the copy engines costs the host ahead of
// the driver, with the tensors in a row and apart.
func BenchmarkPrepareRows(b *testing.B) {
	const blocks, tensors, bytes = 768, 56, 64
	dev, s, err := openBench()
	if err != nil {
		b.Skip(err)
	}
	defer dev.Close(context.Background())
	r := rand.New(rand.NewPCG(1, 2))
	host, err := dev.AllocHost(blocks * tensors * bytes)
	require.NoError(b, err)
	row, err := ascendrt.AllocRow(dev, tensors, blocks*bytes, ascendrt.PlaceDefault)
	require.NoError(b, err)
	var apart []ascendrt.Buffer
	for range tensors {
		x, err := dev.Alloc(blocks*bytes, ascendrt.PlaceDefault)
		require.NoError(b, err)
		apart = append(apart, x)
	}
	for name, bufs := range map[string][]ascendrt.Buffer{"row": row, "apart": apart} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c := &ascendrt.BlockCopy{By: ascendrt.CopyByEngine}
			for i, k := range r.Perm(blocks) {
				c.Dst, c.Src = append(c.Dst, int32(i)), append(c.Src, int32(k))
			}
			for i, x := range bufs {
				c.Regions = append(c.Regions, ascendrt.BlockRegion{Dst: host.Slice(i*bytes, (blocks*tensors-i)*bytes), Src: x.View(),
					DstStride: tensors * bytes, SrcStride: bytes, Bytes: bytes})
			}
			var cmd ascendrt.Commands
			t := new(translator)
			for b.Loop() {
				cmd.Reset()
				cmd.CopyBlocks(c)
				t.reset(dev.(*device), s.(*stream), base.Submitting)
				if _, err := t.translate(&cmd); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks*tensors), "ns/piece")
		})
	}
}
