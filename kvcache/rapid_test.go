package kvcache

import (
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The state machine: random operations on a cache and on the model, compared
// after each. Run the long form with
//
//	go test ./kvcache -run TestModel -tags invariants -rapid.checks=2000
//
// which compares about 280,000 operations; the default is about 20,000.
func TestModel(t *testing.T) {
	setDefault(t, "rapid.steps", "30", "200")
	setDefault(t, "rapid.checks", "100", "150")
	operations := 0
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt, drawConfig(rt))
		rt.Repeat(rapid.StateMachineActions(m))
		operations += m.checks - 1
	})
	t.Logf("%d operations compared", operations)
}

// setDefault replaces rapid's default of a flag by ours, unless the command line sets it.
func setDefault(t *testing.T, name, theirs, ours string) {
	if f := flag.Lookup(name); f != nil && f.Value.String() == theirs {
		require.NoError(t, f.Value.Set(ours))
	}
}

func drawConfig(t *rapid.T) Config {
	window := func() GroupSpec {
		return GroupSpec{Kind: SlidingWindow, Window: rapid.IntRange(1, 9).Draw(t, "window")}
	}
	cfg := Config{
		Blocks:      rapid.IntRange(2, 40).Draw(t, "blocks"),
		BlockSize:   rapid.IntRange(1, 3).Draw(t, "block size"),
		MaxInFlight: rapid.SampledFrom([]int{0, 0, 4, 16}).Draw(t, "max in flight"),
		LeaseShare:  rapid.SampledFrom([]float64{0, 0.1, 1}).Draw(t, "lease share"),
	}
	switch rapid.IntRange(0, 9).Draw(t, "groups") {
	case 6:
		cfg.Groups = []GroupSpec{{}, window()}
	case 7:
		cfg.Groups = []GroupSpec{window()}
	case 8:
		cfg.Groups = []GroupSpec{window(), {}, window()}
	case 9:
		cfg.Groups = []GroupSpec{{}, {}}
	}
	if rapid.IntRange(0, 19).Draw(t, "caching") == 0 {
		cfg.Caching = CachingOff
	}
	if rapid.Bool().Draw(t, "events") {
		cfg.Events = Events{Mode: EventsOn, Algorithm: XXH3CBOR, Scope: PrivateScope}
	}
	return cfg
}

type machine struct {
	c    *Cache
	m    *model
	live map[string]bool // what the events say is cached: group and hash
	now  Time

	evicted []Eviction
	checks  int
}

func newMachine(t *rapid.T, cfg Config) *machine {
	k := &machine{m: newModel(cfg), live: map[string]bool{}}
	cfg.OnEvict = func(e Eviction) { k.evicted = append(k.evicted, e) }
	c, err := newWithEdges(cfg, rapid.SampledFrom([]int{1, 3, maxEdge}).Draw(t, "edge"))
	require.NoError(t, err)
	k.c = c
	return k
}

var testSpaces = []Namespace{{}, {Salt: "x"}, {LoRA: LoRA{ID: 1, Name: "y"}}}

func (k *machine) space(t *rapid.T) Namespace {
	return testSpaces[rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "namespace")]
}

// tokens draws a sequence that often shares a prefix with others: a known one, cut somewhere, and then few kinds of token.
func (k *machine) tokens(t *rapid.T) []Token {
	var toks []Token
	if n := len(k.m.seqs); n > 0 && rapid.Bool().Draw(t, "fork") {
		s := k.m.seqs[rapid.IntRange(0, n-1).Draw(t, "of")]
		toks = slices.Clone(s.toks[:rapid.IntRange(0, len(s.toks)).Draw(t, "keep")])
	}
	more := rapid.IntRange(1, 8).Draw(t, "more")
	kinds := rapid.SampledFrom([]int{1, 2, 2, 16}).Draw(t, "kinds")
	for range more * k.m.bs {
		toks = append(toks, Token(rapid.IntRange(0, kinds-1).Draw(t, "token")))
	}
	return toks
}

func (k *machine) seq(t *rapid.T) *mseq {
	if len(k.m.seqs) == 0 {
		t.Skip("no open sequence")
	}
	return k.m.seqs[rapid.IntRange(0, len(k.m.seqs)-1).Draw(t, "seq")]
}

