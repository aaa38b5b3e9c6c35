//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	wordbits "math/bits"

	"github.com/sluice-serving/sluice/ascendrt"
)

// attends tells whether the tensor-core kernels compute an attention.
func (d *device) attends(typ ascendrt.DType, n ascendrt.AttentionAttr) bool {
	group := n.Heads / n.KVHeads
	return typ == ascendrt.BFloat16 && (n.HeadDim == 64 || n.HeadDim == 128) && n.Window == 0 &&
		n.BlockSize&(n.BlockSize-1) == 0 && n.BlockSize >= 16 && group <= 32 && 128%group == 0 && d.desc.cc >= 90
}

// sharers is an attention kernel whose clusters share the keys of a request, or of a
// tile of its rows.
type sharers struct {
	k       *kernel
	width   int // blocks of a cluster
	threads int // of a block
	bytes   int // of its shared memory
	fit     int // clusters that the device has room for at once
}

// widths of the clusters of attention kernels; the last one is for long rows alone, as
// only large devices have it.
var widths = []int{1, 2, 4, 8, 16}

// sharers plans an attention kernel.
func (d *device) sharers(n ascendrt.AttentionAttr, name string, width, threads, bytes int) (sharers, error) {
	x := sharers{width: width, threads: threads, bytes: bytes}
	var err error
	if x.k, err = d.fast(fmt.Sprintf("%s_%d", name, width), attentionModule(n)...); err != nil {
		return x, err
	}
	if err = d.allowShared(x.k, bytes+1<<10); err != nil { // and what it has beside
		return x, err
	}
	x.fit, err = d.funcClusters(x.k.fn, width, threads, bytes)
	if x.fit == 0 && err == nil && width <= 4 {
		x.fit = d.info.ComputeUnits / width // the driver cannot tell
	}
	return x, err
}

// busiest picks the kernel with the most warps at work among those whose clusters are all
// there at once: a cluster that finds no room waits for another one to end, and the step
// for both. Among equals it is the one that uses more of the multiprocessors, unless most
// are used by less wide ones. Clusters have at least 32 keys a block. nil: none is.
func busiest(all []sharers, groups, keys, units int) *sharers {
	var best *sharers
	warps := func(x *sharers) int { return groups * x.width * x.threads }
	for i := range all {
		x := &all[i]
		switch {
		case groups > x.fit, x.width > 1 && keys <= 32*x.width:
		case best == nil, warps(x) > warps(best), warps(x) == warps(best) && 4*groups*best.width < 3*units && x.width > best.width:
			best = x
		}
	}
	return best
}

// widest gives the widest of long rows' kernels, per tokens a tile, for requests that see
// at most so many keys. How many tiles there are the device finds out: the grid has room
// for the most, and blocks without one end at once. How many share one is chosen by what a
// step likely is, a prompt beside requests of one token each. A block has at least two
// tiles of 64 keys.
func widest(all []sharers, rows, requests, per, kvHeads, keys int) *sharers {
	likely := max(rows-requests, 0)/per + 1
	best := &all[0]
	for i := range all[1:] {
		if x := &all[1+i]; likely*kvHeads <= x.fit && keys >= 128*x.width {
			best = x
		}
	}
	return best
}

// tallAttention is attend_long of a width.
func (d *device) tallAttention(n ascendrt.AttentionAttr, width int) (sharers, error) {
	return d.sharers(n, "attend_long", width, 128, 2*n.HeadDim*(128+4*64))
}

func attentionModule(n ascendrt.AttentionAttr) []string {
	return []string{fmt.Sprintf("HEAD=%d", n.HeadDim), fmt.Sprintf("GROUP=%d", n.Heads/n.KVHeads)}
}

// attentionParams are the arguments of the attention kernels up to the lengths, and behind them.
func attentionParams(n ascendrt.AttentionAttr, a []ascendrt.Tensor) (front, back []uint64, err error) {
	q, kc, vc, table, y := &a[0], &a[1], &a[2], &a[3], &a[6]
	return []uint64{at(q), stride(q), at(kc), stride(kc), at(vc), stride(vc), at(table), stride(table), at(&a[4]), at(&a[5])},
		[]uint64{at(y), stride(y), uint64(n.KVHeads), uint64(wordbits.TrailingZeros(uint(n.BlockSize))), bits(n.Scale * 1.44269504088896341)},
		needAligned(q, kc, vc, y)
}

