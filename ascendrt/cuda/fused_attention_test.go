//go:build cgo && linux

package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// attentionCase is a step of requests with that many queries and tokens.
type attentionCase struct {
	heads
	rows []attentionRow
	max  int // AttentionAttr.MaxQuery
}

type attentionRow struct{ query, len int }

func TestFusedAttention(t *testing.T) {
	bench := fusedBench(t)
	type row = attentionRow
	for i, x := range []attentionCase{
		{heads{16, 8, 128, 16, 0}, []row{{1, 1}, {1, 17}, {1, 1000}, {0, 0}, {1, 333}}, 1},
		{heads{16, 8, 128, 64, 0}, []row{{1, 2500}}, 1},
		{heads{16, 8, 128, 64, 0}, []row{{1, 925}}, 1},
		{heads{32, 8, 128, 128, 0}, []row{{4, 4}, {4, 130}, {3, 999}}, 4},
		{heads{32, 8, 64, 16, 0}, []row{{8, 8}, {1, 40}, {8, 513}}, 8},
		{heads{16, 8, 128, 16, 0}, []row{{1, 50}, {200, 200}, {0, 0}, {5, 700}, {65, 321}, {4, 4}, {1, 1}, {64, 64}}, 0},
		{heads{32, 8, 128, 32, 0}, []row{{130, 513}, {1, 100}, {2, 64}, {3, 300}}, 0},
		{heads{8, 1, 64, 16, 0}, []row{{97, 97}, {1, 33}, {40, 400}}, 0},
		{heads{4, 4, 64, 16, 0}, []row{{300, 300}, {1, 9}}, 0},
		// Few new tokens behind many: blocks share the keys, and some rows see none of what a block has.
		{heads{16, 8, 128, 64, 0}, []row{{67, 3139}, {1, 900}, {0, 0}}, 0},
		{heads{16, 8, 128, 64, 0}, []row{{129, 2100}}, 0},
		{heads{32, 8, 64, 16, 0}, []row{{33, 1500}, {20, 21}}, 0},
		{heads{4, 1, 128, 128, 0}, []row{{300, 2049}, {9, 1100}}, 0},
		{heads{2, 1, 128, 16, 0}, []row{{1, 20}, {1, 150}, {0, 0}}, 1},
		{heads{2, 1, 128, 16, 0}, []row{{3, 40}, {70, 90}}, 0},
		{heads{4, 1, 64, 16, 0}, []row{{2, 33}, {1, 70}}, 2},
		{heads{16, 8, 128, 16, 0}, slices.Repeat([]row{{1, 130}, {1, 16}, {0, 0}, {1, 257}}, 6), 1},
		// More tiles than a step likely has, and fewer.
		{heads{16, 8, 128, 16, 0}, slices.Repeat([]row{{5, 1100}}, 16), 0},
		{heads{16, 8, 128, 64, 0}, append(slices.Repeat([]row{{1, 300}}, 9), row{64, 4200}), 0},
	} {
		name := fmt.Sprintf("%d/%d_of_%d_for_%d", i, x.hq, x.d, x.hk)
		t.Run(name, func(t *testing.T) { fusedAttention(bench.in(t), x, ascendrt.SumFree) })
		t.Run(name+"/per_row", func(t *testing.T) { fusedAttention(bench.in(t), x, ascendrt.SumPerRow) })
	}
}

// kernelsOf are kernels of which so many clusters of each width fit.
func kernelsOf(threads int, fit map[int]int) (out []sharers) {
	for _, w := range widths {
		if n, ok := fit[w]; ok {
			out = append(out, sharers{width: w, threads: threads, fit: n})
		}
	}
	return out
}