func (k *machine) Check(t *rapid.T) {
	k.checks++
	require.NoError(t, k.c.Check())
	require.NoError(t, k.m.compare(k.c))
	require.Equal(t, k.m.evicted, k.evicted, "evictions")
	k.m.evicted, k.evicted = nil, nil
	if !k.c.recording {
		return
	}
	for _, e := range k.c.TakeEvents(k.c.EventMark(), nil) {
		if e.Kind == Cleared {
			clear(k.live)
		}
		for i, h := range e.Hashes {
			key := strconv.Itoa(e.Group) + h.String()
			require.Equal(t, e.Kind == Removed, k.live[key], "%s of a block that the events left otherwise", e.Kind)
			if e.Kind == Removed {
				delete(k.live, key)
			} else {
				k.live[key] = true
				require.Len(t, e.Tokens[i*k.m.bs:], (len(e.Hashes)-i)*k.m.bs)
			}
		}
	}
	want := map[string]bool{}
	for key, groups := range k.m.copies {
		ns, toks := k.decode(key)
		hs := k.c.hasher.Chain(nil, &ns, toks, k.m.bs)
		for g, ids := range groups {
			if len(ids) > 0 {
				want[strconv.Itoa(g)+hs[len(hs)-1].String()] = true
			}
		}
	}
	require.Equal(t, want, k.live)
}

func (k *machine) decode(key string) (Namespace, []Token) {
	n := len(key) - 4*k.m.bs*k.m.depthOf(key)
	var toks []Token
	for b := key[n:]; b != ""; b = b[4:] {
		toks = append(toks, Token(b[3]))
	}
	for _, ns := range testSpaces {
		if ns.String()+"\x00" == key[:n] {
			return ns, toks
		}
	}
	panic("unknown namespace")
}

func (k *machine) Admit(t *rapid.T) {
	ns, toks := k.space(t), k.tokens(t)
	s := &mseq{ns: ns, toks: toks, tables: make([][]BlockID, len(k.m.groups)), gone: make([]int, len(k.m.groups))}
	var err error
	s.real, err = k.c.Open(ns)
	require.NoError(t, err)
	k.m.seqs = append(k.m.seqs, s)
	limit := rapid.SampledFrom([]int{len(toks) - 1, len(toks), len(toks) / 2}).Draw(t, "limit")
	a := Alloc{Tokens: toks}
	if rapid.IntRange(0, 9).Draw(t, "read") > 0 {
		a.Hit = k.match(t, ns, toks, limit)
	}
	rest := len(toks) - a.Hit.Tokens
	if rest > 0 && rapid.IntRange(0, 3).Draw(t, "load") == 0 {
		a.External = rapid.IntRange(1, rest).Draw(t, "external")
		if s.delayed = rapid.Bool().Draw(t, "async"); s.delayed {
			a.Publish = PublishLater
		}
	}
	if !s.delayed {
		a.New = rapid.IntRange(0, rest-a.External).Draw(t, "new")
	}
	k.options(t, &a, len(toks))
	if !k.allocate(t, s, &a) && rapid.Bool().Draw(t, "give up") {
		k.free(t, s)
	}
}

func (k *machine) options(t *rapid.T, a *Alloc, n int) {
	if rapid.IntRange(0, 3).Draw(t, "options") > 0 {
		return
	}
	a.Lookahead = rapid.IntRange(0, 3).Draw(t, "lookahead")
	a.Watermark = rapid.IntRange(0, 2).Draw(t, "watermark")
	a.Reserve = rapid.IntRange(0, 3).Draw(t, "reserve")
	if rapid.Bool().Draw(t, "gate") {
		a.WholeSequence = n + rapid.IntRange(0, 12).Draw(t, "whole")
	}
	if rapid.Bool().Draw(t, "clip") {
		a.MaxTokens = n + rapid.IntRange(0, 3).Draw(t, "max tokens")
	}
	a.InFlight = rapid.IntRange(0, 4).Draw(t, "in flight")
}

func (k *machine) match(t *rapid.T, ns Namespace, toks []Token, limit int) Match {
	got := k.c.Match(ns, toks, limit)
	hit, path := k.m.match(ns, toks, limit)
	require.Equal(t, hit*k.m.bs, got.Tokens, "hit")
	require.Equal(t, path*k.m.bs, got.Path, "path")
	return got
}

