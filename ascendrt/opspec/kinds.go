package opspec

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Describe checks a spec and gives its signature. Errors are ErrInvalid, or
// ErrUnsupported for a kind or storage type that does not exist.
func Describe(spec ascendrt.OpSpec) (*Signature, error) {
	if spec.Type != ascendrt.Float32 && spec.Type != ascendrt.BFloat16 {
		return nil, fmt.Errorf("storage type %v: float32 and bfloat16 exist: %w", spec.Type, ascendrt.ErrUnsupported)
	}
	if spec.MaxRows < 0 {
		return nil, fmt.Errorf("negative MaxRows: %w", ascendrt.ErrInvalid)
	}
	f := kinds[spec.Kind]
	if f == nil {
		return nil, fmt.Errorf("no operation of this name: %w", ascendrt.ErrUnsupported)
	}
	s := &Signature{Spec: spec}
	if err := f(s); err != nil {
		if errors.Is(err, ascendrt.ErrInvalid) || errors.Is(err, ascendrt.ErrUnsupported) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", err, ascendrt.ErrInvalid)
	}
	return s, nil
}

var kinds = map[ascendrt.OpKind]func(*Signature) error{
	ascendrt.OpEmbedding: embedding, ascendrt.OpGather: gather, ascendrt.OpRMSNorm: rmsnorm, ascendrt.OpAddRMSNorm: addRMSNorm,
	ascendrt.OpAdd: add, ascendrt.OpMatmul: matmul, ascendrt.OpRope: rope, ascendrt.OpKVScatter: scatter,
	ascendrt.OpAttention: attention, ascendrt.OpSwiGLU: swiglu, ascendrt.OpArgmax: argmax, ascendrt.OpCast: cast,
}

const ints = ascendrt.Int32

func embedding(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.EmbeddingAttr) []int { return []int{a.Vocab, a.Hidden} })
	t := s.Spec.Type
	s.Params = []Param{{"ids", ints, 1, -1, Reads}, {"table", t, 2, a.Hidden, Reads}, {"y", t, 2, a.Hidden, Writes}}
	s.check = func(x []ascendrt.Tensor) error {
		if x[1].Rows() != a.Vocab {
			return errors.New("the table does not have one row per token of the vocabulary")
		}
		return s.SameRows(x, 2, 0)
	}
	return err
}

func gather(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.GatherAttr) []int { return []int{a.Dim} })
	t := s.Spec.Type
	s.Params = []Param{{"x", t, 2, a.Dim, Reads}, {"rows", ints, 1, -1, Reads}, {"y", t, 2, a.Dim, Writes}}
	s.check = func(x []ascendrt.Tensor) error { return s.SameRows(x, 2, 1) }
	return err
}

func rmsnorm(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.NormAttr) []int { return []int{a.Dim, max(1, a.Groups)} })
	a.Groups = max(1, a.Groups)
	s.Spec.Attr = a
	t := s.Spec.Type
	s.Params = []Param{{"x", t, 2, a.Dim * a.Groups, Reads}, {"w", t, 1, -1, Reads}, {"y", t, 2, a.Dim * a.Groups, Writes}}
	s.check = func(x []ascendrt.Tensor) error {
		if x[1].Rows() != a.Dim {
			return errors.New("w does not have Dim elements")
		}
		return s.SameRows(x, 0, 2)
	}
	return err
}

func addRMSNorm(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.NormAttr) []int { return []int{a.Dim} })
	if err == nil && a.Groups > 1 {
		return errors.New("add_rmsnorm has one group")
	}
	a.Groups = 1
	s.Spec.Attr = a
	t := s.Spec.Type
	s.Params = []Param{{"x", t, 2, a.Dim, Reads}, {"r", t, 2, a.Dim, Updates}, {"w", t, 1, -1, Reads}, {"y", t, 2, a.Dim, Writes}}
	s.check = func(x []ascendrt.Tensor) error {
		if x[2].Rows() != a.Dim {
			return errors.New("w does not have Dim elements")
		}
		return s.SameRows(x, 0, 1, 3)
	}
	return err
}

func add(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.AddAttr) []int { return []int{a.Dim} })
	t := s.Spec.Type
	s.Params = []Param{{"a", t, 2, a.Dim, Reads}, {"b", t, 2, a.Dim, Reads}, {"y", t, 2, a.Dim, Writes}}
	s.check = func(x []ascendrt.Tensor) error { return s.SameRows(x, 0, 1, 2) }
	return err
}

func matmul(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.MatmulAttr) []int { return []int{a.In, a.Out} })
	t := s.Spec.Type
	if a.OutType == 0 {
		a.OutType = t
	}
	if err == nil && a.OutType != ascendrt.Float32 && a.OutType != t {
		return errors.New("outputs are of the storage type or float32")
	}
	if err == nil && (a.Weights > ascendrt.WeightsKM || a.Order > ascendrt.SumPerRow) {
		return errors.New("unknown weight layout or order")
	}
	s.Spec.Attr = a
	rows, cols := a.Out, a.In
	if a.Weights == ascendrt.WeightsKM {
		rows, cols = a.In, a.Out
	}
	s.Params = []Param{{"x", t, 2, a.In, Reads}, {"w", t, 2, cols, Reads}, {"y", a.OutType, 2, a.Out, Writes}}
	s.check = func(x []ascendrt.Tensor) error {
		if x[1].Rows() != rows {
			return errors.New("w does not have the shape of its layout")
		}
		return s.SameRows(x, 0, 2)
	}
	return err
}

