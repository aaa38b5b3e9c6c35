// Package opspec is what all backends share about the named operations of
// ascendrt: which attributes are legal, which arguments an operation takes,
// and which shapes fit together. Backends add the arithmetic.
package opspec

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Use says how an operation touches an argument.
type Use uint8

const (
	// Reads only.
	Reads Use = iota
	// Writes all of it, reads none.
	Writes
	// Updates reads and writes.
	Updates
	// Paged is a KV cache: other streams may use other blocks at the same time.
	Paged
)

// String names the use.
func (u Use) String() string {
	return [...]string{"reads", "writes", "updates", "paged"}[u]
}

// Param describes one argument.
type Param struct {
	Name string
	Type ascendrt.DType
	Rank int
	Row  int // elements of a row; -1: any
	Use  Use
}

// Signature is a checked spec.
type Signature struct {
	// Spec has its defaults filled in: Groups, Scale, OutType.
	Spec   ascendrt.OpSpec
	Params []Param
	// Ints names the slots that take host values; the address slots of the
	// arguments follow them.
	Ints  []string
	check func(a []ascendrt.Tensor) error
}

// New describes an operation that one backend has alone; check looks at what
// the parameters do not say.
func New(spec ascendrt.OpSpec, params []Param, ints []string, check func(s *Signature, a []ascendrt.Tensor) error) *Signature {
	s := &Signature{Spec: spec, Params: params, Ints: ints}
	s.check = func(a []ascendrt.Tensor) error { return check(s, a) }
	return s
}

// Slots lists the slots in the order that Slot.Slot counts.
func (s *Signature) Slots() []ascendrt.SlotInfo {
	var out []ascendrt.SlotInfo
	for _, n := range s.Ints {
		out = append(out, ascendrt.SlotInfo{Name: n, Kind: ascendrt.SlotInts})
	}
	for _, p := range s.Params {
		out = append(out, ascendrt.SlotInfo{Name: "addr:" + p.Name, Kind: ascendrt.SlotAddr})
	}
	return out
}

// Check tells whether the arguments fit the operation: their number, types,
// ranks, rows, sizes in memory, alignment, and each other. Its errors are
// ErrInvalid.
func (s *Signature) Check(args []ascendrt.Tensor) error {
	if len(args) != len(s.Params) {
		return fmt.Errorf("%s takes %d arguments, not %d: %w", s.Spec.Kind, len(s.Params), len(args), ascendrt.ErrInvalid)
	}
	for i := range args {
		if err := s.Params[i].check(&args[i]); err != nil {
			return fmt.Errorf("%s: %w: %w", s.Params[i].Name, err, ascendrt.ErrInvalid)
		}
	}
	if err := s.check(args); err != nil {
		return fmt.Errorf("%w: %w", err, ascendrt.ErrInvalid)
	}
	return nil
}

func (p *Param) check(t *ascendrt.Tensor) error {
	n := t.Bytes()
	switch {
	case n < 0:
		return errors.New("the shape is invalid")
	case t.Type != p.Type:
		return fmt.Errorf("the type is %v, not %v", t.Type, p.Type)
	case t.Rank != p.Rank:
		return fmt.Errorf("it has %d dimensions, not %d", t.Rank, p.Rank)
	case p.Row >= 0 && t.RowLen() != p.Row:
		return fmt.Errorf("its rows have %d elements, not %d", t.RowLen(), p.Row)
	case n > t.Len:
		return fmt.Errorf("it needs %d bytes and has %d", n, t.Len)
	case uint64(t.Addr)%uint64(t.Type.Size()) != 0:
		return errors.New("it is not aligned to its elements")
	}
	return nil
}

// SameRows checks that arguments agree in their number of rows, and with MaxRows.
func (s *Signature) SameRows(a []ascendrt.Tensor, idx ...int) error {
	n := a[idx[0]].Rows()
	for _, i := range idx[1:] {
		if a[i].Rows() != n {
			return fmt.Errorf("%s has %d rows, %s has %d", s.Params[i].Name, a[i].Rows(), s.Params[idx[0]].Name, n)
		}
	}
	if m := s.Spec.MaxRows; m > 0 && n > m {
		return fmt.Errorf("%d rows; the plan allows %d", n, m)
	}
	return nil
}

// Attr takes the attribute struct of the spec and checks that its sizes are positive.
func Attr[T any](spec ascendrt.OpSpec, sizes func(T) []int) (T, error) {
	a, ok := spec.Attr.(T)
	if !ok {
		return a, fmt.Errorf("the attribute is a %T, not a %T: %w", spec.Attr, a, ascendrt.ErrInvalid)
	}
	for _, n := range sizes(a) {
		if n <= 0 || n > 1<<30 {
			return a, fmt.Errorf("a size of %+v is not positive: %w", a, ascendrt.ErrInvalid)
		}
	}
	return a, nil
}
