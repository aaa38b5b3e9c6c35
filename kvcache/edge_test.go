package kvcache

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/invariants"
)

// Long prompts with forks anywhere, edges of full length, growth token by token
// and many children of one node: every prompt that fits is hit up to the longest
// prefix that it shares with an earlier one.
func TestLongEdges(t *testing.T) {
	rounds, blocks := 120, 200_000
	if invariants.Enabled { // each call then looks at the whole pool
		rounds, blocks = 20, 20_000
	}
	for _, bs := range []int{1, 16} {
		c := newCache(t, Config{Blocks: blocks, BlockSize: bs})
		r := rand.New(rand.NewPCG(5, uint64(bs)))
		var prompts [][]Token
		cached := 0 // whole blocks of the longest shared prefix
		shared := func(p []Token) int {
			best := 0
			for _, q := range prompts {
				n := 0
				for n < min(len(p), len(q)) && p[n] == q[n] {
					n++
				}
				best = max(best, n/bs*bs)
			}
			return best
		}
		for i := range rounds {
			var p []Token
			if len(prompts) > 0 && i%10 != 0 {
				q := prompts[r.IntN(len(prompts))]
				p = slices.Clone(q[:r.IntN(len(q)+1)])
			}
			for range 1 + r.IntN(900*min(bs, 2)) {
				p = append(p, Token(r.IntN(3)))
			}
			want := min(shared(p), (len(p)-1)/bs*bs)
			s, err := c.Open(Namespace{})
			require.NoError(t, err)
			m := c.Match(Namespace{}, p, len(p)-1)
			require.Equal(t, want, m.Tokens)
			cached += m.Tokens
			// Half of the rest at once, the other half in small steps, as decoding does.
			half := m.Tokens + (len(p)-m.Tokens+1)/2
			g, err := c.Allocate(s, &Alloc{Tokens: p, Hit: m, New: half - m.Tokens})
			require.NoError(t, err)
			require.True(t, g.OK)
			for n := half; n < len(p); {
				k := min(1+r.IntN(3), len(p)-n)
				if !s.Covers(n+k, 0) {
					g, err := c.Allocate(s, &Alloc{Tokens: p, Computed: n, New: k})
					require.NoError(t, err)
					require.True(t, g.OK)
				}
				n += k
			}
			require.Equal(t, len(p)/bs, s.Published())
			require.NoError(t, c.Free(s))
			prompts = append(prompts, p)
			if i%10 == 0 {
				require.NoError(t, c.Check())
			}
		}
		require.NoError(t, c.Check())
		require.Positive(t, cached)
		// Under pressure the tree shrinks from its leaves.
		for _, n := range []int{blocks / 2, blocks / 4, blocks - blocks/2 - blocks/4 - 1} {
			s, err := c.Open(Namespace{Salt: "other"})
			require.NoError(t, err)
			g, err := c.Allocate(s, &Alloc{New: n * bs})
			require.NoError(t, err)
			require.True(t, g.OK)
			require.NoError(t, c.Check())
		}
		require.Zero(t, c.Available())
		require.Zero(t, c.t.slab.used, "memory of edges is given back")
		require.Equal(t, 1, c.t.liveNodes, "the root of the drain is left")
	}
}

// A node with many children finds each, while they come and while they go.
func TestManyChildren(t *testing.T) {
	step := 1
	if invariants.Enabled {
		step = 20
	}
	c := newCache(t, Config{Blocks: 5000 / step, BlockSize: 2, Seed: 7})
	for i := range 2000 / step {
		free(t, c, admitQuick(t, c, []Token{1, 2, Token(i), 3, 4}))
	}
	require.NoError(t, c.Check())
	for i := range 2000 / step {
		require.Equal(t, 4, c.Match(Namespace{}, []Token{1, 2, Token(i), 3}, -1).Tokens)
	}
	require.Equal(t, 2, c.Match(Namespace{}, []Token{1, 2, 5000, 3}, -1).Tokens)
	s := admitQuick(t, c, span(10_000, 2*(c.Available()-3)))
	require.NoError(t, c.Check())
	require.NoError(t, c.Free(s))
}

func admitQuick(t *testing.T, c *Cache, toks []Token) *Seq {
	s, err := c.Open(Namespace{})
	require.NoError(t, err)
	m := c.Match(Namespace{}, toks, len(toks)-1)
	g, err := c.Allocate(s, &Alloc{Tokens: toks, Hit: m, New: len(toks) - m.Tokens})
	require.NoError(t, err)
	require.True(t, g.OK)
	return s
}

