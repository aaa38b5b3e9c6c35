package kvcache

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Runs never overlap, lie within one page, and come back whole or in parts.
func TestSlab(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := slab{bs: 2, groups: 1}
	type run struct {
		at int32
		n  int
	}
	var runs []run
	owner := map[int32]int{}
	used := 0
	for i := range 20000 {
		if len(runs) == 0 || r.IntN(5) < 3 && used < 6000 {
			n := 1 + r.IntN(maxEdge)
			if r.IntN(2) == 0 {
				n = 1 + r.IntN(8)
			}
			at := s.get(n)
			require.LessOrEqual(t, int(at&unitMask)+n, maxEdge)
			for u := at; u < at+int32(n); u++ {
				_, twice := owner[u]
				require.False(t, twice, "unit %d is given twice", u)
				owner[u] = i
			}
			require.Len(t, s.tokens(at, n), 2*n)
			require.Len(t, s.copies(at, n), n)
			runs = append(runs, run{at, n})
			used += n
		} else {
			k := r.IntN(len(runs))
			x := runs[k]
			from, to := 0, x.n
			switch r.IntN(3) {
			case 0: // the end
				from = r.IntN(x.n)
			case 1: // the beginning
				to = 1 + r.IntN(x.n)
			}
			s.put(x.at+int32(from), to-from)
			for u := from; u < to; u++ {
				delete(owner, x.at+int32(u))
			}
			used -= to - from
			runs[k] = runs[len(runs)-1]
			runs = runs[:len(runs)-1]
			if from > 0 {
				runs = append(runs, run{x.at, from})
			}
			if to < x.n {
				runs = append(runs, run{x.at + int32(to), x.n - to})
			}
		}
		require.Equal(t, used, s.used)
	}
	for _, x := range runs {
		s.put(x.at, x.n)
	}
	require.Zero(t, s.used)
	for o := range edgeBits {
		require.Equal(t, -1, s.free[o].first(), "every page is whole again")
	}
	require.Less(t, len(s.pages), 60, "memory follows the use")
}

func TestBitset(t *testing.T) {
	var b bitset
	b.grow(1 << 20)
	require.Equal(t, -1, b.first())
	for _, i := range []int{1<<20 - 1, 262144, 4096, 64, 63, 0} {
		b.set(i)
		require.Equal(t, i, b.first())
		require.True(t, b.has(i))
	}
	for _, i := range []int{0, 63, 64, 4096, 262144} {
		b.clear(i)
		require.False(t, b.has(i))
	}
	require.Equal(t, 1<<20-1, b.first())
	b.clear(1<<20 - 1)
	require.Equal(t, -1, b.first())
}
