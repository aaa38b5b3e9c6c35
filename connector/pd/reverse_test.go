package pd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
)

func reverse(change func(*ReverseConfig)) option {
	return func(_ *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) {
		s.Reverse = ReverseConfig{Enable: true, Threshold: 8}
		if change != nil {
			change(&s.Reverse)
		}
	}
}

// turn ends a turn of n computed tokens at D in blocks from first on.
func (e *engine) turn(slot uint32, session string, n, first int) connector.Hold {
	r := &connector.Request{
		ID: connector.NewRequestID(slot, 1), Name: "turn", Tokens: tokens(n + 1), Prompt: n - 3, Session: session,
		Params: &Params{AppendPrefill: true},
	}
	table := connector.Tables{blockRange(first, ceilDiv(n, testBlockSize))}
	e.s.Allocated(r, table, 0, 0)
	h := e.s.Finished(r, table, connector.End{Reason: connector.EndStop, Computed: n, Output: 4})
	e.flush()
	return h
}

func throughJSON(t *testing.T, p *Params) *Params {
	t.Helper()
	raw, err := p.MarshalJSON()
	require.NoError(t, err)
	out, err := ParseParams(raw)
	require.NoError(t, err)
	return out
}

func TestPrefillerReadsTheTurnFromTheOldOwner(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(nil))
	p := newEngine(t, "p-1", Producer, 2, reverse(nil))
	h := d.turn(1, "s", 21, 10)
	require.True(t, h.Delay)
	out := throughJSON(t, h.Params.(*Params))
	require.True(t, out.DoRemoteDecode)
	require.False(t, out.DoRemotePrefill)
	require.Equal(t, 21, out.NumTokens)

	r := remote(5, 40, out) // the next turn's prompt: 21 tokens of before and 19 new ones
	r.Route = connector.Local
	p.s.Added(r)
	require.Equal(t, 13, p.s.Lookup(r, 8).Tokens)
	table := connector.Tables{blockRange(30, 10)}
	p.s.Allocated(r, table, 8, 13)
	p.flush()
	ev := p.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, 4, ev.Payload.(Transfer).Blocks)
	require.Equal(t, d.block(1, 15), p.block(1, 35))
	require.Equal(t, connector.Sent, d.next().Kind)
	// P's own end of the request hands it on as ever.
	fin := p.s.Finished(r, table, connector.End{Reason: connector.EndLength, Computed: 40})
	require.True(t, fin.Delay)
	require.Equal(t, "p-1", fin.Params.(*Params).EngineID)
	require.Zero(t, d.s.Live())
}

func TestReverseOffReleasesAtOnce(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(nil))
	p := newEngine(t, "p-1", Producer, 2)
	r := remote(5, 40, throughJSON(t, d.turn(1, "s", 21, 10).Params.(*Params)))
	p.s.Added(r)
	require.Equal(t, connector.Answer{}, p.s.Lookup(r, 0), "nobody waits for what is not read")
	p.flush()
	require.Equal(t, connector.Sent, d.next().Kind)
	p.s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
	require.Zero(t, p.s.Live())
}

func TestReverseOnlyWhenItPays(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(nil))
	p := newEngine(t, "p-1", Producer, 2, reverse(func(c *ReverseConfig) { c.PrefillRate = 1000 }))
	out := throughJSON(t, d.turn(1, "s", 21, 10).Params.(*Params))
	r := remote(5, 40, out)
	p.s.Added(r)
	require.Equal(t, 9, p.s.Lookup(r, 12).Tokens, "nothing measured yet")
	require.Zero(t, p.s.Lookup(r, 16).Tokens, "5 tokens, below the threshold")
	p.s.speed.note(Transfer{Blocks: 4, Tokens: 100, Took: 50 * time.Millisecond})
	require.NotZero(t, p.s.Lookup(r, 0).Tokens, "2,000 tokens a second against 1,000")
	for range 20 {
		p.s.speed.note(Transfer{Blocks: 4, Tokens: 100, Took: 200 * time.Millisecond})
	}
	p.s.speed.note(Transfer{Tokens: 100, Took: time.Hour}) // failed ones say nothing
	require.Zero(t, p.s.Lookup(r, 0).Tokens)
	require.Zero(t, p.s.Lookup(r, 0).Tokens)
	require.EqualValues(t, 1, p.s.Stats().Slower)
	p.s.SetPrefillRate(100)
	require.NotZero(t, p.s.Lookup(r, 0).Tokens)
	p.s.SetPrefillRate(1000)
	p.s.Allocated(r, connector.Tables{blockRange(30, 10)}, 0, 0)
	p.flush()
	require.Equal(t, connector.Sent, d.next().Kind, "released unread")
}

func TestNextTurnHereGivesTheOfferUp(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(nil))
	require.True(t, d.turn(1, "s", 21, 10).Delay)
	require.True(t, d.turn(2, "other", 9, 20).Delay)
	require.True(t, d.turn(3, "s", 29, 10).Delay)
	sent := d.next()
	require.Equal(t, connector.NewRequestID(1, 1), sent.Request)
	d.quiet(20 * time.Millisecond)
	require.Equal(t, 2, d.w.Stats().LeasesNow)
}

