package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chained is a turn without a session id that goes on from the one of that name.
func chained(parent string) Query {
	q := Query{Chained: true, Bytes: 1000, Eligible: true}
	if parent != "" {
		q.HasParent, q.Parent = true, KeyOf("", parent)
	}
	return q
}

func named(name string) Outcome {
	o := completed
	o.HasSession, o.Session = true, KeyOf("", name)
	return o
}

func TestChains(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 3, 2, 1)
	turn, d := r.Begin(at(0), chained(""))
	require.Equal(t, Decision{Reason: ReasonNoOwner}, d)
	owner := pd(t, r, at(0), turn)
	r.Finish(at(0), turn, named("a1"))
	step := func(parent, name string, want Reason) Decision {
		t.Helper()
		turn, d := r.Begin(at(1), chained(parent))
		require.Equal(t, want, d.Reason)
		if d.Route == PD {
			pd(t, r, at(1), turn)
		} else {
			require.Equal(t, owner, d.Target)
		}
		r.Finish(at(1), turn, named(name))
		return d
	}
	step("a1", "a2", ReasonOwner)
	step("a2", "a3", ReasonOwner)
	step("a1", "b2", ReasonOwner) // a fork
	step("unknown", "c1", ReasonNoOwner)
	for _, name := range []string{"a1", "a2", "a3", "b2", "c1"} {
		_, state, ok := r.Owner(KeyOf("", name))
		require.True(t, ok, name)
		require.Equal(t, "bound", state)
	}
	_, _, ok := r.Owner(KeyOf("", "unknown"))
	require.False(t, ok, "what was asked for and is not known is not kept")
	var resident int64
	for _, d := range r.Snapshot(at(1)).Decoders {
		for _, k := range d.Ranks {
			resident += k.ResidentTokens
		}
	}
	require.EqualValues(t, 3*260, resident, "a3, b2 and c1 hold what their chains hold")

	// A turn that fails, is refused or says that it was the last leaves its parent.
	turn, _ = r.Begin(at(2), chained("a3"))
	r.Missed(turn)
	pd(t, r, at(2), turn)
	r.Finish(at(2), turn, Outcome{Result: Failed})
	last := named("a4")
	last.End = true
	turn, _ = r.Begin(at(2), chained("a3"))
	r.Finish(at(2), turn, last)
	_, _, ok = r.Owner(KeyOf("", "a4"))
	require.False(t, ok)
	step("a3", "a5", ReasonOwner)
	// Off is off.
	r = fleetOf(t, Config{}, 1, 1, 1)
	_, d = r.Begin(at(0), chained("a"))
	require.Equal(t, ReasonDisabled, d.Reason)
}

func TestRemoteETA(t *testing.T) {
	r := fleetOf(t, Config{Append: true}, 1, 1, 2)
	bound := func(session string) {
		turn, _ := r.Begin(at(0), query(session))
		pd(t, r, at(0), turn)
		r.Finish(at(0), turn, completed)
	}
	bound("s")
	eta := func(now float64) time.Duration {
		turn, d := r.Begin(at(now), query("s"))
		require.Equal(t, Local, d.Route)
		r.Finish(at(now), turn, Outcome{Result: Cancelled})
		return d.RemoteETA
	}
	require.Zero(t, eta(0), "nothing was measured")
	// Two prompts of 1000 bytes, computed one after the other in 2 s each: 2 ms a byte.
	for range 2 {
		first, _ := r.Begin(at(1), query(""))
		second, _ := r.Begin(at(1), query(""))
		_, _ = r.Prefiller(at(1), first)
		_, _ = r.Prefiller(at(1), second)
		r.Prefilled(at(3), first)
		r.Prefilled(at(3), second)
		r.Finish(at(3), first, Outcome{Result: Cancelled})
		r.Finish(at(3), second, Outcome{Result: Cancelled})
	}
	// The Prefiller of the session has its prompt cached: nothing to compute.
	require.Zero(t, eta(4))
	long := query("s")
	long.Bytes = 3000
	turn, d := r.Begin(at(4), long)
	require.InDelta(t, 4, d.RemoteETA.Seconds(), .01) // 2000 bytes more
	r.Finish(at(4), turn, Outcome{Result: Cancelled})
	// What waits there counts, ours and what it reports.
	var waiting []*Turn
	for range 2 {
		w, _ := r.Begin(at(5), query(""))
		_, _ = r.Prefiller(at(5), w)
		waiting = append(waiting, w)
	}
	turn, d = r.Begin(at(5), long)
	require.InDelta(t, 6, d.RemoteETA.Seconds(), .01)
	r.Finish(at(5), turn, Outcome{Result: Cancelled})
	for _, p := range []string{"p0:1", "p1:1"} {
		r.SetPrefillerLoad(p, Load{Running: 4, At: at(5)})
	}
	turn, d = r.Begin(at(5), long)
	require.Greater(t, d.RemoteETA.Seconds(), 10.0)
	r.Finish(at(5), turn, Outcome{Result: Cancelled})
	for _, w := range waiting {
		r.Finish(at(6), w, Outcome{Result: Cancelled})
	}
	idle(t, r, at(6))
}