// The largest pool and the largest block.
func TestLargest(t *testing.T) {
	if testing.Short() || invariants.Enabled {
		t.Skip("takes 150 MB, and invariants look at all of it after each call")
	}
	c := newCache(t, Config{Blocks: MaxBlocks})
	require.Equal(t, 4<<20, c.Usable())
	s, err := c.Open(Namespace{})
	require.NoError(t, err)
	g, err := c.Allocate(s, &Alloc{New: c.Usable() * 16})
	require.NoError(t, err)
	require.True(t, g.OK)
	require.EqualValues(t, MaxBlocks-1, s.Table(0)[c.Usable()-1])
	require.NoError(t, c.Free(s))
	require.Equal(t, 4<<20, c.Available())

	c = newCache(t, Config{Blocks: 9, BlockSize: MaxBlockSize})
	p := randomTokens(1, 3*MaxBlockSize+5)
	free(t, c, admit(t, c, Namespace{}, p))
	require.Equal(t, 3*MaxBlockSize, c.Match(Namespace{}, p, -1).Tokens)
}

func TestConfigRefuses(t *testing.T) {
	var re *RangeError
	var ue *UnsupportedGroupError
	for _, c := range []struct {
		cfg  Config
		want any
	}{
		{Config{}, &re}, {Config{Blocks: 1}, &re}, {Config{Blocks: -4}, &re}, {Config{Blocks: MaxBlocks + 1}, &re},
		{Config{Blocks: 9, BlockSize: -1}, &re}, {Config{Blocks: 9, BlockSize: MaxBlockSize + 1}, &re},
		{Config{Blocks: 9, Groups: make([]GroupSpec, MaxGroups+1)}, &re},
		{Config{Blocks: 9, Groups: []GroupSpec{{Kind: SlidingWindow}}}, &re},
		{Config{Blocks: 9, Groups: []GroupSpec{{}, {Kind: ChunkedLocal, Chunk: 64}}}, &ue},
		{Config{Blocks: 9, Groups: []GroupSpec{{Kind: Recurrent}}}, &ue},
		{Config{Blocks: 9, Groups: []GroupSpec{{Kind: 99}}}, &ue},
		{Config{Blocks: 9, Caching: 2}, &re}, {Config{Blocks: 9, MaxInFlight: -1}, &re}, {Config{Blocks: 9, Events: Events{Mode: 7}}, &re},
	} {
		_, err := New(c.cfg)
		require.ErrorAs(t, err, c.want, "%+v", c.cfg)
		require.NotEmpty(t, err.Error())
	}
	for _, share := range []float64{-0.1, 1.1, math.NaN()} {
		_, err := New(Config{Blocks: 9, LeaseShare: share})
		require.Error(t, err)
	}
	_, err := New(Config{Blocks: 1, BlockSize: -1, Groups: []GroupSpec{{Kind: Recurrent}}})
	require.ErrorAs(t, err, &re)
	require.ErrorAs(t, err, &ue)
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 3, "every fault is reported")
}

