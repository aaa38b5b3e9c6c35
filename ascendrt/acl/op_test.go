//go:build cgo && linux

package acl

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

// side is one of two devices that run the same operations.
type side struct {
	t  *testing.T
	d  ascendrt.Device
	s  ascendrt.Stream
	ws ascendrt.Buffer
}

func newSide(t *testing.T, d ascendrt.Device) *side {
	t.Helper()
	x := &side{t: t, d: d}
	var err error
	x.s, err = d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	x.ws, err = d.Alloc(4<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
	return x
}

func sides(t *testing.T) (emulated, reference *side) {
	t.Helper()
	d := openDevice(t, ascendrt.OpenOptions{})
	if !d.Caps().DeterministicReduce {
		require.NoError(t, d.Close(context.Background()))
		t.Skip("a real device sums in an order of its own")
	}
	h, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 2})
	require.NoError(t, err)
	return newSide(t, d), newSide(t, h)
}

// operand is an argument before it has a place: its rows lie in rows of width,
// from element off on.
type operand struct {
	typ        ascendrt.DType
	dims       []int
	width, off int
	data       []byte
}

// run does one operation and gives the whole memory of each operand.
func (x *side) run(spec ascendrt.OpSpec, slots [][]int64, args []operand, same map[int]int) [][]byte {
	x.t.Helper()
	o, err := x.d.Plan(spec)
	require.NoError(x.t, err)
	defer o.Close()
	bufs := make([]ascendrt.Buffer, len(args))
	tensors := make([]ascendrt.Tensor, len(args))
	for i, a := range args {
		if j, ok := same[i]; ok {
			tensors[i] = tensors[j]
			continue
		}
		bufs[i], err = x.d.Alloc(max(1, len(a.data)), ascendrt.PlaceDefault)
		require.NoError(x.t, err)
		require.NoError(x.t, ascendrt.Upload(context.Background(), x.d, x.s, bufs[i].View(), a.data))
		tensors[i] = ascendrt.NewTensor(bufs[i].View(), a.typ, a.dims...)
		if a.width > 0 {
			tensors[i] = ascendrt.NewTensor(bufs[i].View(), a.typ, a.dims[0], a.width).Columns(a.off, a.dims[1])
		}
	}
	var c ascendrt.Commands
	for i, v := range slots {
		c.SlotValues(i, v...)
	}
	require.LessOrEqual(x.t, o.Workspace(), x.ws.Len())
	c.Op(o, x.ws.View(), tensors...)
	p, _, err := x.s.Submit(&c)
	require.NoError(x.t, err)
	require.NoError(x.t, p.Wait(context.Background()))
	out := make([][]byte, len(args))
	for i, b := range bufs {
		if b == nil {
			continue
		}
		out[i] = make([]byte, len(args[i].data))
		require.NoError(x.t, ascendrt.Download(context.Background(), x.d, x.s, out[i], b.View()))
		require.NoError(x.t, b.FreeAfter(ascendrt.Point{}))
	}
	return out
}

// draw makes random operands.
type draw struct{ *rand.Rand }

func (r draw) upTo(n int) int { return 1 + r.IntN(n) }

func (r draw) stored(typ ascendrt.DType, n int, scale float64) []byte {
	out := make([]byte, 0, n*typ.Size())
	for range n {
		v := float32(r.NormFloat64() * scale)
		switch r.IntN(40) {
		case 0:
			v = 0
		case 1:
			v = float32(math.Copysign(0, -1))
		case 2:
			v *= 1e-30
		}
		if typ == ascendrt.BFloat16 {
			out = binary.NativeEndian.AppendUint16(out, arith.BF16(v))
		} else {
			out = binary.NativeEndian.AppendUint32(out, math.Float32bits(v))
		}
	}
	return out
}

func (r draw) floats(typ ascendrt.DType, dims ...int) operand {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return operand{typ: typ, dims: dims, data: r.stored(typ, n, 1)}
}

// part is [n,d], sometimes as columns of wider rows.
func (r draw) part(typ ascendrt.DType, n, d int) operand {
	if r.IntN(2) == 0 {
		return r.floats(typ, n, d)
	}
	off := 32 / typ.Size() * r.IntN(3)
	w := off + d + r.IntN(40)
	return operand{typ: typ, dims: []int{n, d}, width: w, off: off, data: r.stored(typ, n*w, 1)}
}