// planPerRowAttention computes short rows with a kernel of their own that takes a row's
// keys in the same steps and sums as that for long ones, whatever tile the row lies in.
func (d *device) planPerRowAttention(s *opState, n ascendrt.AttentionAttr) error {
	const few, stages = 16, 3 // pairs of a token and a head that are short; tiles of 64 keys in flight
	group := n.Heads / n.KVHeads
	tall, err := d.tallAttention(n, 1)
	if err != nil {
		return err
	}
	short, err := d.fast("attend_alike_16", attentionModule(n)...)
	shared := 2*n.HeadDim*(few+stages*2*64) + 4*2*few*(64+8)
	if err == nil {
		err = d.allowShared(short, shared)
	}
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		front, back, err := attentionParams(n, a)
		rows, reqs := a[0].Rows(), a[3].Rows()
		if err != nil {
			return err
		}
		if err := t.overlap(short, [3]int{n.KVHeads, reqs, 1}, 128, shared, append(front[:len(front):len(front)], back...)...); err != nil || n.MaxQuery > 0 && n.MaxQuery*group <= few {
			return err
		}
		tiles := rows/(128/group) + min(reqs, rows*group/(few+1))
		return t.overlap(tall.k, [3]int{tiles, n.KVHeads, 1}, tall.threads, tall.bytes, append(append(front, uint64(reqs)), append(back, few)...)...)
	}
	return err
}

// planFastAttention uses one kernel for short rows, as decodes are, and another
// for long ones; both where the step may hold both.
func (d *device) planFastAttention(s *opState, n ascendrt.AttentionAttr) error {
	group := n.Heads / n.KVHeads
	queries := 1 // of 8 pairs of a token and a head each
	for pairs := max(group, n.MaxQuery*group); queries < 4 && 8*queries < pairs; {
		queries *= 2
	}
	few := 8 * queries
	pushed := 4 * (few*n.HeadDim + 2*8*few)                                        // what a cluster pushes
	plainBytes := 4*(3*8*few+2*few+9*few*n.HeadDim) + 4*2*8*few                    // of the kernels without a ring
	ring := func(warps int) int { return warps * 2 * 2 * 16 * (2*n.HeadDim + 40) } // two tiles of 16 keys and values for each
	var short, tall []sharers
	var plain []sharers // of any number of clusters, by width
	add := func(to *[]sharers, name string, width, threads, bytes int) error {
		x, err := d.sharers(n, name, width, threads, bytes)
		*to = append(*to, x)
		return err
	}
	for _, w := range widths[:4] {
		if err := add(&plain, fmt.Sprintf("attend_short_%d", queries), w, 256, plainBytes); err != nil {
			return err
		}
		if queries > 1 {
			continue
		}
		if err := errors.Join(add(&short, "attend_ring", w, 256, max(ring(8)+pushed, plainBytes)), add(&short, "attend_rings", w, 128, ring(4)+pushed*min(w-1, 1))); err != nil {
			return err
		}
	}
	if queries > 1 {
		short = plain
	}
	for _, w := range widths {
		x, err := d.tallAttention(n, w)
		if err != nil && w > 8 {
			break
		}
		if err != nil {
			return err
		}
		tall = append(tall, x)
	}
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		q, table := &a[0], &a[3]
		reqs, keys := table.Rows(), table.RowLen()*n.BlockSize
		front, back, err := attentionParams(n, a)
		if err != nil {
			return err
		}
		x := busiest(short, reqs*n.KVHeads, keys, d.info.ComputeUnits)
		if x == nil {
			x = &plain[0]
		}
		if err := t.overlap(x.k, [3]int{x.width, n.KVHeads, reqs}, x.threads, x.bytes, append(front[:len(front):len(front)], back...)...); err != nil || n.MaxQuery > 0 && n.MaxQuery*group <= 32 {
			return err
		}
		per := 128 / group
		tiles := q.Rows()/per + min(reqs, q.Rows()*group/(few+1))
		x = widest(tall, q.Rows(), reqs, per, n.KVHeads, keys)
		return t.overlap(x.k, [3]int{tiles * x.width, n.KVHeads, 1}, x.threads, x.bytes, append(append(front, uint64(reqs)), append(back, uint64(few))...)...)
	}
	return nil
}
