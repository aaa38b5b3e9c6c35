package pd

import (
	"context"

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

// run is what goes out of neighbouring regions of one group that have sent as much: the
// blocks of a stretch of the prompt, named once. So the lock is held for the blocks, not
// for their product with the regions: the step waits for the same lock.
type run struct {
	group  int
	blocks transport.Blocks
}

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
	group, first, last := -1, 0, 0 // that the last run is of
	for i, r := range p.w.id.Regions {
		whole := o.ready[i] / bs
		if o.total > 0 {
			whole = ceilDiv(o.total, bs)
		}
		end := min(whole, o.offer.From+len(o.offer.Blocks[r.Group]))
		w.upTo[i] = max(o.sent[i], end)
		if r.Group != group || o.sent[i] != first || end != last {
			group, first, last = r.Group, o.sent[i], end
			w.runs = append(w.runs, run{group, o.blocks(group, first, last)})
		}
		b := &w.runs[len(w.runs)-1].blocks
		b.Regions = append(b.Regions, transport.RegionPair{Local: r.Memory.Region, Remote: o.theirs.Regions[i].Memory.Region, Bytes: int64(r.BlockBytes)})
		w.bytes += int64(len(b.Local)) * int64(r.BlockBytes)
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

// blocks are those of positions from first to last, without those that one side does not
// hold. The lock is held.
func (o *outgoing) blocks(group, first, last int) transport.Blocks {
	n := max(0, last-first)
	b := transport.Blocks{Local: make([]int32, 0, n), Remote: make([]int32, 0, n)}
	theirs := o.offer.Blocks[group]
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
		b.Local, b.Remote = append(b.Local, int32(from)), append(b.Remote, int32(to))
	}
	return b
}

// write sends one batch.
func (p *pushes) write(ctx context.Context, tp transport.Peer, o *outgoing, w writing) error {
	for _, x := range w.runs {
		if err := transport.WriteBlocks(ctx, tp, o.offer.Open[x.group], x.blocks); err != nil {
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
