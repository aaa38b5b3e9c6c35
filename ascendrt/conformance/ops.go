package conformance

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

func floatBytes(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))...)
}

func floatsOf(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24)
	}
	return out
}

// value is an argument of an operation: a tensor and what its memory holds.
type value struct {
	t    ascendrt.Tensor // Addr unused
	data []byte
}

type maker struct{ rng *rand.Rand }

// floats gives normal values in the storage type.
func (m maker) floats(typ ascendrt.DType, scale float64, dims ...int) value {
	n := 1
	for _, d := range dims {
		n *= d
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(m.rng.NormFloat64() * scale)
	}
	return m.of(typ, x, dims...)
}

func (m maker) of(typ ascendrt.DType, x []float32, dims ...int) value {
	v := value{t: ascendrt.NewTensor(ascendrt.View{}, typ, dims...)}
	if typ == ascendrt.Float32 {
		v.data = floatBytes(x)
		return v
	}
	for _, f := range x {
		h := math.Float32bits(f) >> 16 // truncation is good enough for inputs
		v.data = append(v.data, byte(h), byte(h>>8))
	}
	return v
}

func wide(x []int32) []int64 {
	out := make([]int64, len(x))
	for i, v := range x {
		out[i] = int64(v)
	}
	return out
}

func (m maker) ints(x []int32, dims ...int) value {
	if dims == nil {
		dims = []int{len(x)}
	}
	v := value{t: ascendrt.NewTensor(ascendrt.View{}, ascendrt.Int32, dims...)}
	for _, i := range x {
		v.data = append(v.data, byte(i), byte(i>>8), byte(i>>16), byte(i>>24))
	}
	return v
}

// out is an output, filled with a pattern that no result leaves behind.
func (m maker) out(typ ascendrt.DType, dims ...int) value {
	n := typ.Size()
	for _, d := range dims {
		n *= d
	}
	v := value{t: ascendrt.NewTensor(ascendrt.View{}, typ, dims...), data: make([]byte, n)}
	for i := range v.data {
		v.data[i] = 0xff
	}
	return v
}

// runOp runs one operation and gives the memory of all arguments afterwards.
// Equal argument indices in alias share memory.
func (b *bench) runOp(o opCase) [][]byte {
	b.t.Helper()
	spec, args, alias := o.spec, o.args, o.alias
	op, err := b.d.Plan(spec)
	require.NoError(b.t, err, "%v", spec)
	ws := b.alloc(max(1, op.Workspace()))
	tensors := make([]ascendrt.Tensor, len(args))
	bufs := make([]ascendrt.Buffer, len(args))
	for i, v := range args {
		tensors[i] = v.t
		if j, ok := alias[i]; ok {
			tensors[i].View = tensors[j].View
			continue
		}
		bufs[i] = b.alloc(len(v.data))
		b.write(bufs[i].View(), v.data)
		tensors[i].View = bufs[i].View()
	}
	b.do(func(c *ascendrt.Commands) {
		if b.d.Caps().HostLengths {
			for i, v := range o.slots {
				c.SlotValues(i, v...)
			}
		}
		c.Op(op, ws.View(), tensors...)
	})
	out := make([][]byte, len(args))
	for i := range args {
		if bufs[i] != nil {
			out[i] = b.read(bufs[i].View())
			b.free(bufs[i])
		}
	}
	b.free(ws)
	require.NoError(b.t, op.Close())
	return out
}

// hostBench is the reference.
func hostBench(t *testing.T) *bench {
	t.Helper()
	d, err := host.Backend{}.Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	b := &bench{t: t, d: d}
	t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
	b.s = b.stream()
	return b
}

// requireClose compares memory of one type: bitwise for deterministic
// backends and integers, else by relative norm.
func requireClose(t *testing.T, s Suite, exact bool, typ ascendrt.DType, want, got []byte, msg string) {
	t.Helper()
	require.Equal(t, len(want), len(got), msg)
	if exact || typ == ascendrt.Int32 {
		for i := range want {
			if want[i] != got[i] {
				at := i / typ.Size() * typ.Size()
				t.Fatalf("%s: byte %d (element %d): % x, not % x", msg, i, i/typ.Size(), got[at:at+typ.Size()], want[at:at+typ.Size()])
			}
		}
		return
	}
	w, g := widen(typ, want), widen(typ, got)
	var diff, norm float64
	for i := range w {
		if math.IsNaN(float64(w[i])) && math.IsNaN(float64(g[i])) {
			continue
		}
		diff += math.Pow(float64(w[i]-g[i]), 2)
		norm += math.Pow(float64(w[i]), 2)
	}
	require.LessOrEqual(t, math.Sqrt(diff), s.Tolerance*math.Sqrt(norm), msg)
}

