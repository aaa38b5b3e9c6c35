//go:build cgo && linux

package cuda

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// blockBench has random bytes in some source regions and room for as many
// destinations, each with bytes around it that must not change.
type blockBench struct {
	t        *testing.T
	d        *device
	s        ascendrt.Stream
	from, to ascendrt.View
	data     []byte // of from
	r        *rand.Rand
}

func newBlockBench(t *testing.T, host bool) *blockBench {
	const size = 3 << 20
	dev, s := open(t, ascendrt.OpenOptions{})
	b := &blockBench{t: t, d: dev.(*device), s: s, r: rand.New(rand.NewPCG(1, 2)), data: make([]byte, size)}
	for i := range b.data {
		b.data[i] = byte(b.r.Uint32())
	}
	from, err := dev.Alloc(size, ascendrt.PlaceDefault)
	require.NoError(t, err)
	b.from = from.View()
	require.NoError(t, ascendrt.Upload(context.Background(), dev, s, b.from, b.data))
	if host {
		to, err := dev.AllocHost(size)
		require.NoError(t, err)
		b.to = to.View()
		return b
	}
	to, err := dev.Alloc(size, ascendrt.PlaceShareable)
	require.NoError(t, err)
	b.to = to.View()
	return b
}

// run copies and compares all bytes of the destination.
func (b *blockBench) run(c *ascendrt.BlockCopy) {
	b.t.Helper()
	untouched := bytes.Repeat([]byte{0x5a}, len(b.data))
	want := bytes.Clone(untouched)
	for _, r := range c.Regions {
		dst, src := int(r.Dst.Addr-b.to.Addr), int(r.Src.Addr-b.from.Addr)
		for i := range c.Dst {
			copy(want[dst+int(c.Dst[i])*r.DstStride:][:r.Bytes], b.data[src+int(c.Src[i])*r.SrcStride:])
		}
	}
	back, err := b.d.AllocHost(len(want))
	require.NoError(b.t, err)
	dirty, err := b.d.AllocHost(len(want))
	require.NoError(b.t, err)
	copy(dirty.Bytes(), untouched)
	var cmd ascendrt.Commands
	cmd.Copy(b.to, dirty.View())
	cmd.CopyBlocks(c)
	cmd.Copy(back.View(), b.to)
	p, _, err := b.s.Submit(&cmd)
	require.NoError(b.t, err)
	require.NoError(b.t, p.Wait(context.Background()))
	if got := back.Bytes(); !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		require.FailNow(b.t, "bytes differ", "at %d: %d, want %d", i, got[i], want[i])
	}
	b.d.lists.settle(b.d)
	require.Empty(b.t, b.d.lists.inUse)
	require.NoError(b.t, back.FreeAfter(ascendrt.Point{}))
	require.NoError(b.t, dirty.FreeAfter(ascendrt.Point{}))
}

// regions lays n regions of as many blocks out in both buffers, with gaps.
func (b *blockBench) regions(n, blocks, bytes, dstStride, srcStride, odd int) (out []ascendrt.BlockRegion) {
	dst, src := odd, 0
	for range n {
		d, s := (blocks-1)*dstStride+bytes, (blocks-1)*srcStride+bytes
		out = append(out, ascendrt.BlockRegion{
			Dst: b.to.Slice(dst, d), Src: b.from.Slice(src, s), DstStride: dstStride, SrcStride: srcStride, Bytes: bytes,
		})
		dst, src = dst+(d+63)/16*16, src+(s+47)/16*16
	}
	return out
}

func identity(n int) (out []int32) {
	for i := range n {
		out = append(out, int32(i))
	}
	return out
}

