package host

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

// rig is a device with one stream and helpers that fail the test.
type rig struct {
	t *testing.T
	d ascendrt.Device
	s ascendrt.Stream
}

func newRig(t *testing.T, o ascendrt.OpenOptions) *rig {
	t.Helper()
	o.Debug = ascendrt.DebugSync // poison: unwritten memory is NaN
	d, err := Backend{}.Open(0, o)
	require.NoError(t, err)
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
	return &rig{t, d, s}
}

func (r *rig) raw(b []byte) ascendrt.View {
	r.t.Helper()
	buf, err := r.d.Alloc(len(b), ascendrt.PlaceDefault)
	require.NoError(r.t, err)
	require.NoError(r.t, ascendrt.Upload(context.Background(), r.d, r.s, buf.View(), b))
	r.t.Cleanup(func() { _ = buf.FreeAfter(ascendrt.Point{}) })
	return buf.View()
}

func bytesOf[T any](x []T) []byte {
	var z T
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(z)))
}

// floats stores x in the type and gives back the values as stored.
func (r *rig) floats(t ascendrt.DType, x []float32, dims ...int) (ascendrt.Tensor, []float32) {
	if t == ascendrt.Float32 {
		return ascendrt.NewTensor(r.raw(bytesOf(x)), t, dims...), x
	}
	half := make([]uint16, len(x))
	arith.ToBF16(half, x)
	stored := make([]float32, len(x))
	arith.FromBF16(stored, half)
	return ascendrt.NewTensor(r.raw(bytesOf(half)), t, dims...), stored
}

func (r *rig) ints(x []int32, dims ...int) ascendrt.Tensor {
	if dims == nil {
		dims = []int{len(x)}
	}
	return ascendrt.NewTensor(r.raw(bytesOf(x)), ascendrt.Int32, dims...)
}

func (r *rig) empty(t ascendrt.DType, dims ...int) ascendrt.Tensor {
	n := t.Size()
	for _, d := range dims {
		n *= d
	}
	buf, err := r.d.Alloc(n, ascendrt.PlaceDefault)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = buf.FreeAfter(ascendrt.Point{}) })
	return ascendrt.NewTensor(buf.View(), t, dims...)
}

// read gives a contiguous tensor's values as float32 (ints too).
func (r *rig) read(x ascendrt.Tensor) []float32 {
	r.t.Helper()
	b := make([]byte, x.Bytes())
	require.NoError(r.t, ascendrt.Download(context.Background(), r.d, r.s, b, x.View))
	switch x.Type {
	case ascendrt.Float32:
		return typed[float32](b)
	case ascendrt.BFloat16:
		out := make([]float32, len(b)/2)
		arith.FromBF16(out, typed[uint16](b))
		return out
	}
	var out []float32
	for _, v := range typed[int32](b) {
		out = append(out, float32(v))
	}
	return out
}

func (r *rig) plan(spec ascendrt.OpSpec) ascendrt.Op {
	r.t.Helper()
	o, err := r.d.Plan(spec)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = o.Close() })
	return o
}

func (r *rig) run(o ascendrt.Op, args ...ascendrt.Tensor) {
	r.t.Helper()
	var c ascendrt.Commands
	c.Op(o, ascendrt.View{}, args...)
	p, _, err := r.s.Submit(&c)
	require.NoError(r.t, err)
	require.NoError(r.t, p.Wait(context.Background()))
}

func normals(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// round is the rounding point at the end of an operation.
func round(t ascendrt.DType, x []float32) []float32 {
	if t == ascendrt.Float32 {
		return x
	}
	h, out := make([]uint16, len(x)), make([]float32, len(x))
	arith.ToBF16(h, x)
	arith.FromBF16(out, h)
	return out
}

func requireSame(t *testing.T, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("element %d is %v, not %v", i, got[i], want[i])
		}
	}
}

func eachType(t *testing.T, f func(t *testing.T, typ ascendrt.DType)) {
	for _, typ := range []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16} {
		t.Run(typ.String(), func(t *testing.T) { f(t, typ) })
	}
}