func (r draw) ints(v []int32, dims ...int) operand {
	if dims == nil {
		dims = []int{len(v)}
	}
	var data []byte
	for _, x := range v {
		data = binary.NativeEndian.AppendUint32(data, uint32(x))
	}
	return operand{typ: ascendrt.Int32, dims: dims, data: data}
}

// index gives n indices below limit, some negative.
func (r draw) index(n, limit int) []int32 {
	out := make([]int32, n)
	for i := range out {
		if out[i] = int32(r.IntN(limit)); r.IntN(5) == 0 {
			out[i] = -1 - int32(r.IntN(3))
		}
	}
	return out
}

type drawn struct {
	spec  ascendrt.OpSpec
	slots [][]int64
	args  []operand
	same  map[int]int
}

// operation draws shapes and values of one operation.
func (r draw) operation(kind ascendrt.OpKind, typ ascendrt.DType) drawn {
	n := r.upTo(40)
	x := drawn{spec: ascendrt.OpSpec{Kind: kind, Type: typ, MaxRows: n + r.IntN(3)}}
	wide := func(max int) int { return 16 / typ.Size() * r.upTo(max) } // keeps parts aligned
	switch kind {
	case ascendrt.OpEmbedding:
		v, h := r.upTo(60), r.upTo(100)
		x.spec.Attr = ascendrt.EmbeddingAttr{Vocab: v, Hidden: h}
		x.args = []operand{r.ints(r.index(n, v)), r.part(typ, v, h), r.part(typ, n, h)}
	case ascendrt.OpGather:
		rows, d := r.upTo(60), r.upTo(100)
		x.spec.MaxRows = max(n, rows)
		x.spec.Attr = ascendrt.GatherAttr{Dim: d}
		x.args = []operand{r.part(typ, rows, d), r.ints(r.index(n, rows)), r.part(typ, n, d)}
	case ascendrt.OpRMSNorm:
		d, g := wide(20), r.upTo(4)
		x.spec.Attr = ascendrt.NormAttr{Dim: d, Groups: g, Eps: 1e-6}
		x.args = []operand{r.part(typ, n, d*g), r.floats(typ, d), r.part(typ, n, d*g)}
		if r.IntN(3) == 0 {
			x.same = map[int]int{2: 0}
		}
	case ascendrt.OpAddRMSNorm:
		d := r.upTo(200)
		x.spec.Attr = ascendrt.NormAttr{Dim: d, Eps: 1e-5}
		x.args = []operand{r.part(typ, n, d), r.part(typ, n, d), r.floats(typ, d), r.part(typ, n, d)}
		if r.IntN(3) == 0 {
			x.same = map[int]int{3: 0}
		}
	case ascendrt.OpAdd:
		d := r.upTo(100)
		x.spec.Attr = ascendrt.AddAttr{Dim: d}
		x.args = []operand{r.part(typ, n, d), r.part(typ, n, d), r.part(typ, n, d)}
		if r.IntN(3) == 0 {
			x.same = map[int]int{2: r.IntN(2)}
		}
	case ascendrt.OpMatmul:
		in, out := r.upTo(150), r.upTo(150)
		at := ascendrt.MatmulAttr{In: in, Out: out, Weights: ascendrt.WeightLayout(r.IntN(2))}
		x.spec.Attr = at
		w := r.part(typ, out, in)
		if at.Weights == ascendrt.WeightsKM {
			w = r.part(typ, in, out)
		}
		x.args = []operand{r.part(typ, n, in), w, r.part(typ, n, out)}
	case ascendrt.OpRope:
		d, hq, hk, p := 16*r.upTo(4), r.upTo(4), r.upTo(3), r.upTo(300)
		x.spec.Attr = ascendrt.RopeAttr{Heads: hq, KVHeads: hk, HeadDim: d, MaxPosition: p}
		table := operand{typ: ascendrt.Float32, dims: []int{p, d}}
		for _, v := range ascendrt.RopeTable(p, d, 1e4) {
			table.data = binary.NativeEndian.AppendUint32(table.data, math.Float32bits(v))
		}
		x.args = []operand{r.part(typ, n, hq*d), r.part(typ, n, hk*d), r.ints(r.index(n, p)), table}
	case ascendrt.OpKVScatter:
		d, hk, blocks := 16*r.upTo(4), r.upTo(3), r.upTo(4)
		x.spec.Attr = ascendrt.ScatterAttr{KVHeads: hk, HeadDim: d, BlockSize: 128}
		slots := r.Perm(blocks * 128)[:n]
		s := make([]int32, n)
		for i := range s {
			if s[i] = int32(slots[i]); r.IntN(5) == 0 {
				s[i] = -1
			}
		}
		x.args = []operand{r.part(typ, n, hk*d), r.part(typ, n, hk*d), r.ints(s), r.floats(typ, blocks, 128, hk, d), r.floats(typ, blocks, 128, hk, d)}
	case ascendrt.OpAttention:
		r.attention(&x, typ)
	case ascendrt.OpSwiGLU:
		d := r.upTo(100)
		x.spec.Attr = ascendrt.SwiGLUAttr{Dim: d}
		x.args = []operand{r.part(typ, n, 2*d), r.part(typ, n, d)}
	case ascendrt.OpArgmax:
		d := r.upTo(300)
		x.spec.Attr = ascendrt.ArgmaxAttr{Dim: d}
		x.args = []operand{r.part(typ, n, d), r.ints(make([]int32, n))}
	case ascendrt.OpCast:
		d := r.upTo(60)
		from, to := typ, []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16}[r.IntN(2)]
		x.spec.Attr = ascendrt.CastAttr{Dim: d, From: from, To: to}
		x.args = []operand{r.part(from, n, d), r.part(to, n, d)}
	}
	return x
}

