package engine

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/scheduler"
)

// A turn that extends the one before is told from one that was rewritten or cut,
// wherever that begins in what stayed cached.
func TestHistoryOfASession(t *testing.T) {
	hs := newHistories(4)
	turn := func(session string, prompt, output []scheduler.Token) (history, int) {
		d, h, expected := hs.begin(session, prompt)
		for _, tok := range output { // one by one, as they come
			d.add([]scheduler.Token{tok})
		}
		hs.end(session, d)
		return h, expected
	}
	is := func(h history, expected int, session string, prompt []scheduler.Token) {
		t.Helper()
		got, n := turn(session, prompt, nil)
		require.Equal(t, h, got)
		require.Equal(t, expected, n)
	}
	first := ids(1, 9)
	h, n := turn("a", first, ids(2, 4))
	require.Equal(t, historyNew, h)
	require.Zero(t, n)
	all := append(append([]scheduler.Token{}, first...), ids(2, 4)...)
	for _, n := range []int{13, 14, 17} { // at the end of a block, and behind it
		for _, wrong := range []int{-1, 0, 8, 11, 12} {
			hs := newHistories(4)
			d, _, _ := hs.begin("a", first)
			d.add(ids(2, 4))
			hs.end("a", d)
			prompt := append(append([]scheduler.Token{}, all...), ids(3, n-13)...)
			want := historyIntact
			if wrong >= 0 {
				prompt[wrong]++
				if wrong < 12 {
					want = historyRewritten
				}
			}
			_, got, expected := hs.begin("a", prompt)
			require.Equal(t, want, got, "%d tokens, %d differs", n, wrong)
			require.Equal(t, 12, expected, "the last of 13 tokens has no KV")
		}
	}
	is(historyShorter, 12, "a", all[:12])
	is(historyIntact, 8, "a", all[:12])
	is(historyNew, 0, "b", first)
	hs.forget("a")
	hs.forget("nobody")
	is(historyNew, 0, "a", first)
	hs.max = 3
	for i := range 9 {
		turn(fmt.Sprint(i), first, nil)
	}
	require.Len(t, hs.by, 3)
	require.Equal(t, 3, hs.recent.Len())
}

// What the turn before left is compared with what the next one finds, and that
// is counted and logged.
func TestExpectedPrefixIsComparedWithWhatIsFound(t *testing.T) {
	a := startDecoder(t, sched(switchedOn), slog.LevelDebug, nil)
	turn := func(name string, prompt []scheduler.Token) []scheduler.Token {
		s := a.submit(name, prompt, func(r *Request) { r.Session = "s" })
		out := append([]scheduler.Token{}, prompt...)
		for {
			d, err := s.Next(t.Context())
			require.NoError(t, err)
			out = append(out, d.Tokens...)
			if d.Finish != scheduler.NotFinished {
				return out
			}
		}
	}
	line := func(name string) map[string]any {
		for _, l := range a.log.said(t, "session turn") {
			if l["request"] == name {
				return l
			}
		}
		return nil
	}
	turned := func(name, history string, expected, found, prompt float64) {
		t.Helper()
		l := line(name)
		require.Equal(t, []any{history, expected, found, prompt}, []any{l["history"], l["expected_tokens"], l["found_tokens"], l["prompt_tokens"]})
	}
	history := turn("first", ids(1, 62)) // 65 tokens: 64 of them in whole blocks
	turned("first", "new", 0, 0, 62)
	history = turn("second", append(history, ids(2, 20)...))
	turned("second", "intact", 64, 64, 85)
	require.NoError(t, a.e.ResetPrefixCache(t.Context()))
	history = turn("forgotten", append(history, ids(3, 8)...))
	turned("forgotten", "intact", 80, 0, 96)
	history[40]++
	turn("rewritten", append(history, ids(4, 8)...))
	turned("rewritten", "rewritten", 96, 32, 107)
	turn("shorter", ids(1, 40))
	turned("shorter", "shorter", 96, 32, 40)
	for history, n := range map[string]float64{"new": 1, "intact": 2, "rewritten": 1, "shorter": 1} {
		require.Equal(t, n, a.count("sluice_session_turns_total", "history", history), history)
	}
	require.Equal(t, 336.0, a.count("sluice_session_prefix_tokens_total", "kind", "expected"))
	require.Equal(t, 128.0, a.count("sluice_session_prefix_tokens_total", "kind", "found"))
}
