package executor

import (
	"unsafe"

	"github.com/sluice-serving/sluice/graphs/replay"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// seq is what the executor knows of a request that has run.
type seq struct {
	id     scheduler.RequestID
	blocks []kvcache.BlockID
	cell   int32 // its place among the last sampled tokens on the device; -1 if it holds none

	chosen *output // whose row has its last token; nil if that is in the cell
	row    int
}

// batch turns the rows of a plan into the inputs of a step. An id that only an
// earlier step knows is 0 here; feed puts it in place on the device. Fused
// operations read and write the cells themselves: the places of recurrent state,
// which these models do not have, tell them which. The result is valid until the
// next call.
func (e *Executor) batch(p *scheduler.Plan) replay.Batch {
	b := &e.rows
	b.IDs, b.Positions, b.Slots = b.IDs[:0], b.Positions[:0], b.Slots[:0]
	b.Query, b.Lens, b.Tables = b.Query[:0], b.Lens[:0], b.Tables[:0]
	fused := e.ops.fused != nil
	if fused {
		b.StateOut, b.StateIn = b.StateOut[:0], b.StateIn[:0]
	}
	bs := int32(e.c.BlockSize)
	for i, id := range p.Requests {
		s := &e.seqs[id.Slot()]
		blocks := asWords(s.blocks)
		pos := p.Computed[i]
		for _, tok := range p.Input(i) {
			tok = s.input(tok)
			b.IDs = append(b.IDs, max(int32(tok), 0))
			if fused {
				from := int32(0)
				if tok == scheduler.Unknown && e.c.InFlight > 1 {
					from = s.cell
				}
				b.StateOut = append(b.StateOut, from)
			}
			b.Positions = append(b.Positions, pos)
			b.Slots = append(b.Slots, blocks[pos/bs]*bs+pos%bs)
			pos++
		}
		if fused {
			to := int32(0)
			if p.Samples[i] != 0 {
				to = s.cell
			}
			b.StateIn = append(b.StateIn, to)
		}
		b.Query = append(b.Query, p.Scheduled[i])
		b.Lens = append(b.Lens, pos)
		b.Tables = append(b.Tables, blocks[:min(len(blocks), e.c.tableWidth())])
	}
	return *b
}

// asWords views block ids as the int32 values that they are.
func asWords(b []kvcache.BlockID) []int32 {
	return unsafe.Slice((*int32)(unsafe.SliceData(b)), len(b))
}
