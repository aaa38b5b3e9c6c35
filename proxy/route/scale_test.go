package route

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A million session ids: the table keeps to its cap, its memory is bounded and
// a lookup among many costs what one among few does.
func TestMillionSessions(t *testing.T) {
	if testing.Short() {
		t.Skip("a million sessions take a second")
	}
	const ids, keep = 1_000_000, 200_000
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := memory()
	r := fleetOf(t, Config{Append: true, MaxSessions: keep}, 2, 2, 1)
	now := epoch
	for i := range ids {
		q := query("")
		q.HasSession, q.Session = true, KeyOf("", fmt.Sprint(i))
		turn, d := r.Begin(now, q)
		require.Equal(t, PD, d.Route)
		_, _ = r.Decoder(now, turn)
		r.Finish(now, turn, completed)
	}
	s := r.Snapshot(now)
	require.Equal(t, keep, s.Sessions)
	require.EqualValues(t, ids-keep, s.Evicted)
	require.Less(t, memory()-before, uint64(keep*300), "bytes")
	require.Zero(t, s.OpenTurns)
	runtime.KeepAlive(r)
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := New(Config{Append: true, MaxSessions: n})
			_ = r.AddDecoder(DecoderSpec{Name: "d", Ranks: 2})
			_ = r.AddPrefiller("p")
			keys := make([]SessionKey, n)
			for i := range keys {
				keys[i] = KeyOf("", fmt.Sprint(i))
				turn, _ := r.Begin(epoch, Query{HasSession: true, Session: keys[i], Bytes: 1000, Eligible: true})
				_, _ = r.Decoder(epoch, turn)
				r.Finish(epoch, turn, completed)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i = (i + 7919) % n
				turn, d := r.Begin(epoch, Query{HasSession: true, Session: keys[i], Bytes: 1000, Eligible: true})
				if d.Route != Local {
					b.Fatal(d)
				}
				r.Finish(epoch, turn, completed)
			}
		})
	}
}

// Two replicas without a store, with clients that pick one at random: they
// agree on the owner by the hash alone.
func TestReplicasAgree(t *testing.T) {
	cfg := Config{Append: true, Placement: PlaceHash, TryUnknown: true}
	replicas := [2]*Router{fleetOf(t, cfg, 4, 2, 2), fleetOf(t, cfg, 4, 2, 2)}
	const sessions = 10_000
	agreed, attempts := 0, 0
	var owner [sessions]Target
	pick := uint32(1)
	for turn := range 3 {
		for i := range sessions {
			pick = pick*1664525 + 1013904223 // which replica the client's balancer takes
			r := replicas[pick>>31]
			q := query(fmt.Sprint(i))
			q.FollowUp = turn > 0
			tn, d := r.Begin(epoch, q)
			target := d.Target
			if d.Route == PD {
				_, _ = r.Prefiller(epoch, tn)
				target, _ = r.Decoder(epoch, tn)
			}
			if turn == 0 {
				owner[i] = target
			} else {
				attempts++
				if d.Route == Local && target == owner[i] {
					agreed++
				}
			}
			r.Output(epoch, tn)
			r.Finish(epoch.Add(time.Second), tn, completed)
		}
	}
	require.GreaterOrEqual(t, float64(agreed)/float64(attempts), 0.999)
}
