package scheduler_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/scheduler"
)

// TestRandomSessions: whatever else runs, and in whichever mode, a session's
// turns yield what the model says to everything that the session has so far.
func TestRandomSessions(t *testing.T) {
	setChecks(t, 150)
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.connector, c.producer, c.Append.Enable = false, false, false
		r, err := newRig(c)
		require.NoError(t, err)
		if k := r.cfg.Drafts; k > 0 {
			r.propose(k, 70)
		}
		r.log = func(s string) { t.Log(s) }
		type turn struct {
			prompt []scheduler.Token
			max    int
		}
		turns := map[string][]turn{}
		said := map[string][][]scheduler.Token{} // by turn
		open := map[string]bool{}
		apply := func() {
			f := r.flight[0]
			r.flight = r.flight[1:]
			outs, err := r.s.Apply(f.p, f.res)
			require.NoError(t, err)
			require.NoError(t, r.s.Check())
			for _, o := range outs {
				n := len(said[o.ID])
				require.NotZero(t, n)
				said[o.ID][n-1] = append(said[o.ID][n-1], o.Tokens...)
				require.NotEqual(t, scheduler.FinishError, o.Finish)
				if o.Finish != scheduler.NotFinished {
					said[o.ID] = append(said[o.ID], nil)
				}
			}
		}
		budget := r.s.MaxLen() / 2
		names := []string{"s0", "s1", "s2"}
		used := map[string]int{}
		say := func(name string) {
			n := rapid.IntRange(1, max(budget/4, 1)).Draw(t, "length")
			most := rapid.IntRange(1, max(budget/6, 1)).Draw(t, "max")
			if used[name]+n+most > budget || !open[name] && len(turns[name]) > 0 {
				return
			}
			used[name] += n + most
			prompt := make([]scheduler.Token, n)
			for i := range prompt {
				prompt[i] = scheduler.Token(10 + 7*len(turns[name]) + i)
			}
			id, err := r.s.Add(scheduler.Request{ID: name, Prompt: slices.Clone(prompt), MaxTokens: most, Resumable: true})
			require.NoError(t, err)
			if !open[name] {
				r.exec.prompts[id] = prompt
				said[name] = [][]scheduler.Token{nil}
			}
			open[name] = true
			r.names[id], r.ids[name] = name, id
			turns[name] = append(turns[name], turn{prompt, most})
		}
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			r.now++
			switch rapid.SampledFrom([]string{"say", "plan", "plan", "apply", "apply"}).Draw(t, "do") {
			case "say":
				say(rapid.SampledFrom(names).Draw(t, "who"))
			case "plan":
				if len(r.flight) < r.cfg.InFlight {
					_, err := r.plan(false)
					require.NoError(t, err)
				}
			case "apply":
				if len(r.flight) > 0 {
					apply()
				}
			}
		}
		for _, name := range names {
			if open[name] {
				_, err := r.s.Add(scheduler.Request{ID: name})
				require.NoError(t, err)
			}
		}
		for range 4000 {
			if len(r.flight) >= r.cfg.InFlight || len(r.flight) > 0 && !r.s.HasWork() {
				apply()
				continue
			}
			if r.s.Unfinished() == 0 {
				break
			}
			_, err := r.plan(false)
			require.NoError(t, err)
		}
		for len(r.flight) > 0 {
			apply()
		}
		require.Zero(t, r.s.Unfinished(), r.s.Dump())
		require.Equal(t, r.cache.Usable(), r.s.Free())
		for _, name := range names {
			var known []scheduler.Token
			for i, turn := range turns[name] {
				known = append(known, turn.prompt...)
				want := answer(known, turn.max)
				require.Equal(t, want, said[name][i], fmt.Sprintf("%s, turn %d", name, i))
				known = append(known, want[:len(want)-1]...)
			}
		}
	})
}
