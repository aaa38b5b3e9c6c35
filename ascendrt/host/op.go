package host

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// opState is a planned operation.
type opState struct {
	*opspec.Signature
	slots []ascendrt.SlotInfo
	make  func(a []arg, slots [][]int64) (func(*scratch) error, error)
}

// arg is a resolved tensor.
type arg struct {
	b      []byte
	typ    ascendrt.DType
	rows   int
	row    int // elements per row
	stride int // elements between rows
}

func (d *device) Plan(spec ascendrt.OpSpec) (ascendrt.Op, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if err := d.inject("plan"); err != nil {
		return nil, err
	}
	s, err := d.plan(spec)
	if err != nil {
		return nil, d.Wrap("plan "+string(spec.Kind), -1, err)
	}
	return d.NewOp(s, s.Spec, 0, s.slots), nil
}

func (d *device) plan(spec ascendrt.OpSpec) (*opState, error) {
	own := &opState{}
	if done, err := d.ownOp(own, spec); done || err != nil {
		return own, err
	}
	sig, err := opspec.Describe(spec)
	if err != nil {
		return nil, err
	}
	s := &opState{Signature: sig, slots: sig.Slots()}
	switch at := sig.Spec.Attr.(type) {
	case ascendrt.EmbeddingAttr:
		s.embedding()
	case ascendrt.GatherAttr:
		s.gather()
	case ascendrt.NormAttr:
		if spec.Kind == ascendrt.OpAddRMSNorm {
			s.addRMSNorm(at)
		} else {
			s.rmsnorm(at)
		}
	case ascendrt.AddAttr:
		s.add(at)
	case ascendrt.MatmulAttr:
		s.matmul(at, d.pool)
	case ascendrt.RopeAttr:
		s.rope(at)
	case ascendrt.ScatterAttr:
		s.scatter(at)
	case ascendrt.AttentionAttr:
		s.attention(at, d.pool)
	case ascendrt.SwiGLUAttr:
		s.swiglu(at, d.pool)
	case ascendrt.ArgmaxAttr:
		s.argmax()
	case ascendrt.CastAttr:
		s.cast(at)
	default:
		return nil, ascendrt.ErrUnsupported
	}
	return s, nil
}

// ownOp plans what this backend has alone; false if spec is no such operation.
func (d *device) ownOp(s *opState, spec ascendrt.OpSpec) (bool, error) {
	var err error
	switch spec.Kind {
	case OpGatedDelta:
		err = s.gatedDelta(spec)
	case OpRoute:
		err = s.route(spec)
	case OpExperts:
		err = s.experts(spec, d.pool)
	case OpCombine:
		err = s.combine(spec)
	default:
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.slots = s.Slots()
	return true, nil
}

// bind resolves the arguments of an operation command and prepares its run.
func (d *device) bind(x *node) error {
	o := x.op
	if err := o.Check(x.args); err != nil {
		return err
	}
	for i, v := range x.slots {
		if v != nil && i >= len(o.Ints) {
			return fmt.Errorf("slot %d takes no values: %w", i, ascendrt.ErrInvalid)
		}
	}
	args := make([]arg, len(x.args))
	for i := range x.args {
		t, p := &x.args[i], &o.Params[i]
		b, a, err := d.resolve(t.Addr, t.Bytes())
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if a != nil && a.host {
			return fmt.Errorf("%s lies in host memory; operations take device memory: %w", p.Name, ascendrt.ErrInvalid)
		}
		x.name(a)
		args[i] = arg{b: b, typ: t.Type, rows: t.Rows(), row: t.RowLen(), stride: t.Stride()}
	}
	run, err := o.make(args, x.slots)
	if err != nil {
		return fmt.Errorf("%w: %w", err, ascendrt.ErrInvalid)
	}
	x.run = func(s *scratch) error {
		for i, a := range args {
			switch o.Params[i].Use {
			case opspec.Reads:
				raceRead(a.b)
			case opspec.Writes, opspec.Updates:
				raceWrite(a.b)
			}
		}
		return run(s)
	}
	return nil
}

//go:nocheckptr
func typed[T any](b []byte) []T {
	var zero T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(zero)))
}

func (a *arg) f32() []float32 { return typed[float32](a.b) }
func (a *arg) u16() []uint16  { return typed[uint16](a.b) }
func (a *arg) i32() []int32   { return typed[int32](a.b) }

// load gives row r as float32: the memory itself, or buf with the widened values.
func (a *arg) load(r int, buf []float32) []float32 { return a.part(r, 0, a.row, buf) }

// part is load of n elements of row r from element off.
func (a *arg) part(r, off, n int, buf []float32) []float32 {
	at := r*a.stride + off
	if a.typ == ascendrt.Float32 {
		return a.f32()[at : at+n : at+n]
	}
	buf = buf[:n]
	arith.FromBF16(buf, a.u16()[at:at+n])
	return buf
}

// dest gives the place to compute row r in: the memory itself, or buf.
func (a *arg) dest(r int, buf []float32) []float32 {
	if a.typ == ascendrt.Float32 {
		return a.f32()[r*a.stride : r*a.stride+a.row : r*a.stride+a.row]
	}
	return buf[:a.row]
}

// store rounds a row that was computed in buf; nothing to do for float32.
func (a *arg) store(r int, row []float32) {
	if a.typ == ascendrt.BFloat16 {
		arith.ToBF16(a.u16()[r*a.stride:r*a.stride+a.row], row)
	}
}

func outOfRange(what string, r int, v int32, n int) error {
	return errors.New(what + " " + strconv.Itoa(int(v)) + " of row " + strconv.Itoa(r) + " is not below " + strconv.Itoa(n))
}

var inf32 = float32(math.Inf(1))
