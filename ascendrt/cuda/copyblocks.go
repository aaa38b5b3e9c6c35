//go:build cgo && linux

package cuda

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// Blocks of several regions are copied by one kernel that is told regions and blocks
// and finds the pieces, which are their product, by itself: preparing them on the host
// takes longer than the copies. Few wide runs, and what is not aligned, are the copy
// engine's.

const (
	blocksUnits = math.MaxInt32 // of one launch
	blocksPart  = 16 << 10      // bytes of a unit within device memory, where each has a block of threads to itself
	rowsPitch   = math.MaxInt32 // bytes from one row to the next at most, of a copy of rows
	rowsLargest = 512 << 10     // bytes of a copy of rows, so that others get in between
)

// blockCopy is a decoded command.
type blockCopy struct {
	regions []uint64 // BlockRegionWords each
	pairs   []uint64
	by      ascendrt.CopyBy
	width   int
	dst     uint64 // greatest blocks
	src     uint64
	evenly  []evenly // all regions, in their order; neighbours in one allocation
	host    bool     // one side of a region is memory of the host
}

// evenly are regions of one size at equal distances on both sides, in one allocation of
// the driver on each: of a block, their parts are the rows of one copy.
type evenly struct {
	first, n int
	dst, src uint64 // from one to the next
}

func (b *blockCopy) region(i int) []uint64 {
	return b.regions[i*ascendrt.BlockRegionWords : (i+1)*ascendrt.BlockRegionWords]
}

func (b *blockCopy) count() int { return len(b.regions) / ascendrt.BlockRegionWords }

// blocks translates a copy of blocks; the command was checked against its views when
// it was appended.
func (t *translator) blocks(r ascendrt.Record) error {
	n := int(r.A[0]) * ascendrt.BlockRegionWords
	b := blockCopy{regions: r.Payload[:n], pairs: r.Payload[n:], by: ascendrt.CopyBy(r.A[2]), width: int(r.A[3]), dst: r.A[4], src: r.A[5], evenly: t.evenly[:0]}
	if len(b.regions) == 0 || len(b.pairs) == 0 {
		return nil
	}
	kernel, err := t.blockEnds(&b)
	t.evenly = b.evenly
	if err != nil {
		return err
	}
	if kernel {
		if done, err := t.blockKernel(&b); done || err != nil {
			return err
		}
	}
	t.blockRuns(&b)
	return nil
}

// blockEnds looks the memory of all regions up, and tells whether it is for a kernel.
func (t *translator) blockEnds(b *blockCopy) (kernel bool, err error) {
	kernel = b.by != ascendrt.CopyByEngine
	var to, from *memory.Alloc
	for i := range b.count() {
		x := b.region(i)
		dn, sn := b.dst*x[2]+x[4], b.src*x[3]+x[4]
		lastTo, lastFrom := to, from
		if to, err = t.Near(to, x[0], int(dn)); err != nil {
			return false, fmt.Errorf("region %d: destination: %w", i, err)
		}
		if from, err = t.Near(from, x[1], int(sn)); err != nil {
			return false, fmt.Errorf("region %d: source: %w", i, err)
		}
		b.space(i, i > 0 && to.Host != from.Host && to.Together(lastTo) && from.Together(lastFrom))
		if x[0] < x[1]+sn && x[1] < x[0]+dn {
			return false, fmt.Errorf("region %d: source and destination overlap: %w", i, ascendrt.ErrInvalid)
		}
		b.host = b.host || to.Host || from.Host
		if (x[0]|x[1]|x[2]|x[3])%listAlign != 0 || b.by == ascendrt.CopyByDevice && b.host {
			kernel = false
		}
	}
	if kernel && b.by == ascendrt.CopyByDevice {
		kernel = b.small()
	}
	return kernel, nil
}

// space puts region i to those before it, if they may lie at equal distances.
func (b *blockCopy) space(i int, may bool) {
	if may {
		x, y, e := b.region(i), b.region(i-1), &b.evenly[len(b.evenly)-1]
		dst, src := x[0]-y[0], x[1]-y[1]
		may = x[2] == y[2] && x[3] == y[3] && x[4] == y[4] && dst >= x[4] && src >= x[4] && dst <= rowsPitch && src <= rowsPitch
		if may && (e.n == 1 || e.dst == dst && e.src == src) {
			e.n, e.dst, e.src = e.n+1, dst, src
			return
		}
	}
	b.evenly = append(b.evenly, evenly{first: i, n: 1})
}

// small tells whether the copies are a kernel's by the same measure as a list's: many,
// and their runs small.
func (b *blockCopy) small() bool {
	bytes := uint64(0)
	for i := range b.count() {
		bytes += b.region(i)[4]
	}
	pieces := uint64(b.runs() * b.count())
	return len(b.pairs)*b.count() >= listLeast && bytes*uint64(len(b.pairs)) <= pieces*listLargest
}

