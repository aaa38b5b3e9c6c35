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
	r.Prefilled(turn)
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

func TestProvisionalThenBound(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 2, 2, 1)
	turn, d := r.Begin(at(0), query("s"))
	require.Equal(t, ReasonNoOwner, d.Reason)
	_, _ = r.Prefiller(at(0), turn)
	target, ok := r.Decoder(at(0), turn)
	require.True(t, ok)
	_, state, ok := r.Owner(KeyOf("", "s"))
	require.True(t, ok)
	require.Equal(t, "placed", state)
	second, d2 := r.Begin(at(0), query("s"))
	require.Equal(t, ReasonNoOwner, d2.Reason, "a placed session is not attempted")
	r.Output(at(1), turn)
	_, state, _ = r.Owner(KeyOf("", "s"))
	require.Equal(t, "provisional", state)
	third, d3 := r.Begin(at(1), query("s"))
	require.Equal(t, Local, d3.Route)
	require.Equal(t, target, d3.Target)
	r.Finish(at(2), turn, completed)
	_, state, _ = r.Owner(KeyOf("", "s"))
	require.Equal(t, "bound", state)
	r.Finish(at(2), second, Outcome{Result: Cancelled})
	r.Finish(at(3), third, completed)
	idle(t, r, at(3))
}

func TestFailedFirstTurnLeavesNothing(t *testing.T) {
	for _, output := range []bool{false, true} {
		r := fleetOf(t, Config{Append: true}, 1, 1, 1)
		turn, _ := r.Begin(at(0), query("s"))
		_, _ = r.Prefiller(at(0), turn)
		_, _ = r.Decoder(at(0), turn)
		if output {
			r.Output(at(0), turn)
		}
		r.Finish(at(1), turn, Outcome{Result: Failed})
		_, _, ok := r.Owner(KeyOf("", "s"))
		require.False(t, ok)
		idle(t, r, at(1))
	}
	// A client that goes away after output leaves its KV on the Decoder.
	r := fleetOf(t, Config{Append: true}, 1, 1, 1)
	turn, _ := r.Begin(at(0), query("s"))
	pd(t, r, at(0), turn)
	r.Finish(at(1), turn, Outcome{Result: Cancelled})
	_, state, ok := r.Owner(KeyOf("", "s"))
	require.True(t, ok)
	require.Equal(t, "provisional", state)
}

func TestConcurrentFirstTurnsBindOnce(t *testing.T) {
	r := fleetOf(t, Config{Append: true, SlackBytes: 1}, 4, 2, 1)
	var turns []*Turn
	var first Target
	for i := range 8 {
		turn, d := r.Begin(at(0), query("s"))
		require.Equal(t, PD, d.Route)
		_, _ = r.Prefiller(at(0), turn)
		target, ok := r.Decoder(at(0), turn)
		require.True(t, ok)
		if i == 0 {
			first = target
		}
		require.Equal(t, first, target)
		turns = append(turns, turn)
	}
	for _, turn := range turns {
		r.Output(at(1), turn)
		r.Finish(at(2), turn, completed)
	}
	idle(t, r, at(2))
}

func bind(t *testing.T, r *Router, now time.Time, session string) Target {
	t.Helper()
	turn, _ := r.Begin(now, query(session))
	target := pd(t, r, now, turn)
	r.Finish(now, turn, completed)
	return target
}

func TestFallbackRebinds(t *testing.T) {
	r := fleetOf(t, Config{Append: true, SlackBytes: 1}, 2, 1, 1)
	owner := bind(t, r, at(0), "s")
	// The owner is loaded, so that the fallback goes elsewhere.
	other, _ := r.Begin(at(1), query("s"))
	turn, d := r.Begin(at(1), query("s"))
	require.Equal(t, owner, d.Target)
	r.Missed(turn)
	target := pd(t, r, at(1), turn)
	require.NotEqual(t, owner, target)
	got, _, _ := r.Owner(KeyOf("", "s"))
	require.Equal(t, owner, got, "not before the turn is complete")
	r.Finish(at(2), turn, completed)
	got, _, _ = r.Owner(KeyOf("", "s"))
	require.Equal(t, target, got)
	r.Finish(at(2), other, Outcome{Result: Cancelled})
	idle(t, r, at(2))
}

