package route

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRecords(t *testing.T) {
	a, b := fleetOf(t, Config{Append: true}, 2, 2, 1), fleetOf(t, Config{Append: true}, 2, 2, 1)
	key := KeyOf("", "s")
	_, ok := a.Record(key)
	require.False(t, ok)
	turn, _ := a.Begin(at(0), query("s"))
	_, ok = a.Claimed(turn)
	require.False(t, ok, "it is not placed yet")
	target, _ := a.Decoder(at(0), turn)
	claim, ok := a.Claimed(turn)
	require.True(t, ok)
	require.Equal(t, Record{Decoder: target.Decoder, Rank: target.Rank, Resident: -1}, claim)

	// Another router was about to place the same session elsewhere, and follows.
	for range 3 { // make the other's choice differ
		other, _ := b.Begin(at(0), query(""))
		_, _ = b.Decoder(at(0), other)
	}
	second, _ := b.Begin(at(0), query("s"))
	mine, _ := b.Decoder(at(0), second)
	require.NotEqual(t, target, mine)
	_, ok = b.Follow(at(0), second, Record{Decoder: "gone:1"})
	require.False(t, ok)
	followed, ok := b.Follow(at(0), second, claim)
	require.True(t, ok)
	require.Equal(t, target, followed)
	_, ok = b.Claimed(second)
	require.False(t, ok, "the other has claimed it")
	third, d := b.Begin(at(0), query("s"))
	require.Equal(t, ReasonNoOwner, d.Reason, "a claim is no owner")
	along, _ := b.Decoder(at(0), third)
	require.Equal(t, target, along)

	a.Observe(target.Decoder, target.Rank, "life-1")
	a.Output(at(1), turn)
	a.Finish(at(1), turn, completed)
	rec, ok := a.Record(key)
	require.True(t, ok)
	require.Equal(t, Record{Decoder: target.Decoder, Rank: target.Rank, Engine: "life-1", Bound: true, Bytes: 1000, PromptTokens: 250, Resident: -1}, rec)
	b.Finish(at(2), second, Outcome{Result: Cancelled})
	b.Finish(at(2), third, Outcome{Result: Cancelled})
	b.Adopt(at(2), key, rec)
	next, d := b.Begin(at(2), query("s"))
	require.Equal(t, Decision{Route: Local, Reason: ReasonOwner, Target: target}, d)
	b.Finish(at(2), next, Outcome{Result: Cancelled})

	// What cannot be the owner here leaves none.
	b.Observe(target.Decoder, target.Rank, "life-2")
	for _, bad := range []Record{rec, {Decoder: "gone:1", Bound: true}, {Decoder: target.Decoder, Rank: 9, Bound: true}, {Decoder: target.Decoder, Rank: -1, Bound: true}} {
		b.Adopt(at(3), key, bad)
		_, _, ok = b.Owner(key)
		require.False(t, ok, "%+v", bad)
	}
	// Without others to ask the hash decides, and finds what another placed by it.
	byHash := query("lost")
	byHash.ByHash, byHash.FollowUp = true, true
	turn, d = a.Begin(at(4), byHash)
	require.Equal(t, ReasonUnknown, d.Reason)
	other, d2 := fleetOf(t, Config{Append: true}, 2, 2, 1).Begin(at(4), byHash)
	require.Equal(t, d.Target, d2.Target)
	require.NotNil(t, other)
	a.Finish(at(4), turn, Outcome{Result: Cancelled})
}

// Random mixtures of named, chained and adopted sessions leave nothing reserved,
// and the tokens counted for ranks are those of the rows.
func TestSharedHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Append: true, MaxSessions: rapid.IntRange(1, 8).Draw(t, "max"), Placement: rapid.SampledFrom([]Placement{PlaceLoad, PlaceHash, PlaceRoom}).Draw(t, "placement")}
		r := New(cfg)
		for _, n := range []string{"a:1", "b:1"} {
			require.NoError(t, r.AddDecoder(DecoderSpec{Name: n, Ranks: 2}))
		}
		require.NoError(t, r.AddPrefiller("p:1"))
		name := rapid.SampledFrom([]string{"", "1", "2", "3", "4", "5"})
		now, open, lives := epoch, []*Turn{}, 0
		pick := func(t *rapid.T) (int, *Turn) {
			if len(open) == 0 {
				t.Skip("none is open")
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "turn")
			return i, open[i]
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				s := name.Draw(t, "session")
				q := query(s)
				if rapid.Bool().Draw(t, "chained") {
					q = chained(s)
				}
				q.Bytes = rapid.IntRange(1, 5000).Draw(t, "bytes")
				q.ByHash = rapid.IntRange(0, 4).Draw(t, "hash") == 0
				turn, _ := r.Begin(now, q)
				open = append(open, turn)
			},
			"miss": func(t *rapid.T) {
				_, turn := pick(t)
				r.Missed(turn)
				r.Lost(turn)
			},
			"place": func(t *rapid.T) {
				_, turn := pick(t)
				if turn.local && turn.onRank != nil && turn.leg == LegLocal {
					t.Skip("its attempt is under way")
				}
				_, _ = r.Prefiller(now, turn)
				_, _ = r.Decoder(now, turn)
				if rec, ok := r.Claimed(turn); ok && rapid.Bool().Draw(t, "follow") {
					rec.Rank = 1 - rec.Rank
					_, _ = r.Follow(now, turn, rec)
				}
			},
			"prefilled": func(t *rapid.T) { _, turn := pick(t); r.Prefilled(now, turn) },
			"output":    func(t *rapid.T) { _, turn := pick(t); r.Output(now, turn) },
			"adopt": func(t *rapid.T) {
				rec := Record{Decoder: rapid.SampledFrom([]string{"a:1", "b:1", "c:1"}).Draw(t, "decoder"), Rank: Rank(rapid.IntRange(0, 2).Draw(t, "rank")), Bound: rapid.Bool().Draw(t, "bound"), Resident: -1}
				r.Adopt(now, KeyOf("", name.Draw(t, "session")), rec)
			},
			"restart": func(*rapid.T) {
				lives++
				r.Observe("a:1", 0, fmt.Sprint(lives))
			},
			"finish": func(t *rapid.T) {
				i, turn := pick(t)
				o := named(name.Draw(t, "name"))
				o.Result = rapid.SampledFrom([]Result{Completed, Completed, Failed, Cancelled}).Draw(t, "result")
				o.HasSession = rapid.Bool().Draw(t, "named")
				r.Finish(now, turn, o)
				open = append(open[:i], open[i+1:]...)
			},
			"": func(t *rapid.T) {
				sums := map[*rank]int64{}
				for i := range r.table.rows {
					row := &r.table.rows[i]
					if d, ok := r.bySerial[row.owner]; ok && row.counted != 0 {
						sums[&d.ranks[row.rank]] += int64(row.counted)
					}
				}
				inFlight := 0
				for _, d := range r.decoders {
					for i := range d.ranks {
						k := &d.ranks[i]
						require.Equal(t, sums[k], k.resident)
						inFlight += k.inFlight
						if len(open) == 0 {
							require.Zero(t, k.bytes+k.appendToks+int64(k.attempts)+k.coming)
						}
					}
				}
				require.LessOrEqual(t, inFlight, len(open))
				if len(open) == 0 {
					require.Zero(t, r.prefillers[0].speed.queued+int64(r.prefillers[0].inFlight))
				}
				require.LessOrEqual(t, r.table.len(), cfg.MaxSessions)
			},
		})
	})
}
