package host

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

// attention works on (request, KV head, chunk of query rows): it packs the
// keys that the chunk sees as panels [HeadDim][Panel] and the values as
// [tokens][HeadDim], then computes whole rows of scores, their softmax and
// their weighted sum, each in ascending order of the keys.
func (s *opState) attention(at ascendrt.AttentionAttr, p *pool) {
	s.make = func(a []arg, slots [][]int64) (func(*scratch) error, error) {
		m := &attentionRun{q: a[0], k: a[1], v: a[2], table: a[3], starts: a[4], lens: a[5], y: a[6], at: at, pool: p}
		if len(slots) > 0 && slots[0] != nil {
			if len(slots[0]) != m.table.rows {
				return nil, errors.New("slot lens does not have one value per request")
			}
			m.given = slots[0]
		}
		if len(slots) > 1 && slots[1] != nil {
			if len(slots[1]) != m.table.rows+1 {
				return nil, errors.New("slot starts does not have one value per request and one behind")
			}
			m.begins = slots[1]
		}
		return m.run, nil
	}
}

type attentionRun struct {
	q, k, v, table, starts, lens, y arg

	at     ascendrt.AttentionAttr
	given  []int64 // lengths from the host; nil: the tensor's
	begins []int64 // starts from the host; nil: the tensor's
	pool   *pool
}

// span is the work of one task: query rows of one request and one KV head.
type span struct {
	req, head int
	row, rows int // query rows in q
	pos       int // position of the first of them
}

// taskRows bounds the rows of a task, so that long prompts spread over cores;
// packing the keys again costs 1/(taskRows·group) of the scores.
const taskRows = 128

func (m *attentionRun) run(sc *scratch) error {
	spans, macs, err := m.plan()
	if err != nil {
		return err
	}
	m.pool.run(sc, len(spans), sized(macs), func(sc *scratch, i int) { m.span(sc, spans[i]) })
	return nil
}

// plan checks every index of the step and lists the tasks; it zeroes the rows
// that belong to nobody.
func (m *attentionRun) plan() ([]span, int, error) {
	starts, lens, table := m.starts.i32(), m.lens.i32(), m.table.i32()
	var spans []span
	macs, next := 0, 0
	for r := range m.table.rows {
		from, to := int(starts[r]), int(starts[r+1])
		if m.begins != nil {
			from, to = int(m.begins[r]), int(m.begins[r+1])
		}
		n := int(lens[r])
		if m.given != nil {
			n = int(m.given[r])
		}
		if from != next || to < from || to > m.q.rows {
			return nil, 0, fmt.Errorf("starts[%d..%d] = %d, %d do not follow each other within %d rows", r, r+1, from, to, m.q.rows)
		}
		next = to
		rows := to - from
		if rows == 0 {
			continue
		}
		if n <= 0 {
			m.zero(from, to)
			continue
		}
		if n < rows {
			return nil, 0, fmt.Errorf("request %d has %d rows and only %d tokens", r, rows, n)
		}
		if n > m.table.row*m.at.BlockSize {
			return nil, 0, fmt.Errorf("request %d has %d tokens; its block table holds %d", r, n, m.table.row*m.at.BlockSize)
		}
		first := 0
		if w := m.at.Window; w > 0 {
			first = max(0, n-rows+1-w) / m.at.BlockSize
		}
		for i := first; i*m.at.BlockSize < n; i++ {
			if b := table[r*m.table.stride+i]; b < 0 || int(b) >= m.k.rows {
				return nil, 0, fmt.Errorf("block %d of request %d is %d of %d", i, r, b, m.k.rows)
			}
		}
		macs += 2 * rows * n * m.at.Heads * m.at.HeadDim
		for at := 0; at < rows; at += taskRows {
			for h := range m.at.KVHeads {
				spans = append(spans, span{req: r, head: h, row: from + at, rows: min(taskRows, rows-at), pos: n - rows + at})
			}
		}
	}
	m.zero(next, m.q.rows)
	return spans, macs, nil
}

func (m *attentionRun) zero(from, to int) {
	size := m.y.typ.Size()
	for r := from; r < to; r++ {
		clear(m.y.b[r*m.y.stride*size:][:m.y.row*size])
	}
}

// Scratch slots of a task.
const (
	scratchQuery = iota
	scratchKeys
	scratchValues
	scratchScores
	scratchOut
	scratchWide
	scratchSum
)