// A prompt's rows are spread over the device as if requests of one token were not there,
// as wide as all clusters of a likely step fit.
func TestWidest(t *testing.T) {
	all := kernelsOf(128, map[int]int{1: 264, 2: 132, 4: 62, 8: 30, 16: 14})
	width := func(rows, requests, keys int) int { return widest(all, rows, requests, 64, 8, keys).width }
	require.Equal(t, 16, width(64, 1, 12352))
	require.Equal(t, 16, width(72, 9, 12352))
	require.Equal(t, 8, width(128, 1, 12352), "two tiles for each of 8 heads")
	require.Equal(t, 2, width(512, 1, 12800))
	require.Equal(t, 2, width(512+32, 33, 12800))
	require.Equal(t, 1, width(2048, 1, 14336), "the prompt alone fills the device")
	require.Equal(t, 1, width(64, 1, 100), "nobody has less than two tiles of keys")
	require.Equal(t, 2, width(64, 1, 300))
	require.Equal(t, 16, width(8, 9, 12352), "more requests than rows, as padded ones are")
	require.Equal(t, 8, widest(all[:4], 64, 1, 64, 8, 12352).width)
	all[4].fit = 0
	require.Equal(t, 8, width(64, 1, 12352), "a device that has no room for 16")
}

// As many warps as there is room for at once work at the keys of short rows.
func TestBusiest(t *testing.T) {
	all := append(kernelsOf(256, map[int]int{1: 132, 2: 66, 4: 30, 8: 14}), kernelsOf(128, map[int]int{1: 396, 2: 132, 4: 62, 8: 30})...)
	type kind struct{ width, threads int }
	pick := func(requests, keys int) kind {
		x := busiest(all, 8*requests, keys, 132)
		if x == nil {
			return kind{}
		}
		return kind{x.width, x.threads}
	}
	for requests, want := range map[int]kind{
		1: {8, 256}, 2: {8, 128}, 3: {8, 128}, 4: {4, 128}, 8: {2, 256}, 16: {1, 256}, 32: {1, 128}, 49: {1, 128}, 50: {},
	} {
		require.Equal(t, want, pick(requests, 4096), "%d requests", requests)
	}
	require.Equal(t, kind{1, 256}, pick(1, 64), "few keys")
	require.Equal(t, kind{4, 256}, pick(1, 200))
}

// A row of a request has the same bits however many rows come with it, and whatever
// other requests do: with SumPerRow, and only then.
func TestAttentionPerRow(t *testing.T) {
	bench := fusedBench(t)
	for _, h := range []heads{{16, 8, 128, 64, 0}, {32, 8, 128, 16, 0}, {8, 8, 64, 16, 0}} {
		t.Run(fmt.Sprintf("%d_of_%d_for_%d", h.hq, h.d, h.hk), func(t *testing.T) {
			require.Zero(t, rowsOfCuts(bench.in(t), h, ascendrt.SumPerRow))
			require.Positive(t, rowsOfCuts(bench.in(t), h, ascendrt.SumFree), "the control")
		})
	}
}

