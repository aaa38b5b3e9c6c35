package route

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// openTurn is a turn of the model and what was reserved for it.
type openTurn struct {
	turn    *Turn
	session string
	local   bool
	state   int // 0 begun, 1 local, 2 to be placed, 3 decoding, 4 output
	target  Target
}

// TestHistories drives a Router through random histories of many sessions,
// restarts, failures and membership changes and compares the owner table with
// a naive one; after every step the numbered invariants hold.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Append: true, MaxSessions: rapid.IntRange(1, 6).Draw(t, "max"), SessionTTL: 30 * time.Second, SlackBytes: rapid.SampledFrom([]int{1, 10_000}).Draw(t, "slack")}
		r := New(cfg)
		now := epoch
		names := []string{"a:1", "b:1", "c:1"}
		for _, n := range names {
			require.NoError(t, r.AddDecoder(DecoderSpec{Name: n, Ranks: 2}))
		}
		require.NoError(t, r.AddPrefiller("p:1"))
		require.NoError(t, r.AddPrefiller("q:1"))
		owners := map[string]Target{} // bound by completion; the Router may know fewer, never others
		var open []*openTurn
		life := map[Target]int{}
		dead := map[string]bool{}
		pick := func(t *rapid.T, states ...int) *openTurn {
			var fit []*openTurn
			for _, o := range open {
				for _, s := range states {
					if o.state == s {
						fit = append(fit, o)
					}
				}
			}
			if len(fit) == 0 {
				t.Skip("no such turn")
			}
			return rapid.SampledFrom(fit).Draw(t, "turn")
		}
		forget := func(match func(Target) bool) {
			for s, o := range owners {
				if match(o) {
					delete(owners, s)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				s := rapid.SampledFrom([]string{"", "s1", "s2", "s3", "s4"}).Draw(t, "session")
				q := query(s)
				q.Bytes = rapid.IntRange(1, 5000).Draw(t, "bytes")
				turn, d := r.Begin(now, q)
				o := &openTurn{turn: turn, session: s, state: 2}
				if d.Route == Local {
					require.NotEmpty(t, s, "no attempt without a session")
					require.False(t, dead[d.Target.Decoder], "no attempt on a removed instance")
					if want, ok := owners[s]; ok {
						require.Equal(t, want.Decoder, d.Target.Decoder)
						require.Equal(t, want.Rank, d.Target.Rank)
					}
					o.local, o.state, o.target = true, 1, d.Target
				}
				open = append(open, o)
			},
			"miss": func(t *rapid.T) {
				o := pick(t, 1)
				r.Missed(o.turn)
				o.state = 2
			},
			"place": func(t *rapid.T) {
				o := pick(t, 2)
				_, okP := r.Prefiller(now, o.turn)
				target, okD := r.Decoder(now, o.turn)
				require.True(t, okP)
				if !okD {
					require.True(t, dead["a:1"] && dead["b:1"] && dead["c:1"])
					return
				}
				require.False(t, dead[target.Decoder])
				o.state, o.target = 3, target
			},
			"prefilled": func(t *rapid.T) { r.Prefilled(now, pick(t, 3).turn) },
			"retry": func(t *rapid.T) {
				o := pick(t, 3)
				o.state = 2
			},
			"output": func(t *rapid.T) {
				o := pick(t, 1, 3)
				r.Output(now, o.turn)
				o.state = 4
			},
			"complete": func(t *rapid.T) {
				o := pick(t, 4)
				end := rapid.IntRange(0, 9).Draw(t, "end") == 0
				out := completed
				out.End = end
				r.Finish(now, o.turn, out)
				if o.session != "" {
					delete(owners, o.session)
					if !end {
						owners[o.session] = o.target
					}
				}
				o.state = 9
			},
			"abandon": func(t *rapid.T) {
				o := pick(t, 0, 1, 2, 3, 4)
				r.Finish(now, o.turn, Outcome{Result: rapid.SampledFrom([]Result{Failed, Cancelled}).Draw(t, "how")})
				r.Finish(now, o.turn, Outcome{Result: Failed}) // twice counts once
				o.state = 9
			},
			"restart": func(t *rapid.T) {
				target := Target{Decoder: rapid.SampledFrom(names).Draw(t, "decoder"), Rank: Rank(rapid.IntRange(0, 1).Draw(t, "rank"))}
				life[target]++
				r.Observe(target.Decoder, target.Rank, fmt.Sprint("e", life[target]))
				if life[target] > 1 {
					forget(func(o Target) bool { return o.Decoder == target.Decoder && o.Rank == target.Rank })
				}
			},
			"remove": func(t *rapid.T) {
				n := rapid.SampledFrom(names).Draw(t, "decoder")
				if r.RemoveDecoder(n) == nil {
					dead[n] = true
				}
			},
			"add": func(t *rapid.T) {
				n := rapid.SampledFrom(names).Draw(t, "decoder")
				_, known := r.decoderOf[n]
				if err := r.AddDecoder(DecoderSpec{Name: n, Ranks: 2}); err == nil {
					dead[n] = false
					if !known { // another instance under the old address
						forget(func(o Target) bool { return o.Decoder == n })
						life[Target{Decoder: n}], life[Target{Decoder: n, Rank: 1}] = 0, 0
					}
				}
			},
			"break": func(t *rapid.T) {
				r.LegDone(now, rapid.SampledFrom([]Leg{LegLocal, LegPrefill, LegDecode}).Draw(t, "leg"),
					rapid.SampledFrom([]string{"a:1", "b:1", "p:1"}).Draw(t, "name"), rapid.SampledFrom([]LegResult{LegOK, LegFailed, LegAbandoned}).Draw(t, "result"))
			},
			"time": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second) },
			"": func(t *rapid.T) {
				live := open[:0]
				for _, o := range open {
					if o.state != 9 {
						live = append(live, o)
					}
				}
				open = live
				check(t, r, now, len(open))
			},
		})
		for _, o := range open {
			r.Finish(now, o.turn, Outcome{Result: Cancelled})
		}
		s := r.Snapshot(now)
		require.Zero(t, s.OpenTurns)
		for _, d := range s.Decoders {
			require.False(t, dead[d.Name], "a removed instance stays only while it has requests")
			for _, k := range d.Ranks {
				require.Zero(t, k.InFlight+k.LocalAttempts)
				require.Zero(t, k.Bytes)
				require.Zero(t, k.AppendTokens)
			}
		}
		for _, p := range s.Prefillers {
			require.Zero(t, p.InFlight)
			require.Zero(t, p.Running+p.KV)
		}
	})
}