func TestReverseBudget(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(func(c *ReverseConfig) { c.Blocks = 8 }))
	require.True(t, d.turn(1, "a", 16, 1).Delay)
	require.True(t, d.turn(2, "b", 16, 5).Delay)
	require.False(t, d.turn(3, "c", 40, 9).Delay, "more than all of it")
	require.True(t, d.turn(4, "d", 20, 20).Delay)
	got := []connector.RequestID{d.next().Request, d.next().Request}
	require.ElementsMatch(t, []connector.RequestID{connector.NewRequestID(1, 1), connector.NewRequestID(2, 1)}, got)
	require.Equal(t, 1, d.w.Stats().LeasesNow)
}

func TestOffersEndByThemselves(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(func(c *ReverseConfig) { c.Keep = 50 * time.Millisecond }))
	require.True(t, d.turn(1, "a", 16, 1).Delay)
	require.Equal(t, connector.Sent, d.next().Kind)
	require.Zero(t, d.s.Live())
	require.Empty(t, d.s.turns.list)
}

// Only what the next prompt has in common with the turn is read: clients edit
// histories, and another namespace shares nothing.
func TestTurnIsReadOnlyAsFarAsThePromptGoesOnFromIt(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(func(c *ReverseConfig) { c.Threshold = 1 }))
	p := newEngine(t, "p-1", Producer, 2, reverse(func(c *ReverseConfig) { c.Threshold = 1 }))
	out := throughJSON(t, d.turn(1, "s", 21, 10).Params.(*Params))
	n := uint32(0)
	ask := func(change func(r *connector.Request, p *Params)) int {
		n++
		again := *out
		r := remote(n, 40, &again)
		change(r, &again)
		p.s.Added(r)
		defer func() {
			p.s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
			p.s.Ops(0, nil) // another asks with the same lease
		}()
		return p.s.Lookup(r, 0).Tokens
	}
	require.Equal(t, 21, ask(func(*connector.Request, *Params) {}))
	for at, want := range map[int]int{0: 0, 3: 0, 4: 4, 19: 16, 20: 20, 21: 21} {
		require.Equal(t, want, ask(func(r *connector.Request, _ *Params) { r.Tokens[at] = 999 }), "token %d differs", at)
	}
	require.Equal(t, 8, ask(func(r *connector.Request, _ *Params) { r.Prompt, r.Tokens = 11, r.Tokens[:11] }), "a history that shrank")
	require.Zero(t, ask(func(r *connector.Request, _ *Params) { r.Namespace.Salt = "x" }))
	require.Zero(t, ask(func(_ *connector.Request, p *Params) { p.prefix = nil }))
	require.Zero(t, ask(func(_ *connector.Request, p *Params) { p.NumTokens = 40 }))
	require.Zero(t, ask(func(_ *connector.Request, p *Params) { p.NumTokens = 1 << 30 }))
	require.Equal(t, 20, ask(func(_ *connector.Request, p *Params) { p.NumTokens = 20; p.prefix = p.prefix[:6] }))
}

// Another Decoder reads the turn as it would read a prefiller's prompt, and
// computes the rest.
func TestNewOwnerReadsTheTurnFromTheOldOne(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(nil))
	next := newEngine(t, "d-2", Consumer, 2, reverse(nil))
	out := throughJSON(t, d.turn(1, "s", 21, 10).Params.(*Params))
	out.DoRemotePrefill, out.DoRemoteDecode = true, false
	r := remote(5, 40, out)
	r.Tokens[20] = 999
	next.s.Added(r)
	require.Equal(t, 12, next.s.Lookup(r, 8).Tokens)
	next.s.Allocated(r, connector.Tables{blockRange(30, 10)}, 8, 12)
	next.flush()
	ev := next.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, 3, ev.Payload.(Transfer).Blocks)
	require.Equal(t, d.block(1, 14), next.block(1, 34))
	require.Equal(t, connector.Sent, d.next().Kind)
	next.s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
	require.Zero(t, d.s.Live())
}

// A refused or aborted request leaves the offer to whoever serves it.
func TestRefusalKeepsTheOffer(t *testing.T) {
	d := newEngine(t, "d-1", Consumer, 1, reverse(nil))
	require.True(t, d.turn(1, "s", 21, 10).Delay)
	r := &connector.Request{ID: connector.NewRequestID(2, 1), Tokens: tokens(40), Prompt: 40, Session: "s", Params: &Params{AppendPrefill: true}}
	for _, why := range []connector.EndReason{connector.EndRefused, connector.EndAbort} {
		d.s.Added(r)
		d.s.Finished(r, nil, connector.End{Reason: why})
		d.flush()
	}
	d.quiet(20 * time.Millisecond)
	require.Equal(t, 1, d.w.Stats().LeasesNow)
}

func TestPrefixNames(t *testing.T) {
	for _, bad := range []string{"AA", "AAAA", "?"} {
		_, err := parsePrefix(bad)
		require.Error(t, err)
	}
	p := prefix{{1}, {2, 3}}
	again, err := parsePrefix(p.String())
	require.NoError(t, err)
	require.Equal(t, p, again)
}