// attention draws prefills, tails, decodes, empty rows and rows of nobody.
func (r draw) attention(x *drawn, typ ascendrt.DType) {
	hk := r.upTo(2)
	at := ascendrt.AttentionAttr{Heads: hk * r.upTo(3), KVHeads: hk, HeadDim: 16 * r.upTo(3), BlockSize: 128 * r.upTo(2), Window: []int{0, 0, 40, 300}[r.IntN(4)]}
	x.spec.Attr = at
	reqs, width := r.upTo(5), 3
	starts, lens := []int32{0}, []int32{}
	var table []int32
	block, n := 1, 0
	for range reqs {
		rows, have := r.IntN(4), r.IntN(at.BlockSize*width-40)
		if r.IntN(3) == 0 {
			rows = r.IntN(40)
		}
		l := rows + have
		if r.IntN(6) == 0 {
			l = 0
		}
		n += rows
		starts, lens = append(starts, int32(n)), append(lens, int32(l))
		for j := range width {
			b := int32(-1)
			if j*at.BlockSize < l {
				b = int32(block)
				block++
			}
			table = append(table, b)
		}
	}
	n += r.IntN(4)
	n = max(n, 1)
	x.spec.MaxRows = n
	row := at.Heads * at.HeadDim
	cache := func() operand { return r.floats(typ, block, at.BlockSize, hk, at.HeadDim) }
	x.args = []operand{r.part(typ, n, row), cache(), cache(), r.ints(table, reqs, width), r.ints(starts), r.ints(lens), r.part(typ, n, row)}
	x.slots = [][]int64{nil, nil}
	for _, l := range lens {
		x.slots[0] = append(x.slots[0], int64(l))
	}
	for _, s := range starts {
		x.slots[1] = append(x.slots[1], int64(s))
	}
}

// Every operation gives the bits of the host backend, for any shape, over parts
// of wider rows, in place, with padding; and it writes nothing else.
func TestOperationsAgainstHost(t *testing.T) {
	got, want := sides(t)
	kinds := []ascendrt.OpKind{
		ascendrt.OpEmbedding, ascendrt.OpGather, ascendrt.OpRMSNorm, ascendrt.OpAddRMSNorm, ascendrt.OpAdd, ascendrt.OpMatmul,
		ascendrt.OpRope, ascendrt.OpKVScatter, ascendrt.OpAttention, ascendrt.OpSwiGLU, ascendrt.OpArgmax, ascendrt.OpCast,
	}
	for _, typ := range []ascendrt.DType{ascendrt.BFloat16, ascendrt.Float32} {
		for k, kind := range kinds {
			if typ == ascendrt.Float32 && (kind == ascendrt.OpKVScatter || kind == ascendrt.OpAttention) {
				continue // refused; see TestOperationRefusals
			}
			t.Run(fmt.Sprintf("%v/%v", typ, kind), func(t *testing.T) {
				got.t, want.t = t, t
				r := draw{rand.New(rand.NewPCG(uint64(k), uint64(typ)))}
				for i := range 25 {
					x := r.operation(kind, typ)
					w, g := want.run(x.spec, x.slots, x.args, x.same), got.run(x.spec, x.slots, x.args, x.same)
					for a := range w {
						if !bytes.Equal(w[a], g[a]) {
							t.Fatalf("case %d, argument %d differs: %+v", i, a, x.spec)
						}
					}
				}
			})
		}
	}
}