// Products accumulate in the order of k, for both weight layouts, any shape
// and any number of workers.
func TestMatmulSumsInOrder(t *testing.T) {
	eachType(t, func(t *testing.T, typ ascendrt.DType) {
		rng := rand.New(rand.NewPCG(1, 1))
		r := newRig(t, ascendrt.OpenOptions{Workers: 3})
		for _, c := range []struct{ n, k, m int }{{1, 128, 96}, {7, 33, 35}, {40, 128, 259}, {300, 128, 64}, {0, 8, 8}} {
			x, xs := r.floats(typ, normals(rng, c.n*c.k), c.n, c.k)
			w := normals(rng, c.k*c.m)
			wmk, ws := r.floats(typ, w, c.m, c.k)
			turned := make([]float32, len(w))
			for i := range c.m {
				for j := range c.k {
					turned[j*c.m+i] = w[i*c.k+j]
				}
			}
			wkm, _ := r.floats(typ, turned, c.k, c.m)
			want := make([]float32, c.n*c.m)
			for i := range c.n {
				for j := range c.m {
					var s float32
					for k := range c.k {
						s += float32(xs[i*c.k+k] * ws[j*c.k+k])
					}
					want[i*c.m+j] = s
				}
			}
			for _, lay := range []ascendrt.WeightLayout{ascendrt.WeightsMK, ascendrt.WeightsKM} {
				for _, out := range []ascendrt.DType{0, ascendrt.Float32} {
					o := r.plan(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: typ, Attr: ascendrt.MatmulAttr{In: c.k, Out: c.m, Weights: lay, OutType: out}})
					if out == 0 {
						out = typ
					}
					y := r.empty(out, c.n, c.m)
					arg := wmk
					if lay == ascendrt.WeightsKM {
						arg = wkm
					}
					r.run(o, x, arg, y)
					requireSame(t, round(out, want), r.read(y))
				}
			}
		}
	})
}

// naiveAttention is attention for one query row, as docs/numerics.md states it.
func naiveAttention(q []float32, key, value func(j int) []float32, lo, hi int, scale float32) []float32 {
	p := make([]float32, hi-lo)
	m := float32(math.Inf(-1))
	for j := lo; j < hi; j++ {
		var s float32
		for d, v := range q {
			s += float32(v * key(j)[d])
		}
		p[j-lo] = s
		m = max(m, s)
	}
	m = float32(m * scale)
	var sum float32
	for j := range p {
		p[j] = arith.Exp(float32(p[j]*scale) - m)
		sum += p[j]
	}
	out := make([]float32, len(q))
	for d := range out {
		var s float32
		for j := range p {
			s += float32(p[j] * value(lo + j)[d])
		}
		out[d] = s / sum
	}
	return out
}

// Each query row's result is that of the row computed alone, in a batch of
// prefills, tails, decodes and padded requests, with and without a window.
func TestAttentionRowsAreThoseComputedAlone(t *testing.T) {
	eachType(t, func(t *testing.T, typ ascendrt.DType) {
		for _, window := range []int{0, 20} {
			for _, group := range []int{1, 2, 3} {
				testAttention(t, typ, window, group)
			}
		}
	})
}

