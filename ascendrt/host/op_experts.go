package host

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// Operations of this backend alone: the experts of a mixture, whole or as one of
// several ranks has them. Sums are those of docs/numerics.md, and a row's result
// depends on nothing but the row: not on which rank computes it.
const (
	// OpRoute takes the TopK largest of logits[N,E] (binary32), of equal ones the
	// lower: ids[N,K], largest first, and their softmax over all experts as
	// weights[N,K] (binary32), divided by their sum if Normalised.
	OpRoute ascendrt.OpKind = "route"
	// OpExperts runs x[N,In] through the experts First … First+Count-1 that ids[N,K]
	// name, SwiGLU between gateUp[Count,In,2·Inner] and down[Count,Inner,In], and
	// puts what the k-th one of a row gives into the k-th part of y[N,K·In]. Parts of
	// other experts become zeros. Inner values are binary32 for any storage type.
	OpExperts ascendrt.OpKind = "experts"
	// OpCombine sums the parts of rows by their weights, k ascending:
	// y[n] = Σ_k fl(weights[n,k]·part k). parts[R·N,K·Dim] holds N rows for each of R
	// ranks, of which rank ids[n,k] / PerRank has the part of that expert.
	OpCombine ascendrt.OpKind = "combine"
)

// RouteAttr is the attribute of OpRoute.
type RouteAttr struct {
	Experts, TopK int
	Normalised    bool
}

// ExpertsAttr is the attribute of OpExperts.
type ExpertsAttr struct{ In, Inner, TopK, First, Count int }

// CombineAttr is the attribute of OpCombine.
type CombineAttr struct{ Dim, TopK, PerRank int }

func (s *opState) route(spec ascendrt.OpSpec) error {
	at, err := opspec.Attr(spec, func(a RouteAttr) []int { return []int{a.Experts, a.TopK} })
	if err == nil && at.TopK > at.Experts {
		return fmt.Errorf("route: %d of %d experts: %w", at.TopK, at.Experts, ascendrt.ErrInvalid)
	}
	const f = ascendrt.Float32
	s.Signature = opspec.New(spec, []opspec.Param{
		{Name: "logits", Type: f, Rank: 2, Row: at.Experts}, {Name: "ids", Type: ascendrt.Int32, Rank: 2, Row: at.TopK, Use: opspec.Writes},
		{Name: "weights", Type: f, Rank: 2, Row: at.TopK, Use: opspec.Writes},
	}, nil, func(s *opspec.Signature, a []ascendrt.Tensor) error { return s.SameRows(a, 0, 1, 2) })
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		return func(sc *scratch) error {
			p := sc.f(0, at.Experts)
			for r := range a[0].rows {
				copy(p, a[0].load(r, nil))
				routeRow(p, a[1].i32()[r*a[1].stride:][:at.TopK], a[2].load(r, nil), at.Normalised)
			}
			return nil
		}, nil
	}
	return err
}

// routeRow leaves the logits as shares.
func routeRow(p []float32, ids []int32, weights []float32, normalised bool) {
	arith.ExpSub(p, 1, arith.Max(p))
	var total, taken float32
	for _, v := range p {
		total += v
	}
	for k := range ids {
		best := -1
		for e, v := range p {
			if v >= 0 && (best < 0 || v > p[best]) {
				best = e
			}
		}
		for best = max(best, 0); contains(ids[:k], best); best++ { // of NaN there is no largest one
		}
		ids[k], weights[k] = int32(best), p[best]/total
		taken += weights[k]
		p[best] = -1
	}
	if normalised {
		for k := range weights {
			weights[k] /= taken
		}
	}
}

func contains(ids []int32, e int) bool {
	for _, id := range ids {
		if int(id) == e {
			return true
		}
	}
	return false
}

func (s *opState) experts(spec ascendrt.OpSpec, p *pool) error {
	at, err := opspec.Attr(spec, func(a ExpertsAttr) []int { return []int{a.In, a.Inner, a.TopK, a.Count, a.First + 1} })
	if err := floats(spec); err != nil {
		return err
	}
	t := spec.Type
	s.Signature = opspec.New(spec, []opspec.Param{
		{Name: "x", Type: t, Rank: 2, Row: at.In}, {Name: "ids", Type: ascendrt.Int32, Rank: 2, Row: at.TopK},
		{Name: "gate_up", Type: t, Rank: 3, Row: at.In * 2 * at.Inner}, {Name: "down", Type: t, Rank: 3, Row: at.Inner * at.In},
		{Name: "y", Type: t, Rank: 2, Row: at.TopK * at.In, Use: opspec.Writes},
	}, nil, func(s *opspec.Signature, a []ascendrt.Tensor) error {
		if a[2].Rows() != at.Count || a[3].Rows() != at.Count {
			return errors.New("gate_up and down do not have Count experts")
		}
		return s.SameRows(a, 0, 1, 4)
	})
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		m := expertsRun{x: a[0], ids: a[1], gateUp: a[2], down: a[3], y: a[4], at: at}
		return func(sc *scratch) error {
			size := m.y.typ.Size()
			for r := range m.y.rows {
				clear(m.y.b[r*m.y.stride*size:][:m.y.row*size])
			}
			p.run(sc, at.Count, sized(m.x.rows*at.TopK*3*at.In*at.Inner), m.expert)
			return nil
		}, nil
	}
	return err
}