// runs is the number of runs of blocks that are neighbours on both sides.
func (b *blockCopy) runs() int {
	runs := 1
	for i := 1; i < len(b.pairs); i++ {
		if b.pairs[i] != b.pairs[i-1]+(1|1<<32) {
			runs++
		}
	}
	return runs
}

// parts is into how many parts the kernel divides a block.
func (b *blockCopy) parts(part uint64) uint64 {
	most := uint64(0)
	for i := range b.count() {
		most = max(most, b.region(i)[4])
	}
	return (most + part - 1) / part
}

// blockKernel launches the kernel. It reports false without one, or where there is too much for it.
func (t *translator) blockKernel(b *blockCopy) (bool, error) {
	k := t.d.blocksKernel()
	if k == nil {
		return false, nil
	}
	part, groups := uint64(listPart), uint64(b.width) // blocks of threads, which take units in turn
	if groups == 0 {
		part, groups = blocksPart, blocksUnits
		if b.host { // where fewer are enough
			part, groups = listPart, uint64(max(1, 2*t.d.info.ComputeUnits))
		}
	}
	parts := b.parts(part)
	if parts > blocksUnits/uint64(b.count())/uint64(len(b.pairs)) {
		return false, nil
	}
	table, ok := t.table(len(b.regions) + len(b.pairs))
	if !ok {
		return false, nil
	}
	copy(table[copy(table, b.regions):], b.pairs)
	grid := [3]int{int(min(parts*uint64(b.count())*uint64(len(b.pairs)), groups)), 1, 1}
	return true, t.launch(k, grid, listThreads, 0, t.send(table), uint64(b.count()), uint64(len(b.pairs)), parts, part)
}

// blockRuns leaves the copies to the copy engine: neighbours as one, or a block's parts
// in regions at equal distances, whichever is fewer copies.
func (t *translator) blockRuns(b *blockCopy) {
	t.large.reset()
	runs := b.runs()
	for _, e := range b.evenly {
		x := b.region(e.first)
		rows := max(1, min(e.n, int(rowsLargest/x[4])))
		dense := x[2] == x[4] && x[3] == x[4]
		each := len(b.pairs)
		if dense {
			each = runs
		}
		if len(b.pairs)*((e.n+rows-1)/rows) < each*e.n {
			t.blockRows(b, e, rows)
			continue
		}
		for i := range e.n {
			t.regionRuns(b, b.region(e.first+i), dense)
		}
	}
	t.recordBatch(&t.large)
}

// regionRuns appends the copies of one region to those of the batch.
func (t *translator) regionRuns(b *blockCopy, x []uint64, dense bool) {
	for k := 0; k < len(b.pairs); {
		n := 1
		for dense && k+n < len(b.pairs) && b.pairs[k+n] == b.pairs[k+n-1]+(1|1<<32) {
			n++
		}
		dst, src := b.pairs[k]&math.MaxUint32, b.pairs[k]>>32
		t.large.dst = append(t.large.dst, x[0]+dst*x[2])
		t.large.src = append(t.large.src, x[1]+src*x[3])
		t.large.size = append(t.large.size, uint64(n)*x[4])
		k += n
	}
}

// blockRows appends copies of rows, each of a block's parts in some of the regions.
func (t *translator) blockRows(b *blockCopy, e evenly, rows int) {
	for _, p := range b.pairs {
		for i := 0; i < e.n; i += rows {
			x := b.region(e.first + i)
			t.Record(recRows, 0, x[0]+(p&math.MaxUint32)*x[2], x[1]+(p>>32)*x[3], e.dst, e.src, x[4], uint64(min(rows, e.n-i)))
		}
	}
}

// table gives words of pinned memory for what a kernel of this submission reads.
func (t *translator) table(n int) ([]uint64, bool) {
	t.d.lists.settle(t.d)
	l, err := t.d.lists.take(t.d, 8*n)
	if err != nil {
		return nil, false // the engine needs none
	}
	t.lists = append(t.lists, l)
	return unsafe.Slice((*uint64)(pointer(l.host.Addr)), n), true
}

// send puts the latest table into device memory, once it is filled, and gives its
// place there: every group of threads would fetch it from the host by itself. In a copy
// engine's queue it would stand behind the large copies of others.
func (t *translator) send(table []uint64) uint64 {
	l := &t.lists[len(t.lists)-1]
	if t.d.lists.pinned {
		return l.host.Addr
	}
	if n := 8 * len(table); n <= smallLargest {
		_ = t.smallKernel(l.device.Addr, l.host.Addr, n) // no grid too large
	} else {
		t.Record(recHtoD, 0, l.device.Addr, l.host.Addr, uint64(n))
	}
	return l.device.Addr
}
