//go:build cgo && linux

package acl

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
)

// How each named operation becomes aclnn calls. Where the vendor's operator
// wants contiguous arrays, parts of a wider row are copied to temporaries
// first; an output that is also an input is computed beside it, unless both are
// elementwise.

// emitter writes the calls of an operation for checked arguments.
type emitter func(e *emission, a []ascendrt.Tensor)

func (s *opState) emitter() (emitter, error) {
	half := s.Spec.Type == ascendrt.BFloat16
	switch at := s.Spec.Attr.(type) {
	case ascendrt.EmbeddingAttr:
		return emitRows(0, 1), nil
	case ascendrt.GatherAttr:
		return emitRows(1, 0), nil
	case ascendrt.NormAttr:
		if s.Spec.Kind == ascendrt.OpAddRMSNorm {
			return emitAddNorm(at), nil
		}
		return emitNorm(at), nil
	case ascendrt.AddAttr:
		return func(e *emission, a []ascendrt.Tensor) { e.call(opAdd, asArray(&a[0]), asArray(&a[1]), asArray(&a[2])) }, nil
	case ascendrt.MatmulAttr:
		if at.OutType != s.Spec.Type {
			return nil, fmt.Errorf("aclnnMm stores what it reads: outputs are %v, not %v: %w", s.Spec.Type, at.OutType, ascendrt.ErrUnsupported)
		}
		return emitMatmul(at), nil
	case ascendrt.RopeAttr:
		if at.HeadDim%16 != 0 {
			return nil, fmt.Errorf("HeadDim %d: aclnnRopeWithSinCosCache takes multiples of 16: %w", at.HeadDim, ascendrt.ErrUnsupported)
		}
		return emitRope(at), nil
	case ascendrt.ScatterAttr:
		if !half {
			return nil, fmt.Errorf("the KV cache of this device is bfloat16, not %v: %w", s.Spec.Type, ascendrt.ErrUnsupported)
		}
		return emitScatter(at), nil
	case ascendrt.AttentionAttr:
		if !half {
			return nil, fmt.Errorf("attention of this device takes bfloat16, not %v: %w", s.Spec.Type, ascendrt.ErrUnsupported)
		}
		if at.BlockSize%128 != 0 || at.BlockSize > 512 {
			return nil, fmt.Errorf("BlockSize %d: attention of this device takes 128, 256, 384 or 512: %w", at.BlockSize, ascendrt.ErrUnsupported)
		}
		if at.HeadDim%16 != 0 || at.HeadDim > 512 || at.Heads/at.KVHeads > 64 || at.Heads > 256 {
			return nil, fmt.Errorf("%d heads over %d of width %d: attention of this device takes widths to 512, multiples of 16, and at most 64 heads to one: %w",
				at.Heads, at.KVHeads, at.HeadDim, ascendrt.ErrUnsupported)
		}
		return s.emitAttention(at), nil
	case ascendrt.SwiGLUAttr:
		return emitSwiGLU, nil
	case ascendrt.ArgmaxAttr:
		return emitArgmax, nil
	case ascendrt.CastAttr:
		return emitCast(at), nil
	}
	return nil, ascendrt.ErrUnsupported
}

// emitRows copies rows of a table; a negative index gives zeros, which the
// vendor's operator would take for an address.
func emitRows(ids, table int) emitter {
	return func(e *emission, a []ascendrt.Tensor) {
		i, y := asArray(&a[ids]), asArray(&a[2])
		negative, index := e.temp(aclBool, i.dim[0]), e.like(i)
		e.call(opLtScalar, i, negative)
		e.call(opClampMin, i, index)
		e.call(opEmbedding, asArray(&a[table]), index, y)
		e.call(opMaskedFill, y, negative.column())
	}
}

// norm computes y from x, of one shape, whose last dimension is w's.
func (e *emission) norm(x, w, y array, eps float32) {
	in, out := e.dense(x), y
	if !y.contiguous() || y.addr == in.addr {
		out = e.like(y)
	}
	dims := append([]int(nil), x.dim[:x.rank]...)
	dims[len(dims)-1] = 1
	e.callWith(opRMSNorm, nil, []uint64{number(float64(eps))}, in, w, out, e.temp(aclFloat, dims...))
	if out.addr != y.addr {
		e.call(opCopy, y, out)
	}
}