// floats refuses storage types that hold no activations.
func floats(spec ascendrt.OpSpec) error {
	if spec.Type != ascendrt.Float32 && spec.Type != ascendrt.BFloat16 {
		return fmt.Errorf("storage type %v: float32 and bfloat16 exist: %w", spec.Type, ascendrt.ErrUnsupported)
	}
	return nil
}

type expertsRun struct {
	x, ids, gateUp, down, y arg

	at ExpertsAttr
}

// expertRows is how many rows an expert runs at a time.
const expertRows = 64

// expert runs the rows of one expert.
func (m *expertsRun) expert(sc *scratch, e int) {
	in, k := m.at.In, m.at.TopK
	x := sc.f(4, expertRows*in)
	var places [expertRows]int // of the results: row and part
	n := 0
	flush := func() {
		m.rows(sc, e, x[:n*in], n, places[:n])
		n = 0
	}
	ids := m.ids.i32()
	for r := range m.x.rows {
		for j, id := range ids[r*m.ids.stride:][:k] {
			if int(id) != m.at.First+e {
				continue
			}
			copy(x[n*in:(n+1)*in], m.x.load(r, x[n*in:(n+1)*in]))
			places[n] = r*m.y.stride + j*in
			if n++; n == expertRows {
				flush()
			}
		}
	}
	if n > 0 {
		flush()
	}
}

// rows runs n rows and stores them.
func (m *expertsRun) rows(sc *scratch, e int, x []float32, n int, places []int) {
	in, f := m.at.In, m.at.Inner
	inner := sc.f(5, n*2*f)
	m.product(sc, x, in, part(&m.gateUp, e, in, 2*f), inner, n)
	act := sc.f(6, n*f)
	for i := range n {
		arith.SiluMul(act[i*f:(i+1)*f], inner[i*2*f:][:f], inner[i*2*f+f:][:f])
	}
	out := sc.f(7, n*in)
	m.product(sc, act, f, part(&m.down, e, f, in), out, n)
	for i, at := range places {
		if m.y.typ == ascendrt.Float32 {
			copy(m.y.f32()[at:at+in], out[i*in:])
		} else {
			arith.ToBF16(m.y.u16()[at:at+in], out[i*in:(i+1)*in])
		}
	}
}

// part is one matrix [k,m] of a stack.
func part(a *arg, e, k, m int) arg {
	size := a.typ.Size()
	return arg{b: a.b[e*a.stride*size:][:k*m*size], typ: a.typ, rows: k, row: m, stride: m}
}

// product computes y = x·w with the sums of OpMatmul.
func (m *expertsRun) product(sc *scratch, x []float32, k int, w arg, y []float32, n int) {
	run := matmulRun{x: wide(x, n, k), w: w, y: wide(y, n, w.row), at: ascendrt.MatmulAttr{In: k, Out: w.row, Weights: ascendrt.WeightsKM}}
	for j := 0; j < w.row; j += arith.Panel {
		run.panel(sc, j, 0, n)
	}
}

// wide is scratch memory as an argument.
func wide(x []float32, rows, row int) arg {
	return arg{b: unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x)), typ: ascendrt.Float32, rows: rows, row: row, stride: row}
}

func (s *opState) combine(spec ascendrt.OpSpec) error {
	at, err := opspec.Attr(spec, func(a CombineAttr) []int { return []int{a.Dim, a.TopK, a.PerRank} })
	if err := floats(spec); err != nil {
		return err
	}
	t := spec.Type
	s.Signature = opspec.New(spec, []opspec.Param{
		{Name: "parts", Type: t, Rank: 2, Row: at.TopK * at.Dim}, {Name: "ids", Type: ascendrt.Int32, Rank: 2, Row: at.TopK},
		{Name: "weights", Type: ascendrt.Float32, Rank: 2, Row: at.TopK}, {Name: "y", Type: t, Rank: 2, Row: at.Dim, Use: opspec.Writes},
	}, nil, func(s *opspec.Signature, a []ascendrt.Tensor) error {
		if n := a[3].Rows(); n > 0 && a[0].Rows()%n != 0 {
			return fmt.Errorf("parts has %d rows, no multiple of %d", a[0].Rows(), n)
		}
		return s.SameRows(a, 1, 2, 3)
	})
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		parts, ids, weights, y := a[0], a[1], a[2], a[3]
		return func(sc *scratch) error {
			for r := range y.rows {
				sum := y.dest(r, sc.f(0, at.Dim))
				clear(sum)
				for k, w := range weights.load(r, nil) {
					id := ids.i32()[r*ids.stride+k]
					from := int(id)/at.PerRank*y.rows + r
					if id < 0 || from >= parts.rows {
						return outOfRange("expert", r, id, parts.rows/y.rows*at.PerRank)
					}
					for i, v := range parts.part(from, k*at.Dim, at.Dim, sc.f(1, at.Dim)) {
						sum[i] += float32(w * v)
					}
				}
				y.store(r, sum)
			}
			return nil
		}, nil
	}
	return err
}
