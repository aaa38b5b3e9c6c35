package opspec

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

const (
	f32  = ascendrt.Float32
	bf16 = ascendrt.BFloat16
)

// place gives tensors room, one behind the other, at multiples of 64 bytes.
func place(args ...ascendrt.Tensor) []ascendrt.Tensor {
	at := ascendrt.Addr(1 << 20)
	for i := range args {
		n := max(0, args[i].Bytes())
		args[i].View = ascendrt.View{Addr: at, Len: n, Max: n}
		at += ascendrt.Addr((n + 64) / 64 * 64)
	}
	return args
}

func shape(t ascendrt.DType, dims ...int) ascendrt.Tensor {
	return ascendrt.NewTensor(ascendrt.View{}, t, dims...)
}

// cases are the named operations with arguments that fit.
func cases() map[ascendrt.OpKind]struct {
	attr any
	args []ascendrt.Tensor
} {
	i := ascendrt.Int32
	return map[ascendrt.OpKind]struct {
		attr any
		args []ascendrt.Tensor
	}{
		ascendrt.OpEmbedding:  {ascendrt.EmbeddingAttr{Vocab: 9, Hidden: 4}, place(shape(i, 3), shape(f32, 9, 4), shape(f32, 3, 4))},
		ascendrt.OpGather:     {ascendrt.GatherAttr{Dim: 4}, place(shape(f32, 9, 4), shape(i, 3), shape(f32, 3, 4))},
		ascendrt.OpRMSNorm:    {ascendrt.NormAttr{Dim: 4, Groups: 2}, place(shape(f32, 3, 8), shape(f32, 4), shape(f32, 3, 8))},
		ascendrt.OpAddRMSNorm: {ascendrt.NormAttr{Dim: 4}, place(shape(f32, 3, 4), shape(f32, 3, 4), shape(f32, 4), shape(f32, 3, 4))},
		ascendrt.OpAdd:        {ascendrt.AddAttr{Dim: 4}, place(shape(f32, 3, 4), shape(f32, 3, 4), shape(f32, 3, 4))},
		ascendrt.OpMatmul:     {ascendrt.MatmulAttr{In: 4, Out: 6}, place(shape(f32, 3, 4), shape(f32, 6, 4), shape(f32, 3, 6))},
		ascendrt.OpRope: {ascendrt.RopeAttr{Heads: 2, KVHeads: 1, HeadDim: 4, MaxPosition: 7},
			place(shape(f32, 3, 8), shape(f32, 3, 4), shape(i, 3), shape(f32, 7, 4))},
		ascendrt.OpKVScatter: {ascendrt.ScatterAttr{KVHeads: 1, HeadDim: 4, BlockSize: 2},
			place(shape(f32, 3, 4), shape(f32, 3, 4), shape(i, 3), shape(f32, 5, 2, 1, 4), shape(f32, 5, 2, 1, 4))},
		ascendrt.OpAttention: {ascendrt.AttentionAttr{Heads: 2, KVHeads: 1, HeadDim: 4, BlockSize: 2},
			place(shape(f32, 3, 8), shape(f32, 5, 2, 1, 4), shape(f32, 5, 2, 1, 4), shape(i, 2, 4), shape(i, 3), shape(i, 2), shape(f32, 3, 8))},
		ascendrt.OpSwiGLU: {ascendrt.SwiGLUAttr{Dim: 4}, place(shape(f32, 3, 8), shape(f32, 3, 4))},
		ascendrt.OpArgmax: {ascendrt.ArgmaxAttr{Dim: 4}, place(shape(f32, 3, 4), shape(i, 3))},
		ascendrt.OpCast:   {ascendrt.CastAttr{Dim: 4, From: f32, To: bf16}, place(shape(f32, 3, 4), shape(bf16, 3, 4))},
	}
}

