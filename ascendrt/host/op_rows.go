package host

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

// The operations whose rows are independent and cheap.

func (s *opState) embedding() {
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		return s.lookupRows(a[0], a[1], a[2], "token")
	}
}

func (s *opState) gather() {
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		return s.lookupRows(a[1], a[0], a[2], "index")
	}
}

// lookupRows copies rows as they are: y[i] = table[ids[i]], zeros for a negative id.
func (s *opState) lookupRows(ids, table, y arg, what string) (func(*scratch) error, error) {
	size := table.typ.Size()
	return func(*scratch) error {
		for i, id := range ids.i32()[:ids.rows] {
			to := y.b[i*y.stride*size:][:y.row*size]
			switch {
			case id < 0:
				clear(to)
			case int(id) >= table.rows:
				return outOfRange(what, i, id, table.rows)
			default:
				copy(to, table.b[int(id)*table.stride*size:])
			}
		}
		return nil
	}, nil
}

// norm writes y = x / sqrt(mean(x²) + eps) · w; y may be x.
//
//go:norace
func norm(y, x, w []float32, eps float32) {
	ss := arith.SumSquares(x)
	inv := 1 / arith.Sqrt(ss/float32(len(x))+eps)
	w, y = w[:len(x)], y[:len(x)]
	for i, v := range x {
		y[i] = float32(v*inv) * w[i]
	}
}

func (s *opState) rmsnorm(at ascendrt.NormAttr) {
	groups := at.Groups
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		x, w, y := a[0], a[1], a[2]
		return func(sc *scratch) error {
			weights := vector(&w, sc.f(0, at.Dim))
			for r := range x.rows {
				in := x.load(r, sc.f(1, x.row))
				out := y.dest(r, sc.f(2, y.row))
				for g := range groups {
					norm(out[g*at.Dim:(g+1)*at.Dim], in[g*at.Dim:(g+1)*at.Dim], weights, at.Eps)
				}
				y.store(r, out)
			}
			return nil
		}, nil
	}
}

// vector is a one-dimensional argument as float32.
func vector(a *arg, buf []float32) []float32 {
	if a.typ == ascendrt.Float32 {
		return a.f32()[:a.rows]
	}
	arith.FromBF16(buf, a.u16()[:a.rows])
	return buf
}

func (s *opState) addRMSNorm(at ascendrt.NormAttr) {
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		x, res, w, y := a[0], a[1], a[2], a[3]
		return func(sc *scratch) error {
			weights := vector(&w, sc.f(0, at.Dim))
			for r := range x.rows {
				in := x.load(r, sc.f(1, x.row))
				old := res.load(r, sc.f(2, res.row))
				sum := res.dest(r, sc.f(3, res.row))
				addRow(sum, old, in)
				res.store(r, sum)
				sum = res.load(r, sum) // the stored value, rounded
				out := y.dest(r, sc.f(4, y.row))
				norm(out, sum, weights, at.Eps)
				y.store(r, out)
			}
			return nil
		}, nil
	}
}

// addRow writes y = a + b; y may be either.
//
//go:norace
func addRow(y, a, b []float32) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = a[i] + b[i]
	}
}

func (s *opState) add(at ascendrt.AddAttr) {
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		return func(sc *scratch) error {
			for r := range a[0].rows {
				p, q := a[0].load(r, sc.f(0, at.Dim)), a[1].load(r, sc.f(1, at.Dim))
				out := a[2].dest(r, sc.f(2, at.Dim))
				addRow(out, p, q)
				a[2].store(r, out)
			}
			return nil
		}, nil
	}
}

func (s *opState) rope(at ascendrt.RopeAttr) {
	d := at.HeadDim
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		pos, table := a[2], a[3]
		return func(sc *scratch) error {
			for r, p := range pos.i32()[:pos.rows] {
				if p < 0 {
					continue
				}
				if int(p) >= table.rows {
					return outOfRange("position", r, p, table.rows)
				}
				cs := table.load(int(p), nil)
				for i := range a[:2] {
					x := a[i].load(r, sc.f(i, a[i].row))
					for h := 0; h < len(x); h += d {
						rotate(x[h:h+d], cs)
					}
					a[i].store(r, x)
				}
			}
			return nil
		}, nil
	}
}

// rotate turns the halves of one head against each other, in place.
//
//go:norace
func rotate(x, cs []float32) {
	half := len(x) / 2
	a, b, c, s := x[:half], x[half:], cs[:half], cs[half:]
	b, c, s = b[:len(a)], c[:len(a)], s[:len(a)]
	for i := range a {
		u, v := a[i], b[i]
		a[i] = float32(u*c[i]) - float32(v*s[i])
		b[i] = float32(v*c[i]) + float32(u*s[i])
	}
}

func (s *opState) scatter(at ascendrt.ScatterAttr) {
	row := at.KVHeads * at.HeadDim
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		k, v, slots, kc, vc := a[0], a[1], a[2], a[3], a[4]
		size := k.typ.Size()
		n := row * size
		place := func(c arg, slot int) []byte {
			return c.b[(slot/at.BlockSize*c.stride+slot%at.BlockSize*row)*size:][:n]
		}
		total := kc.rows * at.BlockSize
		return func(*scratch) error {
			for r, slot := range slots.i32()[:slots.rows] {
				if slot < 0 {
					continue
				}
				if int(slot) >= total {
					return outOfRange("slot", r, slot, total)
				}
				copy(place(kc, int(slot)), k.b[r*k.stride*size:])
				copy(place(vc, int(slot)), v.b[r*v.stride*size:])
			}
			return nil
		}, nil
	}
}

func (s *opState) swiglu(at ascendrt.SwiGLUAttr, p *pool) {
	f := at.Dim
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		x, y := a[0], a[1]
		const chunk = 64
		return func(sc *scratch) error {
			p.run(sc, (x.rows+chunk-1)/chunk, sized(8*x.rows*f), func(sc *scratch, i int) {
				for r := i * chunk; r < min(x.rows, (i+1)*chunk); r++ {
					in := x.load(r, sc.f(0, 2*f))
					out := y.dest(r, sc.f(1, f))
					arith.SiluMul(out, in[:f], in[f:])
					y.store(r, out)
				}
			})
			return nil
		}, nil
	}
}

func (s *opState) argmax() {
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		return func(sc *scratch) error {
			out := a[1].i32()
			for r := range a[0].rows {
				best, at := -inf32, 0
				for i, v := range a[0].load(r, sc.f(0, a[0].row)) {
					if v > best {
						best, at = v, i
					} else if v != v {
						at = -1
						break
					}
				}
				out[r*a[1].stride] = int32(at)
			}
			return nil
		}, nil
	}
}

func (s *opState) cast(at ascendrt.CastAttr) {
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		return func(sc *scratch) error {
			for r := range a[0].rows {
				in := a[0].load(r, sc.f(0, at.Dim))
				out := a[1].dest(r, sc.f(1, at.Dim))
				copy(out, in)
				a[1].store(r, out)
			}
			return nil
		}, nil
	}
}
