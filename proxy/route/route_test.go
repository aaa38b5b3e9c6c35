package route

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var epoch = time.Unix(1_700_000_000, 0)

func at(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

type fakeRequest struct {
	headers map[string]string
	members map[string]any
}

func (f fakeRequest) Header(name string) string { return f.headers[name] }

func (f fakeRequest) Member(name string) (string, bool) {
	s, ok := f.members[name].(string)
	return s, ok
}

// R27 to R30: where a session id comes from.
func TestResolve(t *testing.T) {
	h := func(v string) map[string]string { return map[string]string{"X-Session-Id": v} }
	b := func(v any) map[string]any { return map[string]any{"conversation_id": v} }
	for _, c := range []struct {
		name string
		req  fakeRequest
		id   string
		from Source
	}{
		{"nothing", fakeRequest{}, "", SourceNone},
		{"header", fakeRequest{headers: h("a")}, "a", SourceSessionHeader},
		{"body", fakeRequest{members: b("b")}, "b", SourceConversation},
		{"header wins", fakeRequest{headers: h("a"), members: b("b")}, "a", SourceSessionHeader},
		{"empty header", fakeRequest{headers: h(""), members: b("b")}, "b", SourceConversation},
		{"empty both", fakeRequest{headers: h(""), members: b("")}, "", SourceNone},
		{"number", fakeRequest{members: b(7)}, "", SourceNone},
		{"null", fakeRequest{members: b(nil)}, "", SourceNone},
		{"list", fakeRequest{members: b([]string{"x"})}, "", SourceNone},
		{"not asked for", fakeRequest{members: map[string]any{"prompt_cache_key": "k"}}, "", SourceNone},
	} {
		id, from := Resolve(DefaultSources(), c.req)
		require.Equal(t, c.id, id, c.name)
		require.Equal(t, c.from, from, c.name)
	}
	order := []Source{SourcePromptCacheKey, SourceClaudeCode, SourceSessionHeader}
	id, from := Resolve(order, fakeRequest{headers: map[string]string{"X-Session-Id": "a", "X-Claude-Code-Session-Id": "c"}})
	require.Equal(t, "c", id)
	require.Equal(t, SourceClaudeCode, from)
	for s := SourceSessionHeader; s <= SourceHistory; s++ {
		back, err := ParseSource(strings.ToUpper(s.String()))
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
	for _, bad := range []string{"", "none", "x"} {
		_, err := ParseSource(bad)
		require.ErrorIs(t, err, ErrSource)
	}
	require.NotEqual(t, KeyOf("a", "bc"), KeyOf("ab", "c"))
	require.Equal(t, KeyOf("a", strings.Repeat("x", 1<<20)), KeyOf("a", strings.Repeat("x", 1<<20)))
}

func fleetOf(t *testing.T, cfg Config, decoders, ranks, prefillers int) *Router {
	t.Helper()
	r := New(cfg)
	for i := range decoders {
		require.NoError(t, r.AddDecoder(DecoderSpec{Name: fmt.Sprintf("d%d:1", i), Ranks: ranks}))
	}
	for i := range prefillers {
		require.NoError(t, r.AddPrefiller(fmt.Sprintf("p%d:1", i)))
	}
	return r
}

func query(session string) Query {
	q := Query{Bytes: 1000, Eligible: true}
	if session != "" {
		q.HasSession, q.Session = true, KeyOf("", session)
	}
	return q
}

// pd takes a turn through a whole P/D round.
func pd(t *testing.T, r *Router, now time.Time, turn *Turn) Target {
	t.Helper()
	_, ok := r.Prefiller(now, turn)
	require.True(t, ok)
	target, ok := r.Decoder(now, turn)
	require.True(t, ok)
	r.Prefilled(now, turn)
	r.Output(now, turn)
	return target
}

var completed = Outcome{Result: Completed, PromptTokens: 250, OutputTokens: 10}

func idle(t *testing.T, r *Router, now time.Time) {
	t.Helper()
	s := r.Snapshot(now)
	require.Zero(t, s.OpenTurns)
	for _, d := range s.Decoders {
		for _, k := range d.Ranks {
			require.Zero(t, k.InFlight)
			require.Zero(t, k.Bytes)
			require.Zero(t, k.LocalAttempts)
			require.Zero(t, k.AppendTokens)
		}
	}
	for _, p := range s.Prefillers {
		require.Zero(t, p.InFlight)
		require.Zero(t, p.Running)
		require.Zero(t, p.KV)
	}
}

func bind(t *testing.T, r *Router, now time.Time, session string) Target {
	t.Helper()
	turn, _ := r.Begin(now, query(session))
	target := pd(t, r, now, turn)
	r.Finish(now, turn, completed)
	return target
}

func TestMembership(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 2, 1, 2)
	require.ErrorIs(t, r.AddDecoder(DecoderSpec{Name: "d0:1"}), ErrInstanceExists)
	require.ErrorIs(t, r.AddPrefiller("p0:1"), ErrInstanceExists)
	require.ErrorIs(t, r.RemoveDecoder("x"), ErrInstanceUnknown)
	require.ErrorIs(t, r.RemovePrefiller("x"), ErrInstanceUnknown)
	owner := bind(t, r, at(0), "s")
	long, _ := r.Begin(at(1), query("s"))
	other, _ := r.Begin(at(1), query("")) // somewhere, keeps the fleet busy
	_, _ = r.Prefiller(at(1), other)
	require.NoError(t, r.DrainDecoder(owner.Decoder))
	turn, d := r.Begin(at(1), query("s"))
	require.Equal(t, ReasonOwnerDraining, d.Reason)
	require.NotEqual(t, owner.Decoder, pd(t, r, at(1), turn).Decoder)
	r.Finish(at(1), turn, Outcome{Result: Cancelled})
	require.NoError(t, r.AddDecoder(DecoderSpec{Name: owner.Decoder, Ranks: 1}), "it comes back")
	// removal ends when the instance's own requests end, whatever else runs.
	require.NoError(t, r.RemoveDecoder(owner.Decoder))
	require.Len(t, r.Snapshot(at(1)).Decoders, 2)
	_, d = r.Begin(at(1), query("s"))
	require.Equal(t, ReasonOwnerGone, d.Reason)
	r.Finish(at(2), long, completed)
	require.Len(t, r.Snapshot(at(2)).Decoders, 1)
	for _, p := range []string{"p0:1", "p1:1"} {
		require.NoError(t, r.RemovePrefiller(p))
	}
	require.Len(t, r.Snapshot(at(2)).Prefillers, 1, "one still computes a prompt")
	r.Finish(at(3), other, Outcome{Result: Cancelled})
	require.Empty(t, r.Snapshot(at(3)).Prefillers)
	turn, _ = r.Begin(at(3), query(""))
	_, ok := r.Prefiller(at(3), turn)
	require.False(t, ok)
}

func TestSkippedAttempts(t *testing.T) {
	guarded := func(g Guard) *Router {
		r := New(Config{Append: true})
		require.NoError(t, r.AddDecoder(DecoderSpec{Name: "d", Guard: g}))
		require.NoError(t, r.AddPrefiller("p"))
		return r
	}
	decide := func(r *Router, bytes int, eligible bool) (*Turn, Decision) {
		q := query("s")
		q.Bytes, q.Eligible = bytes, eligible
		return r.Begin(at(10), q)
	}
	r := guarded(Guard{MaxSuffixTokens: 100, MaxLocalAttempts: 2, MaxAppendTokensInFlight: 120})
	bind(t, r, at(0), "s") // 1000 bytes are 250 tokens
	_, d := decide(r, 1500, true)
	require.Equal(t, ReasonSuffixTooLong, d.Reason) // 375 − 250
	_, d = decide(r, 1000, false)
	require.Equal(t, ReasonNotEligible, d.Reason)
	_, d = decide(r, 1300, true) // 75 tokens
	require.Equal(t, Local, d.Route)
	_, d = decide(r, 1300, true) // together 150
	require.Equal(t, ReasonBusy, d.Reason)
	_, d = decide(r, 1100, true)
	require.Equal(t, Local, d.Route)
	_, d = decide(r, 1000, true) // a third attempt
	require.Equal(t, ReasonBusy, d.Reason)

	// What the owner says counts more than the prompt's length.
	r = guarded(Guard{MaxSuffixTokens: 100})
	turn, _ := r.Begin(at(0), query("s"))
	pd(t, r, at(0), turn)
	o := completed
	o.HasResident, o.Resident = true, 64
	r.Finish(at(0), turn, o)
	_, d = decide(r, 1000, true)
	require.Equal(t, ReasonSuffixTooLong, d.Reason)
	turn, _ = r.Begin(at(1), query("s"))
	pd(t, r, at(1), turn)
	o.Resident = 0
	r.Finish(at(1), turn, o)
	_, d = decide(r, 1000, true)
	require.Equal(t, ReasonPredictedMiss, d.Reason)
}

// A rank that answers attempts from nothing is left alone until it restarts.
func TestNotRefusing(t *testing.T) {
	r := New(Config{Append: true})
	require.NoError(t, r.AddDecoder(DecoderSpec{Name: "d", Guard: Guard{MaxSuffixTokens: 1000}}))
	require.NoError(t, r.AddPrefiller("p"))
	bind(t, r, at(0), "s")
	r.Observe("d", 0, "e1")
	cold := Outcome{Result: Completed, PromptTokens: 5000, CachedTokens: 0}
	q := query("s")
	q.Bytes = 1
	for i, when := range []float64{1, 50, 70, 100} { // the first is out of the window by the third
		want := i == 3
		turn, d := r.Begin(at(when), q)
		require.Equal(t, Local, d.Route)
		require.Equal(t, want, r.Finish(at(when), turn, cold), i)
		if !want { // a P/D turn, after which the next attempt is predicted to fit
			turn, _ = r.Begin(at(when), q)
			r.Missed(turn)
			pd(t, r, at(when), turn)
			r.Finish(at(when), turn, Outcome{Result: Completed, PromptTokens: 5000, CachedTokens: 4000})
		}
	}
	_, d := r.Begin(at(101), q)
	require.Equal(t, ReasonNotRefusing, d.Reason)
	require.True(t, r.Snapshot(at(101)).Decoders[0].Ranks[0].Blocked)
	r.Observe("d", 0, "e2")
	require.False(t, r.Snapshot(at(101)).Decoders[0].Ranks[0].Blocked)
}

func TestBreaker(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 1, 1, 2)
	for range 3 {
		r.LegDone(at(0), LegPrefill, "p0:1", LegFailed)
	}
	require.Equal(t, BreakerOpen, r.Snapshot(at(1)).Prefillers[0].Breaker)
	for range 5 {
		turn, _ := r.Begin(at(1), query(""))
		p, ok := r.Prefiller(at(1), turn)
		require.True(t, ok)
		require.Equal(t, "p1:1", p)
		r.Finish(at(1), turn, Outcome{Result: Cancelled})
	}
	// After the cooldown one request finds out.
	a, _ := r.Begin(at(3), query(""))
	b, _ := r.Begin(at(3), query(""))
	pa, _ := r.Prefiller(at(3), a)
	pb, _ := r.Prefiller(at(3), b)
	require.Equal(t, "p0:1", pa)
	require.Equal(t, "p1:1", pb)
	r.LegDone(at(3), LegPrefill, "p0:1", LegFailed)
	require.Equal(t, BreakerOpen, r.Snapshot(at(6)).Prefillers[0].Breaker, "twice as long")
	require.Equal(t, BreakerHalfOpen, r.Snapshot(at(7.5)).Prefillers[0].Breaker)
	r.LegDone(at(8), LegPrefill, "p0:1", LegOK)
	require.Equal(t, BreakerClosed, r.Snapshot(at(8)).Prefillers[0].Breaker)
	// When all are open, they are used all the same.
	for range 3 {
		r.LegDone(at(9), LegDecode, "d0:1", LegFailed)
	}
	_, ok := r.Decoder(at(9), a)
	require.True(t, ok)
	// An open breaker of local attempts leaves the owner to P/D.
	bind(t, r, at(20), "s")
	for range 3 {
		r.LegDone(at(20), LegLocal, "d0:1", LegFailed)
	}
	_, d := r.Begin(at(20), query("s"))
	require.Equal(t, ReasonOwnerDown, d.Reason)
}