func (k *machine) allocate(t *rapid.T, s *mseq, a *Alloc) bool {
	before := ""
	if a.New == 0 && a.External == 0 && a.Hit.Tokens == 0 || a.Computed > s.real.Capacity() {
		before = dumpOf(k.c)
		_, err := k.c.Allocate(s.real, a)
		require.Error(t, err)
		require.Equal(t, before, dumpOf(k.c))
		return false
	}
	need, err := k.c.Need(s.real, a)
	require.NoError(t, err)
	before = dumpOf(k.c)
	covered := s.real.Covers(a.Computed+a.New, a.Lookahead) && a.External == 0 && a.Hit.Tokens == 0 && a.InFlight >= 0
	got, err := k.c.Allocate(s.real, a)
	require.NoError(t, err)
	wantNeed, short, taken := k.m.allocate(s, a)
	require.Equal(t, Grant{OK: short == NoShortage, New: taken, Shortage: short, Need: wantNeed}, got)
	require.Equal(t, wantNeed, need)
	if !got.OK || covered && a.Publish == PublishNow {
		require.Equal(t, before, dumpOf(k.c))
	}
	return got.OK
}

func dumpOf(c *Cache) string {
	var b dumpBuffer
	_ = c.Dump(&b)
	return string(b)
}

type dumpBuffer []byte

func (b *dumpBuffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }

// Step gives a sequence tokens and the blocks for them.
func (k *machine) Step(t *rapid.T) {
	s := k.seq(t)
	if s.delayed {
		t.Skip("the load is not done")
	}
	computed := min(len(s.toks), s.real.Capacity())
	if rapid.Bool().Draw(t, "behind") {
		computed = rapid.IntRange(s.published*k.m.bs, computed).Draw(t, "computed")
	}
	n := rapid.IntRange(1, 2*k.m.bs+1).Draw(t, "n")
	for len(s.toks) < computed+n {
		s.toks = append(s.toks, Token(rapid.IntRange(0, 1).Draw(t, "token")))
	}
	a := Alloc{Tokens: s.toks, Computed: computed, New: n}
	if len(s.tables[0]) == 0 && computed == 0 {
		a.Hit = k.match(t, s.ns, s.toks, len(s.toks)-1)
		a.New = min(n, len(s.toks)-a.Hit.Tokens)
	}
	k.options(t, &a, len(s.toks))
	k.allocate(t, s, &a)
}

func (k *machine) Publish(t *rapid.T) {
	s := k.seq(t)
	n := rapid.IntRange(0, min(len(s.toks), s.real.Capacity())).Draw(t, "n")
	s.delayed = false
	require.NoError(t, k.c.Publish(s.real, s.toks, n))
	k.m.publish(s, n)
}

func (k *machine) free(t *rapid.T, s *mseq) {
	require.NoError(t, k.c.Free(s.real))
	k.m.freeTables(s)
	k.m.seqs = slices.DeleteFunc(k.m.seqs, func(x *mseq) bool { return x == s })
	require.ErrorIs(t, k.c.Free(s.real), ErrClosedSeq)
}

func (k *machine) Free(t *rapid.T)  { k.free(t, k.seq(t)) }
func (k *machine) Free2(t *rapid.T) { k.free(t, k.seq(t)) }

func (k *machine) Fence(t *rapid.T) {
	s := k.seq(t)
	f, err := k.c.FreeFenced(s.real)
	require.NoError(t, err)
	k.m.seqs = slices.DeleteFunc(k.m.seqs, func(x *mseq) bool { return x == s })
	s.real, s.fence = nil, f
	k.m.fences = append(k.m.fences, s)
}

func (k *machine) Lift(t *rapid.T) {
	if len(k.m.fences) == 0 {
		t.Skip("no fence")
	}
	i := rapid.IntRange(0, len(k.m.fences)-1).Draw(t, "fence")
	s := k.m.fences[i]
	require.NoError(t, k.c.Lift(s.fence))
	require.ErrorIs(t, k.c.Lift(s.fence), ErrUnknownFence)
	k.m.fences = slices.Delete(k.m.fences, i, i+1)
	k.m.freeTables(s)
}

func (k *machine) Truncate(t *rapid.T) {
	s := k.seq(t)
	n := rapid.IntRange(0, min(len(s.toks), s.real.Capacity())).Draw(t, "n")
	got, err := k.c.Truncate(s.real, n)
	require.NoError(t, err)
	require.Equal(t, k.m.truncate(s, n), got)
	if rapid.Bool().Draw(t, "other tokens") {
		s.toks = slices.Clone(s.toks[:got])
	}
}