// What this device cannot do is said at Plan, with the reason.
func TestOperationRefusals(t *testing.T) {
	d := openDevice(t, ascendrt.OpenOptions{})
	defer func() { require.NoError(t, d.Close(context.Background())) }()
	attention := func(change func(*ascendrt.AttentionAttr)) ascendrt.AttentionAttr {
		at := ascendrt.AttentionAttr{Heads: 4, KVHeads: 2, HeadDim: 32, BlockSize: 128}
		change(&at)
		return at
	}
	for _, c := range []struct {
		kind ascendrt.OpKind
		typ  ascendrt.DType
		attr any
		text string
	}{
		{ascendrt.OpAttention, ascendrt.Float32, attention(func(*ascendrt.AttentionAttr) {}), "takes bfloat16, not float32"},
		{ascendrt.OpAttention, ascendrt.BFloat16, attention(func(a *ascendrt.AttentionAttr) { a.BlockSize = 16 }), "BlockSize 16: attention of this device takes 128"},
		{ascendrt.OpAttention, ascendrt.BFloat16, attention(func(a *ascendrt.AttentionAttr) { a.BlockSize = 640 }), "BlockSize 640"},
		{ascendrt.OpAttention, ascendrt.BFloat16, attention(func(a *ascendrt.AttentionAttr) { a.HeadDim = 24 }), "multiples of 16"},
		{ascendrt.OpAttention, ascendrt.BFloat16, attention(func(a *ascendrt.AttentionAttr) { a.Heads = 130 }), "at most 64 heads to one"},
		{ascendrt.OpKVScatter, ascendrt.Float32, ascendrt.ScatterAttr{KVHeads: 1, HeadDim: 16, BlockSize: 128}, "KV cache of this device is bfloat16"},
		{ascendrt.OpMatmul, ascendrt.BFloat16, ascendrt.MatmulAttr{In: 8, Out: 8, OutType: ascendrt.Float32}, "stores what it reads"},
		{ascendrt.OpRope, ascendrt.BFloat16, ascendrt.RopeAttr{Heads: 1, KVHeads: 1, HeadDim: 8, MaxPosition: 4}, "multiples of 16"},
		{host.OpGatedDelta, ascendrt.Float32, host.GatedDeltaAttr{Heads: 1, HeadDim: 8}, "no operation of this name"},
	} {
		_, err := d.Plan(ascendrt.OpSpec{Kind: c.kind, Type: c.typ, Attr: c.attr})
		require.ErrorIs(t, err, ascendrt.ErrUnsupported, c.text)
		require.ErrorContains(t, err, c.text)
	}
	require.Zero(t, d.Live().Ops)
}