func (m *attentionRun) span(sc *scratch, t span) {
	const panel = arith.Panel
	d, group := m.at.HeadDim, m.at.Heads/m.at.KVHeads
	end := t.pos + t.rows // tokens that the last row sees
	start := 0            // first token that the first row sees
	if w := m.at.Window; w > 0 {
		start = max(0, t.pos+1-w)
	}
	first := start / panel * panel
	width := (end - first + panel - 1) / panel * panel
	keys, values := m.pack(sc, t, first, start, end, width)

	// Rows of scores are (query row, head of the group), query rows outermost.
	few := max(1, min(t.rows, 1<<16/(group*width)))
	query := sc.f(scratchQuery, few*group*d)
	scores := sc.f(scratchScores, few*group*width)
	out := sc.f(scratchOut, few*group*d)
	sums, lens := sc.f(scratchSum, few*group), make([]int, 0, few*group)
	for done := 0; done < t.rows; done += few {
		n := min(few, t.rows-done)
		for i := range n {
			for g := range group {
				dst := query[(i*group+g)*d:][:d]
				copy(dst, m.q.part(t.row+done+i, (t.head*group+g)*d, d, dst))
			}
		}
		pos := t.pos + done
		for j := 0; j < width; j += panel {
			// Rows that see no key of this panel need no scores.
			from := max(0, first+j-pos)
			if from >= n {
				break
			}
			arith.MulAcc(scores[from*group*width+j:], width, query[from*group*d:], d, keys[j*d:], panel, (n-from)*group, d, panel, arith.Start)
		}
		lens = lens[:0]
		low := 0
		for i := range n {
			lo, hi := 0, pos+i+1-first
			if w := m.at.Window; w > 0 {
				lo = max(0, pos+i+1-w-first)
			}
			if i == 0 {
				low = lo
			}
			for g := range group {
				row := scores[(i*group+g)*width:][:hi]
				clear(row[low:lo]) // keys that have left the window weigh nothing
				row = row[lo:]
				arith.ExpSub(row, m.at.Scale, float32(arith.Max(row)*m.at.Scale))
				lens = append(lens, hi-low)
			}
		}
		arith.Sums(sums, scores[low:], width, lens)
		m.weigh(out, scores[low:], width, values[low*d:], lens, group)
		m.finish(sc, t, done, n, out, sums)
	}
}

// pack brings the request's keys and values from token start to end into
// float32 working memory that begins with token first. What lies before start
// and behind end stays as it is: no row sees it.
func (m *attentionRun) pack(sc *scratch, t span, first, start, end, width int) (keys, values []float32) {
	const panel = arith.Panel
	d, bs := m.at.HeadDim, m.at.BlockSize
	keys, values = sc.f(scratchKeys, width*d), sc.f(scratchValues, width*d)
	wide := sc.f(scratchWide, panel*d)
	table := m.table.i32()[t.req*m.table.stride:]
	row := m.at.KVHeads * d
	for j := start; j < end; {
		// A run of tokens within one block and one panel.
		n := min(end-j, bs-j%bs, panel-(j-first)%panel)
		block := int(table[j/bs])
		off := j%bs*row + t.head*d
		at := j - first
		dst := keys[at/panel*panel*d+at%panel:]
		if m.k.typ == ascendrt.Float32 {
			src := m.k.f32()[block*m.k.stride+off:]
			arith.TransposeInto(dst, panel, src, row, n, d)
		} else {
			for i := range n {
				m.k.part(block, off+i*row, d, wide[i*d:])
			}
			arith.TransposeInto(dst, panel, wide, d, n, d)
		}
		for i := range n {
			to := values[(at+i)*d:][:d]
			copy(to, m.v.part(block, off+i*row, d, to))
		}
		j += n
	}
	return keys, values
}

// weigh computes out[r] = Σ_j p[r][j]·values[j] over each row's own length.
// Rows advance together over the keys that all of a tile see, then query row
// by query row over the rest.
func (m *attentionRun) weigh(out, p []float32, width int, values []float32, lens []int, group int) {
	d := m.at.HeadDim
	tile := max(1, 8/group) * group
	for r := 0; r < len(lens); r += tile {
		n := min(tile, len(lens)-r)
		common := lens[r]
		arith.MulAcc(out[r*d:], d, p[r*width:], width, values, d, n, common, d, arith.Start)
		for i := r + group; i < r+n; i += group {
			if rest := lens[i] - common; rest > 0 {
				arith.MulAcc(out[i*d:], d, p[i*width+common:], width, values[common*d:], d, group, rest, d, arith.Continue)
			}
		}
	}
}

// finish divides by the sums and stores the rows.
func (m *attentionRun) finish(sc *scratch, t span, done, n int, out, sums []float32) {
	d, group := m.at.HeadDim, m.at.Heads/m.at.KVHeads
	for i := range n {
		at := (t.row+done+i)*m.y.stride + t.head*group*d
		for g := range group {
			divide(out[(i*group+g)*d:][:d], sums[i*group+g])
		}
		row := out[i*group*d:][:group*d]
		if m.y.typ == ascendrt.Float32 {
			copy(m.y.f32()[at:], row)
		} else {
			arith.ToBF16(m.y.u16()[at:][:group*d], row)
		}
	}
}

//go:norace
func divide(row []float32, by float32) {
	for i := range row {
		row[i] /= by
	}
}