func emitNorm(at ascendrt.NormAttr) emitter {
	return func(e *emission, a []ascendrt.Tensor) {
		x, y := asArray(&a[0]), asArray(&a[2])
		if at.Groups > 1 {
			x, y = x.split(at.Groups, at.Dim), y.split(at.Groups, at.Dim)
		}
		e.norm(x, asArray(&a[1]), y, at.Eps)
	}
}

func emitAddNorm(at ascendrt.NormAttr) emitter {
	return func(e *emission, a []ascendrt.Tensor) {
		r := asArray(&a[1])
		e.call(opAdd, r, asArray(&a[0]), r)
		e.norm(r, asArray(&a[2]), asArray(&a[3]), at.Eps)
	}
}

func emitMatmul(at ascendrt.MatmulAttr) emitter {
	return func(e *emission, a []ascendrt.Tensor) {
		w := asArray(&a[1])
		if at.Weights == ascendrt.WeightsMK { // seen as [K,M] by its steps
			w.dim[0], w.dim[1] = w.dim[1], w.dim[0]
			w.steps[0], w.steps[1] = w.steps[1], w.steps[0]
		}
		e.call(opMm, asArray(&a[0]), w, asArray(&a[2]))
	}
}

// emitRope rotates in binary32, by a binary32 table, and rounds once. Rows with
// a negative position are rotated by position 0 and then not taken.
func emitRope(at ascendrt.RopeAttr) emitter {
	return func(e *emission, a []ascendrt.Tensor) {
		q, k, pos := asArray(&a[0]), asArray(&a[1]), asArray(&a[2])
		n := pos.dim[0]
		negative, clamped, wide := e.temp(aclBool, n), e.like(pos), e.temp(aclInt64, n)
		e.call(opLtScalar, pos, negative)
		e.call(opClampMin, pos, clamped)
		e.cast(clamped, wide)
		qi, ki := q, k
		if q.typ != aclFloat {
			qi, ki = e.temp(aclFloat, n, q.dim[1]), e.temp(aclFloat, n, k.dim[1])
			e.cast(q, qi)
			e.cast(k, ki)
		}
		qo, ko := e.temp(aclFloat, n, q.dim[1]), e.temp(aclFloat, n, k.dim[1])
		e.callWith(opRope, nil, []uint64{uint64(at.HeadDim)}, wide, qi, ki, asArray(&a[3]), qo, ko)
		for _, x := range [][2]array{{q, qo}, {k, ko}} {
			turned := x[1]
			if q.typ != aclFloat {
				turned = e.like(x[0])
				e.cast(x[1], turned)
			}
			e.call(opSelect, negative.column(), x[0], turned, x[0])
		}
	}
}

func (e *emission) cast(x, y array) { e.callWith(opCast, nil, []uint64{uint64(y.typ)}, x, y) }

func emitScatter(at ascendrt.ScatterAttr) emitter {
	return func(e *emission, a []ascendrt.Tensor) {
		k := e.dense(asArray(&a[0]).split(at.KVHeads, at.HeadDim))
		v := e.dense(asArray(&a[1]).split(at.KVHeads, at.HeadDim))
		e.call(opScatter, k, asArray(&a[3]), asArray(&a[2]), v, asArray(&a[4]))
	}
}

// emitAttention plans on the host: the lengths and starts of the requests are
// values here, and a captured call keeps them until a graph update.
func (s *opState) emitAttention(at ascendrt.AttentionAttr) emitter {
	sparse, pre := uint64(3), uint64(0)
	if at.Window > 0 {
		sparse, pre = 4, uint64(at.Window-1)
	}
	numbers := []uint64{uint64(at.Heads), uint64(at.KVHeads), uint64(at.BlockSize), number(float64(at.Scale)), pre, sparse}
	return func(e *emission, a []ascendrt.Tensor) {
		q, y, table := asArray(&a[0]), asArray(&a[6]), asArray(&a[3])
		ends, lens, err := attentionRows(e.values, q.dim[0], table.dim[0], table.dim[1]*at.BlockSize)
		if err != nil {
			e.err = err
			return
		}
		rows := int(ends[len(ends)-1])
		out := y
		if !y.contiguous() {
			out = e.like(y)
		}
		if rows < q.dim[0] { // rows of no request, at any address
			e.call(opZero, y)
		}
		if rows == 0 {
			return
		}
		in := e.dense(q.first(rows))
		page := func(t *ascendrt.Tensor) array {
			return shaped(uint64(t.Addr), aclType(t.Type), t.Dim[0], at.BlockSize, at.KVHeads*at.HeadDim)
		}
		e.group = len(e.calls) + 1
		e.callWith(opAttention, [][]int64{ends, lens}, numbers, in.split(at.Heads, at.HeadDim), page(&a[1]), page(&a[2]),
			shaped(s.mask, aclBool, maskSide, maskSide), e.dense(table), out.first(rows).split(at.Heads, at.HeadDim))
		if out.addr != y.addr {
			e.call(opCopy, y.first(rows), out.first(rows))
		}
	}
}

