package host

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

// maxSlots bounds slot indices of a command.
const maxSlots = 32

// opState is a planned operation.
type opState struct {
	spec  ascendrt.OpSpec
	slots []ascendrt.SlotInfo
	args  []param
	make  func(a []arg, slots [][]int64) (func(*scratch) error, error)
}

// param describes one argument: its name, the type in memory (0: the spec's
// storage type), its rank, the length of its rows (-1: any) and how it is used.
type param struct {
	name string
	typ  ascendrt.DType
	rank int
	row  int
	use  use
}

type use uint8

const (
	reads use = iota
	writes
	updates // reads and writes
	paged   // a cache: other streams may use other blocks at the same time
)

// arg is a resolved tensor.
type arg struct {
	b      []byte
	typ    ascendrt.DType
	rows   int
	row    int // elements per row
	stride int // elements between rows
	dim    [ascendrt.MaxRank]int
}

type op struct {
	d     *device
	state *opState
	ref   ascendrt.Ref
}

var _ ascendrt.Op = (*op)(nil)

func (o *op) Spec() ascendrt.OpSpec      { return o.state.spec }
func (o *op) Workspace() int             { return 0 }
func (o *op) Slots() []ascendrt.SlotInfo { return o.state.slots }
func (o *op) Ref() ascendrt.Ref          { return o.ref }

func (o *op) Close() error {
	if o.d.closed.Load() || !o.d.refs.remove(o.ref) {
		return nil
	}
	o.d.handles.Lock()
	o.d.nops--
	o.d.handles.Unlock()
	return nil
}

func (d *device) Plan(spec ascendrt.OpSpec) (ascendrt.Op, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	if err := d.inject("plan"); err != nil {
		return nil, err
	}
	s, err := d.plan(spec)
	if err != nil {
		class := ascendrt.ErrInvalid
		if errors.Is(err, ascendrt.ErrUnsupported) {
			class = ascendrt.ErrUnsupported
		}
		return nil, invalid("plan "+string(spec.Kind), err.Error(), class)
	}
	for _, a := range s.args {
		s.slots = append(s.slots, ascendrt.SlotInfo{Name: "addr:" + a.name, Kind: ascendrt.SlotAddr})
	}
	d.handles.Lock()
	d.nops++
	d.handles.Unlock()
	return &op{d: d, state: s, ref: d.refs.add(s)}, nil
}

// attr takes the attribute struct of the kind and checks that its sizes are positive.
func attr[T any](spec ascendrt.OpSpec, sizes func(T) []int) (T, error) {
	a, ok := spec.Attr.(T)
	if !ok {
		return a, fmt.Errorf("the attribute is a %T, not a %T", spec.Attr, a)
	}
	for _, n := range sizes(a) {
		if n <= 0 || n > 1<<30 {
			return a, fmt.Errorf("a size of %+v is not positive", a)
		}
	}
	return a, nil
}

func (d *device) plan(spec ascendrt.OpSpec) (*opState, error) {
	if spec.Type != ascendrt.Float32 && spec.Type != ascendrt.BFloat16 {
		return nil, fmt.Errorf("storage type %v: float32 and bfloat16 exist: %w", spec.Type, ascendrt.ErrUnsupported)
	}
	if spec.MaxRows < 0 {
		return nil, errors.New("negative MaxRows")
	}
	s := &opState{spec: spec}
	var err error
	switch spec.Kind {
	case ascendrt.OpEmbedding:
		err = s.embedding()
	case ascendrt.OpGather:
		err = s.gather()
	case ascendrt.OpRMSNorm:
		err = s.rmsnorm()
	case ascendrt.OpAddRMSNorm:
		err = s.addRMSNorm()
	case ascendrt.OpAdd:
		err = s.add()
	case ascendrt.OpMatmul:
		err = s.matmul(d.pool)
	case ascendrt.OpRope:
		err = s.rope()
	case ascendrt.OpKVScatter:
		err = s.scatter()
	case ascendrt.OpAttention:
		err = s.attention(d.pool)
	case ascendrt.OpSwiGLU:
		err = s.swiglu(d.pool)
	case ascendrt.OpArgmax:
		err = s.argmax()
	case ascendrt.OpCast:
		err = s.cast()
	case OpGatedDelta:
		err = s.gatedDelta()
	default:
		return nil, fmt.Errorf("no operation of this name: %w", ascendrt.ErrUnsupported)
	}
	return s, err
}

// bind resolves the arguments of an operation command and prepares its run.
func (d *device) bind(x *node) error {
	o := x.op
	if len(x.args) != len(o.args) {
		return fmt.Errorf("%s takes %d arguments, not %d: %w", o.spec.Kind, len(o.args), len(x.args), ascendrt.ErrInvalid)
	}
	ints := len(o.slots) - len(o.args)
	for i, v := range x.slots {
		if v != nil && i >= ints {
			return fmt.Errorf("slot %d takes no values: %w", i, ascendrt.ErrInvalid)
		}
	}
	args := make([]arg, len(x.args))
	for i := range x.args {
		t, p := &x.args[i], o.args[i]
		typ := p.typ
		if typ == 0 {
			typ = o.spec.Type
		}
		n := t.Bytes()
		switch {
		case n < 0:
			return fmt.Errorf("%s: the shape is invalid: %w", p.name, ascendrt.ErrInvalid)
		case t.Type != typ:
			return fmt.Errorf("%s is %v, not %v: %w", p.name, t.Type, typ, ascendrt.ErrInvalid)
		case t.Rank != p.rank:
			return fmt.Errorf("%s has %d dimensions, not %d: %w", p.name, t.Rank, p.rank, ascendrt.ErrInvalid)
		case p.row >= 0 && t.RowLen() != p.row:
			return fmt.Errorf("%s has rows of %d elements, not %d: %w", p.name, t.RowLen(), p.row, ascendrt.ErrInvalid)
		case n > t.Len:
			return fmt.Errorf("%s needs %d bytes and has %d: %w", p.name, n, t.Len, ascendrt.ErrInvalid)
		case uint64(t.Addr)%uint64(typ.Size()) != 0:
			return fmt.Errorf("%s is not aligned to its elements: %w", p.name, ascendrt.ErrInvalid)
		}
		b, a, err := d.resolve(t.Addr, n)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if a != nil && a.host {
			return fmt.Errorf("%s lies in host memory; operations take device memory: %w", p.name, ascendrt.ErrInvalid)
		}
		x.name(a)
		args[i] = arg{b: b, typ: typ, rows: t.Rows(), row: t.RowLen(), stride: t.Stride(), dim: t.Dim}
	}
	run, err := o.make(args, x.slots)
	if err != nil {
		return fmt.Errorf("%w: %w", err, ascendrt.ErrInvalid)
	}
	x.run = func(s *scratch) error {
		for i, a := range args {
			switch o.args[i].use {
			case reads:
				raceRead(a.b)
			case writes, updates:
				raceWrite(a.b)
			}
		}
		return run(s)
	}
	return nil
}

// sameRows checks that arguments agree in their number of rows.
func sameRows(s *opState, a []arg, idx ...int) error {
	for _, i := range idx[1:] {
		if a[i].rows != a[idx[0]].rows {
			return fmt.Errorf("%s has %d rows, %s has %d", s.args[i].name, a[i].rows, s.args[idx[0]].name, a[idx[0]].rows)
		}
	}
	if m := s.spec.MaxRows; m > 0 && a[idx[0]].rows > m {
		return fmt.Errorf("%d rows; the plan allows %d", a[idx[0]].rows, m)
	}
	return nil
}

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
