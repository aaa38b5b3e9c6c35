//go:build cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// bench is a device with tensors whose contents the test knows. Cases are subtests,
// so that a pattern picks small ones for tools that slow kernels down.
type bench struct {
	t   *testing.T
	d   ascendrt.Device
	s   ascendrt.Stream
	rng *rand.Rand
}

func fusedBench(t *testing.T) *bench {
	t.Helper()
	if emulated {
		t.Skip("the emulation has no tensor cores")
	}
	d, s := open(t, ascendrt.OpenOptions{})
	if d.(*device).desc.cc < 90 {
		t.Skip("fused operations need compute capability 9.0")
	}
	return &bench{t, d, s, rand.New(rand.NewPCG(1, 2))}
}

// in is the bench for a subtest.
func (b *bench) in(t *testing.T) *bench {
	c := *b
	c.t = t
	return &c
}

func widen(h uint16) float64 { return float64(math.Float32frombits(uint32(h) << 16)) }

func narrow(v float64) uint16 {
	b := math.Float32bits(float32(v))
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// normal gives bf16 values of that standard deviation, rounded.
func (b *bench) normal(n int, scale float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = widen(narrow(b.rng.NormFloat64() * scale))
	}
	return out
}

// stream gives values that bfloat16 does not hold, as a residual stream, and the
// same rounded; it is poisoned where kernels must not read it.
func (b *bench) stream(n, width int, scale float64) (values []float64, x, near ascendrt.Tensor) {
	values, raw := make([]float64, n*width), make([]float32, n*width)
	for i := range raw {
		raw[i] = float32(b.rng.NormFloat64() * scale)
		values[i] = float64(raw[i])
	}
	x = b.floats(raw, n, width)
	if n > ascendrt.NearRows {
		return values, x, b.poisoned(ascendrt.BFloat16, ascendrt.NearRows, width)
	}
	return values, x, b.halves(values, n, width)
}

func (b *bench) upload(raw []byte) ascendrt.Buffer {
	buf, err := b.d.Alloc(max(len(raw), 16), ascendrt.PlaceDefault)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, buf.FreeAfter(ascendrt.Point{})) })
	require.NoError(b.t, ascendrt.Upload(b.t.Context(), b.d, b.s, buf.View(), raw))
	return buf
}

func (b *bench) halves(x []float64, dims ...int) ascendrt.Tensor {
	raw := make([]byte, 2*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint16(raw[2*i:], narrow(v))
	}
	return ascendrt.NewTensor(b.upload(raw).View(), ascendrt.BFloat16, dims...)
}

func (b *bench) floats(x []float32, dims ...int) ascendrt.Tensor {
	raw := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(v))
	}
	return ascendrt.NewTensor(b.upload(raw).View(), ascendrt.Float32, dims...)
}

func (b *bench) ints(x []int32, dims ...int) ascendrt.Tensor {
	raw := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(raw[4*i:], uint32(v))
	}
	if dims == nil {
		dims = []int{len(x)}
	}
	return ascendrt.NewTensor(b.upload(raw).View(), ascendrt.Int32, dims...)
}

// poisoned is an output that holds NaN.
func (b *bench) poisoned(typ ascendrt.DType, dims ...int) ascendrt.Tensor {
	n := typ.Size()
	for _, d := range dims {
		n *= d
	}
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = 0xff
	}
	return ascendrt.NewTensor(b.upload(raw).View(), typ, dims...)
}

func (b *bench) read(t ascendrt.Tensor) []float64 {
	raw := make([]byte, t.Bytes())
	require.NoError(b.t, ascendrt.Download(context.Background(), b.d, b.s, raw, t.View.Slice(0, t.Bytes())))
	out := make([]float64, len(raw)/t.Type.Size())
	for i := range out {
		switch t.Type {
		case ascendrt.BFloat16:
			out[i] = widen(binary.LittleEndian.Uint16(raw[2*i:]))
		case ascendrt.Float32:
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
		default:
			out[i] = float64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		}
	}
	return out
}

