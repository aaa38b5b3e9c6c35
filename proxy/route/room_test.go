package route

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// By room, turns on their way count where they go: of two ranks of nearly the
// same load the one that fewer sessions are bound to, or coming to, is taken.
func TestRoomCountsWhatIsComing(t *testing.T) {
	place := func(p Placement) (ranks [2]int) {
		r := fleetOf(t, Config{Append: true, Placement: p, SlackBytes: 1 << 20}, 1, 2, 1)
		bind(t, r, at(0), "a") // on rank 0
		var turns []*Turn
		for _, s := range []string{"b", "c", "d"} {
			turn, _ := r.Begin(at(1), query(s))
			ranks[pd(t, r, at(1), turn).Rank]++
			turns = append(turns, turn)
		}
		for _, turn := range turns {
			r.Finish(at(2), turn, completed)
		}
		idle(t, r, at(2))
		for _, d := range r.decoders {
			for i := range d.ranks {
				require.Zero(t, d.ranks[i].coming)
			}
		}
		return ranks
	}
	require.Equal(t, [2]int{0, 3}, place(PlaceLoad), "all go where nothing is bound yet")
	byRoom := place(PlaceRoom)
	require.NotZero(t, byRoom[0])
	require.NotZero(t, byRoom[1])
}

// A session that its owner has lost goes where there is room.
func TestRoomMovesLostSessions(t *testing.T) {
	for _, p := range []Placement{PlaceLoad, PlaceRoom} {
		r := fleetOf(t, Config{Append: true, Placement: p, SlackBytes: 1 << 20}, 1, 2, 1)
		owner := bind(t, r, at(0), "s")
		turn, d := r.Begin(at(1), query("s"))
		require.Equal(t, owner, d.Target)
		r.Missed(turn)
		r.Lost(turn)
		target := pd(t, r, at(1), turn)
		if p == PlaceRoom {
			require.NotEqual(t, owner, target)
		} else {
			require.Equal(t, owner, target)
		}
		r.Finish(at(2), turn, completed)
		idle(t, r, at(2))
	}
}
