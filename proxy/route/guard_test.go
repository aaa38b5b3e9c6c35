package route

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// engine is a Decoder rank on a virtual clock that does not bound append work
// itself: a step takes longer the more suffix tokens it prefills beside its
// streams, and whatever is routed to it is prefilled in its next step.
type engine struct {
	step     time.Duration // of decodes alone
	perToken time.Duration // more for each suffix token
	chunk    int           // suffix tokens in one step
}

// outcome is what a run of the engine shows.
type outcome struct {
	tpot           []time.Duration // mean time per token of every stream
	local, busy, n int
}

func (o outcome) p95() time.Duration {
	slices.Sort(o.tpot)
	return o.tpot[len(o.tpot)*95/100]
}

// simulate runs eight streams at a time, of 64 tokens each, and a follow-up of
// 50 to 400 suffix tokens every 40 ms, under the guard.
func simulate(e engine, guard Guard, appendOn bool) outcome {
	r := New(Config{Append: appendOn})
	_ = r.AddDecoder(DecoderSpec{Name: "d", Guard: guard})
	_ = r.AddPrefiller("p")
	now := epoch
	type pending struct {
		turn *Turn
		left int
	}
	var queue []pending
	var out outcome
	var streams [8]struct {
		tokens int
		began  time.Time
	}
	for i := range streams {
		streams[i].tokens, streams[i].began = i*8, now // out of step with each other
	}
	const sessions, tokensPerByte = 40, 4
	for i := range sessions {
		turn, _ := r.Begin(now, Query{HasSession: true, Session: KeyOf("", fmt.Sprint(i)), Bytes: 4000 * tokensPerByte, Eligible: true})
		_, _ = r.Decoder(now, turn)
		r.Output(now, turn)
		r.Finish(now, turn, Outcome{Result: Completed, PromptTokens: 4000})
	}
	seed := uint32(7)
	arrival := now
	for now.Sub(epoch) < time.Minute {
		for !arrival.After(now) {
			arrival = arrival.Add(40 * time.Millisecond)
			seed = seed*1664525 + 1013904223
			suffix := 50 + int(seed>>16)%350
			out.n++
			q := Query{HasSession: true, Session: KeyOf("", fmt.Sprint(out.n%sessions)), Bytes: (4000 + suffix) * tokensPerByte, Eligible: true}
			turn, d := r.Begin(now, q)
			if d.Route == Local {
				out.local++
				queue = append(queue, pending{turn, suffix})
				continue
			}
			if d.Reason == ReasonBusy {
				out.busy++
			}
			_, _ = r.Prefiller(now, turn)
			_, _ = r.Decoder(now, turn)
			r.Finish(now, turn, Outcome{Result: Cancelled})
		}
		room := e.chunk
		for i := range queue {
			n := min(queue[i].left, room)
			queue[i].left -= n
			room -= n
		}
		took := e.step + time.Duration(e.chunk-room)*e.perToken
		now = now.Add(took)
		r.Pace(now, "d", 0, len(streams), time.Duration(len(streams))*took)
		for len(queue) > 0 && queue[0].left == 0 {
			r.Output(now, queue[0].turn)
			r.Finish(now, queue[0].turn, Outcome{Result: Completed, PromptTokens: 4000, CachedTokens: 4000})
			queue = queue[1:]
		}
		for i := range streams {
			s := &streams[i]
			if s.tokens++; s.tokens%64 == 0 {
				out.tpot = append(out.tpot, now.Sub(s.began)/64)
				s.began = now
			}
		}
	}
	return out
}

// In front of a Decoder that does not bound append work, the guard keeps the
// time per token close to that of P/D alone and still serves follow-ups locally.
func TestGuardKeepsPace(t *testing.T) {
	e := engine{step: 10 * time.Millisecond, perToken: 30 * time.Microsecond, chunk: 2048}
	base := simulate(e, Guard{}, false)
	open := simulate(e, Guard{}, true)
	guarded := simulate(e, Guard{MaxSuffixTokens: 512, MaxAppendTokensInFlight: 512, MaxLocalAttempts: 1, PaceTarget: 10400 * time.Microsecond}, true)
	t.Logf("TPOT p95: P/D only %v, without guard %v (%d of %d local), with guard %v (%d local, %d busy)", base.p95(), open.p95(), open.local, open.n, guarded.p95(), guarded.local, guarded.busy)
	require.Greater(t, open.p95().Seconds(), 1.1*base.p95().Seconds(), "the guard has something to do")
	require.LessOrEqual(t, guarded.p95().Seconds(), 1.1*base.p95().Seconds())
	require.Greater(t, guarded.local, guarded.n/20)
	require.Positive(t, guarded.busy)
}