// check asserts what holds between any two calls.
func check(t *rapid.T, r *Router, now time.Time, open int) {
	s := r.Snapshot(now)
	require.Equal(t, open, s.OpenTurns)
	require.LessOrEqual(t, s.Sessions, r.cfg.MaxSessions)
	require.Len(t, r.table.rows, len(r.table.index)+len(r.table.free))
	seen, prev, last := 0, int32(-1), int64(1<<62)
	resident := map[*rank]int64{}
	for i := r.table.head; i >= 0; i = r.table.rows[i].next {
		row := &r.table.rows[i]
		require.Equal(t, prev, row.prev)
		require.LessOrEqual(t, row.lastUse, last, "in order of use")
		require.GreaterOrEqual(t, row.inFlight, int32(0))
		prev, last = i, row.lastUse
		seen++
		if d, ok := r.bySerial[row.owner]; ok {
			resident[&d.ranks[row.rank]] += int64(row.counted)
		}
	}
	require.Equal(t, prev, r.table.tail)
	require.Equal(t, len(r.table.index), seen)
	for _, d := range r.decoders {
		for i := range d.ranks {
			k := &d.ranks[i]
			require.GreaterOrEqual(t, k.inFlight, k.attempts)
			require.GreaterOrEqual(t, k.bytes, int64(0))
			require.GreaterOrEqual(t, k.appendToks, int64(0))
			require.Equal(t, resident[k], k.resident, "resident tokens of %s/%d", d.spec.Name, i)
		}
	}
	for _, p := range r.prefillers {
		require.GreaterOrEqual(t, p.running, -1e-6)
		require.GreaterOrEqual(t, p.kv, -1e-6)
	}
}
