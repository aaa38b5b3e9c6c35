package route

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

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