func TestFallbackPrefersOwnerWithinSlack(t *testing.T) {
	r := fleetOf(t, Config{Append: true, SlackBytes: 5000}, 3, 1, 1)
	owner := bind(t, r, at(0), "s")
	busy, _ := r.Begin(at(1), query("s")) // 1000 bytes on the owner
	turn, _ := r.Begin(at(1), query("s"))
	r.Missed(turn)
	require.Equal(t, owner, pd(t, r, at(1), turn))
	r.Finish(at(2), turn, completed)
	r.Finish(at(2), busy, completed)
}

func TestGenerations(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 1, 2, 1)
	key := KeyOf("", "s")
	decide := func() Decision {
		turn, d := r.Begin(at(5), query("s"))
		r.Finish(at(5), turn, Outcome{Result: Cancelled})
		return d
	}
	target := bind(t, r, at(0), "s")
	r.Observe(target.Decoder, target.Rank, "e1")
	require.Equal(t, Local, decide().Route, "the first marker seen is no restart")
	r.Observe(target.Decoder, 1-target.Rank, "other-rank")
	require.Equal(t, Local, decide().Route)
	r.Unreachable(target.Decoder)
	require.Equal(t, ReasonOwnerDown, decide().Reason)
	r.Observe(target.Decoder, target.Rank, "e1")
	require.Equal(t, Local, decide().Route, "the same life answers again")
	r.Observe(target.Decoder, target.Rank, "e2")
	require.Equal(t, ReasonOwnerRestarted, decide().Reason)
	_, _, ok := r.Owner(key)
	require.False(t, ok)

	// Without markers a connection that failed counts as a restart once the
	// instance answers again.
	r = fleetOf(t, Config{Append: true}, 1, 1, 1)
	target = bind(t, r, at(0), "s")
	r.Observe(target.Decoder, 0, "")
	require.Equal(t, Local, decide().Route)
	r.Unreachable(target.Decoder)
	r.Observe(target.Decoder, 0, "")
	require.Equal(t, ReasonOwnerRestarted, decide().Reason)
	bind(t, r, at(6), "s")
	r.Restarted(target.Decoder)
	require.Equal(t, ReasonOwnerRestarted, decide().Reason)
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