func widen(typ ascendrt.DType, b []byte) []float32 {
	if typ == ascendrt.Float32 {
		return floatsOf(b)
	}
	out := make([]float32, len(b)/2)
	for i := range out {
		out[i] = math.Float32frombits(uint32(b[2*i])<<16 | uint32(b[2*i+1])<<24)
	}
	return out
}

type opCase struct {
	name  string
	spec  ascendrt.OpSpec
	args  []value
	alias map[int]int
	slots [][]int64 // where Caps.HostLengths asks for them
}

func opCases(typ ascendrt.DType, blockSize int) []opCase {
	m := maker{rand.New(rand.NewPCG(11, uint64(typ)))}
	var cases []opCase
	add := func(name string, kind ascendrt.OpKind, attr any, alias map[int]int, args ...value) {
		cases = append(cases, opCase{name: name, spec: ascendrt.OpSpec{Kind: kind, Type: typ, Attr: attr}, args: args, alias: alias})
	}
	add("embedding", ascendrt.OpEmbedding, ascendrt.EmbeddingAttr{Vocab: 50, Hidden: 96}, nil,
		m.ints([]int32{3, -1, 49, 0}), m.floats(typ, 1, 50, 96), m.out(typ, 4, 96))
	add("gather", ascendrt.OpGather, ascendrt.GatherAttr{Dim: 40}, nil,
		m.floats(typ, 1, 9, 40), m.ints([]int32{8, -1, 0}), m.out(typ, 3, 40))
	add("rmsnorm", ascendrt.OpRMSNorm, ascendrt.NormAttr{Dim: 128, Eps: 1e-6}, nil,
		m.floats(typ, 1, 17, 128), m.floats(typ, 1, 128), m.out(typ, 17, 128))
	add("rmsnorm by heads in place", ascendrt.OpRMSNorm, ascendrt.NormAttr{Dim: 32, Groups: 5, Eps: 1e-5}, map[int]int{2: 0},
		m.floats(typ, 1, 6, 160), m.floats(typ, 1, 32), m.out(typ, 6, 160))
	add("add_rmsnorm", ascendrt.OpAddRMSNorm, ascendrt.NormAttr{Dim: 100, Eps: 1e-6}, nil,
		m.floats(typ, 1, 5, 100), m.floats(typ, 3, 5, 100), m.floats(typ, 1, 100), m.out(typ, 5, 100))
	add("add", ascendrt.OpAdd, ascendrt.AddAttr{Dim: 33}, map[int]int{2: 1}, m.floats(typ, 1, 3, 33), m.floats(typ, 1, 3, 33), m.out(typ, 3, 33))
	for _, s := range [][3]int{{1, 128, 512}, {5, 96, 259}, {70, 160, 64}} {
		for _, l := range []ascendrt.WeightLayout{ascendrt.WeightsMK, ascendrt.WeightsKM} {
			for _, out := range []ascendrt.DType{typ, ascendrt.Float32} {
				w := m.floats(typ, 0.1, s[2], s[1])
				if l == ascendrt.WeightsKM {
					w = m.floats(typ, 0.1, s[1], s[2])
				}
				add(fmt.Sprintf("matmul %v %v %v", s, l, out), ascendrt.OpMatmul, ascendrt.MatmulAttr{In: s[1], Out: s[2], Weights: l, OutType: out}, nil,
					m.floats(typ, 1, s[0], s[1]), w, m.out(out, s[0], s[2]))
			}
		}
	}
	add("rope", ascendrt.OpRope, ascendrt.RopeAttr{Heads: 4, KVHeads: 2, HeadDim: 32, MaxPosition: 300}, nil,
		m.floats(typ, 1, 4, 128), m.floats(typ, 1, 4, 64), m.ints([]int32{0, -1, 299, 17}),
		m.of(ascendrt.Float32, ascendrt.RopeTable(300, 32, 1e6), 300, 32))
	add("kv_scatter", ascendrt.OpKVScatter, ascendrt.ScatterAttr{KVHeads: 2, HeadDim: 16, BlockSize: 8}, nil,
		m.floats(typ, 1, 4, 32), m.floats(typ, 1, 4, 32), m.ints([]int32{9, -1, 31, 0}), m.out(typ, 4, 8, 2, 16), m.out(typ, 4, 8, 2, 16))
	for _, window := range []int{0, 50} {
		for _, g := range [][3]int{{4, 2, 32}, {3, 1, 64}} {
			at := ascendrt.AttentionAttr{Heads: g[0], KVHeads: g[1], HeadDim: g[2], BlockSize: blockSize, Window: window}
			// prefill, tail, decode, padded, long resumed prefill
			starts, lens := []int32{0, 20, 21, 22, 23, 163}, []int32{20, 100, 257, 0, 200}
			table := make([]int32, 5*20)
			for i := range table {
				table[i] = -1
			}
			block := int32(1)
			for r, n := range lens {
				for j := 0; j*blockSize < int(n); j++ {
					table[r*20+j] = block
					block++
				}
			}
			dim := g[0] * g[2]
			add(fmt.Sprintf("attention %v window %d", g, window), ascendrt.OpAttention, at, nil,
				m.floats(typ, 1, 170, dim), m.floats(typ, 1, 64, blockSize, g[1], g[2]), m.floats(typ, 1, 64, blockSize, g[1], g[2]),
				m.ints(table, 5, 20), m.ints(starts), m.ints(lens), m.out(typ, 170, dim))
			cases[len(cases)-1].slots = [][]int64{wide(lens), wide(starts)}
		}
	}
	add("swiglu", ascendrt.OpSwiGLU, ascendrt.SwiGLUAttr{Dim: 70}, nil, m.floats(typ, 8, 9, 140), m.out(typ, 9, 70))
	ties := m.floats(typ, 1, 6, 259)
	copy(ties.data[259*typ.Size():], ties.data[:259*typ.Size()])
	for i := range 259 * typ.Size() {
		ties.data[2*259*typ.Size()+i] = 0 // a row of equals
	}
	add("argmax", ascendrt.OpArgmax, ascendrt.ArgmaxAttr{Dim: 259}, nil, ties, m.out(ascendrt.Int32, 6))
	holes := make([]float32, 4*259) // a NaN in front, in the middle, at the end, and none
	for i := range holes {
		holes[i] = float32(i % 50)
	}
	for i, at := range []int{0, 130, 258} {
		holes[259*i+at] = float32(math.NaN())
	}
	add("argmax of NaN", ascendrt.OpArgmax, ascendrt.ArgmaxAttr{Dim: 259}, nil, m.of(typ, holes, 4, 259), m.ints([]int32{7, 7, 7, 7}))
	add("cast up", ascendrt.OpCast, ascendrt.CastAttr{Dim: 30, From: typ, To: ascendrt.Float32}, nil, m.floats(typ, 1, 2, 30), m.out(ascendrt.Float32, 2, 30))
	add("cast down", ascendrt.OpCast, ascendrt.CastAttr{Dim: 30, From: ascendrt.Float32, To: ascendrt.BFloat16}, nil,
		m.floats(ascendrt.Float32, 1, 2, 30), m.out(ascendrt.BFloat16, 2, 30))
	return cases
}

// testOps compares every named operation with the host backend.
func testOps(t *testing.T, s Suite) {
	b, ref := s.bench(t, ascendrt.OpenOptions{}), hostBench(t)
	for _, typ := range []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16} {
		for _, c := range opCases(typ, s.blockSize()) {
			t.Run(typ.String()+"/"+c.name, func(t *testing.T) {
				b.t, ref.t = t, t
				if s.lacks(c.spec) {
					_, err := b.d.Plan(c.spec)
					require.ErrorIs(t, err, ascendrt.ErrUnsupported)
					t.Skip(err)
				}
				want, got := ref.runOp(c), b.runOp(c)
				for i := range want {
					requireClose(t, s, b.d.Caps().DeterministicReduce, c.args[i].t.Type, want[i], got[i], fmt.Sprintf("argument %d", i))
				}
			})
		}
	}
	b.t, ref.t = t, t
	b.closed()
}
