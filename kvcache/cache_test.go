package kvcache

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func newCache(t testing.TB, cfg Config) *Cache {
	t.Helper()
	c, err := New(cfg)
	require.NoError(t, err)
	return c
}

// span returns n tokens that count up from start.
func span(start, n int) []Token {
	toks := make([]Token, n)
	for i := range toks {
		toks[i] = Token(start + i)
	}
	return toks
}

func dump(t testing.TB, c *Cache) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, c.Dump(&b))
	return b.String()
}

// admit opens a sequence and allocates all of toks, with the hit that a scheduler would use.
func admit(t testing.TB, c *Cache, ns Namespace, toks []Token) *Seq {
	t.Helper()
	s, err := c.Open(ns)
	require.NoError(t, err)
	m := c.Match(ns, toks, len(toks)-1)
	g, err := c.Allocate(s, &Alloc{Tokens: toks, Hit: m, New: len(toks) - m.Tokens})
	require.NoError(t, err)
	require.True(t, g.OK)
	require.NoError(t, c.Check())
	return s
}

func free(t testing.TB, c *Cache, s *Seq) {
	t.Helper()
	require.NoError(t, c.Free(s))
	require.NoError(t, c.Check())
}

// take drains every available block and returns the ids in the order in which they came.
func take(t testing.TB, c *Cache) []BlockID {
	t.Helper()
	s, err := c.Open(Namespace{Salt: "drain"})
	require.NoError(t, err)
	n := c.Available()
	g, err := c.Allocate(s, &Alloc{New: n * c.BlockSize()})
	require.NoError(t, err)
	require.True(t, g.OK)
	require.Equal(t, n, g.New)
	require.NoError(t, c.Check())
	return s.Table(0)
}

// The order that the reference's own test of its free queue states: request 0
// owns 1, 2, 3 and the partial 4; request 1 hits 1, 2, 3 and owns the partial 5.
func TestOrderOfReuse(t *testing.T) {
	c := newCache(t, Config{Blocks: 11})
	prompt := span(0, 55)
	r0 := admit(t, c, Namespace{}, prompt)
	require.Equal(t, []BlockID{1, 2, 3, 4}, r0.Table(0))
	r1 := admit(t, c, Namespace{}, prompt)
	require.Equal(t, []BlockID{1, 2, 3, 5}, r1.Table(0))
	free(t, c, r0)
	free(t, c, r1)
	require.Equal(t, 10, c.Available())
	require.Equal(t, []BlockID{5, 4, 6, 7, 8, 9, 10, 3, 2, 1}, take(t, c))
}

// A copy that a later request made privately keeps the older one evictable.
func TestSurplusCopyIsEvictable(t *testing.T) {
	c := newCache(t, Config{Blocks: 6, BlockSize: 4})
	a := span(0, 4)
	r1 := admit(t, c, Namespace{}, a)
	r2 := admit(t, c, Namespace{}, append(span(0, 4), span(100, 4)...)[:4]) // the last token is computed: a private copy
	ext, err := c.Allocate(r2, &Alloc{Tokens: append(span(0, 4), span(100, 4)...), Computed: 4, New: 4})
	require.NoError(t, err)
	require.True(t, ext.OK)
	require.Equal(t, []BlockID{1}, r1.Table(0))
	require.Equal(t, []BlockID{2, 3}, r2.Table(0))
	free(t, c, r1)
	require.Equal(t, 3, c.Available())
	require.Equal(t, "free 2 cached 1 held 2 of 5\nnamespace plain\n  [0 1 2 3]:1=2*1  [100 101 102 103]:3*1\nseq 2 published 2 [2 3]\n", dump(t, c))
	require.Equal(t, []BlockID{4, 5, 1}, take(t, c))
}
