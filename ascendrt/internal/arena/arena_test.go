package arena

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Pieces never overlap, are aligned, and all memory comes back.
func TestPiecesAreDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		live := map[uint64]int{}
		next := uint64(1 << 20)
		a := &Arena{Chunk: 4096, Align: 64,
			Grow: func(n int) (uint64, error) {
				next += 1 << 20
				live[next] = n
				return next, nil
			},
			Shrink: func(b uint64) { delete(live, b) },
		}
		var held []Piece
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "put") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				a.Put(held[i])
				held = append(held[:i], held[i+1:]...)
				continue
			}
			n := rapid.IntRange(0, 6000).Draw(t, "n")
			p, err := a.Get(n)
			require.NoError(t, err)
			require.Zero(t, p.Addr%64)
			require.GreaterOrEqual(t, p.Len, n)
			require.LessOrEqual(t, p.Addr+uint64(p.Len), p.Base+uint64(live[p.Base]))
			for _, q := range held {
				require.True(t, p.Addr+uint64(p.Len) <= q.Addr || q.Addr+uint64(q.Len) <= p.Addr, "overlap")
			}
			held = append(held, p)
		}
		for _, p := range held {
			a.Put(p)
		}
		require.LessOrEqual(t, len(live), 1)
		a.Close()
		require.Empty(t, live)
	})
}

func TestGrowFailureIsReported(t *testing.T) {
	full := errors.New("full")
	a := &Arena{Chunk: 4096, Align: 64, Grow: func(n int) (uint64, error) {
		if n > 64 {
			return 0, full
		}
		return 1 << 20, nil
	}}
	_, err := a.Get(100)
	require.ErrorIs(t, err, full)
	p, err := a.Get(10) // a whole chunk does not fit, the piece alone does
	require.NoError(t, err)
	require.Equal(t, 64, p.Len)
}