// Every operation takes its arguments, refuses each one that is of another
// type, has another shape, lacks room or is missing, and more rows than planned.
func TestArguments(t *testing.T) {
	for kind, c := range cases() {
		s, err := Describe(ascendrt.OpSpec{Kind: kind, Type: f32, MaxRows: 3, Attr: c.attr})
		require.NoError(t, err, kind)
		require.NoError(t, s.Check(c.args), kind)
		require.ErrorContains(t, s.Check(c.args[1:]), "arguments", kind)
		for i := range c.args {
			changed := func(f func(*ascendrt.Tensor)) error {
				args := append([]ascendrt.Tensor(nil), c.args...)
				f(&args[i])
				return s.Check(args)
			}
			for what, f := range map[string]func(*ascendrt.Tensor){
				"the type is":         func(x *ascendrt.Tensor) { x.Type = ascendrt.Int64 },
				"dimensions":          func(x *ascendrt.Tensor) { x.Rank--; x.RowStride = 0 },
				"it needs":            func(x *ascendrt.Tensor) { x.Len-- },
				"not aligned":         func(x *ascendrt.Tensor) { x.Addr++ },
				"the shape is inval":  func(x *ascendrt.Tensor) { x.RowStride = -1 },
				"the shape is invali": func(x *ascendrt.Tensor) { x.Dim[0] = -1 },
			} {
				err := changed(f)
				require.ErrorIs(t, err, ascendrt.ErrInvalid, "%v, argument %d: %s", kind, i, what)
				require.ErrorContains(t, err, what, "%v, argument %d", kind, i)
				require.ErrorContains(t, err, s.Params[i].Name)
			}
			if c.args[i].Rank == 2 && s.Params[i].Row >= 0 {
				require.ErrorContains(t, changed(func(x *ascendrt.Tensor) { x.Dim[1]-- }), "its rows have", "%v, argument %d", kind, i)
			}
		}
		names := map[string]bool{}
		slots := s.Slots()
		require.Len(t, slots, len(s.Ints)+len(s.Params))
		for i, x := range slots {
			names[x.Name] = true
			require.Equal(t, i >= len(s.Ints), x.Kind == ascendrt.SlotAddr)
		}
		require.Len(t, names, len(slots), "every slot has a name of its own")

		few, err := Describe(ascendrt.OpSpec{Kind: kind, Type: f32, MaxRows: 2, Attr: c.attr})
		require.NoError(t, err)
		require.ErrorContains(t, few.Check(c.args), "the plan allows 2", kind)
	}
}

// Shapes that fit alone and not together.
func TestShapesThatDisagree(t *testing.T) {
	for _, c := range []struct {
		kind ascendrt.OpKind
		arg  int
		t    ascendrt.Tensor
		text string
	}{
		{ascendrt.OpEmbedding, 1, shape(f32, 8, 4), "one row per token"},
		{ascendrt.OpEmbedding, 2, shape(f32, 2, 4), "ids has 3 rows, y has 2"},
		{ascendrt.OpGather, 1, shape(ascendrt.Int32, 2), "rows"},
		{ascendrt.OpRMSNorm, 1, shape(f32, 5), "w does not have Dim elements"},
		{ascendrt.OpAddRMSNorm, 2, shape(f32, 5), "w does not have Dim elements"},
		{ascendrt.OpAddRMSNorm, 1, shape(f32, 2, 4), "rows"},
		{ascendrt.OpMatmul, 1, shape(f32, 5, 4), "shape of its layout"},
		{ascendrt.OpRope, 3, shape(f32, 6, 4), "MaxPosition rows"},
		{ascendrt.OpKVScatter, 3, shape(f32, 5, 1, 2, 4), "[blocks, BlockSize, KVHeads, HeadDim]"},
		{ascendrt.OpKVScatter, 4, shape(f32, 4, 2, 1, 4), "differ in blocks"},
		{ascendrt.OpAttention, 4, shape(ascendrt.Int32, 2), "disagree about the number of requests"},
		{ascendrt.OpAttention, 5, shape(ascendrt.Int32, 3), "disagree about the number of requests"},
		{ascendrt.OpAttention, 6, shape(f32, 2, 8), "rows"},
	} {
		x := cases()[c.kind]
		s, err := Describe(ascendrt.OpSpec{Kind: c.kind, Type: f32, Attr: x.attr})
		require.NoError(t, err)
		x.args[c.arg] = place(c.t)[0]
		err = s.Check(x.args)
		require.ErrorIs(t, err, ascendrt.ErrInvalid)
		require.ErrorContains(t, err, c.text)
	}
}