func testAttention(t *testing.T, typ ascendrt.DType, window, group int) {
	const heads, dim, bs, blocks, wide = 2, 16, 8, 120, 50
	rng := rand.New(rand.NewPCG(5, uint64(group)))
	r := newRig(t, ascendrt.OpenOptions{Workers: 2})
	nan := float32(math.NaN())
	row := heads * dim
	kc, vc := make([]float32, blocks*bs*row), make([]float32, blocks*bs*row)
	for i := range kc {
		kc[i], vc[i] = nan, nan // never written
	}
	// (rows, tokens): prefill, tail, decode, padded, resumed prefill, decode
	requests := [][2]int{{37, 37}, {1, 33}, {1, 130}, {1, 0}, {150, 300}, {0, 0}, {1, 1}}
	starts, lens := []int32{0}, []int32{}
	table := make([]int32, len(requests)*wide)
	next := int32(1)
	for i, q := range requests {
		starts = append(starts, starts[i]+int32(q[0]))
		lens = append(lens, int32(q[1]))
		for j := range wide {
			table[i*wide+j] = -1
			if j*bs >= q[1] || window > 0 && (j+1)*bs <= q[1]-q[0]+1-window {
				continue // not there yet, or left the window of all rows
			}
			b := next
			next++
			table[i*wide+j] = b
			for k := j * bs; k < min(q[1], (j+1)*bs); k++ {
				copy(kc[(int(b)*bs+k%bs)*row:][:row], normals(rng, row))
				copy(vc[(int(b)*bs+k%bs)*row:][:row], normals(rng, row))
			}
		}
	}
	require.Less(t, int(next), blocks)
	n := int(starts[len(requests)]) + 3
	q, qs := r.floats(typ, normals(rng, n*heads*group*dim), n, heads*group*dim)
	k, ks := r.floats(typ, kc, blocks, bs, heads, dim)
	v, vs := r.floats(typ, vc, blocks, bs, heads, dim)
	y := r.empty(typ, n, heads*group*dim)
	o := r.plan(ascendrt.OpSpec{Kind: ascendrt.OpAttention, Type: typ, Attr: ascendrt.AttentionAttr{
		Heads: heads * group, KVHeads: heads, HeadDim: dim, BlockSize: bs, Window: window}})
	r.run(o, q, k, v, r.ints(table, len(requests), wide), r.ints(starts), r.ints(lens), y)
	got := r.read(y)
	scale := float32(1 / math.Sqrt(dim))
	for i, rq := range requests {
		for l := range rq[0] {
			at := int(starts[i]) + l
			for h := range heads * group {
				want := make([]float32, dim)
				if rq[1] > 0 {
					side := func(c []float32) func(int) []float32 {
						return func(j int) []float32 {
							slot := int(table[i*wide+j/bs])*bs + j%bs
							return c[slot*row+h/group*dim:][:dim]
						}
					}
					hi := rq[1] - rq[0] + l + 1
					lo := 0
					if window > 0 {
						lo = max(0, hi-window)
					}
					want = naiveAttention(qs[(at*heads*group+h)*dim:][:dim], side(ks), side(vs), lo, hi, scale)
				}
				requireSame(t, round(typ, want), got[(at*heads*group+h)*dim:][:dim])
			}
		}
	}
	for _, v := range got[int(starts[len(requests)])*heads*group*dim:] {
		require.Zero(t, v)
	}
}

