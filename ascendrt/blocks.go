package ascendrt

import (
	"cmp"
	"fmt"
	"slices"
)

// BlockCopy copies blocks of several regions at once: of each region, block
// Src[i] to block Dst[i]. What names the blocks is as long as one region has
// blocks, not as the product of both.
type BlockCopy struct {
	Regions  []BlockRegion
	Dst, Src []int32 // numbers of blocks, pair by pair; no destination twice
	By       CopyBy
	Width    int // groups of threads that copy at a time where compute units do; 0: the device's choice
}

// BlockRegion is where the blocks of one region lie: block b begins b strides
// behind the start of the view, and all that are named lie in the view. A stride
// is at least Bytes.
type BlockRegion struct {
	Dst, Src             View
	DstStride, SrcStride int // bytes
	Bytes                int // of a block
}

// CopyBy says what part of a device copies blocks.
type CopyBy uint8

const (
	// CopyByDevice is the device's choice.
	CopyByDevice CopyBy = iota
	// CopyByUnits are the compute units, where they reach all of the memory,
	// pinned host memory included; else as CopyByEngine.
	CopyByUnits
	// CopyByEngine are the copy engines, one copy for each run of neighbours.
	CopyByEngine
)

// String names the choice.
func (b CopyBy) String() string {
	switch b {
	case CopyByUnits:
		return "units"
	case CopyByEngine:
		return "engine"
	}
	return "device"
}

// BlockRegionWords is the length of a region in the payload of KindCopyBlocks:
// destination and source address, their strides, bytes.
const BlockRegionWords = 5

// CopyBlocks copies blocks of regions, in no stated order. It needs
// Caps.BlockCopy and is illegal under capture. The slices are not kept.
func (c *Commands) CopyBlocks(b *BlockCopy) OpRef {
	pairs := min(len(b.Dst), len(b.Src))
	if len(b.Dst) != len(b.Src) {
		c.fail("copy blocks", fmt.Sprintf("%d destinations for %d sources", len(b.Dst), len(b.Src)))
	}
	dst, src := c.mostBlock(b.Dst[:pairs]), c.mostBlock(b.Src[:pairs])
	if b.Width < 0 {
		c.fail("copy blocks", fmt.Sprintf("a width of %d", b.Width))
	}
	if b.By > CopyByEngine {
		c.fail("copy blocks", fmt.Sprintf("%d is no part of a device", b.By))
	}
	if pairs > 0 {
		for i := range b.Regions {
			r := &b.Regions[i]
			c.checkBlocks("destination", i, r.Dst, r.DstStride, r.Bytes, dst)
			c.checkBlocks("source", i, r.Src, r.SrcStride, r.Bytes, src)
		}
		if c.err == nil && len(b.Regions) > 0 { // the greatest block is one that memory has
			c.checkOnce(b.Dst, dst)
			c.checkApart(b.Regions, dst)
		}
	}
	ref := c.record(KindCopyBlocks, BlockRegionWords*len(b.Regions)+pairs, uint64(len(b.Regions)), uint64(pairs), uint64(b.By), uint64(max(0, b.Width)), uint64(dst), uint64(src))
	for i := range b.Regions {
		r := &b.Regions[i]
		c.buf = append(c.buf, uint64(r.Dst.Addr), uint64(r.Src.Addr), uint64(r.DstStride), uint64(r.SrcStride), uint64(r.Bytes))
	}
	for i := range pairs {
		c.buf = append(c.buf, uint64(uint32(b.Dst[i]))|uint64(uint32(b.Src[i]))<<32)
	}
	return ref
}

// mostBlock is the greatest number; 0 for none.
func (c *Commands) mostBlock(list []int32) int {
	least, most := int32(0), int32(0)
	for _, b := range list {
		least, most = min(least, b), max(most, b)
	}
	if least < 0 {
		c.fail("copy blocks", fmt.Sprintf("block %d", least))
	}
	return int(most)
}

// checkBlocks checks one side of a region whose greatest block is most.
func (c *Commands) checkBlocks(side string, region int, v View, stride, bytes, most int) {
	switch {
	case !v.Valid():
		c.fail("copy blocks", fmt.Sprintf("region %d: the %s leaves its buffer", region, side))
	case bytes <= 0 || stride < bytes:
		c.fail("copy blocks", fmt.Sprintf("region %d: blocks of %d bytes every %d bytes of the %s", region, bytes, stride, side))
	case bytes > v.Len || most > 0 && stride > (v.Len-bytes)/most: // no product that could overflow
		c.fail("copy blocks", fmt.Sprintf("region %d: block %d of %d bytes leaves the %s of %d bytes", region, most, bytes, side, v.Len))
	}
}

// checkOnce finds a destination that is named twice.
func (c *Commands) checkOnce(dst []int32, most int) {
	c.seen = slices.Grow(c.seen[:0], most/64+1)[:most/64+1]
	clear(c.seen)
	for _, b := range dst {
		if c.seen[b/64]&(1<<(b%64)) != 0 {
			c.fail("copy blocks", fmt.Sprintf("block %d is a destination twice", b))
			return
		}
		c.seen[b/64] |= 1 << (b % 64)
	}
}

// checkApart finds destinations of two regions that overlap. Regions may lie
// within each other's strides, as the layers of one block of a host tier do.
func (c *Commands) checkApart(regions []BlockRegion, most int) {
	c.order = c.order[:0]
	for i := range regions {
		c.order = append(c.order, int32(i))
	}
	slices.SortFunc(c.order, func(a, b int32) int { return cmp.Compare(regions[a].Dst.Addr, regions[b].Dst.Addr) })
	var first *BlockRegion // of those that lie within each other's strides
	var last, end Addr     // of its last region's first block, and of all of them
	for _, i := range c.order {
		r := &regions[i]
		at := r.Dst.Addr
		stop := at + Addr(most*r.DstStride+r.Bytes)
		if first != nil && at < end {
			if r.DstStride != first.DstStride || at < last || at+Addr(r.Bytes) > first.Dst.Addr+Addr(first.DstStride) {
				c.fail("copy blocks", fmt.Sprintf("the destination of region %d overlaps another", i))
				return
			}
		} else {
			first, end = r, stop
		}
		last, end = at+Addr(r.Bytes), max(end, stop)
	}
}