func (b *bench) run(kind ascendrt.OpKind, rows int, attr any, args ...ascendrt.Tensor) {
	b.t.Helper()
	op, err := b.d.Plan(ascendrt.OpSpec{Kind: kind, Type: ascendrt.BFloat16, MaxRows: rows, Attr: attr})
	require.NoError(b.t, err)
	defer op.Close()
	var ws ascendrt.View
	if n := op.Workspace(); n > 0 {
		buf, err := b.d.Alloc(n, ascendrt.PlaceDefault)
		require.NoError(b.t, err)
		defer buf.FreeAfter(ascendrt.Point{})
		ws = buf.View()
	}
	submit(b.t, b.s, func(c *ascendrt.Commands) { c.Op(op, ws, args...) })
}

// apart is the relative distance of two vectors; NaN counts as infinite.
func apart(got, want []float64) float64 {
	var d, n float64
	for i := range want {
		e := got[i] - want[i]
		if math.IsNaN(e) {
			return math.Inf(1)
		}
		d += e * e
		n += want[i] * want[i]
	}
	return math.Sqrt(d / max(n, 1e-30))
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

func TestFusedLinear(t *testing.T) {
	bench := fusedBench(t)
	for _, size := range []struct{ k, m int }{{256, 512}, {1024, 48}, {1024, 1024}, {3072, 264}, {512, 5000}} {
		for _, epi := range []ascendrt.Epilogue{ascendrt.EpilogueStore, ascendrt.EpilogueAdd, ascendrt.EpilogueSwiGLU, ascendrt.EpilogueFloat} {
			for _, n := range []int{1, 3, 8, 9, 16, 31, 32, 33, 64, 65} {
				t.Run(fmt.Sprintf("%d_to_%d/%v/%d", size.k, size.m, epilogues[epi], n), func(t *testing.T) { fusedLinear(bench.in(t), size.k, size.m, n, n, epi, false) })
			}
			for _, n := range []int{1, 16, 17, 65, 257} {
				if n*size.k*size.m > 1<<27 {
					continue // minutes for the reference
				}
				t.Run(fmt.Sprintf("%d_to_%d/%v/per_row_%d", size.k, size.m, epilogues[epi], n), func(t *testing.T) { fusedLinear(bench.in(t), size.k, size.m, n, n, epi, true) })
			}
		}
	}
}

var epilogues = map[ascendrt.Epilogue]string{
	ascendrt.EpilogueStore: "store", ascendrt.EpilogueAdd: "add", ascendrt.EpilogueSwiGLU: "swiglu", ascendrt.EpilogueFloat: "float",
}

// A few rows of a stream of many tokens, which has no rounded ones.
func TestFusedLinearOfFewRowsOfMany(t *testing.T) {
	bench := fusedBench(t)
	for _, k := range []int{1024, 256} {
		for _, n := range []int{1, 7, 16, 32, 33} {
			t.Run(fmt.Sprintf("%d/%d", k, n), func(t *testing.T) { fusedLinear(bench.in(t), k, 264, n, 70, ascendrt.EpilogueFloat, false) })
			t.Run(fmt.Sprintf("%d/per_row_%d", k, n), func(t *testing.T) { fusedLinear(bench.in(t), k, 264, n, 70, ascendrt.EpilogueFloat, true) })
		}
	}
}

// fusedLinear computes n rows of an input of `of` rows.
func fusedLinear(b *bench, k, m, n, of int, epi ascendrt.Epilogue, perRow bool) {
	norm, both := epi != ascendrt.EpilogueAdd, 1
	if epi == ascendrt.EpilogueSwiGLU {
		both = 2
	}
	w, gain := b.normal(both*m*k, 1/math.Sqrt(float64(k))), b.normal(k, 1)
	tw, tg := b.halves(w, both*m, k), b.halves(gain, k)
	attr := ascendrt.LinearAttr{In: k, Out: m, Norm: norm, Eps: 1e-6, Epilogue: epi, Rows: epi == ascendrt.EpilogueFloat, PerRow: perRow}
	var x []float64
	var args []ascendrt.Tensor
	if norm {
		values, sums, near := b.stream(of, k, 2)
		x, args = values, append(args, sums, near, tg)
	} else {
		x = b.normal(of*k, 2)
		args = append(args, b.halves(x, of, k))
	}
	args = append(args, tw)
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(of - 1 - i)
	}
	if attr.Rows {
		rows[n/2] = -1
		args = append(args, b.ints(rows))
	} else {
		for i := range rows {
			rows[i] = int32(i)
		}
	}
	var y, near ascendrt.Tensor
	var y0 []float64
	switch epi {
	case ascendrt.EpilogueAdd:
		y0, y, _ = b.stream(n, m, 1)
		near = b.poisoned(ascendrt.BFloat16, min(n, ascendrt.NearRows), m)
	case ascendrt.EpilogueFloat:
		y = b.poisoned(ascendrt.Float32, n, m)
	default:
		y = b.poisoned(ascendrt.BFloat16, n, m)
	}
	args = append(args, y)
	if epi == ascendrt.EpilogueAdd {
		args = append(args, near)
	}
	b.run(ascendrt.OpLinear, n, attr, args...)
	want := make([]float64, n*m)
	for i, r := range rows {
		if r < 0 {
			continue
		}
		row := append([]float64(nil), x[int(r)*k:int(r+1)*k]...)
		if norm {
			var ss float64
			for _, v := range row {
				ss += v * v
			}
			f := 1 / math.Sqrt(ss/float64(k)+1e-6)
			for j := range row {
				row[j] *= f * gain[j]
			}
		}
		dot := func(o int) float64 {
			var s float64
			for j, v := range w[o*k : (o+1)*k] {
				s += v * row[j]
			}
			return s
		}
		for o := range m {
			v := dot(o)
			if both == 2 {
				v = silu(v) * dot(m+o)
			}
			if epi == ascendrt.EpilogueAdd {
				v += y0[i*m+o]
			}
			want[i*m+o] = v
		}
	}
	if epi != ascendrt.EpilogueAdd {
		require.Less(b.t, apart(b.read(y), want), 8e-3)
		return
	}
	got := b.read(y)
	require.Less(b.t, apart(got, want), 1e-4, "nothing is rounded to the storage type")
	if n <= ascendrt.NearRows {
		for i := range got {
			got[i] = widen(narrow(got[i]))
		}
		require.Equal(b.t, got, b.read(near))
	}
}