// maskSide is the side of the upper triangle that attention takes as its mask.
const maskSide = 2048

// attentionRows checks the host's view of the requests.
func attentionRows(values [][]int64, rows, reqs, room int) (ends, lens []int64, err error) {
	if len(values) < 2 || values[0] == nil || values[1] == nil {
		return nil, nil, fmt.Errorf("this device plans attention on the host: give lens and starts as values of slots 0 and 1: %w", ascendrt.ErrInvalid)
	}
	lens, starts := append([]int64(nil), values[0]...), values[1]
	if len(lens) != reqs || len(starts) != reqs+1 || reqs == 0 {
		return nil, nil, fmt.Errorf("%d lens and %d starts for %d requests: %w", len(lens), len(starts), reqs, ascendrt.ErrInvalid)
	}
	if starts[0] != 0 || starts[reqs] > int64(rows) {
		return nil, nil, fmt.Errorf("starts go from %d to %d within %d rows: %w", starts[0], starts[reqs], rows, ascendrt.ErrInvalid)
	}
	for r := range lens {
		n := starts[r+1] - starts[r]
		lens[r] = max(0, lens[r])
		switch {
		case n < 0:
			return nil, nil, fmt.Errorf("starts fall from %d to %d at request %d: %w", starts[r], starts[r+1], r, ascendrt.ErrInvalid)
		case n == 0:
			lens[r] = 0 // nobody asks for its keys
		case lens[r] > 0 && lens[r] < n:
			return nil, nil, fmt.Errorf("request %d has %d rows and only %d tokens: %w", r, n, lens[r], ascendrt.ErrInvalid)
		case lens[r] > int64(room):
			return nil, nil, fmt.Errorf("request %d has %d tokens; its block table holds %d: %w", r, lens[r], room, ascendrt.ErrInvalid)
		}
	}
	return starts[1:], lens, nil
}

func emitSwiGLU(e *emission, a []ascendrt.Tensor) {
	x, y := e.dense(asArray(&a[0])), asArray(&a[1])
	out := y
	if !y.contiguous() {
		out = e.like(y)
	}
	e.call(opSwiGLU, x, out)
	if out.addr != y.addr {
		e.call(opCopy, y, out)
	}
}

// emitArgmax gives -1 for a row that holds a NaN, of which the vendor's operator
// says nothing: the row's product with zeros is zero, and NaN for such a row. It is
// NaN for a row with an infinity too, which no model means.
func emitArgmax(e *emission, a []ascendrt.Tensor) {
	x, y := asArray(&a[0]), asArray(&a[1])
	if !y.contiguous() {
		e.err = fmt.Errorf("y is not contiguous: %w", ascendrt.ErrInvalid)
		return
	}
	e.call(opArgMax, x, y)
	n := x.dim[0]
	zeros, product, good, one, bad := e.temp(x.typ, x.dim[1], 1), e.temp(x.typ, n, 1), e.temp(aclBool, n), e.temp(aclInt32, n), e.temp(aclBool, n)
	e.call(opZero, zeros)
	e.call(opMm, x, zeros, product)
	product.rank = 1
	above := []uint64{number(1)}
	e.callWith(opLtScalar, nil, above, product, good) // false for NaN
	e.callWith(opCast, nil, []uint64{aclInt32}, good, one)
	e.callWith(opLtScalar, nil, above, one, bad)
	e.callWith(opMaskedFill, nil, []uint64{number(-1)}, y, bad)
}

func emitCast(at ascendrt.CastAttr) emitter {
	return func(e *emission, a []ascendrt.Tensor) {
		x, y := asArray(&a[0]), asArray(&a[1])
		if at.From == at.To {
			e.call(opCopy, y, x)
			return
		}
		e.cast(x, y)
	}
}
