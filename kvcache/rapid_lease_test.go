package kvcache

import (
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func (k *machine) Retention(t *rapid.T) {
	s := k.seq(t)
	var r Retention
	s.class = 0
	if rapid.Bool().Draw(t, "prioritised") {
		r = Retention{Prioritised: true, Priority: rapid.IntRange(0, 2).Draw(t, "priority")}
		s.class = 1 + r.Priority
	}
	require.NoError(t, k.c.SetRetention(s.real, r))
}

func (k *machine) Lease(t *rapid.T) {
	deadline := k.now + Time(rapid.IntRange(0, 9).Draw(t, "for"))
	if rapid.Bool().Draw(t, "prefix") {
		ns, toks := k.space(t), k.tokens(t)
		hit, _ := k.m.match(ns, toks, len(toks))
		id, n, r, err := leasePrefix(k.c, ns, toks, deadline)
		if hit == 0 {
			require.ErrorIs(t, err, ErrNothingToLease)
			return
		}
		require.NoError(t, err)
		require.Equal(t, hit*k.m.bs, n)
		k.leased(t, k.m.key(ns, toks, hit), deadline, id, r)
		return
	}
	s := k.seq(t)
	before := dumpOf(k.c)
	id, r, err := k.c.Lease(s.real, deadline)
	if err != nil {
		require.ErrorIs(t, err, ErrNothingToLease)
		for g := range s.tables {
			require.True(t, s.published == 0 || s.tables[g][s.published-1] == NullBlock)
		}
	} else {
		k.leased(t, k.m.key(s.ns, s.toks, s.published), deadline, id, r)
	}
	if err != nil || r != LeaseGranted {
		require.Equal(t, before, dumpOf(k.c))
	}
}

func (k *machine) Await(t *rapid.T) {
	s := k.seq(t)
	until := rapid.SampledFrom([]Time{k.now, k.now + 3, k.now + 9, Anytime}).Draw(t, "until")
	id, err := k.c.Await(s.real, until)
	if err != nil {
		require.ErrorIs(t, err, ErrNothingToLease)
		return
	}
	k.m.await(k.m.key(s.ns, s.toks, s.published), until).id = id
}

func (k *machine) Await2(t *rapid.T) { k.Await(t) }

func (k *machine) leased(t *rapid.T, key string, deadline Time, id LeaseID, r LeaseResult) {
	l, want := k.m.lease(key, deadline)
	require.Equal(t, want, r)
	if l != nil {
		l.id = id
	}
}

func (k *machine) Renew(t *rapid.T) {
	all := append(slices.Clone(k.m.leases), k.m.awaits...)
	if len(all) == 0 {
		t.Skip("no lease and no await")
	}
	l := all[rapid.IntRange(0, len(all)-1).Draw(t, "lease")]
	if rapid.IntRange(0, 3).Draw(t, "end") == 0 {
		require.NoError(t, k.c.EndLease(l.id))
		require.ErrorIs(t, k.c.EndLease(l.id), ErrUnknownLease)
		k.m.endLease(l)
		return
	}
	l.deadline = k.now + Time(rapid.IntRange(0, 20).Draw(t, "for"))
	require.NoError(t, k.c.Renew(l.id, l.deadline))
}

func (k *machine) Expire(t *rapid.T) {
	k.now += Time(rapid.IntRange(0, 4).Draw(t, "time"))
	require.Equal(t, k.m.expire(false, k.now), k.c.ExpireLeases(k.now))
	k.m.expire(true, k.now)
	for kind, await := range []bool{isLease: false, isAwait: true} {
		next, ok := k.c.due[kind].Min()
		require.Equal(t, len(*k.m.all(await)) > 0, ok)
		for _, l := range *k.m.all(await) {
			require.LessOrEqual(t, next.deadline, l.deadline)
		}
	}
}

// EndAll ends every await: no block is awaited any more, and leases stay.
func (k *machine) EndAll(t *rapid.T) {
	for _, l := range slices.Clone(k.m.awaits) {
		require.NoError(t, k.c.EndLease(l.id))
		k.m.endLease(l)
	}
	require.Zero(t, k.c.Stats().Awaits)
	require.Zero(t, k.c.awaitq.Len())
	for i := range k.c.blocks {
		require.Zero(t, k.c.blocks[i].state&blockAwaited, "block %d", i)
	}
}

// leasePrefix leases the cached prefix of tokens, wherever it ends, and returns
// its length in tokens: Lease does so for what a sequence has published.
func leasePrefix(c *Cache, ns Namespace, tokens []Token, deadline Time) (LeaseID, int, LeaseResult, error) {
	m := c.Match(ns, tokens, len(tokens))
	if m.Tokens == 0 {
		return LeaseID{}, 0, 0, ErrNothingToLease
	}
	off := m.Tokens/c.bs - 1 - int(c.t.at(m.node).depth)
	id, r, err := c.grant(m.node, off, deadline)
	return id, m.Tokens, r, err
}
