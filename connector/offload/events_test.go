package offload

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

func told7(c *Config, _ *WorkerConfig) {
	c.Sharing, c.Events = Turns, kvcache.Events{Mode: kvcache.EventsOn, Seed: "7"}
}

// hashesOf are the hashes that the full blocks of the tokens have in events.
func hashesOf(t require.TestingT, ns kvcache.Namespace, tokens []kvcache.Token) []kvcache.Hash {
	h, err := kvcache.NewHasher(kvcache.SHA256CBOR, "7", kvcache.SharedScope)
	require.NoError(t, err)
	return h.Chain(nil, &ns, tokens, bs)
}

// Shared content is told of when its copy is complete, with all that a device's
// event has, and again when its slot goes to others or the tier is reset.
func TestEventsOfTurns(t *testing.T) {
	e := newEngine(t, 4, told7)
	r := request(1, tokens(0, 14), 8)
	r.Namespace.Salt = "pepper"
	require.True(t, e.s.Finished(r, table(1, 4), connector.End{Reason: connector.EndStop, Computed: 13}).Delay)
	require.Empty(t, e.s.TakeEvents(nil), "its copy is under way")
	e.flush()
	e.next()
	e.next()
	first := hashesOf(t, r.Namespace, r.Tokens)
	require.Equal(t, []kvcache.Event{{
		Kind: kvcache.Stored, Medium: "CPU", Hashes: first, Tokens: r.Tokens[:12], BlockSize: bs, Namespace: r.Namespace, AtStart: true,
	}}, e.s.TakeEvents(nil))
	require.Empty(t, e.s.TakeEvents(nil), "once")

	// The next turn adds a block behind those, and one that has no room evicts.
	more := request(2, append(tokens(0, 12), 50, 51, 52, 53), 16)
	more.Namespace = r.Namespace
	e.s.Finished(more, table(1, 4), connector.End{Reason: connector.EndStop, Computed: 16})
	e.flush()
	e.next()
	e.next()
	got := e.s.TakeEvents(nil)
	require.Len(t, got, 1)
	require.Equal(t, first[2], got[0].Parent)
	require.Equal(t, hashesOf(t, r.Namespace, more.Tokens)[3:], got[0].Hashes)
	require.False(t, got[0].AtStart)
	other := request(3, tokens(100, 9), 9)
	e.s.Finished(other, table(1, 3), connector.End{Reason: connector.EndStop, Computed: 8})
	got = e.s.TakeEvents(nil)
	require.Len(t, got, 1, "what it will write over has gone already")
	require.Equal(t, kvcache.Removed, got[0].Kind)
	require.Len(t, got[0].Hashes, 2)
	e.flush()
	e.next()
	e.next()
	require.Equal(t, hashesOf(t, kvcache.Namespace{}, other.Tokens), e.s.TakeEvents(nil)[0].Hashes)
	require.True(t, e.s.ResetCache())
	got = e.s.TakeEvents(nil)
	require.Len(t, got, 1)
	require.Equal(t, kvcache.Removed, got[0].Kind)
	require.Len(t, got[0].Hashes, 4)
}

// Nothing is told of a copy that failed, nor without the switch, and of a
// preempted request its full blocks alone.
func TestEventsOfOtherEnds(t *testing.T) {
	e := newEngine(t, 8, told7)
	r := request(1, tokens(0, 8), 8)
	e.s.Finished(r, table(1, 2), connector.End{Reason: connector.EndStop, Computed: 8})
	e.s.Completed(connector.Event{Kind: connector.Saved, Request: r.ID, Err: errors.New("lost"), Payload: Report{Job: e.s.lastJob}})
	require.Zero(t, e.s.Stats().Jobs)
	require.Empty(t, e.s.TakeEvents(nil))
	p := request(2, tokens(0, 11), 8)
	require.True(t, e.s.Preempting(p, table(1, 3), 10))
	e.s.Completed(connector.Event{Kind: connector.Saved, Request: p.ID, Payload: Report{Job: e.s.lastJob}})
	got := e.s.TakeEvents(nil)
	require.Len(t, got, 1)
	require.Equal(t, hashesOf(t, kvcache.Namespace{}, p.Tokens), got[0].Hashes)

	off := newEngine(t, 8, turns)
	off.s.Finished(r, table(1, 2), connector.End{Reason: connector.EndStop, Computed: 8})
	off.s.Completed(connector.Event{Kind: connector.Saved, Request: r.ID, Payload: Report{Job: off.s.lastJob}})
	require.Equal(t, 2, off.s.Stats().Cached)
	require.True(t, off.s.ResetCache())
	require.Empty(t, off.s.TakeEvents(nil))

	for _, ev := range []kvcache.Events{{Mode: 9}, {Mode: kvcache.EventsOn, Algorithm: kvcache.XXH3CBOR}} {
		_, err := NewScheduler(Config{Slots: 1, Events: ev})
		require.ErrorContains(t, err, "offload: Events")
	}
}

