package offload

import "github.com/sluice-serving/sluice/ascendrt"

// A block is many small pieces on the device, one in each region, and one run of
// bytes in the tier. A copy between device and host costs as much time as it takes
// to move tens of kilobytes, so pieces are gathered on the device first, where a
// device does that at its memory's speed, and cross as runs. Each lane has two stages,
// which take turns: what a stage holds crosses before it is filled again, in the order
// of its stream, and the other one is filled meanwhile.

const gatherBytes = 256 << 10 // pieces on average below this are gathered

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

// staged appends what one filling of the stage moves. A block lies in the stage as it
// does in a slot, without what is behind it there.
func (m *DeviceMover) staged(l *lane, stage ascendrt.Buffer, c Copies, bytes int) {
	for len(l.ids) < len(c.Blocks) {
		l.ids = append(l.ids, int32(len(l.ids)))
	}
	ids := l.ids[:len(c.Blocks)]
	l.areas = l.areas[:0]
	at := 0
	for _, p := range c.Parts {
		l.area(m.regions[p.Region].View(), p.Bytes, p.Bytes, stage.Slice(at, stage.Len()-at), bytes)
		at += p.Bytes
	}
	if !l.load {
		l.copyBlocks(c.Blocks, ids, ascendrt.CopyByUnits, m.how.Width)
	}
	l.near, l.far = l.near[:0], l.far[:0]
	for first, i := 0, 1; i <= len(c.Slots); i++ {
		if i < len(c.Slots) && int64(bytes) == c.SlotBytes && c.Slots[i] == c.Slots[i-1]+1 {
			continue
		}
		l.near = append(l.near, stage.Slice(first*bytes, (i-first)*bytes))
		l.far = append(l.far, m.host.Slice(int(int64(c.Slots[first])*c.SlotBytes), (i-first)*bytes))
		first = i
	}
	l.copyAll(l.near, l.far)
	if l.load {
		l.copyBlocks(c.Blocks, ids, ascendrt.CopyByUnits, m.how.Width)
	}
}

// stagedPieces is staged by a list of pieces.
func (m *DeviceMover) stagedPieces(l *lane, stage ascendrt.Buffer, c Copies) {
	l.near, l.rows, l.list = l.near[:0], l.rows[:0], l.list[:0]
	at := 0
	for v := range c.moves {
		l.list = append(l.list, v)
		l.near = append(l.near, m.regions[v.region].Slice(int(v.offset), v.bytes))
		l.rows = append(l.rows, stage.Slice(at, v.bytes))
		at += v.bytes
	}
	if !l.load {
		l.cmd.CopyBatch(l.rows, l.near)
	}
	m.cross(l, stage)
	if l.load {
		l.cmd.CopyBatch(l.near, l.rows)
	}
}

// cross appends the copies of a list of pieces between the stage and the host, run by
// run.
func (m *DeviceMover) cross(l *lane, stage ascendrt.Buffer) {
	l.runs, l.far = l.runs[:0], l.far[:0]
	for i, at := 0, 0; i < len(l.list); {
		n, k := l.list[i].bytes, i+1
		for k < len(l.list) && l.list[k].host == l.list[i].host+int64(n) {
			n += l.list[k].bytes
			k++
		}
		l.runs = append(l.runs, stage.Slice(at, n))
		l.far = append(l.far, m.host.Slice(int(l.list[i].host), n))
		at += n
		i = k
	}
	l.copyAll(l.runs, l.far)
}
