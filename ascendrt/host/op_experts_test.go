package host

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// mixture is a layer of experts with its inputs.
type mixture struct {
	rows, in, inner, experts, k int

	logits, x, gateUp, down []float32
}

func newMixture(seed uint64) *mixture {
	m := &mixture{rows: 150, in: 40, inner: 24, experts: 8, k: 3}
	rng := rand.New(rand.NewPCG(seed, 1))
	some := func(n int, scale float64) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = float32(rng.NormFloat64() * scale)
		}
		return out
	}
	m.logits, m.x = some(m.rows*m.experts, 1), some(m.rows*m.in, 1)
	m.gateUp, m.down = some(m.experts*m.in*2*m.inner, 0.2), some(m.experts*m.inner*m.in, 0.2)
	return m
}

// run computes the layer as so many ranks would and gives ids, weights and sums.
func (m *mixture) run(t *testing.T, typ ascendrt.DType, ranks int, normalised bool) (ids []int32, weights, y []float32) {
	t.Helper()
	r := newRig(t, ascendrt.OpenOptions{Workers: 2})
	plan := func(kind ascendrt.OpKind, attr any) ascendrt.Op {
		return r.plan(ascendrt.OpSpec{Kind: kind, Type: typ, Attr: attr})
	}
	logits, _ := r.floats(ascendrt.Float32, m.logits, m.rows, m.experts)
	x, _ := r.floats(typ, m.x, m.rows, m.in)
	id, w := r.empty(ascendrt.Int32, m.rows, m.k), r.empty(ascendrt.Float32, m.rows, m.k)
	parts, sum := r.empty(typ, ranks*m.rows, m.k*m.in), r.empty(typ, m.rows, m.in)
	r.run(plan(OpRoute, RouteAttr{m.experts, m.k, normalised}), logits, id, w)
	count := m.experts / ranks
	for rank := range ranks {
		gateUp, _ := r.floats(typ, m.gateUp[rank*count*m.in*2*m.inner:][:count*m.in*2*m.inner], count, m.in, 2*m.inner)
		down, _ := r.floats(typ, m.down[rank*count*m.inner*m.in:][:count*m.inner*m.in], count, m.inner, m.in)
		own := parts
		own.View, own.Dim[0] = parts.View.Slice(rank*m.rows*m.k*m.in*typ.Size(), m.rows*m.k*m.in*typ.Size()), m.rows
		r.run(plan(OpExperts, ExpertsAttr{In: m.in, Inner: m.inner, TopK: m.k, First: rank * count, Count: count}), x, id, gateUp, down, own)
	}
	r.run(plan(OpCombine, CombineAttr{m.in, m.k, count}), parts, id, w, sum)
	for _, v := range r.read(id) {
		ids = append(ids, int32(v))
	}
	return ids, r.read(w), r.read(sum)
}

// The experts give what a plain computation gives, and the same bits on however
// many ranks they lie.
func TestExperts(t *testing.T) {
	for _, normalised := range []bool{false, true} {
		m := newMixture(3)
		m.logits[5], m.logits[6] = 9, 9 // equal ones
		ids, weights, y := m.run(t, ascendrt.Float32, 1, normalised)
		for r := range m.rows {
			order := []int{0, 1, 2, 3, 4, 5, 6, 7}
			l := m.logits[r*m.experts:][:m.experts]
			slices.SortStableFunc(order, func(a, b int) int {
				switch {
				case l[a] > l[b]:
					return -1
				case l[a] < l[b]:
					return 1
				}
				return 0
			})
			total, taken := 0.0, 0.0
			for _, v := range l {
				total += math.Exp(float64(v))
			}
			for _, e := range order[:m.k] {
				taken += math.Exp(float64(l[e])) / total
			}
			sum := make([]float64, m.in)
			for k, e := range order[:m.k] {
				require.Equal(t, int32(e), ids[r*m.k+k])
				w := math.Exp(float64(l[e])) / total
				if normalised {
					w /= taken
				}
				require.InDelta(t, w, weights[r*m.k+k], 1e-6)
				for i, v := range m.expert(e, m.x[r*m.in:][:m.in]) {
					sum[i] += w * v
				}
			}
			for i := range sum {
				require.InDelta(t, sum[i], y[r*m.in+i], 1e-4, "row %d", r)
			}
		}
	}
	for _, typ := range []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16} {
		m := newMixture(4)
		_, _, want := m.run(t, typ, 1, true)
		require.Greater(t, slices.Max(want), float32(0.1))
		for _, ranks := range []int{2, 4, 8} {
			_, _, got := m.run(t, typ, ranks, true)
			require.Equal(t, want, got, "%v on %d ranks", typ, ranks)
		}
		m.down[len(m.down)-1] += 5
		_, _, got := m.run(t, typ, 2, true)
		require.NotEqual(t, want, got, "another weight")
	}
}