// Wrong calls of attention are found before anything reaches the device.
func TestAttentionCalls(t *testing.T) {
	x := newSide(t, openDevice(t, ascendrt.OpenOptions{}))
	o, err := x.d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAttention, Type: ascendrt.BFloat16, MaxRows: 8, Attr: ascendrt.AttentionAttr{Heads: 2, KVHeads: 1, HeadDim: 16, BlockSize: 128}})
	require.NoError(t, err)
	buf, err := x.d.Alloc(1<<16, ascendrt.PlaceDefault)
	require.NoError(t, err)
	at := func(off int, typ ascendrt.DType, dims ...int) ascendrt.Tensor {
		return ascendrt.NewTensor(buf.Slice(off, buf.Len()-off), typ, dims...)
	}
	call := func(rows int, slots ...[]int64) error {
		var c ascendrt.Commands
		for i, v := range slots {
			c.SlotValues(i, v...)
		}
		b, i := ascendrt.BFloat16, ascendrt.Int32
		c.Op(o, x.ws.View(), at(0, b, rows, 32), at(8192, b, 2, 128, 1, 16), at(16384, b, 2, 128, 1, 16), at(24576, i, 2, 1), at(25600, i, 3), at(26624, i, 2), at(27648, b, rows, 32))
		_, n, err := x.s.Submit(&c)
		if err != nil {
			require.Zero(t, n-len(slots), "nothing was accepted")
		}
		return err
	}
	for _, c := range []struct {
		lens, starts []int64
		text         string
	}{
		{nil, nil, "give lens and starts"},
		{[]int64{1, 1}, nil, "give lens and starts"},
		{[]int64{1}, []int64{0, 1}, "for 2 requests"},
		{[]int64{2, 1}, []int64{0, 2, 1}, "starts fall from 2 to 1"},
		{[]int64{1, 1}, []int64{1, 1, 2}, "starts go from 1"},
		{[]int64{1, 1}, []int64{0, 1, 9}, "starts go from 0 to 9 within 4 rows"},
		{[]int64{2, 1}, []int64{0, 3, 4}, "3 rows and only 2 tokens"},
		{[]int64{129, 1}, []int64{0, 1, 2}, "its block table holds 128"},
	} {
		var slots [][]int64
		for _, v := range [][]int64{c.lens, c.starts} {
			if v != nil {
				slots = append(slots, v)
			}
		}
		err := call(4, slots...)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, c.text)
		require.ErrorContains(t, err, c.text)
	}
	require.ErrorContains(t, call(9, []int64{1, 1}, []int64{0, 1, 2}), "9 rows; the plan allows 8")
	require.NoError(t, call(4, []int64{1, 1}, []int64{0, 1, 2}))
	// The address of a tensor is a multiple of 32 bytes.
	norm, err := x.d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.BFloat16, Attr: ascendrt.AddAttr{Dim: 4}})
	require.NoError(t, err)
	var c ascendrt.Commands
	odd := at(8, ascendrt.BFloat16, 2, 4)
	c.Op(norm, x.ws.View(), odd, odd, odd)
	_, _, err = x.s.Submit(&c)
	require.ErrorContains(t, err, "take addresses of 32 bytes")
	// More rows than a plan without MaxRows made room for.
	gather, err := x.d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpGather, Type: ascendrt.BFloat16, Attr: ascendrt.GatherAttr{Dim: 1}})
	require.NoError(t, err)
	c.Reset()
	c.Op(gather, x.ws.View(), at(0, ascendrt.BFloat16, 1, 1), at(32, ascendrt.Int32, 3000), at(16384, ascendrt.BFloat16, 3000, 1))
	_, _, err = x.s.Submit(&c)
	require.ErrorContains(t, err, "state MaxRows")
}

// A row that holds a NaN or an infinity has no most likely token, wherever it stands;
// the rows beside it have theirs.
func TestArgmaxOfNoNumbers(t *testing.T) {
	x, _ := sides(t)
	x.t = t
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	rows := [][3]float32{{1, 2, 0}, {nan, 9, 1}, {3, 3, 1}, {1, nan, 9}, {9, 1, nan}, {1, inf, 2}, {-inf, 1, 2}, {-1, -2, -0.5}, {nan, nan, nan}, {3e38, -3e38, 1}}
	want := []int32{1, -1, 0, -1, -1, -1, -1, 2, -1, 0}
	for _, typ := range []ascendrt.DType{ascendrt.BFloat16, ascendrt.Float32} {
		in := operand{typ: typ, dims: []int{len(rows), 3}}
		for _, r := range rows {
			for _, v := range r {
				if typ == ascendrt.BFloat16 {
					in.data = binary.NativeEndian.AppendUint16(in.data, arith.BF16(v))
				} else {
					in.data = binary.NativeEndian.AppendUint32(in.data, math.Float32bits(v))
				}
			}
		}
		out := operand{typ: ascendrt.Int32, dims: []int{len(rows)}, data: make([]byte, 4*len(rows))}
		got := x.run(ascendrt.OpSpec{Kind: ascendrt.OpArgmax, Type: typ, Attr: ascendrt.ArgmaxAttr{Dim: 3}}, nil, []operand{in, out}, nil)
		for i, w := range want {
			require.Equal(t, w, int32(binary.NativeEndian.Uint32(got[1][4*i:])), "%v, row %v", typ, rows[i])
		}
	}
}
