package executor

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// metadata are the inputs of a step on the device: parts of one buffer at fixed
// places, all Int32.
type metadata struct {
	buf                                      ascendrt.Buffer
	ids, positions, slots                    ascendrt.Tensor // [maxTokens]
	starts                                   ascendrt.Tensor // [maxReqs+1]
	lens, rows                               ascendrt.Tensor // [maxReqs]
	table                                    ascendrt.Tensor // [maxReqs, width]
	idsAt, positionsAt, slotsAt              int             // offsets in words
	startsAt, lensAt, rowsAt, tableAt, words int
	width                                    int // block ids per row of the table
}

func (e *Executor) allocMeta() (metadata, error) {
	m := metadata{width: e.c.tableWidth()}
	align := max(1, e.dev.Caps().Align/4)
	place := func(n int) int {
		at := m.words
		m.words = (m.words + n + align - 1) / align * align
		return at
	}
	t, r := e.maxTokens, e.maxReqs
	m.idsAt, m.positionsAt, m.slotsAt = place(t), place(t), place(t)
	m.startsAt, m.lensAt, m.rowsAt = place(r+1), place(r), place(r)
	m.tableAt = place(r * m.width)
	buf, err := e.alloc(4 * m.words)
	if err != nil {
		return m, err
	}
	m.buf = buf
	tensor := func(at int, dims ...int) ascendrt.Tensor {
		n := 4
		for _, d := range dims {
			n *= d
		}
		return ascendrt.NewTensor(buf.Slice(4*at, n), ascendrt.Int32, dims...)
	}
	m.ids, m.positions, m.slots = tensor(m.idsAt, t), tensor(m.positionsAt, t), tensor(m.slotsAt, t)
	m.starts, m.lens, m.rows = tensor(m.startsAt, r+1), tensor(m.lensAt, r), tensor(m.rowsAt, r)
	m.table = tensor(m.tableAt, r, m.width)
	return m, nil
}

// image is a pinned copy of the metadata and of the sampled tokens, for one
// step in flight.
type image struct {
	meta    ascendrt.HostBuffer
	words   []int32
	sampled ascendrt.HostBuffer
	tokens  []int32
	point   ascendrt.Point
	busy    bool
}

// seq is what the executor knows of a request that has run.
type seq struct {
	id     scheduler.RequestID
	blocks []kvcache.BlockID
	cell   int32 // its place in the device's last sampled tokens; -1 if it holds none
}

// fill writes the inputs of the plan's rows into the image, padded to t tokens
// and r rows. Padding rows have no tokens, no length and no output; padding
// tokens are zero rows that write no cache.
func (e *Executor) fill(img *image, p *scheduler.Plan, t, r int) {
	m, w := &e.meta, img.words
	ids, positions, slots := w[m.idsAt:m.idsAt+t], w[m.positionsAt:m.positionsAt+t], w[m.slotsAt:m.slotsAt+t]
	starts, lens, rows := w[m.startsAt:m.startsAt+r+1], w[m.lensAt:m.lensAt+r], w[m.rowsAt:m.rowsAt+r]
	bs := int32(e.c.BlockSize)
	at := int32(0)
	starts[0] = 0
	for i, id := range p.Requests {
		blocks := e.seqs[id.Slot()].blocks
		pos := p.Computed[i]
		for _, tok := range p.Input(i) {
			ids[at], positions[at] = int32(tok), pos
			slots[at] = int32(blocks[pos/bs])*bs + pos%bs
			at++
			pos++
		}
		starts[i+1], lens[i], rows[i] = at, pos, at-1
		row := w[m.tableAt+i*m.width : m.tableAt+(i+1)*m.width]
		n := copy(row, asWords(blocks))
		clear(row[n:])
	}
	for i := int(at); i < t; i++ {
		ids[i], positions[i], slots[i] = -1, -1, -1
	}
	for i := len(p.Requests); i < r; i++ {
		starts[i+1], lens[i], rows[i] = at, 0, -1
		clear(w[m.tableAt+i*m.width : m.tableAt+(i+1)*m.width])
	}
}