func (b *blockBench) permutation(n int) []int32 {
	out := identity(n)
	b.r.Shuffle(n, func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// Every byte of every block gets to its place, and none beside it changes: blocks of
// 16 to 128 tokens, odd sizes, strides and addresses, one block, all of them, in a row
// and in any order, by each part of the device.
func TestCopyBlocks(t *testing.T) {
	b := newBlockBench(t, false)
	for _, by := range []ascendrt.CopyBy{ascendrt.CopyByDevice, ascendrt.CopyByUnits, ascendrt.CopyByEngine} {
		for _, c := range []struct {
			name                                   string
			regions, blocks, bytes, dst, src, odd_ int
		}{
			{name: "blocks of 16 tokens", regions: 4, blocks: 48, bytes: 16 * 64, dst: 16 * 64, src: 16 * 64},
			{name: "blocks of 32 tokens", regions: 4, blocks: 24, bytes: 32 * 64, dst: 32 * 64, src: 32 * 64},
			{name: "blocks of 64 tokens", regions: 4, blocks: 12, bytes: 64 * 64, dst: 64 * 64, src: 64 * 64},
			{name: "blocks of 128 tokens", regions: 3, blocks: 9, bytes: 128 * 64, dst: 128 * 64, src: 128 * 64},
			{name: "several parts and a rest", regions: 2, blocks: 5, bytes: 2*listPart + 16*7, dst: 2*listPart + 16*7, src: 2*listPart + 16*9},
			{name: "whole parts", regions: 2, blocks: 5, bytes: 2 * listPart, dst: 2 * listPart, src: 2 * listPart},
			{name: "odd ends", regions: 3, blocks: 20, bytes: 1000 + 13, dst: 1024, src: 1040},
			{name: "an odd end behind whole parts", regions: 2, blocks: 4, bytes: listPart + 5, dst: listPart + 16, src: listPart + 32},
			{name: "less than a word", regions: 3, blocks: 20, bytes: 3, dst: 16, src: 32},
			{name: "odd strides", regions: 3, blocks: 20, bytes: 1013, dst: 1013, src: 1013},
			{name: "odd addresses", regions: 3, blocks: 20, bytes: 1024, dst: 1024, src: 1024, odd_: 1},
			{name: "many regions", regions: 57, blocks: 3, bytes: 48, dst: 64, src: 48},
		} {
			r := b.regions(c.regions, c.blocks, c.bytes, c.dst, c.src, c.odd_)
			t.Run(fmt.Sprintf("%v/%s", by, c.name), func(t *testing.T) {
				b.t = t
				for _, x := range []*ascendrt.BlockCopy{
					{Dst: identity(c.blocks), Src: identity(c.blocks)},
					{Dst: b.permutation(c.blocks), Src: b.permutation(c.blocks)},
					{Dst: b.permutation(c.blocks)[:1], Src: b.permutation(c.blocks)[:1]},
					{Dst: b.permutation(c.blocks)[:c.blocks-1], Src: b.permutation(c.blocks)[:c.blocks-1], Width: 1},
					{Dst: identity(c.blocks), Src: make([]int32, c.blocks), Width: 7}, // one block to all
					{},
				} {
					x.Regions, x.By = r, by
					b.run(x)
				}
			})
		}
	}
}

// Regions may have blocks of different sizes: of some there are fewer parts.
func TestCopyBlocksOfDifferentSizes(t *testing.T) {
	b := newBlockBench(t, false)
	r := b.regions(4, 5, 2*listPart+16*7, 2*listPart+16*7, 2*listPart+16*9, 0)
	r[0].Bytes, r[1].Bytes, r[2].Bytes = 16, blocksPart, 3*blocksPart+5
	for _, width := range []int{0, 3} {
		b.run(&ascendrt.BlockCopy{Regions: r, Dst: b.permutation(5), Src: b.permutation(5), By: ascendrt.CopyByUnits, Width: width})
	}
}

// Within device memory each part of a block has threads to itself, unless a width is asked.
func TestThreadsForBlocks(t *testing.T) {
	const blocks, bytes = 16, 40 << 10
	for _, c := range []struct {
		host                bool
		width, groups, part int
	}{
		{false, 0, 3 * 4 * blocks, blocksPart}, {false, 7, 7, listPart}, {false, 1000, 2 * 4 * blocks, listPart},
		{true, 0, 0, listPart}, {true, 7, 7, listPart},
	} {
		b := newBlockBench(t, c.host)
		if c.groups == 0 {
			c.groups = min(2*b.d.Info().ComputeUnits, 2*4*blocks)
		}
		var cmd ascendrt.Commands
		cmd.CopyBlocks(&ascendrt.BlockCopy{Regions: b.regions(4, blocks, bytes, bytes, bytes, 0), Dst: identity(blocks), Src: b.permutation(blocks), By: ascendrt.CopyByUnits, Width: c.width})
		tr := new(translator)
		tr.reset(b.d, b.s.(*stream), base.Submitting)
		_, err := tr.translate(&cmd)
		require.NoError(t, err)
		const params = 5
		launch := tr.Words[len(tr.Words)-recWords-params:]
		require.EqualValues(t, recLaunch, uint32(launch[0]))
		require.EqualValues(t, c.groups, uint32(launch[3]), "%+v", c)
		require.EqualValues(t, c.part, tr.Words[len(tr.Words)-1], "%+v", c)
		tr.endLists(ascendrt.Point{})
	}
}

// A table of more than a small copy's bytes goes to the device as any other copy.
func TestCopyBlocksOfALongPrompt(t *testing.T) {
	b := newBlockBench(t, false)
	const blocks = smallLargest/8 + 100
	for _, n := range []int{smallLargest/8 - 2*ascendrt.BlockRegionWords, blocks} {
		b.run(&ascendrt.BlockCopy{Regions: b.regions(2, blocks, 16, 16, 16, 0), Dst: b.permutation(blocks)[:n], Src: b.permutation(blocks)[:n], By: ascendrt.CopyByUnits})
	}
}

// The layers of one block of a host tier lie within each other's strides, and compute
// units reach that memory too.
func TestCopyBlocksToTheHost(t *testing.T) {
	b := newBlockBench(t, true)
	const regions, blocks, bytes = 6, 20, 4096 + 16
	for _, by := range []ascendrt.CopyBy{ascendrt.CopyByDevice, ascendrt.CopyByUnits, ascendrt.CopyByEngine} {
		c := &ascendrt.BlockCopy{By: by, Dst: b.permutation(blocks), Src: b.permutation(blocks)}
		for i := range regions {
			c.Regions = append(c.Regions, ascendrt.BlockRegion{
				Dst: b.to.Slice(i*bytes, b.to.Len-i*bytes), DstStride: regions * bytes,
				Src: b.from.Slice(i*blocks*bytes, blocks*bytes), SrcStride: bytes, Bytes: bytes,
			})
		}
		b.run(c)
		c.Width = 2
		b.run(c)
		var cmd ascendrt.Commands
		cmd.CopyBlocks(c)
		p, _, err := b.s.Submit(&cmd)
		require.NoError(t, err)
		require.Equal(t, by == ascendrt.CopyByUnits, len(b.d.lists.inUse) > 0, "%v", by)
		require.NoError(t, p.Wait(context.Background()))
		b.d.lists.settle(b.d)
	}
}

// What is the kernel's and what the copy engine's where the device chooses.
func TestWhoCopiesBlocks(t *testing.T) {
	b := newBlockBench(t, false)
	const blocks = 16
	for _, c := range []struct {
		name     string
		regions  int
		bytes    int
		dst, src []int32
		kernel   bool
	}{
		{name: "scattered", regions: 4, bytes: 32 << 10, dst: b.permutation(blocks), src: b.permutation(blocks), kernel: true},
		{name: "a small row", regions: 4, bytes: 16 << 10, dst: identity(blocks), src: identity(blocks), kernel: true},
		{name: "a wide row", regions: 2, bytes: 48 << 10, dst: identity(blocks), src: identity(blocks)},
		{name: "few", regions: 1, bytes: 32 << 10, dst: b.permutation(blocks), src: b.permutation(blocks)},
	} {
		x := &ascendrt.BlockCopy{Regions: b.regions(c.regions, blocks, c.bytes, c.bytes, c.bytes, 0), Dst: c.dst, Src: c.src}
		var cmd ascendrt.Commands
		cmd.CopyBlocks(x)
		p, _, err := b.s.Submit(&cmd)
		require.NoError(t, err, c.name)
		require.Equal(t, c.kernel, len(b.d.lists.inUse) > 0, c.name)
		require.NoError(t, p.Wait(context.Background()))
		b.d.lists.settle(b.d)
	}
}

// Blocks and regions that cannot be copy nothing and keep no table.
func TestCopyBlocksRefused(t *testing.T) {
	b := newBlockBench(t, false)
	good := func() *ascendrt.BlockCopy {
		return &ascendrt.BlockCopy{Regions: b.regions(4, 16, 4096, 4096, 4096, 0), Dst: identity(16), Src: b.permutation(16)}
	}
	b.run(good())
	for name, spoil := range map[string]func(c *ascendrt.BlockCopy){
		"more sources":              func(c *ascendrt.BlockCopy) { c.Src = append(c.Src, 0) },
		"negative destination":      func(c *ascendrt.BlockCopy) { c.Dst[3] = -1 },
		"negative source":           func(c *ascendrt.BlockCopy) { c.Src[3] = -1 << 31 },
		"destination out of range":  func(c *ascendrt.BlockCopy) { c.Dst[3] = 16 },
		"source out of range":       func(c *ascendrt.BlockCopy) { c.Src[3] = 1<<31 - 1 },
		"destination twice":         func(c *ascendrt.BlockCopy) { c.Dst[3] = 4 },
		"zero stride":               func(c *ascendrt.BlockCopy) { c.Regions[1].DstStride = 0 },
		"zero stride of a source":   func(c *ascendrt.BlockCopy) { c.Regions[1].SrcStride = 0 },
		"negative stride":           func(c *ascendrt.BlockCopy) { c.Regions[1].SrcStride = -4096 },
		"stride that overflows":     func(c *ascendrt.BlockCopy) { c.Regions[1].SrcStride = 1 << 62 },
		"no bytes":                  func(c *ascendrt.BlockCopy) { c.Regions[1].Bytes = 0 },
		"negative bytes":            func(c *ascendrt.BlockCopy) { c.Regions[1].Bytes = -4096 },
		"more bytes than a stride":  func(c *ascendrt.BlockCopy) { c.Regions[1].Bytes = 4097 },
		"bytes that overflow":       func(c *ascendrt.BlockCopy) { c.Regions[1].Bytes, c.Regions[1].SrcStride = 1<<62, 1<<62 },
		"view that leaves":          func(c *ascendrt.BlockCopy) { c.Regions[1].Src = b.from.Slice(b.from.Len-4096, 8192) },
		"two equal destinations":    func(c *ascendrt.BlockCopy) { c.Regions[1].Dst = c.Regions[0].Dst },
		"destinations that overlap": func(c *ascendrt.BlockCopy) { c.Regions[1].Dst = b.to.Slice(4096*15, 16*4096) },
		"onto itself":               func(c *ascendrt.BlockCopy) { c.Regions[1].Src = c.Regions[1].Dst },
		"negative width":            func(c *ascendrt.BlockCopy) { c.Width = -1 },
		"no such part":              func(c *ascendrt.BlockCopy) { c.By = 3 },
		"made-up view": func(c *ascendrt.BlockCopy) {
			c.Regions[1].Src = ascendrt.View{Addr: b.from.Addr, Len: 1 << 30, Max: 1 << 30}
			c.Regions[1].SrcStride = 1 << 24
		},
	} {
		c := good()
		spoil(c)
		var cmd ascendrt.Commands
		cmd.CopyBlocks(c)
		_, n, err := b.s.Submit(&cmd)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, name)
		require.Zero(t, n, name)
		b.d.lists.settle(b.d)
		require.Empty(t, b.d.lists.inUse, name)
	}
	b.run(good())
}

// A copy of many blocks of many regions is appended without any allocation, and its
// submission allocates nothing for each block. (Under the race detector pools forget on
// purpose.)
func TestCopyBlocksAllocations(t *testing.T) {
	b := newBlockBench(t, false)
	c := &ascendrt.BlockCopy{Regions: b.regions(40, 64, 512, 512, 512, 0), Dst: b.permutation(64), Src: b.permutation(64)}
	var cmd ascendrt.Commands
	require.Zero(t, testing.AllocsPerRun(50, func() {
		cmd.Reset()
		cmd.CopyBlocks(c)
	}))
	submits := func() float64 { // waiting allocates by its length
		var last ascendrt.Point
		n := testing.AllocsPerRun(20, func() {
			var err error
			if last, _, err = b.s.Submit(&cmd); err != nil {
				t.Error(err)
			}
		})
		require.NoError(t, last.Wait(context.Background()))
		return n
	}
	submits()
	all := submits()
	cmd.Reset()
	cmd.CopyBlocks(&ascendrt.BlockCopy{Regions: c.Regions, Dst: c.Dst[:1], Src: c.Src[:1]})
	require.Less(t, all-submits(), 16.0, "%v for all blocks", all)
}

// Lists are kept and used again, the smallest that is large enough, up to a bound:
// taking memory from the driver waits for the device.
func TestListsAreKept(t *testing.T) {
	b := newBlockBench(t, false)
	b.d.wantLists()
	l := &b.d.lists
	const small, large = 3000, 100_000
	take := func(n int) usedList {
		u, err := l.take(b.d, n)
		require.NoError(t, err)
		require.GreaterOrEqual(t, u.host.Len, n)
		require.GreaterOrEqual(t, u.device.Len, n)
		return u
	}
	end := func(u usedList) { // as of a submission whose kernel has run
		l.inUse = append(l.inUse, u)
		l.settle(b.d)
	}
	x, y := take(large), take(small)
	require.NotEqual(t, x.host.Addr, y.host.Addr)
	end(x)
	end(y)
	require.Equal(t, x.host.Len+y.host.Len, l.kept)
	for range 3 {
		u := take(small)
		require.Equal(t, y, u)
		v := take(small + 1)
		require.Equal(t, x, v, "the other one is large enough")
		end(u)
		end(v)
	}
	require.Len(t, l.free, 2)
	var many []usedList
	for range 2 * listsKept / (128 << 10) {
		many = append(many, take(large))
	}
	for _, u := range many {
		end(u)
	}
	require.LessOrEqual(t, l.kept, listsKept)
	require.Empty(t, l.inUse)
	sum := 0
	for _, u := range l.free {
		sum += u.host.Len
	}
	require.Equal(t, l.kept, sum)
	b.run(&ascendrt.BlockCopy{Regions: b.regions(4, 16, 4096, 4096, 4096, 0), Dst: identity(16), Src: b.permutation(16)})
}

// Lists may be left in pinned memory, so that both can be compared.
func TestPinnedLists(t *testing.T) {
	t.Setenv(pinnedLists, "1")
	b := newBlockBench(t, false)
	b.run(&ascendrt.BlockCopy{Regions: b.regions(4, 16, 4096, 4096, 4096, 0), Dst: identity(16), Src: b.permutation(16)})
	require.NotNil(t, b.d.lists.blocks.Load())
	require.True(t, b.d.lists.pinned)
}

// What preparing 768 blocks of 56 tensors costs the host ahead of the driver, as a list
// of pieces and as blocks.
func BenchmarkPrepareCopies(b *testing.B) {
	const blocks, tensors, bytes = 768, 56, 64
	dev, s, err := openBench()
	if err != nil {
		b.Skip(err)
	}
	defer dev.Close(context.Background())
	d := dev.(*device)
	d.wantLists()
	r := rand.New(rand.NewPCG(1, 2))
	var from, to []ascendrt.View
	for range tensors {
		x, err := dev.Alloc(blocks*bytes, ascendrt.PlaceDefault)
		require.NoError(b, err)
		y, err := dev.Alloc(blocks*bytes, ascendrt.PlaceDefault)
		require.NoError(b, err)
		from, to = append(from, x.View()), append(to, y.View())
	}
	c := &ascendrt.BlockCopy{}
	for _, i := range r.Perm(blocks) {
		c.Dst, c.Src = append(c.Dst, int32(i)), append(c.Src, int32(len(c.Src)))
	}
	for k := range tensors {
		c.Regions = append(c.Regions, ascendrt.BlockRegion{Dst: to[k], Src: from[k], DstStride: bytes, SrcStride: bytes, Bytes: bytes})
	}
	var dst, src []ascendrt.View
	for name, appendTo := range map[string]func(*ascendrt.Commands){
		"pieces": func(cmd *ascendrt.Commands) {
			dst, src = dst[:0], src[:0]
			for k := range tensors {
				for i := range blocks {
					dst, src = append(dst, to[k].Slice(int(c.Dst[i])*bytes, bytes)), append(src, from[k].Slice(int(c.Src[i])*bytes, bytes))
				}
			}
			cmd.CopyBatch(dst, src)
		},
		"blocks": func(cmd *ascendrt.Commands) { cmd.CopyBlocks(c) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var cmd ascendrt.Commands
			t := new(translator)
			for b.Loop() {
				cmd.Reset()
				appendTo(&cmd)
				t.reset(d, s.(*stream), base.Submitting)
				if _, err := t.translate(&cmd); err != nil || len(t.lists) != 1 {
					b.Fatal("no kernel", err)
				}
				t.endLists(ascendrt.Point{})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks*tensors), "ns/piece")
		})
	}
}

func openBench() (ascendrt.Device, ascendrt.Stream, error) {
	d, err := Backend{}.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		return nil, nil, err
	}
	s, err := d.NewStream(ascendrt.StreamOptions{Role: "bench"})
	return d, s, err
}