func TestRowOperations(t *testing.T) {
	eachType(t, func(t *testing.T, typ ascendrt.DType) {
		rng := rand.New(rand.NewPCG(9, 9))
		r := newRig(t, ascendrt.OpenOptions{})
		const n, h, f = 9, 24, 20
		x, xs := r.floats(typ, normals(rng, n*h), n, h)
		w, ws := r.floats(typ, normals(rng, h/2), h/2)
		full, fs := r.floats(typ, normals(rng, h), h)
		norm1 := func(x, w []float32) []float32 {
			var ss float32
			for _, v := range x {
				ss += float32(v * v)
			}
			inv := 1 / arith.Sqrt(ss/float32(len(x))+1e-6)
			out := make([]float32, len(x))
			for i := range x {
				out[i] = float32(x[i]*inv) * w[i]
			}
			return out
		}

		y := r.empty(typ, n, h)
		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpRMSNorm, Type: typ, Attr: ascendrt.NormAttr{Dim: h / 2, Groups: 2, Eps: 1e-6}}), x, w, y)
		var want []float32
		for i := 0; i < len(xs); i += h / 2 {
			want = append(want, norm1(xs[i:i+h/2], ws)...)
		}
		requireSame(t, round(typ, want), r.read(y))

		res, rs := r.floats(typ, normals(rng, n*h), n, h)
		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpAddRMSNorm, Type: typ, Attr: ascendrt.NormAttr{Dim: h, Eps: 1e-6}}), x, res, full, y)
		sum := make([]float32, n*h)
		for i := range sum {
			sum[i] = rs[i] + xs[i]
		}
		sum = round(typ, sum)
		want = nil
		for i := range n {
			want = append(want, norm1(sum[i*h:(i+1)*h], fs)...)
		}
		requireSame(t, sum, r.read(res))
		requireSame(t, round(typ, want), r.read(y))

		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpGather, Type: typ, Attr: ascendrt.GatherAttr{Dim: h}}), x, r.ints([]int32{8, -1, 0}), y.First(3))
		want = append(append(append([]float32{}, xs[8*h:]...), make([]float32, h)...), xs[:h]...)
		requireSame(t, want, r.read(y)[:3*h])

		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpEmbedding, Type: typ, Attr: ascendrt.EmbeddingAttr{Vocab: n, Hidden: h}}), r.ints([]int32{-1, 3}), x, y.First(2))
		requireSame(t, append(make([]float32, h), xs[3*h:4*h]...), r.read(y)[:2*h])

		gate, gs := r.floats(typ, normals(rng, n*2*f), n, 2*f)
		out := r.empty(typ, n, f)
		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpSwiGLU, Type: typ, Attr: ascendrt.SwiGLUAttr{Dim: f}}), gate, out)
		want = nil
		for i := range n {
			for j := range f {
				g, u := gs[i*2*f+j], gs[i*2*f+f+j]
				want = append(want, float32(g/(1+arith.Exp(-g)))*u)
			}
		}
		requireSame(t, round(typ, want), r.read(out))

		ties := []float32{1, 5, 5, 2, float32(math.NaN()), -1, float32(math.Inf(-1)), float32(math.Inf(-1)), float32(math.Inf(-1)), float32(math.NaN()), 3, 3}
		tt, _ := r.floats(typ, ties, 4, 3)
		best := r.empty(ascendrt.Int32, 4)
		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpArgmax, Type: typ, Attr: ascendrt.ArgmaxAttr{Dim: 3}}), tt, best)
		require.Equal(t, []float32{1, -1, 0, -1}, r.read(best))

		// Rope over the parts of a fused projection, rows 48 apart.
		fused, fv := r.floats(typ, normals(rng, 3*48), 3, 48)
		tab := ascendrt.RopeTable(10, 8, 10000)
		table, _ := r.floats(ascendrt.Float32, tab, 10, 8)
		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpRope, Type: typ, Attr: ascendrt.RopeAttr{Heads: 2, KVHeads: 1, HeadDim: 8, MaxPosition: 10}}),
			fused.Columns(0, 16), fused.Columns(16, 8), r.ints([]int32{4, -1, 9}), table)
		want = append([]float32{}, fv...)
		for row, p := range []int{4, -1, 9} {
			for head := 0; p >= 0 && head < 3; head++ {
				for i := range 4 {
					a, b := fv[row*48+head*8+i], fv[row*48+head*8+4+i]
					c, s := tab[p*8+i], tab[p*8+4+i]
					want[row*48+head*8+i] = float32(a*c) - float32(b*s)
					want[row*48+head*8+4+i] = float32(b*c) + float32(a*s)
				}
			}
		}
		requireSame(t, round(typ, want), r.read(fused))

		// Scatter skips negative slots and touches nothing else.
		cache := r.empty(typ, 3, 4, 1, 6)
		cache2 := r.empty(typ, 3, 4, 1, 6)
		kv, kvs := r.floats(typ, normals(rng, 3*12), 3, 12)
		r.run(r.plan(ascendrt.OpSpec{Kind: ascendrt.OpKVScatter, Type: typ, Attr: ascendrt.ScatterAttr{KVHeads: 1, HeadDim: 6, BlockSize: 4}}),
			kv.Columns(0, 6), kv.Columns(6, 6), r.ints([]int32{7, -1, 0}), cache, cache2)
		k, v := r.read(cache), r.read(cache2)
		for slot := range 12 {
			switch slot {
			case 7:
				requireSame(t, kvs[:6], k[slot*6:][:6])
				requireSame(t, kvs[6:12], v[slot*6:][:6])
			case 0:
				requireSame(t, kvs[24:30], k[slot*6:][:6])
				requireSame(t, kvs[30:], v[slot*6:][:6])
			default:
				require.True(t, k[slot*6] != k[slot*6])
			}
		}
	})
}

// An index past the end loses the device, with a text that names it.
func TestIndexPastTheEndIsADeviceFault(t *testing.T) {
	r := newRig(t, ascendrt.OpenOptions{})
	x, _ := r.floats(ascendrt.Float32, make([]float32, 8), 2, 4)
	o := r.plan(ascendrt.OpSpec{Kind: ascendrt.OpEmbedding, Type: ascendrt.Float32, Attr: ascendrt.EmbeddingAttr{Vocab: 2, Hidden: 4}})
	ids := r.ints([]int32{1, 2})
	var c ascendrt.Commands
	c.Op(o, ascendrt.View{}, ids, x, r.empty(ascendrt.Float32, 2, 4))
	p, _, err := r.s.Submit(&c)
	require.NoError(t, err)
	err = p.Wait(context.Background())
	require.ErrorIs(t, err, ascendrt.ErrDeviceLost)
	require.ErrorContains(t, err, "token 2 of row 1 is not below 2")
}
