package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/invariants"
)

// In steady state nothing on the way of a request allocates.
func TestNoAllocations(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of the invariants allocate")
	}
	c := newCache(t, Config{Blocks: 4096})
	prompt := randomTokens(1, 64*16+5)
	var s, other Seq
	n := Token(0)
	turn := func() { // a new suffix each time, so that old ones are evicted
		n++
		prompt[48*16] = n
		store(t, c, &s, Namespace{Salt: "x"}, prompt)
	}
	for range 2000 {
		turn()
	}
	require.Positive(t, c.Stats().EvictedPlain)
	require.Zero(t, testing.AllocsPerRun(500, turn), "admission and release under pressure")

	require.Zero(t, testing.AllocsPerRun(100, func() { c.Match(Namespace{Salt: "x"}, prompt, len(prompt)) }), "match")

	require.NoError(t, c.Attach(&s, Namespace{}))
	toks := randomTokens(2, 1<<16)
	have := 0
	step := func() {
		if have == len(toks)-1 || have == 3000*16 {
			require.NoError(t, c.Free(&s))
			require.NoError(t, c.Attach(&s, Namespace{}))
			n++
			toks[0] = n
			have = 0
		}
		have++
		if s.Covers(have, 0) {
			return
		}
		g, err := c.Allocate(&s, &Alloc{Tokens: toks[:have], Computed: have - 1, New: 1})
		if err != nil || !g.OK {
			t.Fatal(g, err)
		}
	}
	for range 3000*16 + 100 {
		step()
	}
	require.Zero(t, testing.AllocsPerRun(3000*16, step), "decoding")

	fenced := func() {
		require.NoError(t, c.Attach(&other, Namespace{}))
		n++
		prompt[0] = n
		g, err := c.Allocate(&other, &Alloc{Tokens: prompt, New: len(prompt)})
		if err != nil || !g.OK {
			t.Fatal(g, err)
		}
		f, err := c.FreeFenced(&other)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Lift(f); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		fenced()
	}
	require.Zero(t, testing.AllocsPerRun(200, fenced), "fences")

	var awaits [64]LeaseID // sessions that are away, of which one after the other comes back or ends
	session := func() {
		n++
		id := &awaits[n%64]
		_ = c.EndLease(*id) // what it has may be gone
		require.NoError(t, c.Attach(&other, Namespace{}))
		prompt[0] = n
		g, err := c.Allocate(&other, &Alloc{Tokens: prompt, New: len(prompt)})
		if err != nil || !g.OK {
			t.Fatal(g, err)
		}
		if *id, err = c.Await(&other, Time(n)+1000); err != nil {
			t.Fatal(err)
		}
		if err := c.Free(&other); err != nil {
			t.Fatal(err)
		}
		c.ExpireLeases(Time(n))
	}
	for range 1000 {
		session()
	}
	require.Positive(t, c.Stats().Awaits)
	require.Zero(t, testing.AllocsPerRun(200, session), "awaits")
}

func BenchmarkCovers(b *testing.B) {
	c := newCache(b, Config{Blocks: 64})
	s := admit(b, c, Namespace{}, span(0, 20))
	yes := 0
	for b.Loop() {
		if s.Covers(21, 0) {
			yes++
		}
	}
	if yes == 0 {
		b.Fatal("not covered")
	}
}