func rope(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.RopeAttr) []int { return []int{a.Heads, a.KVHeads, a.HeadDim, a.MaxPosition} })
	if err == nil && a.HeadDim%2 != 0 {
		return errors.New("HeadDim is odd")
	}
	t := s.Spec.Type
	s.Params = []Param{{"q", t, 2, a.Heads * a.HeadDim, Updates}, {"k", t, 2, a.KVHeads * a.HeadDim, Updates},
		{"positions", ints, 1, -1, Reads}, {"table", ascendrt.Float32, 2, a.HeadDim, Reads}}
	s.check = func(x []ascendrt.Tensor) error {
		if x[3].Rows() != a.MaxPosition {
			return errors.New("the table does not have MaxPosition rows")
		}
		return s.SameRows(x, 0, 1, 2)
	}
	return err
}

func scatter(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.ScatterAttr) []int { return []int{a.KVHeads, a.HeadDim, a.BlockSize} })
	row, t := a.KVHeads*a.HeadDim, s.Spec.Type
	s.Params = []Param{{"k", t, 2, row, Reads}, {"v", t, 2, row, Reads}, {"slots", ints, 1, -1, Reads},
		{"kcache", t, 4, a.BlockSize * row, Paged}, {"vcache", t, 4, a.BlockSize * row, Paged}}
	s.check = func(x []ascendrt.Tensor) error {
		if err := caches(&x[3], &x[4], a.BlockSize, a.KVHeads, a.HeadDim); err != nil {
			return err
		}
		return s.SameRows(x, 0, 1, 2)
	}
	return err
}

func caches(k, v *ascendrt.Tensor, bs, heads, dim int) error {
	want := [3]int{bs, heads, dim}
	if [3]int(k.Dim[1:]) != want || [3]int(v.Dim[1:]) != want {
		return errors.New("a cache is not [blocks, BlockSize, KVHeads, HeadDim]")
	}
	if k.Rows() != v.Rows() {
		return errors.New("the caches differ in blocks")
	}
	return nil
}

func attention(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.AttentionAttr) []int {
		return []int{a.Heads, a.KVHeads, a.HeadDim, a.BlockSize}
	})
	if err != nil {
		return err
	}
	if a.Heads%a.KVHeads != 0 {
		return errors.New("attention: Heads is no multiple of KVHeads")
	}
	if a.Window < 0 || !(a.Scale >= 0) {
		return errors.New("attention: Window or Scale is negative")
	}
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(a.HeadDim)))
	}
	s.Spec.Attr = a
	row, t := a.KVHeads*a.HeadDim, s.Spec.Type
	s.Ints = []string{"lens", "starts"}
	s.Params = []Param{{"q", t, 2, a.Heads * a.HeadDim, Reads}, {"kcache", t, 4, a.BlockSize * row, Paged},
		{"vcache", t, 4, a.BlockSize * row, Paged}, {"table", ints, 2, -1, Reads},
		{"starts", ints, 1, -1, Reads}, {"lens", ints, 1, -1, Reads}, {"y", t, 2, a.Heads * a.HeadDim, Writes}}
	s.check = func(x []ascendrt.Tensor) error {
		if err := caches(&x[1], &x[2], a.BlockSize, a.KVHeads, a.HeadDim); err != nil {
			return err
		}
		if x[4].Rows() != x[3].Rows()+1 || x[5].Rows() != x[3].Rows() {
			return errors.New("table, starts and lens disagree about the number of requests")
		}
		return s.SameRows(x, 0, 6)
	}
	return nil
}

func swiglu(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.SwiGLUAttr) []int { return []int{a.Dim} })
	t := s.Spec.Type
	s.Params = []Param{{"x", t, 2, 2 * a.Dim, Reads}, {"y", t, 2, a.Dim, Writes}}
	s.check = func(x []ascendrt.Tensor) error { return s.SameRows(x, 0, 1) }
	return err
}

func argmax(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.ArgmaxAttr) []int { return []int{a.Dim} })
	s.Params = []Param{{"x", s.Spec.Type, 2, a.Dim, Reads}, {"y", ints, 1, -1, Writes}}
	s.check = func(x []ascendrt.Tensor) error { return s.SameRows(x, 0, 1) }
	return err
}

func cast(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.CastAttr) []int { return []int{a.Dim} })
	for _, t := range []ascendrt.DType{a.From, a.To} {
		if err == nil && t != ascendrt.Float32 && t != ascendrt.BFloat16 {
			return errors.New("casts are between float32 and bfloat16")
		}
	}
	s.Params = []Param{{"x", a.From, 2, a.Dim, Reads}, {"y", a.To, 2, a.Dim, Writes}}
	s.check = func(x []ascendrt.Tensor) error { return s.SameRows(x, 0, 1) }
	return err
}
