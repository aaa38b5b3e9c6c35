//go:build cgo && linux

package acl

import (
	"fmt"
	"math"

	"github.com/sluice-serving/sluice/ascendrt"
)

// aclnn names an operator of the vendor in a call; see aclnn.h.
type aclnn uint8

const (
	opEmbedding aclnn = iota
	opClampMin
	opLtScalar
	opMaskedFill
	opSelect
	opCopy
	opZero
	opCast
	opAdd
	opRMSNorm
	opMm
	opSwiGLU
	opArgMax
	opRope
	opScatter
	opAttention
)

// Types by the vendor's numbers.
const (
	aclFloat = 0
	aclInt32 = 3
	aclUint8 = 4
	aclInt64 = 9
	aclBool  = 12
	aclBF16  = 27
)

func aclType(t ascendrt.DType) int {
	switch t {
	case ascendrt.BFloat16:
		return aclBF16
	case ascendrt.Int32:
		return aclInt32
	case ascendrt.Int64:
		return aclInt64
	case ascendrt.Uint8:
		return aclUint8
	}
	return aclFloat
}

func aclSize(t int) int {
	switch t {
	case aclBool, aclUint8:
		return 1
	case aclBF16:
		return 2
	case aclInt64:
		return 8
	}
	return 4
}

// array is a tensor as an aclnn operator sees it. Steps are in elements.
type array struct {
	addr  uint64
	typ   int
	rank  int
	dim   [4]int
	steps [4]int
}

// asArray takes a tensor as it is.
func asArray(t *ascendrt.Tensor) array {
	a := array{addr: uint64(t.Addr), typ: aclType(t.Type), rank: t.Rank, dim: t.Dim}
	step := 1
	for i := t.Rank - 1; i >= 0; i-- {
		a.steps[i] = step
		step *= t.Dim[i]
	}
	if t.Rank > 0 {
		a.steps[0] = t.Stride()
	}
	return a
}

// shaped is a contiguous array.
func shaped(addr uint64, typ int, dims ...int) array {
	a := array{addr: addr, typ: typ, rank: len(dims)}
	copy(a.dim[:], dims)
	step := 1
	for i := len(dims) - 1; i >= 0; i-- {
		a.steps[i] = step
		step *= dims[i]
	}
	return a
}

// split makes [N, a·b] into [N, a, b].
func (a array) split(parts, width int) array {
	if a.rank != 2 {
		return a
	}
	a.rank, a.dim, a.steps = 3, [4]int{a.dim[0], parts, width}, [4]int{a.steps[0], width * a.steps[1], a.steps[1]}
	return a
}

// first is the first n rows.
func (a array) first(n int) array {
	a.dim[0] = n
	return a
}

// column gives a vector a second dimension of one element.
func (a array) column() array {
	a.rank, a.dim[1], a.steps[1] = 2, 1, 1
	return a
}

func (a array) count() int {
	n := 1
	for i := range a.rank {
		n *= a.dim[i]
	}
	return n
}

func (a array) contiguous() bool {
	step := 1
	for i := a.rank - 1; i >= 0; i-- {
		if a.dim[i] != 1 && a.steps[i] != step {
			return false
		}
		step *= a.dim[i]
	}
	return true
}

// aclnnAlign is the alignment of tensors that the operators demand, in bytes.
const aclnnAlign = 32

// emission collects the calls of one operation. Its temporaries come from the
// start of the workspace, the vendor's from behind them.
type emission struct {
	calls  []uint64 // one behind the other, each with its length in front
	group  int      // 1 + place in calls of the one that a graph may issue again
	base   uint64   // of the workspace
	used   int      // bytes of temporaries
	err    error
	values [][]int64 // of the slots
}

// temp is a temporary of the operation.
func (e *emission) temp(typ int, dims ...int) array {
	a := shaped(e.base+uint64(e.used), typ, dims...)
	e.used += (a.count()*aclSize(typ) + 63) / 64 * 64
	return a
}

// like is a contiguous temporary of the shape of a.
func (e *emission) like(a array) array { return e.temp(a.typ, a.dim[:a.rank]...) }

// dense gives a contiguous array with the values of a: a itself or a copy.
func (e *emission) dense(a array) array {
	if a.contiguous() {
		return a
	}
	c := e.like(a)
	e.call(opCopy, c, a)
	return c
}

func (e *emission) call(op aclnn, t ...array) { e.callWith(op, nil, nil, t...) }

// callWith appends a call with host arrays and numbers.
func (e *emission) callWith(op aclnn, arrays [][]int64, numbers []uint64, t ...array) {
	at := len(e.calls)
	e.calls = append(e.calls, 0, uint64(op)|uint64(len(t))<<16|uint64(len(arrays))<<24|uint64(len(numbers))<<32)
	for i := range t {
		x := &t[i]
		if x.addr%aclnnAlign != 0 && e.err == nil {
			e.err = fmt.Errorf("a tensor at %#x: operators of this device take addresses of %d bytes: %w", x.addr, aclnnAlign, ascendrt.ErrInvalid)
		}
		e.calls = append(e.calls, x.addr, uint64(x.typ)|uint64(x.rank)<<8,
			uint64(x.dim[0]), uint64(x.dim[1]), uint64(x.dim[2]), uint64(x.dim[3]),
			uint64(x.steps[0]), uint64(x.steps[1]), uint64(x.steps[2]), uint64(x.steps[3]))
	}
	for _, a := range arrays {
		e.calls = append(e.calls, uint64(len(a)))
		for _, v := range a {
			e.calls = append(e.calls, uint64(v))
		}
	}
	e.calls = append(e.calls, numbers...)
	e.calls[at] = uint64(len(e.calls) - at - 1)
}

func number(f float64) uint64 { return math.Float64bits(f) }
