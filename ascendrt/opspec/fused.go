package opspec

import (
	"errors"

	"github.com/sluice-serving/sluice/ascendrt"
)

func init() {
	kinds[ascendrt.OpLinear], kinds[ascendrt.OpRotateWrite] = linear, rotateWrite
	kinds[ascendrt.OpFeedEmbedding], kinds[ascendrt.OpPick], kinds[ascendrt.OpNoise] = feedEmbedding, pick, noise
}

// wide refuses the storage types that fused operations do not have.
func wide(s *Signature) error {
	if s.Spec.Type != ascendrt.BFloat16 {
		return ascendrt.ErrUnsupported
	}
	return nil
}

func linear(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.LinearAttr) []int { return []int{a.In, a.Out} })
	if err = errors.Join(err, wide(s)); err != nil {
		return err
	}
	if a.Epilogue > ascendrt.EpilogueFloat || a.Norm && !(a.Eps >= 0) {
		return errors.New("unknown epilogue, or Eps is negative")
	}
	t, wrows := s.Spec.Type, a.Out
	x, y := Param{"x", t, 2, a.In, Reads}, Param{"y", t, 2, a.Out, Writes}
	switch a.Epilogue {
	case ascendrt.EpilogueAdd:
		y.Type, y.Use = ascendrt.Float32, Updates
	case ascendrt.EpilogueSwiGLU:
		wrows *= 2
	case ascendrt.EpilogueFloat:
		y.Type = ascendrt.Float32
	}
	put := func(p Param) int {
		s.Params = append(s.Params, p)
		return len(s.Params) - 1
	}
	gain, rows := -1, -1
	if a.Norm {
		x.Type = ascendrt.Float32
		put(x)
		put(Param{"near", t, 2, a.In, Reads})
		gain = put(Param{"gain", t, 1, -1, Reads})
	} else {
		put(x)
	}
	w := put(Param{"w", t, 2, a.In, Reads})
	if a.Rows {
		rows = put(Param{"rows", ints, 1, -1, Reads})
	}
	at := put(y)
	if a.Epilogue == ascendrt.EpilogueAdd {
		put(Param{"near", t, 2, a.Out, Writes})
	}
	s.check = func(x []ascendrt.Tensor) error {
		switch {
		case gain >= 0 && x[gain].Rows() != a.In:
			return errors.New("gain does not have In elements")
		case gain >= 0 && x[1].Rows() != nearRows(x[0]), at+1 < len(x) && x[at+1].Rows() != nearRows(x[at]):
			return errors.New("near does not have a row per row of the stream up to NearRows")
		case x[w].Rows() != wrows:
			return errors.New("w does not have a row per output")
		case rows >= 0:
			return s.SameRows(x, at, rows)
		}
		return s.SameRows(x, at, 0)
	}
	return nil
}

// nearRows is the number of rows of a residual stream that is kept rounded too.
func nearRows(x ascendrt.Tensor) int { return min(x.Rows(), ascendrt.NearRows) }

func rotateWrite(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.RotateAttr) []int {
		return []int{a.Heads, a.KVHeads, a.HeadDim, a.BlockSize, a.MaxPosition}
	})
	if err = errors.Join(err, wide(s)); err != nil {
		return err
	}
	if a.HeadDim%2 != 0 {
		return errors.New("HeadDim is odd")
	}
	t, row := s.Spec.Type, a.KVHeads*a.HeadDim
	s.Params = []Param{{"qkv", t, 2, (a.Heads + 2*a.KVHeads) * a.HeadDim, Updates}}
	at := 1
	if a.Norm {
		s.Params = append(s.Params, Param{"qgain", t, 1, -1, Reads}, Param{"kgain", t, 1, -1, Reads})
		at = 3
	}
	s.Params = append(s.Params, Param{"positions", ints, 1, -1, Reads}, Param{"table", ascendrt.Float32, 2, a.HeadDim, Reads},
		Param{"slots", ints, 1, -1, Reads}, Param{"kcache", t, 4, a.BlockSize * row, Paged}, Param{"vcache", t, 4, a.BlockSize * row, Paged})
	s.check = func(x []ascendrt.Tensor) error {
		if a.Norm && (x[1].Rows() != a.HeadDim || x[2].Rows() != a.HeadDim) {
			return errors.New("a gain does not have HeadDim elements")
		}
		if x[at+1].Rows() != a.MaxPosition {
			return errors.New("the table does not have MaxPosition rows")
		}
		if err := caches(&x[at+3], &x[at+4], a.BlockSize, a.KVHeads, a.HeadDim); err != nil {
			return err
		}
		return s.SameRows(x, 0, at, at+2)
	}
	return nil
}

func feedEmbedding(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.FeedAttr) []int { return []int{a.Vocab, a.Hidden} })
	t := s.Spec.Type
	s.Params = []Param{{"ids", ints, 1, -1, Reads}, {"feed", ints, 1, -1, Reads}, {"cells", ints, 1, -1, Reads},
		{"table", t, 2, a.Hidden, Reads}, {"y", ascendrt.Float32, 2, a.Hidden, Writes}, {"near", t, 2, a.Hidden, Writes}}
	s.check = func(x []ascendrt.Tensor) error {
		if x[3].Rows() != a.Vocab {
			return errors.New("the table does not have one row per token of the vocabulary")
		}
		if x[5].Rows() != nearRows(x[4]) {
			return errors.New("near does not have a row per row of the stream up to NearRows")
		}
		return s.SameRows(x, 4, 0, 1)
	}
	return errors.Join(err, wide(s))
}

func pick(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.PickAttr) []int { return []int{a.Dim} })
	s.Params = []Param{{"x", ascendrt.Float32, 2, a.Dim, Reads}, {"keep", ints, 1, -1, Reads}, {"cells", ints, 1, -1, Updates}, {"y", ints, 1, -1, Writes}}
	s.check = func(x []ascendrt.Tensor) error { return s.SameRows(x, 0, 1, 3) }
	return errors.Join(err, wide(s))
}

func noise(s *Signature) error {
	a, err := Attr(s.Spec, func(a ascendrt.NoiseAttr) []int { return []int{a.Dim} })
	s.Params = []Param{{"y", s.Spec.Type, 2, a.Dim, Writes}}
	s.check = func([]ascendrt.Tensor) error { return nil }
	return errors.Join(err, wide(s))
}
