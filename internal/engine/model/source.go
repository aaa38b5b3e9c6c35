package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// Storage is the type of a tensor's elements where they lie.
type Storage uint8

const (
	F32  Storage = iota // IEEE binary32
	BF16                // the upper half of a binary32
	F16                 // IEEE binary16
)

// String is the name that checkpoints use.
func (s Storage) String() string { return [...]string{"F32", "BF16", "F16"}[min(s, F16)] }

// Size is bytes per element.
func (s Storage) Size() int {
	if s == F32 {
		return 4
	}
	return 2
}

// Data is the content of one tensor, row major.
type Data struct {
	Type  Storage
	Raw   []byte // little endian; the source's: valid until it closes, not to be written. Nil with Noise
	Noise *Noise // what to generate instead
}

// Noise says how to make the elements of a tensor: those of the SplitMix64
// sequence of Seed, the sum of the four 16-bit lanes of each word less 131,070,
// times Factor.
type Noise struct {
	Seed   uint64
	Factor float32
}

// Source gives the tensors of a model.
type Source interface {
	// Get is the tensor of that name. Its errors are *TensorError.
	Get(name string, shape ...int) (Data, error)
}

// TensorError reports a tensor that a model needs and does not have as it must be.
type TensorError struct {
	Tensor string
	File   string // "" if it is of no file
	Want   []int  // the shape that the model needs
	Reason string
}

func (e *TensorError) Error() string {
	s := "weight " + e.Tensor
	if e.File != "" {
		s += " in " + e.File
	}
	return fmt.Sprintf("%s %s; the model needs shape %v", s, e.Reason, e.Want)
}

// Get gives a tensor as fp32.
func (w Weights) Get(name string, shape ...int) (Data, error) {
	data, ok := w[name]
	if !ok {
		return Data{}, &TensorError{Tensor: name, Want: shape, Reason: "is missing"}
	}
	if len(data) != (Tensor{Shape: shape}).Len() {
		return Data{}, &TensorError{Tensor: name, Want: shape, Reason: fmt.Sprintf("has %d elements", len(data))}
	}
	return Data{Type: F32, Raw: Bytes(data)}, nil
}

// Random makes the tensors of a shape without storing them, with BuiltinScales and
// every token as speakable as the others. Where queries and keys have no norm, their
// projections are as much wider, so that scores are as sharp.
type Random struct {
	Config Config
	Seed   uint64
}

// Get describes a tensor; gains are given as they are.
func (r Random) Get(name string, shape ...int) (Data, error) {
	all := r.Config.Tensors()
	i := slices.IndexFunc(all, func(t Tensor) bool { return t.Name == name })
	if i < 0 || !slices.Equal(all[i].Shape, shape) {
		return Data{}, &TensorError{Tensor: name, Want: shape, Reason: "is not of this model"}
	}
	t, scales := all[i], BuiltinScales()
	scale, gain := scales.of(t)
	if gain {
		gains := make([]float32, t.Len())
		for i := range gains {
			gains[i] = float32(scale)
		}
		return Data{Type: F32, Raw: Bytes(gains)}, nil
	}
	if t.kind == kindQK && !r.Config.HeadNorm {
		scale *= scales.HeadNorm
	}
	return Data{Noise: &Noise{nameSeed(name) ^ r.Seed, float32(scale / laneSigma)}}, nil
}

// Widen appends elements [from, from+n) of the data as fp32 to dst.
func (d Data) Widen(dst []float32, from, n int) []float32 {
	at := len(dst)
	dst = slices.Grow(dst, n)[:at+n]
	out := dst[at:]
	switch {
	case d.Noise != nil:
		g := gaussian{state: d.Noise.Seed + uint64(from)*0x9e3779b97f4a7c15}
		g.fill(out, d.Noise.Factor)
	case d.Type == F32:
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), 4*n), d.Raw[4*from:])
	case d.Type == BF16:
		for i := range out {
			out[i] = math.Float32frombits(uint32(d.Raw[2*(from+i)])<<16 | uint32(d.Raw[2*(from+i)+1])<<24)
		}
	default:
		for i := range out {
			out[i] = half(uint16(d.Raw[2*(from+i)]) | uint16(d.Raw[2*(from+i)+1])<<8)
		}
	}
	return dst
}

// half widens a binary16.
func half(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&1023)
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp > 0:
		return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
	}
	f := float32(frac) * (1.0 / (1 << 24))
	return math.Float32frombits(math.Float32bits(f) | sign)
}

// ErrClosed reports the use of a checkpoint after Close.
var ErrClosed = errors.New("the checkpoint is closed")
