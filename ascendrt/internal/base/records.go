package base

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// HeaderWords is the length of a translated record's header: kind and payload
// length, index of the command, six arguments.
const HeaderWords = 8

// Records is a buffer of records with a runtime's own pointers, which C replays.
type Records struct {
	Words []uint64
	Index int // of the command that is being translated
}

// Record appends a header of up to six arguments; its payload of that many
// words follows.
func (r *Records) Record(kind uint32, payload int, a ...uint64) {
	var h [HeaderWords]uint64
	h[0] = uint64(kind) | uint64(payload)<<32
	h[1] = uint64(uint32(r.Index))
	copy(h[2:], a)
	r.Words = append(r.Words, h[:]...)
}

// Each translates the buffer by f up to its first wrong command, of which no
// records stay; n is that command's index, the number of commands if there is none.
func (r *Records) Each(c *Core, buffer *ascendrt.Commands, f func(ascendrt.Record) error) (n int, err error) {
	stop, wrong := buffer.ErrorAt()
	for x := range ascendrt.Records(buffer.Words()) {
		if wrong != nil && x.Index == stop {
			return stop, wrong
		}
		r.Index = x.Index
		before := len(r.Words)
		if err := f(x); err != nil {
			r.Words = r.Words[:before]
			return x.Index, c.Wrap(x.Kind.String(), x.Index, err)
		}
	}
	return buffer.Len(), wrong
}

// Mode is what a buffer is translated for.
type Mode uint8

// Modes.
const (
	Submitting Mode = iota
	Capturing
)

// Handle gives the live handle of a word in a record.
func Handle[T any](c *Core, ref uint64, what string) (T, error) {
	v, ok := handles.Lookup[T](&c.Refs, ascendrt.Ref(ref))
	if !ok {
		return v, fmt.Errorf("the %s was closed, or is of another device: %w", what, ascendrt.ErrClosed)
	}
	return v, nil
}

// Tensors appends to dst what a record of kind KindOp names.
func Tensors(dst []ascendrt.Tensor, r ascendrt.Record) []ascendrt.Tensor {
	for i := range int(r.A[3]) {
		dst = append(dst, ascendrt.DecodeTensor(r.Payload[i*ascendrt.TensorWords:]))
	}
	return dst
}

// Workspace is that of a record of kind KindOp.
func Workspace(r ascendrt.Record) ascendrt.View {
	return ascendrt.View{Addr: ascendrt.Addr(r.A[1]), Len: int(r.A[2]), Max: int(r.A[2])}
}

// Point is the stream of a record of kind KindWaitPoint and how much of it is
// waited for, checked against what was submitted there; the zero stream if
// there is nothing to wait for.
func Point[S any](c *Core, r ascendrt.Record, submitted func(S) uint64) (s S, seq uint64, err error) {
	if r.A[0] == 0 {
		return s, 0, nil
	}
	s, err = Handle[S](c, r.A[0], "stream of the point")
	if err == nil && r.A[1] > submitted(s) {
		err = fmt.Errorf("the point was never submitted: %w", ascendrt.ErrInvalid)
	}
	return s, r.A[1], err
}

// Slots are the values for the slots of the operation that follows, by slot.
type Slots [][]int64

// Set takes the values of a record of kind KindSlot.
func (s *Slots) Set(r ascendrt.Record) error {
	const most = 32
	i := int(r.A[0])
	if i < 0 || i >= most {
		return fmt.Errorf("slot %d does not exist: %w", i, ascendrt.ErrInvalid)
	}
	for len(*s) <= i {
		*s = append(*s, nil)
	}
	v := make([]int64, len(r.Payload))
	for k, w := range r.Payload {
		v[k] = int64(w)
	}
	(*s)[i] = v
	return nil
}

// Before checks that the command that follows slot values has slots.
func (s Slots) Before(k ascendrt.Kind) error {
	if len(s) > 0 && k != ascendrt.KindOp && k != ascendrt.KindSlot {
		return fmt.Errorf("slot values stand before a command without slots: %w", ascendrt.ErrInvalid)
	}
	return nil
}
