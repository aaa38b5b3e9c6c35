package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// copying plays copies of one second a token and says when each ends, by its id.
type copying struct {
	copyWay
	*testing.T
	ends map[connector.RequestID]float64
}

func newCopying(t *testing.T) *copying {
	return &copying{T: t, copyWay: copyWay{perToken: [2]float64{toHost: 1, fromHost: 1}}, ends: map[connector.RequestID]float64{}}
}

// until plays to a time.
func (c *copying) until(seconds float64) {
	for {
		at, ok := c.next()
		if !ok || at > Seconds(seconds) {
			return
		}
		done := c.ended(at)
		require.NotEmpty(c, done, "nothing ends at %v", at)
		for _, t := range done {
			c.ends[t.id] = float64(at) / 1e9
		}
	}
}

func (c *copying) at(seconds float64, id int, d direction, tokens int) {
	c.until(seconds)
	c.push(Seconds(seconds), &copyTask{id: connector.RequestID(id), direction: d, tokens: tokens})
}

func TestCopiesShareTheWay(t *testing.T) {
	c := newCopying(t)
	c.at(0, 1, toHost, 10)
	c.at(0, 2, toHost, 10) // beside it, at half the speed each
	c.at(0, 3, toHost, 4)  // when a copier is free
	c.at(0, 4, fromHost, 4)
	c.until(100)
	require.Equal(t, map[connector.RequestID]float64{1: 20, 2: 20, 3: 24, 4: 24}, c.ends)

	c = newCopying(t)
	c.at(0, 1, toHost, 10)
	c.at(2, 2, fromHost, 10) // the other way
	c.until(100)
	require.Equal(t, map[connector.RequestID]float64{1: 10, 2: 12}, c.ends)

	c = newCopying(t)
	c.at(0, 1, toHost, 10)
	c.at(4, 2, toHost, 1) // 6 left of the first
	c.until(100)
	require.Equal(t, map[connector.RequestID]float64{2: 6, 1: 11}, c.ends)
}

// Saves of preemptions go ahead of the other saves, not of loads.
func TestUrgentSavesGoFirst(t *testing.T) {
	c := newCopying(t)
	c.at(0, 1, toHost, 10)
	c.at(0, 2, fromHost, 10)
	c.until(5)
	require.Equal(t, Seconds(8), c.hurry(Seconds(5), 3))
	require.Equal(t, Seconds(10), c.hurry(Seconds(6), 2), "behind the first")
	c.until(100)
	require.Equal(t, map[connector.RequestID]float64{1: 15, 2: 10}, c.ends)
}

// What is saved can be had when its copy is done, and what is there is not copied again.
func TestTierHasWhatWasCopied(t *testing.T) {
	tokens := make([]kvcache.Token, 40)
	for i := range tokens {
		tokens[i] = kvcache.Token(i)
	}
	r := &connector.Request{Session: "a", Tokens: tokens}
	tier := newTier(100, 1, 1)
	require.Nil(t, tier.save(1, "a", nil))
	first := tier.save(1, "a", tokens[:20])
	require.Equal(t, 20, first.tokens)
	n, coming := tier.shared(r, 8)
	require.Zero(t, n)
	require.True(t, coming)
	second := tier.save(2, "a", tokens[:30])
	require.Equal(t, 10, second.tokens, "the rest is on its way")
	require.False(t, tier.room(80, nil), "it is being copied")
	tier.copied(second)
	_, coming = tier.shared(r, 8)
	require.True(t, coming)
	tier.copied(first)
	n, coming = tier.shared(r, 8)
	require.Equal(t, 22, n)
	require.False(t, coming)
	require.Equal(t, 30, tier.used)

	p := &connector.Request{ID: 3, Session: "a", Tokens: tokens}
	copies, ok := tier.preempt(p, 35)
	require.True(t, ok)
	require.Equal(t, 5, copies, "what the session has is there")
	_, ok = tier.preempt(&connector.Request{ID: 4}, 71)
	require.False(t, ok, "whole or not at all")
	require.Equal(t, 65, tier.used)
	require.True(t, tier.room(65, nil), "of sessions nothing has to stay")
	require.Equal(t, 35, tier.used)
	tier.giveUp(3)
	require.Zero(t, tier.used)
}

func tiered(by float64) ClusterConfig {
	cfg := AppendPrefillArms(capacity())[4].Cluster
	cfg.Decode.Save *= by
	return cfg
}

// A finished turn holds its blocks until they are saved.
func TestBlocksAreHeldUntilTheyAreSaved(t *testing.T) {
	load := PublishedWorkload()
	load.Count, load.Rounds, load.Window = 1, 1, 1
	for _, by := range []float64{0, 1} {
		cfg, held := tiered(by), 0
		var c *Cluster
		cfg.Observe = func(int) {
			for _, r := range c.ranks {
				held += r.cache.Stats().Held
			}
		}
		c, err := NewCluster(cfg, load)
		require.NoError(t, err)
		_, err = c.Run()
		require.NoError(t, err)
		require.Equal(t, by > 0, held > 0)
	}
}

// At the speed of the published arms a session is saved in a fraction of a step:
// what they give is the same as if saves took no time. Where they take their
// time, the pool is short of the blocks that are being saved.
func TestSavesTakeBlocksFromThePool(t *testing.T) {
	hits := map[float64]int{}
	var totals []float64
	for _, by := range []float64{0, 1, 100} {
		for _, async := range []bool{false, true} {
			cfg := tiered(by)
			if async {
				cfg = Asynchronous(cfg)
			}
			r := run(t, cfg, PublishedWorkload())
			checkAnswers(t, r, PublishedWorkload())
			hits[by] += r.Hits
			totals = append(totals, r.Total)
		}
	}
	require.Equal(t, 360, hits[0])
	require.Equal(t, 360, hits[1])
	require.Equal(t, totals[:2], totals[2:4])
	require.Less(t, hits[100], 100)
}

// A rank too small for the answers of its requests preempts some. With a host
// tier they go on where they were, so that less is computed; the step waits until
// their blocks are saved, and the tier keeps nothing of them at the end.
func TestPreemptedRequestsComeBackFromTheTier(t *testing.T) {
	load := &Conversations{Count: 24, Rounds: 2, Window: 5, ThinkTime: 1, PromptMin: 400, PromptMax: 600, AddMin: 20, AddMax: 60, OutMin: 200, OutMax: 400, Seed: 7}
	play := func(host bool, by float64, async bool) (total float64, computed, preemptions int) {
		cfg := withAppend(PublishedCluster(40))
		if host {
			cfg.Decode.Host, cfg.Decode.Save, cfg.Decode.Restore = HostTier()
			cfg.Decode.Save *= by
		}
		if async {
			cfg = Asynchronous(cfg)
		}
		c, err := NewCluster(cfg, load)
		require.NoError(t, err)
		r, err := c.Run()
		require.NoError(t, err)
		checkAnswers(t, r, load)
		for _, k := range c.ranks[1:] {
			st := k.sched.Stats()
			preemptions += int(st.Preemptions)
			computed += int(st.Tokens)
			if host {
				require.Empty(t, k.link.host.preempted)
				require.Empty(t, k.link.host.way.running)
			}
		}
		return r.Total, computed, preemptions
	}
	for _, async := range []bool{false, true} {
		_, again, p := play(false, 0, async)
		require.NotZero(t, p)
		free, kept, p := play(true, 0, async)
		require.NotZero(t, p)
		require.Less(t, kept, again)
		slow, _, _ := play(true, 1e4, async)
		require.Greater(t, slow, free)
	}
}
