package pd

import (
	"context"
	"slices"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
)

// writing is one batch of a transfer.
type writing struct {
	runs    []run
	bytes   int64
	upTo    []int // per region: positions that are sent then
	round   int
	total   int // of the transfer, when there is nothing more to write
	missing []int
}

// run is what goes out of one region. Regions of one stretch of the prompt share the
// pairs, so that the lock is held for its blocks, not for their product with the
// regions: the step waits for the same lock.
type run struct {
	region int
	pairs  []pair
}

type pair struct{ from, to kvcache.BlockID }

// next collects what is ready and not sent. more is false when there is
// nothing.
func (p *pushes) next(o *outgoing) (writing, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := writing{upTo: make([]int, len(o.sent)), round: o.round}
	if o.err != nil {
		return w, false, o.err
	}
	bs := p.w.id.BlockSize
	var pairs []pair
	group, first, last := -1, 0, 0 // that pairs are of
	for i, r := range p.w.id.Regions {
		whole := o.ready[i] / bs
		if o.total > 0 {
			whole = ceilDiv(o.total, bs)
		}
		end := min(whole, o.offer.From+len(o.offer.Blocks[r.Group]))
		w.upTo[i] = max(o.sent[i], end)
		if r.Group != group || o.sent[i] != first || end != last {
			group, first, last = r.Group, o.sent[i], end
			pairs = o.pairs(group, first, last)
		}
		if len(pairs) > 0 {
			w.runs = append(w.runs, run{i, pairs})
			w.bytes += int64(len(pairs)) * int64(r.BlockBytes)
		}
	}
	if w.bytes > 0 {
		return w, true, nil
	}
	copy(o.sent, w.upTo)
	w.total = o.total
	for pos := range o.missing {
		w.missing = append(w.missing, pos)
	}
	return w, false, nil
}

// pairs are the blocks of positions from first to last, without those that one side
// does not hold. The lock is held.
func (o *outgoing) pairs(group, first, last int) []pair {
	theirs := o.offer.Blocks[group]
	out := make([]pair, 0, max(0, last-first))
	for pos := first; pos < last; pos++ {
		to, from := theirs[pos-o.offer.From], kvcache.NullBlock
		if to == kvcache.NullBlock {
			continue
		}
		if group < len(o.table) && pos < len(o.table[group]) {
			from = o.table[group][pos]
		}
		if from == kvcache.NullBlock {
			o.missing[pos] = true
			continue
		}
		out = append(out, pair{from, to})
	}
	return out
}

// segments are the pieces of one group.
func (p *pushes) segments(o *outgoing, w writing, group int) (segs []transport.Segment) {
	for _, x := range w.runs {
		r := p.w.id.Regions[x.region]
		if r.Group != group {
			continue
		}
		size := int64(r.BlockBytes)
		segs = slices.Grow(segs, len(x.pairs))
		for _, b := range x.pairs {
			segs = append(segs, transport.Segment{
				Local: r.Memory.Region, Remote: o.theirs.Regions[x.region].Memory.Region, LocalOffset: int64(b.from) * size, RemoteOffset: int64(b.to) * size, Length: size,
			})
		}
	}
	return segs
}

// write sends one batch.
func (p *pushes) write(ctx context.Context, tp transport.Peer, o *outgoing, w writing) error {
	for g, open := range o.offer.Open {
		if err := tp.Write(ctx, open, p.segments(o, w, g)); err != nil {
			return err
		}
	}
	p.w.counters.pushedBytes.Add(uint64(w.bytes))
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.round == w.round {
		copy(o.sent, w.upTo)
	}
	return nil
}