func (k *machine) Uncache(t *rapid.T) {
	s := k.seq(t)
	if s.published == 0 {
		t.Skip("nothing published")
	}
	i := rapid.IntRange(0, s.published-1).Draw(t, "from")
	var failed []BlockID
	var got []Holder
	var err error
	if rapid.Bool().Draw(t, "retract") {
		for g := range s.tables {
			failed = append(failed, slices.DeleteFunc(slices.Clone(s.tables[g][i:s.published]), func(id BlockID) bool { return id == NullBlock })...)
		}
		got, err = k.c.Retract(s.real, i*k.m.bs, nil)
	} else {
		g := rapid.IntRange(0, len(s.tables)-1).Draw(t, "group")
		if failed = []BlockID{s.tables[g][i]}; failed[0] == NullBlock {
			t.Skip("null block")
		}
		got, err = k.c.Uncache(failed, nil)
	}
	require.NoError(t, err)
	want := k.m.uncache(failed)
	have := map[*Seq]int{}
	for j, h := range got {
		have[h.Seq] = h.Tokens / k.m.bs
		require.True(t, j == 0 || got[j-1].Seq.order < h.Seq.order, "holders out of order")
	}
	require.Equal(t, len(want), len(got))
	require.True(t, maps.Equal(want, have), "holders %v, model %v", have, want)
	k.adoptFree(t)
}

// adoptFree takes over the order of the free stack, which is not specified where a subtree vanished.
func (k *machine) adoptFree(t *rapid.T) {
	var order []BlockID
	for id := k.c.freeTop; id != NullBlock; id = k.c.blocks[id].next {
		order = append(order, id)
	}
	slices.Reverse(order)
	require.ElementsMatch(t, k.m.free, order)
	k.m.free = order
}

func (k *machine) CommonPrefix(t *rapid.T) {
	s := k.seq(t)
	require.Equal(t, k.m.commonPrefix(s), k.c.CommonPrefix(s.real))
}

func (k *machine) Reset(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
		t.Skip("rarely")
	}
	if k.m.held() > 0 {
		before := dumpOf(k.c)
		require.ErrorIs(t, k.c.Reset(), ErrInUse)
		require.Equal(t, before, dumpOf(k.c))
		return
	}
	require.NoError(t, k.c.Reset())
	fresh := newModel(k.m.cfg)
	fresh.seqs, fresh.fences = k.m.seqs, k.m.fences
	for _, s := range fresh.seqs { // only tables of null blocks are left
		s.published = 0
	}
	k.m = fresh
}

// BadInput calls with arguments that must be refused and must change nothing.
func (k *machine) BadInput(t *rapid.T) {
	before := dumpOf(k.c)
	var closed Seq
	var re *RangeError
	_, err := k.c.Allocate(&closed, &Alloc{New: 1})
	require.ErrorIs(t, err, ErrClosedSeq)
	require.ErrorIs(t, k.c.Free(nil), ErrClosedSeq)
	require.ErrorIs(t, k.c.Lift(Fence{slot: rand.Int32N(100), gen: 1 << 30}), ErrUnknownFence)
	require.ErrorIs(t, k.c.Renew(LeaseID{slot: 1, gen: 1 << 30}, 0), ErrUnknownLease)
	_, err = k.c.Await(&closed, Anytime)
	require.ErrorIs(t, err, ErrClosedSeq)
	_, err = k.c.Uncache([]BlockID{1, BlockID(len(k.m.blocks))}, nil)
	var be *BlockError
	require.ErrorAs(t, err, &be)
	if len(k.m.seqs) > 0 {
		s := k.seq(t)
		require.ErrorIs(t, k.c.Attach(s.real, s.ns), ErrOpenSeq)
		_, err = k.c.Allocate(s.real, &Alloc{New: -1})
		require.ErrorAs(t, err, &re)
		_, err = k.c.Truncate(s.real, s.real.Capacity()+1)
		require.ErrorAs(t, err, &re)
		require.ErrorAs(t, k.c.Publish(s.real, s.toks, len(s.toks)+1), &re)
		require.ErrorAs(t, k.c.SetRetention(s.real, Retention{Priority: 101}), &re)
		_, err = k.c.Retract(s.real, -1, nil)
		require.ErrorAs(t, err, &re)
		_, err = k.c.Allocate(s.real, &Alloc{New: 1, Hit: Match{Tokens: k.m.bs, epoch: 1 << 60}})
		require.Error(t, err)
	}
	require.Equal(t, before, dumpOf(k.c))
}