// Misuse is an error that says which, and changes nothing.
func TestMisuse(t *testing.T) {
	c, other := newCache(t, Config{Blocks: 17, BlockSize: 4}), newCache(t, Config{Blocks: 17, BlockSize: 4})
	toks := span(1, 14)
	free(t, c, admit(t, c, Namespace{}, toks))
	s := admit(t, c, Namespace{}, toks)
	empty, err := c.Open(Namespace{})
	require.NoError(t, err)
	theirs, err := other.Open(Namespace{})
	require.NoError(t, err)
	var gone Seq
	stale := c.Match(Namespace{}, toks, -1)
	require.NoError(t, c.Publish(s, toks, 12)) // a change of the cache
	hit := c.Match(Namespace{}, toks, -1)
	salted := hit
	salted.space++

	one := func(_ any, err error) error { return err }
	for name, c2 := range map[string]struct {
		err  error
		want error
	}{
		"allocate, closed":     {one(c.Allocate(&gone, &Alloc{New: 1})), ErrClosedSeq},
		"allocate, nil":        {one(c.Allocate(nil, &Alloc{New: 1})), ErrClosedSeq},
		"allocate, foreign":    {one(c.Allocate(theirs, &Alloc{New: 1})), ErrForeignSeq},
		"need, foreign":        {one(c.Need(theirs, &Alloc{New: 1})), ErrForeignSeq},
		"allocate, stale hit":  {one(c.Allocate(empty, &Alloc{Tokens: toks, Hit: stale, New: 1})), ErrStaleMatch},
		"another namespace":    {one(c.Allocate(empty, &Alloc{Tokens: toks, Hit: salted, New: 1})), ErrStaleMatch},
		"hit on a holder":      {one(c.Allocate(s, &Alloc{Tokens: toks, Hit: hit, New: 1})), ErrHitOnHolder},
		"free, closed":         {c.Free(&gone), ErrClosedSeq},
		"free, foreign":        {c.Free(theirs), ErrForeignSeq},
		"fence, closed":        {one(c.FreeFenced(&gone)), ErrClosedSeq},
		"lift nothing":         {c.Lift(Fence{}), ErrUnknownFence},
		"lift unknown":         {c.Lift(Fence{slot: 3, gen: 1}), ErrUnknownFence},
		"truncate, closed":     {one(c.Truncate(&gone, 0)), ErrClosedSeq},
		"publish, closed":      {c.Publish(&gone, toks, 0), ErrClosedSeq},
		"retract, closed":      {one(c.Retract(&gone, 0, nil)), ErrClosedSeq},
		"retention, closed":    {c.SetRetention(&gone, Retention{}), ErrClosedSeq},
		"renew nothing":        {c.Renew(LeaseID{}, 1), ErrUnknownLease},
		"end nothing":          {c.EndLease(LeaseID{slot: 9}), ErrUnknownLease},
		"attach twice":         {c.Attach(s, Namespace{}), ErrOpenSeq},
		"attach elsewhere":     {other.Attach(s, Namespace{}), ErrOpenSeq},
		"reset while in use":   {c.Reset(), ErrInUse},
		"lease of nothing":     {leaseErr(c.Lease(empty, 1)), ErrNothingToLease},
		"lease, closed":        {leaseErr(c.Lease(&gone, 1)), ErrClosedSeq},
		"lease of an unknown":  {prefixErr(leasePrefix(c, Namespace{Salt: "none"}, toks, 1)), ErrNothingToLease},
		"uncache block 0":      {one(c.Uncache([]BlockID{0}, nil)), new(BlockError)},
		"uncache out of range": {one(c.Uncache([]BlockID{1, 17}, nil)), new(BlockError)},
		"nothing wanted":       {one(c.Allocate(empty, &Alloc{})), new(RangeError)},
		"negative":             {one(c.Allocate(empty, &Alloc{New: 1, Lookahead: -1})), new(RangeError)},
		"huge":                 {one(c.Allocate(empty, &Alloc{New: 1 << 40})), new(RangeError)},
		"negative hit":         {one(c.Allocate(empty, &Alloc{New: 1, Hit: Match{Tokens: -4}})), new(RangeError)},
		"computed beyond":      {one(c.Allocate(s, &Alloc{New: 1, Computed: 17})), new(RangeError)},
		"external beyond":      {one(c.Allocate(empty, &Alloc{Tokens: toks, External: 15})), new(RangeError)},
		"publish beyond given": {c.Publish(s, toks[:5], 8), new(RangeError)},
		"publish beyond held":  {c.Publish(s, span(1, 40), 20), new(RangeError)},
		"publish negative":     {c.Publish(s, toks, -1), new(RangeError)},
		"truncate beyond":      {one(c.Truncate(s, 17)), new(RangeError)},
		"retract negative":     {one(c.Retract(s, -1, nil)), new(RangeError)},
		"priority":             {c.SetRetention(s, Retention{Priority: -1}), new(RangeError)},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, c2.err)
			switch c2.want.(type) {
			case *RangeError:
				var re *RangeError
				require.ErrorAs(t, c2.err, &re)
			case *BlockError:
				var be *BlockError
				require.ErrorAs(t, c2.err, &be)
			default:
				require.ErrorIs(t, c2.err, c2.want)
			}
		})
	}
	require.NoError(t, c.Check())
	require.Equal(t, hit.Tokens, c.Match(Namespace{}, toks, -1).Tokens)
	g, err := c.Allocate(empty, &Alloc{Tokens: toks, Hit: hit, New: 2})
	require.NoError(t, errors.Join(err, c.Check()))
	require.True(t, g.OK)
}

func leaseErr(_ LeaseID, _ LeaseResult, err error) error { return err }

func prefixErr(_ LeaseID, _ int, _ LeaseResult, err error) error { return err }