// A row has the bits that it has alone in any batch, at any place of it: planned PerRow,
// and only then, which shows that the comparison can fail.
func TestLinearPerRow(t *testing.T) {
	bench := fusedBench(t)
	for _, size := range []struct{ k, m int }{{1024, 1024}, {3072, 264}, {72, 48}} {
		for _, epi := range []ascendrt.Epilogue{ascendrt.EpilogueStore, ascendrt.EpilogueAdd, ascendrt.EpilogueSwiGLU, ascendrt.EpilogueFloat} {
			t.Run(fmt.Sprintf("%d_to_%d/%v", size.k, size.m, epilogues[epi]), func(t *testing.T) {
				require.Zero(t, rowsOfBatches(bench.in(t), size.k, size.m, epi, true), "rows whose bits depend on their batch")
			})
		}
	}
	t.Run("control", func(t *testing.T) {
		require.Positive(t, rowsOfBatches(bench.in(t), 3072, 264, ascendrt.EpilogueFloat, false))
	})
}

// rowsOfBatches counts the rows whose bits are not those that they have in the largest batch.
func rowsOfBatches(b *bench, k, m int, epi ascendrt.Epilogue, perRow bool) (differ int) {
	const all = 300
	wide := m
	if epi == ascendrt.EpilogueSwiGLU {
		wide *= 2
	}
	attr := ascendrt.LinearAttr{In: k, Out: m, Norm: epi != ascendrt.EpilogueAdd, Eps: 1e-6, Epilogue: epi, PerRow: perRow}
	w, gain := b.halves(b.normal(wide*k, 1/math.Sqrt(float64(k))), wide, k), b.halves(b.normal(k, 1), k)
	x, y0 := b.normal(all*k, 2), make([]float32, all*m)
	for i := range y0 {
		y0[i] = float32(b.rng.NormFloat64())
	}
	product := func(from, to int) []float64 {
		n := to - from
		part, args := x[from*k:to*k], []ascendrt.Tensor(nil)
		near := b.halves(part[:min(n, ascendrt.NearRows)*k], min(n, ascendrt.NearRows), k)
		if attr.Norm {
			stream := make([]float32, len(part))
			for i, v := range part {
				stream[i] = float32(v)
			}
			args = append(args, b.floats(stream, n, k), near, gain, w)
		} else {
			args = append(args, b.halves(part, n, k), w)
		}
		var y ascendrt.Tensor
		switch epi {
		case ascendrt.EpilogueAdd:
			y = b.floats(y0[from*m:to*m], n, m)
			args = append(args, y, b.poisoned(ascendrt.BFloat16, min(n, ascendrt.NearRows), m))
		case ascendrt.EpilogueFloat:
			y = b.poisoned(ascendrt.Float32, n, m)
			args = append(args, y)
		default:
			y = b.poisoned(ascendrt.BFloat16, n, m)
			args = append(args, y)
		}
		b.run(ascendrt.OpLinear, n, attr, args...)
		return b.read(y)
	}
	want := product(0, all)
	for _, part := range [][2]int{{0, 1}, {77, 78}, {299, 300}, {3, 18}, {100, 116}, {101, 118}, {5, 37}, {30, 94}, {200, 265}, {1, 257}, {40, 297}} {
		got := product(part[0], part[1])
		for r := range part[1] - part[0] {
			if !slices.Equal(got[r*m:(r+1)*m], want[(part[0]+r)*m:(part[0]+r+1)*m]) {
				differ++
			}
		}
	}
	return differ
}