func TestTableBounds(t *testing.T) {
	r := fleetOf(t, Config{Append: true, MaxSessions: 3, SessionTTL: time.Minute}, 1, 1, 1)
	for i := range 5 {
		bind(t, r, at(float64(i)), fmt.Sprint(i))
	}
	s := r.Snapshot(at(5))
	require.Equal(t, 3, s.Sessions)
	require.EqualValues(t, 2, s.Evicted)
	require.EqualValues(t, 3*260, s.Decoders[0].Ranks[0].ResidentTokens)
	_, _, ok := r.Owner(KeyOf("", "1"))
	require.False(t, ok)
	// Use keeps a session, age drops it.
	turn, _ := r.Begin(at(50), query("2"))
	r.Finish(at(50), turn, completed)
	turn, _ = r.Begin(at(65), query(""))
	r.Finish(at(65), turn, completed)
	s = r.Snapshot(at(65))
	require.Equal(t, 1, s.Sessions)
	require.EqualValues(t, 2, s.Expired)
	require.True(t, r.EndSession(KeyOf("", "2")))
	require.False(t, r.EndSession(KeyOf("", "2")))
	require.Zero(t, r.Snapshot(at(65)).Decoders[0].Ranks[0].ResidentTokens)
	// The last turn of a session ends it.
	turn, _ = r.Begin(at(66), query("z"))
	pd(t, r, at(66), turn)
	r.Finish(at(66), turn, Outcome{Result: Completed, End: true})
	_, _, ok = r.Owner(KeyOf("", "z"))
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

func TestHashPlacement(t *testing.T) {
	cfg := Config{Append: true, Placement: PlaceHash, TryUnknown: true}
	a, b := fleetOf(t, cfg, 4, 2, 1), fleetOf(t, cfg, 4, 2, 1)
	seen := map[Target]int{}
	for i := range 400 {
		s := fmt.Sprint("session-", i)
		owner := bind(t, a, at(0), s)
		seen[owner]++
		q := query(s)
		q.FollowUp = true
		turn, d := b.Begin(at(1), q) // another replica, or the same after a restart
		require.Equal(t, ReasonUnknown, d.Reason)
		require.Equal(t, owner, d.Target)
		b.Finish(at(1), turn, Outcome{Result: Cancelled})
	}
	require.Len(t, seen, 8)
	for target, n := range seen {
		require.InDelta(t, 50, n, 30, "%v", target)
	}
	// Losing a Decoder moves only its own sessions.
	require.NoError(t, b.RemoveDecoder("d1:1"))
	for i := range 400 {
		s := fmt.Sprint("session-", i)
		before, _, _ := a.Owner(KeyOf("", s))
		after := bind(t, b, at(2), s)
		if before.Decoder != "d1:1" {
			require.Equal(t, before, after)
		}
	}
	// A first turn is not attempted.
	turn, d := a.Begin(at(3), query("fresh"))
	require.Equal(t, ReasonNoOwner, d.Reason)
	a.Finish(at(3), turn, Outcome{Result: Cancelled})
}

func TestSessionsSpreadByResidentTokens(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 1, 2, 1)
	for i := range 10 {
		bind(t, r, at(float64(i)), fmt.Sprint(i))
	}
	ranks := r.Snapshot(at(10)).Decoders[0].Ranks
	require.Equal(t, ranks[0].ResidentTokens, ranks[1].ResidentTokens)
}

func TestParent(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 4, 2, 1)
	owner := bind(t, r, at(0), "parent")
	q := query("child")
	q.HasParent, q.Parent = true, KeyOf("", "parent")
	turn, d := r.Begin(at(1), q)
	require.Equal(t, Local, d.Route)
	require.Equal(t, owner, d.Target)
	r.Output(at(1), turn)
	r.Finish(at(1), turn, completed)
	got, _, _ := r.Owner(KeyOf("", "child"))
	require.Equal(t, owner, got)
}

func TestReportedLoad(t *testing.T) {
	r := fleetOf(t, Config{SlackBytes: 1}, 2, 1, 2)
	r.SetDecoderLoad("d0:1", 0, Load{Waiting: 5, Running: 8, At: at(0)})
	r.SetPrefillerLoad("p0:1", Load{Waiting: 5, At: at(0)})
	for i := range 4 {
		turn, _ := r.Begin(at(1), query(""))
		p, _ := r.Prefiller(at(1), turn)
		d, _ := r.Decoder(at(1), turn)
		require.Equal(t, "p1:1", p, i)
		require.Equal(t, "d1:1", d.Decoder, i)
	}
	turn, _ := r.Begin(at(60), query("")) // the report is old
	d, _ := r.Decoder(at(60), turn)
	require.Equal(t, "d0:1", d.Decoder)
}

func TestPrefillerKeepsTheSession(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 1, 1, 3)
	turn, _ := r.Begin(at(0), query("s"))
	first, _ := r.Prefiller(at(0), turn)
	_, _ = r.Decoder(at(0), turn)
	r.Output(at(0), turn)
	r.Finish(at(0), turn, completed)
	for i := range 5 {
		turn, _ = r.Begin(at(float64(i)), query("s"))
		r.Missed(turn)
		p, _ := r.Prefiller(at(float64(i)), turn)
		require.Equal(t, first, p)
		_, _ = r.Decoder(at(float64(i)), turn)
		r.Finish(at(float64(i)), turn, completed)
	}
}
