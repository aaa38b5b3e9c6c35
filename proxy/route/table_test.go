package route

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
}

// The signs of a new life have an order: the engine's own name, then the start
// time in its metrics, then a connection that failed.
func TestOrderOfGenerations(t *testing.T) {
	decide := func(r *Router) Decision {
		turn, d := r.Begin(at(5), query("s"))
		r.Finish(at(5), turn, Outcome{Result: Cancelled})
		return d
	}
	// A start time and no name: a broken connection to the same life is none.
	r := fleetOf(t, Config{Append: true}, 1, 2, 1)
	r.Started("d0:1", 0)
	r.Started("d0:1", 100)
	target := bind(t, r, at(0), "s")
	r.Observe(target.Decoder, target.Rank, "")
	r.Unreachable(target.Decoder)
	require.Equal(t, ReasonOwnerDown, decide(r).Reason)
	r.Observe(target.Decoder, target.Rank, "")
	require.Equal(t, ReasonOwnerDown, decide(r).Reason, "not known yet")
	r.Started(target.Decoder, 100)
	require.Equal(t, Local, decide(r).Route, "the same life")
	r.Started(target.Decoder, 0) // a scrape that told nothing
	r.Started(target.Decoder, 200)
	require.Equal(t, ReasonOwnerRestarted, decide(r).Reason)
	// Where the metrics tell nothing any more the connection does.
	target = bind(t, r, at(6), "s")
	r.Started(target.Decoder, 0)
	r.Unreachable(target.Decoder)
	r.Observe(target.Decoder, target.Rank, "")
	require.Equal(t, ReasonOwnerRestarted, decide(r).Reason)

	// A name goes first: what it has told is not told again by the start time.
	r = fleetOf(t, Config{Append: true}, 1, 1, 1)
	r.Started("d0:1", 100)
	target = bind(t, r, at(0), "s")
	r.Observe(target.Decoder, 0, "e1")
	r.Observe(target.Decoder, 0, "e2")
	require.Equal(t, ReasonOwnerRestarted, decide(r).Reason)
	target = bind(t, r, at(1), "s")
	r.Started(target.Decoder, 200)
	require.Equal(t, ReasonOwnerDown, decide(r).Reason, "until it names its life")
	r.Observe(target.Decoder, 0, "e2")
	require.Equal(t, Local, decide(r).Route, "the session was bound in this life")
	// A start time that is seen first keeps attempts away from a life that has nothing.
	r.Started(target.Decoder, 300)
	require.Equal(t, ReasonOwnerDown, decide(r).Reason)
	r.Observe(target.Decoder, 0, "e3")
	require.Equal(t, ReasonOwnerRestarted, decide(r).Reason)
	r.Started("unknown:1", 1)
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