// heads is a paged cache with known keys and values.
type heads struct{ hq, hk, d, bs, blocks int }

func TestFusedRotateWrite(t *testing.T) {
	bench := fusedBench(t)
	for _, h := range []heads{{16, 8, 128, 16, 9}, {32, 8, 64, 32, 5}, {4, 2, 32, 128, 3}} {
		for _, norm := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d_of_%d/norm=%v", h.hq, h.d, norm), func(t *testing.T) { fusedRotateWrite(bench.in(t), h, norm) })
		}
	}
}

func fusedRotateWrite(b *bench, h heads, norm bool) {
	const n = 7
	width := (h.hq + 2*h.hk) * h.d
	qkv, qg, kg := b.normal(n*width, 2), b.normal(h.d, 1), b.normal(h.d, 1)
	pos, slots := make([]int32, n), make([]int32, n)
	for i := range n {
		pos[i], slots[i] = int32(i*37%100), int32((i*53)%(h.blocks*h.bs))
	}
	slots[3] = -1
	table := ascendrt.RopeTable(100, h.d, 1e4)
	kc, vc := b.poisoned(ascendrt.BFloat16, h.blocks, h.bs, h.hk, h.d), b.poisoned(ascendrt.BFloat16, h.blocks, h.bs, h.hk, h.d)
	x := b.halves(qkv, n, width)
	args := []ascendrt.Tensor{x}
	if norm {
		args = append(args, b.halves(qg, h.d), b.halves(kg, h.d))
	}
	b.run(ascendrt.OpRotateWrite, n, ascendrt.RotateAttr{Heads: h.hq, KVHeads: h.hk, HeadDim: h.d, BlockSize: h.bs, MaxPosition: 100, Norm: norm, Eps: 1e-6},
		append(args, b.ints(pos), b.floats(table, 100, h.d), b.ints(slots), kc, vc)...)
	q, k, v := b.read(x), b.read(kc), b.read(vc)
	turn := func(in, gain []float64, p int32) []float64 {
		out, f := make([]float64, h.d), 1.0
		if norm {
			var ss float64
			for _, e := range in {
				ss += e * e
			}
			f = 1 / math.Sqrt(ss/float64(h.d)+1e-6)
		}
		at := func(i int) float64 {
			if norm {
				return in[i] * f * gain[i]
			}
			return in[i]
		}
		for i := range h.d / 2 {
			c, s := float64(table[int(p)*h.d+i]), float64(table[int(p)*h.d+h.d/2+i])
			a, e := at(i), at(i+h.d/2)
			out[i], out[i+h.d/2] = a*c-e*s, e*c+a*s
		}
		return out
	}
	written := 0
	for i := range n {
		for j := range h.hq {
			o := i*width + j*h.d
			require.Less(b.t, apart(q[o:o+h.d], turn(qkv[o:o+h.d], qg, pos[i])), 8e-3)
		}
		for j := range h.hk {
			if slots[i] < 0 {
				continue
			}
			written++
			o, c := i*width+(h.hq+j)*h.d, (int(slots[i])*h.hk+j)*h.d
			require.Less(b.t, apart(k[c:c+h.d], turn(qkv[o:o+h.d], kg, pos[i])), 8e-3)
			o += h.hk * h.d
			require.Equal(b.t, qkv[o:o+h.d], v[c:c+h.d])
		}
	}
	nans := 0
	for _, e := range k {
		if math.IsNaN(e) {
			nans++
		}
	}
	require.Equal(b.t, len(k)-written*h.d, nans, "nothing else is written")
}

