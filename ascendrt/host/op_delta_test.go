package host

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// The operation against the rule evaluated directly, over two requests, one of
// which starts from a kept state, and a padded row.
func TestGatedDelta(t *testing.T) {
	const heads, dim, rows, states = 2, 3, 4, 5
	d, err := Backend{}.Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	ctx := context.Background()
	defer d.Close(ctx)
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	op, err := d.Plan(ascendrt.OpSpec{Kind: OpGatedDelta, Type: ascendrt.Float32, Attr: GatedDeltaAttr{Heads: heads, HeadDim: dim}})
	require.NoError(t, err)

	x := uint32(1)
	floats := func(n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			x = x*1664525 + 1013904223
			out[i] = float32(int32(x)) / (1 << 31)
		}
		return out
	}
	put := func(typ ascendrt.DType, data []byte, dims ...int) ascendrt.Tensor {
		b, err := d.Alloc(len(data), ascendrt.PlaceDefault)
		require.NoError(t, err)
		require.NoError(t, ascendrt.Upload(ctx, d, s, b.View(), data))
		return ascendrt.NewTensor(b.View(), typ, dims...)
	}
	q, k, v, g := floats(rows*heads*dim), floats(rows*heads*dim), floats(rows*heads*dim), floats(rows*heads*2)
	kept := floats(states * heads * dim * dim)
	f := func(v []float32, dims ...int) ascendrt.Tensor { return put(ascendrt.Float32, bytesOf(v), dims...) }
	st := f(kept, states, heads, dim, dim)
	y := f(floats(rows*heads*dim), rows, heads*dim)
	starts := []int32{0, 2, 3} // row 3 is padding
	in, out := []int32{0, 2}, []int32{-1, 4, 0, 1}
	var c ascendrt.Commands
	c.Op(op, ascendrt.View{}, f(q, rows, heads*dim), f(k, rows, heads*dim), f(v, rows, heads*dim), f(g, rows, 2*heads),
		put(ascendrt.Int32, bytesOf(starts), 3), put(ascendrt.Int32, bytesOf(in), 2), put(ascendrt.Int32, bytesOf(out), rows), st, y)
	p, _, err := s.Submit(&c)
	require.NoError(t, err)
	require.NoError(t, p.Wait(ctx))

	want := make([]float64, rows*heads*dim)
	wantStates := make([]float64, len(kept))
	for i, v := range kept {
		wantStates[i] = float64(v)
	}
	size := heads * dim * dim
	sig := func(x float32) float64 { return 1 / (1 + math.Exp(-float64(x))) }
	for r := range in {
		state := make([]float64, size)
		if in[r] > 0 {
			copy(state, wantStates[int(in[r])*size:])
		}
		for i := starts[r]; i < starts[r+1]; i++ {
			for h := range heads {
				S := state[h*dim*dim:]
				a, b := sig(g[int(i)*2*heads+h]), sig(g[int(i)*2*heads+heads+h])
				at := func(x []float32, j int) float64 { return float64(x[int(i)*heads*dim+h*dim+j]) }
				for j := range dim * dim {
					S[j] *= a
				}
				for col := range dim {
					seen := 0.0
					for r := range dim {
						seen += S[r*dim+col] * at(k, r)
					}
					for r := range dim {
						S[r*dim+col] += at(k, r) * b * (at(v, col) - seen)
						want[int(i)*heads*dim+h*dim+col] += S[r*dim+col] * at(q, r)
					}
				}
			}
			if out[i] > 0 {
				copy(wantStates[int(out[i])*size:][:size], state)
			}
		}
	}
	got := func(t_ ascendrt.Tensor) []float32 {
		data := make([]byte, t_.Bytes())
		require.NoError(t, ascendrt.Download(ctx, d, s, data, t_.View))
		return typed[float32](data)
	}
	for i, v := range got(y) {
		require.InDelta(t, want[i], v, 1e-5, "y %d", i)
	}
	for i, v := range got(st) {
		require.InDelta(t, wantStates[i], v, 1e-5, "state %d", i)
	}
}
