package offload

import "github.com/sluice-serving/sluice/ascendrt"

// A block is many small pieces on the device, one in each region, and one run of
// bytes in the tier. A copy between device and host costs as much time as it takes
// to move tens of kilobytes, so pieces are gathered on the device first, where a
// device does that at its memory's speed, and cross as runs. Two lanes of one
// stage each: what a stage holds crosses before it is filled again, in the order
// of the lane's stream.

const (
	stageBytes = 16 << 20
	// Moves on average below this are gathered.
	gatherBytes = 256 << 10
)

// gathers tells whether moves are small and lie in few runs of the tier.
func gathers(moves []Move) bool {
	bytes, runs := 0, 0
	for i, v := range moves {
		if v.Bytes > stageBytes {
			return false
		}
		bytes += v.Bytes
		if i == 0 || moves[i-1].Host+int64(moves[i-1].Bytes) != v.Host {
			runs++
		}
	}
	return bytes < gatherBytes*len(moves) && 4*runs <= len(moves)
}

// throughStage submits the moves, a filling of the stage at a time: many small
// pieces take as long to prepare as to cross, and so the next filling is prepared
// while one crosses. The point is behind what was submitted.
func (m *DeviceMover) throughStage(l *lane, moves []Move) (p ascendrt.Point, err error) {
	for len(moves) > 0 && err == nil {
		n, used := 0, 0
		for n < len(moves) && used+moves[n].Bytes <= stageBytes {
			used += moves[n].Bytes
			n++
		}
		l.cmd.Reset()
		m.stageOnce(l, moves[:n])
		p, err = l.send(p)
		moves = moves[n:]
	}
	return p, err
}

// stageOnce appends what one filling of the stage moves.
func (m *DeviceMover) stageOnce(l *lane, moves []Move) {
	l.near, l.rows = l.near[:0], l.rows[:0]
	at := 0
	for _, v := range moves {
		l.near = append(l.near, m.regions[v.Region].Slice(int(v.Offset), v.Bytes))
		l.rows = append(l.rows, l.stage.Slice(at, v.Bytes))
		at += v.Bytes
	}
	if !l.load {
		l.cmd.CopyBatch(l.rows, l.near)
	}
	m.cross(l, moves)
	if l.load {
		l.cmd.CopyBatch(l.near, l.rows)
	}
}

// cross appends the copies between the stage and the host, run by run.
func (m *DeviceMover) cross(l *lane, moves []Move) {
	l.runs, l.far = l.runs[:0], l.far[:0]
	for i, at := 0, 0; i < len(moves); {
		n, k := moves[i].Bytes, i+1
		for k < len(moves) && moves[k].Host == moves[i].Host+int64(n) {
			n += moves[k].Bytes
			k++
		}
		l.runs = append(l.runs, l.stage.Slice(at, n))
		l.far = append(l.far, m.host.Slice(int(moves[i].Host), n))
		at += n
		i = k
	}
	l.copyAll(l.runs, l.far)
}
