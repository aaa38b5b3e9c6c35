package ascendrt

// DType is the type of a tensor's elements in memory.
type DType uint8

const (
	// Float32 is IEEE binary32.
	Float32 DType = iota + 1
	// BFloat16 is the upper half of a binary32.
	BFloat16
	// Float16 is IEEE binary16.
	Float16
	// Int32 is a signed 32-bit integer: token ids, positions, slots, lengths, block ids.
	Int32
	// Int64 is a signed 64-bit integer.
	Int64
	// Uint8 is a byte.
	Uint8
)

// Size is bytes per element; 0 for an unknown type.
func (t DType) Size() int {
	switch t {
	case Float32, Int32:
		return 4
	case BFloat16, Float16:
		return 2
	case Int64:
		return 8
	case Uint8:
		return 1
	}
	return 0
}

// String names the type.
func (t DType) String() string {
	switch t {
	case Float32:
		return "float32"
	case BFloat16:
		return "bfloat16"
	case Float16:
		return "float16"
	case Int32:
		return "int32"
	case Int64:
		return "int64"
	case Uint8:
		return "uint8"
	}
	return "unknown"
}

// MaxRank is the largest number of dimensions of a tensor.
const MaxRank = 4

// Tensor is a typed, row-major view. All dimensions but the first are
// contiguous; RowStride lets rows lie further apart, as the parts of a fused
// projection do.
type Tensor struct {
	View
	Type      DType
	Rank      int
	Dim       [MaxRank]int
	RowStride int // elements from one index of dimension 0 to the next; 0: contiguous
}

// NewTensor is a contiguous tensor at the start of v. Commands refuse it if it
// does not fit into v.
func NewTensor(v View, t DType, dims ...int) Tensor {
	x := Tensor{View: v, Type: t, Rank: len(dims)}
	if len(dims) > MaxRank {
		x.Rank = -1
		return x
	}
	copy(x.Dim[:], dims)
	return x
}

// Rows is dimension 0, 1 for a scalar.
func (t Tensor) Rows() int {
	if t.Rank <= 0 {
		return 1
	}
	return t.Dim[0]
}

// RowLen is the number of elements of one row: the product of the dimensions behind the first.
func (t Tensor) RowLen() int {
	n := 1
	for i := 1; i < t.Rank; i++ {
		n *= t.Dim[i]
	}
	return n
}

// Stride is the distance of two rows in elements.
func (t Tensor) Stride() int {
	if t.RowStride != 0 {
		return t.RowStride
	}
	return t.RowLen()
}

// Columns is the part of each row of a matrix that starts at element off and
// has n elements; an invalid tensor if it leaves the row.
func (t Tensor) Columns(off, n int) Tensor {
	if t.Rank != 2 || off < 0 || n < 0 || off > t.Dim[1] || n > t.Dim[1]-off {
		return Tensor{View: View{Len: -1}, Type: t.Type, Rank: -1}
	}
	s := t.Stride()
	t.View = t.View.Slice(off*t.Type.Size(), max(0, t.Len-off*t.Type.Size()))
	t.Dim[1] = n
	t.RowStride = s
	return t
}

// First is the tensor's first n rows; an invalid tensor if it has fewer.
func (t Tensor) First(n int) Tensor {
	if t.Rank < 1 || n < 0 || n > t.Dim[0] {
		return Tensor{View: View{Len: -1}, Type: t.Type, Rank: -1}
	}
	s := t.Stride()
	t.Dim[0] = n
	t.RowStride = s
	return t
}

// Bytes is the number of bytes from the first element to the end of the last
// one; -1 if the shape is invalid.
func (t Tensor) Bytes() int {
	if t.Rank < 0 || t.Rank > MaxRank || t.Type.Size() == 0 {
		return -1
	}
	total := 1
	for i := range t.Rank {
		if t.Dim[i] < 0 || t.Dim[i] > 1<<40 {
			return -1
		}
		if t.Dim[i] > 0 && total > (1<<46)/t.Dim[i] {
			return -1 // checked ahead: the product itself could wrap
		}
		total *= t.Dim[i]
	}
	if total == 0 {
		return 0
	}
	row := t.RowLen()
	s := t.Stride()
	if s < row || s > 1<<40 || t.Rows() > (1<<46)/max(1, s) {
		return -1
	}
	return ((t.Rows()-1)*s + row) * t.Type.Size()
}
