package host

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

// matmul computes y = x·Wᵀ by panels of outputs. A panel's weights are packed
// [K][panel] once per chunk of rows, unless they already lie that way and the
// rows are few.
func (s *opState) matmul(at ascendrt.MatmulAttr, p *pool) {
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		x, w, y := a[0], a[1], a[2]
		m := matmulRun{x: x, w: w, y: y, at: at}
		const panel, chunk = arith.Panel, 256
		panels, chunks := (at.Out+panel-1)/panel, (x.rows+chunk-1)/chunk
		return func(sc *scratch) error {
			p.run(sc, panels*chunks, sized(x.rows*at.In*at.Out), func(sc *scratch, i int) {
				m.panel(sc, i%panels*panel, i/panels*chunk, min(chunk, x.rows-i/panels*chunk))
			})
			return nil
		}, nil
	}
}

type matmulRun struct {
	x, w, y arg
	at      ascendrt.MatmulAttr
}

// panel computes columns from j of rows r0..r0+rows.
func (m *matmulRun) panel(sc *scratch, j, r0, rows int) {
	const panel = arith.Panel
	k := m.at.In
	cols := min(panel, m.at.Out-j)
	b, bs := m.pack(sc, j, cols, rows)
	const block = 64
	for r := r0; r < r0+rows; r += block {
		n := min(block, r0+rows-r)
		a, as := m.rows(sc, r, n)
		if m.y.typ == ascendrt.Float32 {
			arith.MulAcc(m.y.f32()[r*m.y.stride+j:], m.y.stride, a, as, b, bs, n, k, cols, arith.Start)
			continue
		}
		c := sc.f(2, block*panel)
		arith.MulAcc(c, panel, a, as, b, bs, n, k, cols, arith.Start)
		dst := m.y.u16()
		for i := range n {
			arith.ToBF16(dst[(r+i)*m.y.stride+j:][:cols], c[i*panel:][:cols])
		}
	}
}

// rows gives n input rows as float32 with their stride.
func (m *matmulRun) rows(sc *scratch, r, n int) ([]float32, int) {
	if m.x.typ == ascendrt.Float32 {
		return m.x.f32()[r*m.x.stride:], m.x.stride
	}
	k := m.at.In
	a := sc.f(0, n*k)
	for i := range n {
		m.x.load(r+i, a[i*k:(i+1)*k])
	}
	return a, k
}

// pack gives the weights of outputs j..j+cols as [K][cols] with their stride.
func (m *matmulRun) pack(sc *scratch, j, cols, rows int) ([]float32, int) {
	const panel, few = arith.Panel, 8
	k := m.at.In
	if m.at.Weights == ascendrt.WeightsKM {
		if m.w.typ == ascendrt.Float32 && rows <= few {
			return m.w.f32()[j:], m.w.stride
		}
		b := sc.f(1, k*panel)
		for i := range k {
			row := m.w.part(i, j, cols, b[i*panel:])
			if m.w.typ == ascendrt.Float32 {
				copy(b[i*panel:], row)
			}
		}
		return b, panel
	}
	b := sc.f(1, k*panel)
	if m.w.typ == ascendrt.Float32 {
		arith.TransposeInto(b, panel, m.w.f32()[j*m.w.stride:], m.w.stride, cols, k)
		return b, panel
	}
	wide := sc.f(3, cols*k)
	for i := range cols {
		m.w.load(j+i, wide[i*k:(i+1)*k])
	}
	arith.TransposeInto(b, panel, wide, k, cols, k)
	return b, panel
}
