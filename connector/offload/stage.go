package offload

import "github.com/sluice-serving/sluice/ascendrt"

// A block is many small pieces on the device, one in each region, and one run of
// bytes in the tier. A copy between device and host costs as much time as it takes
// to move tens of kilobytes, so pieces are gathered on the device first, where a
// device does that at its memory's speed, and cross as runs. A lane gathers on one
// stream and crosses on others, each in order; events tell when a stage is full and
// when it may be filled again. With three stages one is always ready to cross: with
// two that take turns on one stream each, both may end at the same time, and nothing
// crosses while they are filled.

const gatherBytes = 256 << 10 // pieces on average below this are gathered

// stage is memory on the device for one filling.
type stage struct {
	memory     ascendrt.Buffer
	full, free ascendrt.Event
}

// gathers tells whether the pieces of a block are small and many, and one run of a
// slot.
func gathers(c Copies, bytes int) bool {
	at := int64(0)
	for _, p := range c.Parts {
		if p.Offset != at {
			return false
		}
		at += int64(p.Bytes)
	}
	return bytes < gatherBytes*len(c.Parts) && len(c.Parts) >= 4
}

// part is what one stream does of a filling.
type part struct {
	on ascendrt.Stream
	do func()
}

// through appends a filling's way through a stage: gathered and crossing, or, in a
// lane to the device, crossing and scattered.
func (l *lane) through(s *stage, units, bus part) {
	first, then := units, bus
	if l.load {
		first, then = bus, units
	}
	l.cmd.OnStream(first.on)
	l.cmd.WaitEvent(s.free)
	first.do()
	l.cmd.Record(s.full)
	l.cmd.OnStream(then.on)
	l.cmd.WaitEvent(s.full)
	then.do()
	l.cmd.Record(s.free)
}

// staged appends what one filling of the stage moves. A block lies in the stage as it
// does in a slot, without what is behind it there.
func (m *DeviceMover) staged(l *lane, s *stage, bus ascendrt.Stream, c Copies, bytes int) {
	for len(l.ids) < len(c.Blocks) {
		l.ids = append(l.ids, int32(len(l.ids)))
	}
	l.areas = l.areas[:0]
	at := 0
	for _, p := range c.Parts {
		l.area(m.regions[p.Region].View(), p.Bytes, p.Bytes, s.memory.Slice(at, s.memory.Len()-at), bytes)
		at += p.Bytes
	}
	l.through(s, part{l.units, func() {
		l.copyBlocks(c.Blocks, l.ids[:len(c.Blocks)], ascendrt.CopyByUnits, m.how.Width)
	}}, part{bus, func() {
		l.near, l.far = l.near[:0], l.far[:0]
		for first, i := 0, 1; i <= len(c.Slots); i++ {
			if i < len(c.Slots) && int64(bytes) == c.SlotBytes && c.Slots[i] == c.Slots[i-1]+1 {
				continue
			}
			m.run(l, s, first*bytes, int64(c.Slots[first])*c.SlotBytes, (i-first)*bytes)
			first = i
		}
		l.copyAll(l.near, l.far)
	}})
}

// stagedPieces is staged by a list of pieces.
func (m *DeviceMover) stagedPieces(l *lane, s *stage, bus ascendrt.Stream, c Copies) {
	l.pieces, l.rows, l.list = l.pieces[:0], l.rows[:0], l.list[:0]
	at := 0
	for v := range c.moves {
		l.list = append(l.list, v)
		l.pieces = append(l.pieces, m.regions[v.region].Slice(int(v.offset), v.bytes))
		l.rows = append(l.rows, s.memory.Slice(at, v.bytes))
		at += v.bytes
	}
	l.through(s, part{l.units, func() {
		if l.load {
			l.cmd.CopyBatch(l.pieces, l.rows)
		} else {
			l.cmd.CopyBatch(l.rows, l.pieces)
		}
	}}, part{bus, func() {
		l.near, l.far = l.near[:0], l.far[:0]
		for i, at := 0, 0; i < len(l.list); {
			n, k := l.list[i].bytes, i+1
			for k < len(l.list) && l.list[k].host == l.list[i].host+int64(n) {
				n += l.list[k].bytes
				k++
			}
			m.run(l, s, at, l.list[i].host, n)
			at += n
			i = k
		}
		l.copyAll(l.near, l.far)
	}})
}

// run appends the copies of a run between the stage and the host.
func (m *DeviceMover) run(l *lane, s *stage, at int, host int64, n int) {
	for n > 0 {
		some := min(n, m.how.Run)
		l.near = append(l.near, s.memory.Slice(at, some))
		l.far = append(l.far, m.host.Slice(int(host), some))
		at, host, n = at+some, host+int64(some), n-some
	}
}