func TestSpecs(t *testing.T) {
	for _, c := range []struct {
		spec  ascendrt.OpSpec
		class error
		text  string
	}{
		{ascendrt.OpSpec{Kind: "fold", Type: f32}, ascendrt.ErrUnsupported, "no operation of this name"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float16, Attr: ascendrt.AddAttr{Dim: 1}}, ascendrt.ErrUnsupported, "storage type float16"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: f32, MaxRows: -1, Attr: ascendrt.AddAttr{Dim: 1}}, ascendrt.ErrInvalid, "negative MaxRows"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: f32, Attr: ascendrt.CastAttr{Dim: 1}}, ascendrt.ErrInvalid, "the attribute is a ascendrt.CastAttr"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: f32}, ascendrt.ErrInvalid, "the attribute is a <nil>"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: f32, Attr: ascendrt.AddAttr{}}, ascendrt.ErrInvalid, "is not positive"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAddRMSNorm, Type: f32, Attr: ascendrt.NormAttr{Dim: 4, Groups: 2}}, ascendrt.ErrInvalid, "one group"},
		{ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: f32, Attr: ascendrt.MatmulAttr{In: 1, Out: 1, OutType: bf16}}, ascendrt.ErrInvalid, "storage type or float32"},
		{ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: f32, Attr: ascendrt.MatmulAttr{In: 1, Out: 1, Weights: 7}}, ascendrt.ErrInvalid, "unknown weight layout"},
		{ascendrt.OpSpec{Kind: ascendrt.OpRope, Type: f32, Attr: ascendrt.RopeAttr{Heads: 1, KVHeads: 1, HeadDim: 3, MaxPosition: 1}}, ascendrt.ErrInvalid, "odd"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAttention, Type: f32, Attr: ascendrt.AttentionAttr{Heads: 3, KVHeads: 2, HeadDim: 4, BlockSize: 2}}, ascendrt.ErrInvalid, "no multiple"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAttention, Type: f32, Attr: ascendrt.AttentionAttr{Heads: 2, KVHeads: 2, HeadDim: 4, BlockSize: 2, Window: -1}}, ascendrt.ErrInvalid, "negative"},
		{ascendrt.OpSpec{Kind: ascendrt.OpAttention, Type: f32, Attr: ascendrt.AttentionAttr{Heads: 2, KVHeads: 2, HeadDim: 4, BlockSize: 2, Scale: float32(math.NaN())}}, ascendrt.ErrInvalid, "Scale"},
		{ascendrt.OpSpec{Kind: ascendrt.OpCast, Type: f32, Attr: ascendrt.CastAttr{Dim: 1, From: f32, To: ascendrt.Int32}}, ascendrt.ErrInvalid, "between float32 and bfloat16"},
	} {
		_, err := Describe(c.spec)
		require.ErrorIs(t, err, c.class, c.text)
		require.ErrorContains(t, err, c.text)
	}
	s, err := Describe(ascendrt.OpSpec{Kind: ascendrt.OpAttention, Type: bf16, Attr: ascendrt.AttentionAttr{Heads: 2, KVHeads: 1, HeadDim: 16, BlockSize: 2}})
	require.NoError(t, err)
	require.Equal(t, float32(0.25), s.Spec.Attr.(ascendrt.AttentionAttr).Scale, "the default")
	require.Equal(t, []string{"lens", "starts"}, s.Ints)
	s, err = Describe(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: bf16, Attr: ascendrt.MatmulAttr{In: 1, Out: 1}})
	require.NoError(t, err)
	require.Equal(t, bf16, s.Spec.Attr.(ascendrt.MatmulAttr).OutType, "the default")
}

func TestUseNames(t *testing.T) {
	for u, name := range map[Use]string{Reads: "reads", Writes: "writes", Updates: "updates", Paged: "paged"} {
		require.Equal(t, name, u.String())
	}
}

// A residual stream is binary32, and rounded too up to NearRows rows.
func TestResidualStreams(t *testing.T) {
	const n, few = ascendrt.NearRows + 8, ascendrt.NearRows
	i := ascendrt.Int32
	for _, c := range []struct {
		kind         ascendrt.OpKind
		attr         any
		stream, near int
		args         []ascendrt.Tensor
	}{
		{ascendrt.OpLinear, ascendrt.LinearAttr{In: 8, Out: 16, Norm: true}, 0, 1, place(shape(f32, n, 8), shape(bf16, few, 8), shape(bf16, 8), shape(bf16, 16, 8), shape(bf16, n, 16))},
		{ascendrt.OpLinear, ascendrt.LinearAttr{In: 8, Out: 16, Norm: true, Rows: true, Epilogue: ascendrt.EpilogueFloat}, 0, 1,
			place(shape(f32, n, 8), shape(bf16, few, 8), shape(bf16, 8), shape(bf16, 16, 8), shape(i, 3), shape(f32, 3, 16))},
		{ascendrt.OpLinear, ascendrt.LinearAttr{In: 8, Out: 16, Epilogue: ascendrt.EpilogueAdd}, 2, 3, place(shape(bf16, n, 8), shape(bf16, 16, 8), shape(f32, n, 16), shape(bf16, few, 16))},
		{ascendrt.OpFeedEmbedding, ascendrt.FeedAttr{Vocab: 9, Hidden: 8}, 4, 5, place(shape(i, n), shape(i, n), shape(i, 2), shape(bf16, 9, 8), shape(f32, n, 8), shape(bf16, few, 8))},
	} {
		s, err := Describe(ascendrt.OpSpec{Kind: c.kind, Type: bf16, Attr: c.attr})
		require.NoError(t, err)
		require.NoError(t, s.Check(c.args), "%v %+v", c.kind, c.attr)
		with := func(i int, x ascendrt.Tensor) error {
			args := append([]ascendrt.Tensor(nil), c.args...)
			args[i] = place(x)[0]
			return s.Check(args)
		}
		width := c.args[c.near].RowLen()
		require.ErrorContains(t, with(c.stream, shape(bf16, n, width)), "the type is bfloat16, not float32")
		require.ErrorContains(t, with(c.near, shape(bf16, n, width)), "near does not have a row per row of the stream up to NearRows")
		require.ErrorContains(t, with(c.near, shape(bf16, 1, width)), "near does not have a row")
	}
}