func TestFusedPickAndEmbedding(t *testing.T) {
	b := fusedBench(t)
	const rows, vocab = 5, 20011
	x := make([]float32, rows*vocab)
	for i := range x {
		x[i] = float32(b.rng.NormFloat64())
	}
	want := []float64{7, 20010, 0, -1, 9999}
	x[7], x[8] = 50, 50
	x[vocab+20010] = 60
	x[2*vocab] = 70
	x[3*vocab+5] = float32(math.NaN())
	x[4*vocab+9999] = 80
	cells, y := b.ints([]int32{-5, -5, -5, -5}), b.poisoned(ascendrt.Int32, rows)
	b.run(ascendrt.OpPick, rows, ascendrt.PickAttr{Dim: vocab}, b.floats(x, rows, vocab), b.ints([]int32{2, 0, 0, 3, 1}), cells, y)
	require.Equal(t, want, b.read(y))
	require.Equal(t, []float64{-5, 9999, 7, 0}, b.read(cells))

	table := b.normal(100*64, 1)
	for _, n := range []int{4, ascendrt.NearRows, ascendrt.NearRows + 1} {
		ids, feed := make([]int32, n), make([]int32, n)
		copy(ids, []int32{3, 4, 99, -1})
		feed[1] = 2
		e, near := b.poisoned(ascendrt.Float32, n, 64), b.poisoned(ascendrt.BFloat16, min(n, ascendrt.NearRows), 64)
		b.run(ascendrt.OpFeedEmbedding, n, ascendrt.FeedAttr{Vocab: 100, Hidden: 64},
			b.ints(ids), b.ints(feed), b.ints([]int32{0, 1, 42}), b.halves(table, 100, 64), e, near)
		got := b.read(e)
		for i, id := range []int{3, 42, 99} {
			require.Equal(t, table[id*64:id*64+64], got[i*64:i*64+64], fmt.Sprint(id))
		}
		require.Equal(t, make([]float64, 64), got[3*64:4*64])
		for i := 4; i < n; i++ {
			require.Equal(t, table[:64], got[i*64:i*64+64])
		}
		if n <= ascendrt.NearRows {
			require.Equal(t, got, b.read(near))
		}
	}
}