// rowsOfCuts counts the rows of a prompt of 1,100 tokens whose bits depend on how it is cut.
func rowsOfCuts(b *bench, h heads, order ascendrt.SumOrder) (differ int) {
	const prompt, other = 1100, 700
	width := (prompt + h.bs - 1) / h.bs
	h.blocks = 2*width + 1
	k, v := b.halves(b.normal(h.blocks*h.bs*h.hk*h.d, 1), h.blocks, h.bs, h.hk, h.d), b.halves(b.normal(h.blocks*h.bs*h.hk*h.d, 1), h.blocks, h.bs, h.hk, h.d)
	q, beside := b.normal(prompt*h.hq*h.d, 1), b.normal(prompt*h.hq*h.d, 1)
	table := make([]int32, 2*width)
	for i, p := range b.rng.Perm(2 * width) {
		table[i] = int32(p + 1)
	}
	// Rows from..to of the prompt, behind those of another request.
	attend := func(from, to, more, most int) []float64 {
		n := more + to - from
		rows := append(slices.Clone(beside[:more*h.hq*h.d]), q[from*h.hq*h.d:to*h.hq*h.d]...)
		y := b.poisoned(ascendrt.BFloat16, n, h.hq*h.d)
		b.run(ascendrt.OpAttention, n, ascendrt.AttentionAttr{Heads: h.hq, KVHeads: h.hk, HeadDim: h.d, BlockSize: h.bs, Order: order, MaxQuery: most},
			b.halves(rows, n, h.hq*h.d), k, v, b.ints(table, 2, width), b.ints([]int32{0, int32(more), int32(n)}), b.ints([]int32{other, int32(to)}), y)
		return b.read(y)[more*h.hq*h.d:]
	}
	want := attend(0, prompt, 1, 0)
	for _, c := range []struct{ from, to, more, most int }{
		{1099, 1100, 1, 1}, {1099, 1100, 1, 0}, {1096, 1100, 4, 4}, {1093, 1100, 3, 0}, {500, 501, 300, 0}, {63, 64, 1, 1}, {64, 65, 1, 1}, {1090, 1100, 7, 0}, {0, 512, 64, 0}, {512, 1100, 2, 0}, {1, 700, 1, 0}, {130, 131, 5, 0},
	} {
		got := attend(c.from, c.to, c.more, c.most)
		for r := c.from; r < c.to; r++ {
			if !slices.Equal(got[(r-c.from)*h.hq*h.d:(r-c.from+1)*h.hq*h.d], want[r*h.hq*h.d:(r+1)*h.hq*h.d]) {
				differ++
			}
		}
	}
	return differ
}

func fusedAttention(b *bench, x attentionCase, order ascendrt.SumOrder) {
	h, n, width := x.heads, 0, 0
	starts, lens := []int32{0}, []int32{}
	for _, r := range x.rows {
		n += r.query
		starts, lens = append(starts, int32(n)), append(lens, int32(r.len))
		width = max(width, (r.len+h.bs-1)/h.bs)
	}
	h.blocks = 1 + width*len(x.rows)
	perm := b.rng.Perm(h.blocks - 1)
	table := make([]int32, width*len(x.rows))
	for i := range table {
		table[i] = int32(perm[i] + 1)
	}
	q := b.normal(n*h.hq*h.d, 1)
	k, v := b.normal(h.blocks*h.bs*h.hk*h.d, 1), b.normal(h.blocks*h.bs*h.hk*h.d, 1)
	y := b.poisoned(ascendrt.BFloat16, n, h.hq*h.d)
	b.run(ascendrt.OpAttention, n, ascendrt.AttentionAttr{Heads: h.hq, KVHeads: h.hk, HeadDim: h.d, BlockSize: h.bs, Order: order, MaxQuery: x.max},
		b.halves(q, n, h.hq*h.d), b.halves(k, h.blocks, h.bs, h.hk, h.d), b.halves(v, h.blocks, h.bs, h.hk, h.d),
		b.ints(table, len(x.rows), width), b.ints(starts), b.ints(lens), y)
	got := b.read(y)
	for r, spec := range x.rows {
		for i := range spec.query {
			at := int(starts[r]) + i
			seen := spec.len - spec.query + i + 1
			for hq := range h.hq {
				qv, hk := q[(at*h.hq+hq)*h.d:][:h.d], hq/(h.hq/h.hk)
				place := func(p int) int { return ((int(table[r*width+p/h.bs])*h.bs+p%h.bs)*h.hk + hk) * h.d }
				score, top := make([]float64, seen), math.Inf(-1)
				for p := range score {
					for j, e := range k[place(p):][:h.d] {
						score[p] += e * qv[j]
					}
					score[p] /= math.Sqrt(float64(h.d))
					top = max(top, score[p])
				}
				want, total := make([]float64, h.d), 0.0
				for p := range score {
					e := math.Exp(score[p] - top)
					total += e
					for j, w := range v[place(p):][:h.d] {
						want[j] += e * w
					}
				}
				for j := range want {
					want[j] /= total
				}
				require.Less(b.t, apart(got[(at*h.hq+hq)*h.d:][:h.d], want), 1.5e-2, "request %d token %d head %d", r, i, hq)
			}
		}
	}
}