// In any history the events say exactly which shared content is matchable.
func TestEventsAreWhatIsMatchable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{BlockSize: bs, Slots: 6}
		told7(&c, nil)
		c.Policy = rapid.SampledFrom([]Policy{LRU, ARC}).Draw(t, "policy")
		s, err := NewScheduler(c)
		require.NoError(t, err)
		type pending struct {
			id  connector.RequestID
			job uint64
		}
		var jobs []pending
		var records []*connector.Request
		all := map[Key]kvcache.Hash{}
		live := map[kvcache.Hash]bool{}
		slot := uint32(0)
		t.Repeat(map[string]func(*rapid.T){
			"end": func(t *rapid.T) {
				slot++
				toks := append(tokens(rapid.IntRange(0, 2).Draw(t, "start"), bs), tokens(rapid.IntRange(0, 2).Draw(t, "next"), rapid.IntRange(0, 12).Draw(t, "length"))...)
				r := request(slot, toks, bs)
				r.Namespace.Salt = rapid.SampledFrom([]string{"", "x"}).Draw(t, "salt")
				for i, h := range hashesOf(t, r.Namespace, toks) {
					all[s.key(r, 0, i)] = h
				}
				before := s.lastJob
				if rapid.Bool().Draw(t, "preempted") {
					if s.Preempting(r, table(1, 8), len(toks)) {
						records = append(records, r)
					}
				} else {
					s.Finished(r, table(1, 8), connector.End{Reason: connector.EndStop, Computed: len(toks)})
				}
				if s.lastJob != before {
					jobs = append(jobs, pending{r.ID, s.lastJob})
				}
			},
			"saved": func(t *rapid.T) {
				if len(jobs) == 0 {
					t.Skip("no job")
				}
				i := rapid.IntRange(0, len(jobs)-1).Draw(t, "job")
				ev := connector.Event{Kind: connector.Saved, Request: jobs[i].id, Payload: Report{Job: jobs[i].job}}
				if rapid.IntRange(0, 4).Draw(t, "fails") == 0 {
					ev.Err = errors.New("lost")
				}
				s.Completed(ev)
				jobs = append(jobs[:i], jobs[i+1:]...)
			},
			"gone": func(t *rapid.T) {
				for _, r := range records {
					s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
				}
				records = nil
			},
			"reset": func(*rapid.T) { s.ResetCache() },
			"": func(t *rapid.T) {
				s.pool.check()
				for _, e := range s.TakeEvents(nil) {
					require.Equal(t, "CPU", e.Medium)
					for _, h := range e.Hashes {
						require.Equal(t, e.Kind == kvcache.Removed, live[h], "%v of a block that the events left otherwise", e.Kind)
						if e.Kind == kvcache.Removed {
							delete(live, h)
						} else {
							live[h] = true
						}
					}
					if e.Kind == kvcache.Stored {
						require.Len(t, e.Tokens, len(e.Hashes)*bs)
					}
				}
				want := map[kvcache.Hash]bool{}
				for k, x := range s.pool.index {
					if s.pool.slots[x].state == slotShared {
						want[all[k]] = true
					}
				}
				require.Equal(t, want, live)
			},
		})
	})
}