func (m *mixture) expert(e int, x []float32) []float64 {
	gu, down := m.gateUp[e*m.in*2*m.inner:], m.down[e*m.inner*m.in:]
	out := make([]float64, m.in)
	for j := range m.inner {
		var g, u float64
		for i, v := range x {
			g += float64(v) * float64(gu[i*2*m.inner+j])
			u += float64(v) * float64(gu[i*2*m.inner+m.inner+j])
		}
		a := g / (1 + math.Exp(-g)) * u
		for i := range out {
			out[i] += a * float64(down[j*m.in+i])
		}
	}
	return out
}

// A row whose logits are no numbers still takes experts that exist, each once,
// and the rows beside it are as they were.
func TestRouteWithNaN(t *testing.T) {
	m := newMixture(5)
	want, _, _ := m.run(t, ascendrt.Float32, 1, true)
	nan := float32(math.NaN())
	for i := range m.experts {
		m.logits[i] = nan
	}
	m.logits[m.experts+2] = nan
	ids, _, _ := m.run(t, ascendrt.Float32, 1, true)
	for r := range 2 {
		got := slices.Clone(ids[r*m.k:][:m.k])
		slices.Sort(got)
		require.Len(t, slices.Compact(got), m.k)
		for _, id := range got {
			require.True(t, id >= 0 && int(id) < m.experts)
		}
	}
	require.Equal(t, want[2*m.k:], ids[2*m.k:])
}

func TestExpertErrors(t *testing.T) {
	r := newRig(t, ascendrt.OpenOptions{})
	for _, c := range []struct {
		kind ascendrt.OpKind
		typ  ascendrt.DType
		attr any
		err  error
	}{
		{OpRoute, ascendrt.Float32, RouteAttr{4, 5, true}, ascendrt.ErrInvalid},
		{OpRoute, ascendrt.Float32, RouteAttr{0, 0, true}, ascendrt.ErrInvalid},
		{OpRoute, ascendrt.Float32, ascendrt.AddAttr{Dim: 1}, ascendrt.ErrInvalid},
		{OpExperts, ascendrt.Float32, ExpertsAttr{In: 4, Inner: 4, TopK: 1, First: -1, Count: 2}, ascendrt.ErrInvalid},
		{OpExperts, ascendrt.Float16, ExpertsAttr{In: 4, Inner: 4, TopK: 1, Count: 2}, ascendrt.ErrUnsupported},
		{OpCombine, ascendrt.Int32, CombineAttr{4, 1, 2}, ascendrt.ErrUnsupported},
		{OpCombine, ascendrt.Float32, CombineAttr{4, 1, 0}, ascendrt.ErrInvalid},
	} {
		_, err := r.d.Plan(ascendrt.OpSpec{Kind: c.kind, Type: c.typ, Attr: c.attr})
		require.ErrorIs(t, err, c.err, "%s %+v", c.kind, c.attr)
	}
	op, err := r.d.Plan(ascendrt.OpSpec{Kind: OpCombine, Type: ascendrt.Float32, Attr: CombineAttr{Dim: 2, TopK: 1, PerRank: 2}})
	require.NoError(t, err)
	parts, _ := r.floats(ascendrt.Float32, make([]float32, 8), 4, 2)
	weights, _ := r.floats(ascendrt.Float32, make([]float32, 2), 2, 1)
	y, _ := r.floats(ascendrt.Float32, make([]float32, 4), 2, 2)
	ids := r.ints([]int32{3, 4}, 2, 1)
	var c ascendrt.Commands
	c.Op(op, ascendrt.View{}, parts, ids, weights, y)
	p, _, err := r.s.Submit(&c)
	require.NoError(t, err)
	require.ErrorContains(t, p.Wait(t.Context()), "expert 4 of row 1 is not below 4")
}
