package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

// have is the number of tokens of a session's prompt that are cached.
func (l *leaser) have(session int) int {
	return l.s.cache.Match(kvcache.Namespace{}, prompt(session, 16), 16).Tokens
}

// nobodyAwaited: no block is kept for anybody.
func (l *leaser) nobodyAwaited() {
	l.Helper()
	st := l.s.cache.Stats()
	require.Zero(l, st.Awaits)
	require.Zero(l, st.Leases)
}

// The end of a session that comes after its last turn lets its blocks go before
// those of the sessions that are still expected, however these are kept.
func TestALateEndLetsTheBlocksGo(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    func(*sessions)
		leases uint64
		ended  string
		lost   int // of sessions 1 and 2
	}{
		{"awaited", func(ss *sessions) { ss.lapse = 1 }, 0, "", 2},
		{"awaited, the first ends", func(ss *sessions) { ss.lapse = 1 }, 0, "a", 1},
		{"awaited, the second ends", func(ss *sessions) { ss.lapse = 1 }, 0, "b", 2},
		{"leased", func(*sessions) {}, 1, "", 2}, // half the pool is room for one
		{"leased, the first ends", func(*sessions) {}, 1, "a", 1},
		{"leased, the second ends", func(*sessions) {}, 1, "b", 2},
		{"at any time", func(ss *sessions) { ss.waits[EndOfTurn].variance = 1e9 }, 0, "", 1},
		{"at any time, the first ends", func(ss *sessions) { ss.waits[EndOfTurn].variance = 1e9 }, 0, "a", 1},
		{"at any time, the second ends", func(ss *sessions) { ss.waits[EndOfTurn].variance = 1e9 }, 0, "b", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{}})
			c.set(l.s.appends.sessions)
			for i, s := range []string{"a", "b"} {
				l.now += Time(time.Second)
				l.turn(s, i+1, 16, Local, EndOfTurn)
			}
			require.Equal(t, c.leases, l.s.Stats().Leases)
			if c.ended != "" {
				require.NoError(t, l.s.EndTurn(c.ended, EndOfSession))
				require.ErrorIs(t, l.s.EndTurn(c.ended, EndOfSession), ErrUnknown, "again")
				require.Equal(t, 1, l.s.cache.Stats().Awaits)
			}
			l.turn("", 9, 30, Local, EndOfTurn) // 8 blocks, of which 4 are free
			for i := range 2 {
				require.Equal(t, i+1 != c.lost, l.have(i+1) == 16, "session %d", i+1)
			}
			for _, s := range []string{"a", "b"} {
				if s != c.ended {
					require.NoError(t, l.s.EndTurn(s, EndOfSession))
				}
			}
			l.nobodyAwaited()
		})
	}
}

// Blocks of two sessions stay as long as one of them is expected, whichever had
// them last.
func TestALateEndLeavesWhatIsShared(t *testing.T) {
	for _, ended := range []string{"a", "b"} {
		l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{}})
		l.s.appends.sessions.lapse = 1 // no leases
		l.turn("a", 1, 17, Local, EndOfTurn)
		l.turn("b", 1, 17, Local, EndOfTurn)
		l.now += Time(time.Second)
		l.turn("c", 2, 16, Local, EndOfTurn)
		require.NoError(t, l.s.EndTurn(ended, EndOfSession))
		l.turn("", 9, 30, Local, EndOfTurn)
		require.Equal(t, 16, l.have(1), "%s has ended", ended)
		require.Zero(t, l.have(2), "was expected last")
	}
}

// Of a session that has lost a part of its blocks the rest goes first once it has ended.
func TestALateEndOfWhatIsLeft(t *testing.T) {
	l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{}})
	l.s.appends.sessions.lapse = 1
	for i, s := range []string{"a", "b"} {
		l.now += Time(time.Second)
		l.turn(s, i+1, 16, Local, EndOfTurn)
	}
	l.turn("", 8, 22, Local, EndOfTurn)
	require.Equal(t, 8, l.have(2))
	require.NoError(t, l.s.EndTurn("b", EndOfSession))
	l.turn("", 9, 40, Local, EndOfTurn)
	require.Zero(t, l.have(2))
	require.Equal(t, 8, l.have(1), "of the others no more than is needed")
}

// An end that comes while a turn is under way holds for that turn, however it
// ends, and not for one that comes afterwards.
func TestAnEndInTheMidstOfATurn(t *testing.T) {
	for _, c := range []struct {
		name  string
		abort bool
		again bool
	}{{"the turn ends", false, false}, {"the turn is aborted", true, false}, {"another turn comes", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			l := newLeaser(t, 24, AppendConfig{Enable: true, Lease: &LeaseConfig{}})
			l.turn("a", 1, 16, Local, EndOfTurn)
			require.Equal(t, 1, l.s.cache.Stats().Awaits)
			l.now += Time(time.Second)
			id, err := l.s.Add(Request{ID: "next", Session: "a", Prompt: prompt(1, 24), MaxTokens: 1, Arrival: l.now})
			require.NoError(t, err)
			p := l.s.Plan(l.now)
			require.NoError(t, l.s.EndTurn("a", EndOfSession))
			l.nobodyAwaited()
			require.NoError(t, l.s.EndTurn("a", EndOfSession), "again")
			if c.again {
				_, err := l.s.Add(Request{ID: "another", Session: "a", Prompt: prompt(1, 28), MaxTokens: 1})
				require.NoError(t, err)
				for range 2 {
					outs, err := l.s.Apply(p, Result{Tokens: []Token{7}})
					require.NoError(t, err)
					require.Len(t, outs, 1)
					p = l.s.Plan(l.now)
				}
				require.Equal(t, 1, l.s.cache.Stats().Awaits, "it has begun anew")
				return
			}
			if c.abort {
				require.NoError(t, l.s.Abort(id))
			}
			_, err = l.s.Apply(p, Result{Tokens: []Token{7}})
			require.NoError(t, err)
			l.nobodyAwaited()
			require.NotContains(t, l.s.appends.sessions.byName, "a")
			require.ErrorIs(t, l.s.EndTurn("a", EndOfSession), ErrUnknown)
		})
	}
}
