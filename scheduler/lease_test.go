package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

// leaser is a scheduler over a small pool whose requests run to their ends at once.
type leaser struct {
	*testing.T
	s   *Scheduler
	now Time
}

func newLeaser(t *testing.T, blocks int, append AppendConfig) *leaser {
	t.Helper()
	cache, err := kvcache.New(kvcache.Config{Blocks: blocks + 1, BlockSize: 4})
	require.NoError(t, err)
	s, err := New(Config{MaxModelLen: 1024, Append: append}, cache)
	require.NoError(t, err)
	return &leaser{T: t, s: s}
}

func prompt(session, n int) []Token {
	out := make([]Token, n)
	for i := range out {
		out[i] = Token(1000*session + i)
	}
	return out
}

// turn runs one request of n prompt tokens with one token of output.
func (l *leaser) turn(name string, session, n int, route Route, end TurnEnd) Output {
	l.Helper()
	id := name
	if id == "" {
		id = "other"
	}
	_, err := l.s.Add(Request{ID: id, Session: name, Prompt: prompt(session, n), MaxTokens: 1, Route: route, Arrival: l.now, TurnEnd: end})
	require.NoError(l, err)
	for range 100 {
		p := l.s.Plan(l.now)
		var tokens []Token
		for range p.Samples {
			tokens = append(tokens, 7)
		}
		n := 0
		for _, s := range p.Samples {
			n += int(s)
		}
		outs, err := l.s.Apply(p, Result{Tokens: tokens[:n]})
		require.NoError(l, err)
		for _, o := range outs {
			if o.Finish != NotFinished {
				o.Tokens = nil
				return o
			}
		}
	}
	l.Fatal("the request does not end")
	return Output{}
}

func TestLeaseOutlivesNewerBlocks(t *testing.T) {
	lease := &LeaseConfig{TurnWait: 10 * time.Second}
	for _, c := range []struct {
		name  string
		cfg   AppendConfig
		first TurnEnd
		want  FinishReason
	}{
		{"leased", AppendConfig{Enable: true, Lease: lease}, EndOfTurn, FinishLength},
		{"not configured", AppendConfig{Enable: true}, EndOfTurn, FinishRefused},
		{"ended", AppendConfig{Enable: true, Lease: lease}, EndOfSession, FinishRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLeaser(t, 12, c.cfg)
			l.turn("a", 1, 16, Local, c.first)
			for i := range 4 { // others pass through the rest of the pool
				l.now += Time(time.Second)
				l.turn("", 10+i, 30, Local, EndOfTurn)
			}
			require.Equal(t, c.want, l.turn("a", 1, 18, AppendPrefill, EndOfTurn).Finish)
		})
	}
}

func TestLeaseEndsWhenNobodyComesBack(t *testing.T) {
	l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{TurnWait: time.Second}})
	l.turn("a", 1, 16, Local, EndOfTurn)
	require.EqualValues(t, 1, l.s.Stats().Leases)
	require.Equal(t, 1, l.s.cache.Stats().Leases)
	l.now += Time(10 * time.Second)
	l.turn("", 2, 8, Local, EndOfTurn)
	require.Zero(t, l.s.cache.Stats().Leases)
}

func TestEndTurnRenewsOrEnds(t *testing.T) {
	l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{TurnWait: 100 * time.Second, ToolWait: time.Second}})
	require.ErrorIs(t, l.s.EndTurn("nobody", EndInTool), ErrUnknown)
	l.turn("a", 1, 16, Local, EndOfTurn)
	require.NoError(t, l.s.EndTurn("a", EndInTool))
	l.now += Time(5 * time.Second)
	l.turn("", 2, 8, Local, EndOfTurn)
	require.Zero(t, l.s.cache.Stats().Leases, "a tool does not take so long")
	l.turn("b", 3, 16, Local, EndOfTurn)
	require.NoError(t, l.s.EndTurn("b", EndOfSession))
	require.Zero(t, l.s.cache.Stats().Leases)
}

func TestLeasesLearnFromReturns(t *testing.T) {
	ss := newSessions(LeaseConfig{})
	require.Equal(t, 252*time.Second, ss.waits[EndOfTurn].within(2), "126 s and two deviations of half as much")
	for range 50 {
		ss.waits[EndOfTurn].add(10)
	}
	require.InDelta(t, 10, ss.waits[EndOfTurn].within(2).Seconds(), 3)
}

// A lease never takes room from a session that is expected, but does from one
// that is overdue.
func TestLeasesUnderPressure(t *testing.T) {
	l := newLeaser(t, 16, AppendConfig{Enable: true, Lease: &LeaseConfig{TurnWait: 10 * time.Second, Spread: 0.001}})
	l.turn("a", 1, 16, Local, EndOfTurn)
	l.turn("b", 2, 16, Local, EndOfTurn)
	l.turn("c", 3, 16, Local, EndOfTurn)
	require.EqualValues(t, 2, l.s.Stats().Leases, "half of 16 blocks is room for two prefixes of four")
	l.now += Time(11 * time.Second)
	l.turn("d", 4, 16, Local, EndOfTurn)
	require.EqualValues(t, 3, l.s.Stats().Leases)
}

// A lease does not go to a session while one that is expected sooner has none.
func TestLeasesGoToThoseExpectedFirst(t *testing.T) {
	l := newLeaser(t, 16, AppendConfig{Enable: true, Lease: &LeaseConfig{TurnWait: 100 * time.Second, ToolWait: time.Millisecond}})
	for i, s := range []string{"a", "b", "c"} {
		l.now += Time(time.Second)
		l.turn(s, i+1, 16, Local, EndOfTurn)
	}
	ss := l.s.appends.sessions
	require.EqualValues(t, 2, l.s.Stats().Leases)
	require.Equal(t, 1, ss.bare[EndOfTurn].Len(), "c has none")
	l.now += Time(time.Second)
	l.turn("a", 1, 18, Local, EndOfSession)
	require.Equal(t, 1, l.s.cache.Stats().Leases, "there is room again")
	l.turn("d", 4, 16, Local, EndOfTurn)
	require.EqualValues(t, 2, l.s.Stats().Leases, "but c is expected before d")
	l.turn("e", 5, 8, Local, EndInTool)
	require.EqualValues(t, 3, l.s.Stats().Leases, "and after e")
	l.now += Time(2 * time.Second) // everybody comes back after three seconds
	l.turn("c", 3, 18, Local, EndOfSession)
	l.now += Time(time.Second)
	l.turn("d", 4, 18, Local, EndOfTurn)
	require.EqualValues(t, 4, l.s.Stats().Leases, "nobody is expected before d")
	require.Zero(t, ss.bare[EndOfTurn].Len())
}

// Of sessions without a lease the one that comes last gives way.
func TestTheLastExpectedGivesWay(t *testing.T) {
	l := newLeaser(t, 13, AppendConfig{Enable: true, Lease: &LeaseConfig{}})
	l.s.appends.sessions.lapse, l.s.appends.sessions.probes = 1, 0 // no leases
	for i, s := range []string{"a", "b", "c"} {
		l.now += Time(time.Second)
		l.turn(s, i+1, 16, Local, EndOfTurn)
	}
	l.turn("", 9, 12, Local, EndOfTurn) // 3 blocks of 12 are in use already
	have := func(seed int) int { return l.s.cache.Match(kvcache.Namespace{}, prompt(seed, 16), 16).Tokens }
	require.Equal(t, 16, have(1))
	require.Equal(t, 16, have(2))
	require.Less(t, have(3), 16)
	require.Zero(t, l.s.cache.Stats().Leases)
}

// However many sessions come, and whatever becomes of their turns, so many are
// remembered and no more.
func TestSessionsAreForgotten(t *testing.T) {
	l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{}})
	ss := l.s.appends.sessions
	for i := range maxSessions + 100 {
		ss.touch(l.s, time.Duration(i).String())
	}
	require.Len(t, ss.byName, maxSessions)
	require.Equal(t, maxSessions, ss.recent.Len())
	require.NotContains(t, ss.byName, time.Duration(0).String())
	l.turn("a", 1, 16, Local, EndOfTurn)
	for i := range maxSessions { // the one that comes again stays
		if i%1000 == 0 {
			ss.touch(l.s, "a")
		}
		ss.touch(l.s, time.Duration(-i-1).String())
	}
	require.Contains(t, ss.byName, "a")
	require.Equal(t, 1, ss.leased.Len())
	ss.forget(l.s, ss.byName["a"])
	require.Zero(t, ss.leased.Len())
	require.Zero(t, l.s.cache.Stats().Leases)
}

// A session that turns and turns takes no more memory for it.
func TestTurnsLeaveNothingBehind(t *testing.T) {
	l := newLeaser(t, 40, AppendConfig{Enable: true, Lease: &LeaseConfig{}})
	ss := l.s.appends.sessions
	l.turn("quiet", 9, 16, Local, EndOfTurn)
	for range 50 {
		l.now += Time(time.Second)
		l.turn("a", 1, 16, Local, EndOfTurn)
	}
	require.Equal(t, 2, ss.recent.Len())
	require.Equal(t, 2, ss.leased.Len())
	require.Len(t, ss.byName, 2)
}

// An attempt and its fallback are one return of the client.
func TestFallbackIsNoSecondReturn(t *testing.T) {
	l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{}, MinPrefixTokens: 100})
	ss := l.s.appends.sessions
	l.turn("a", 1, 16, Local, EndOfTurn)
	l.now += Time(10 * time.Second)
	require.Equal(t, FinishRefused, l.turn("a", 1, 18, AppendPrefill, EndOfTurn).Finish)
	l.now += Time(20 * time.Second)
	require.Equal(t, FinishLength, l.turn("a", 1, 18, Local, EndOfTurn).Finish)
	require.Equal(t, gap{mean: 10, variance: 25, n: 1}, ss.waits[EndOfTurn])
}

// Clients that go without a word make leases harmful: hardly any is granted
// then, and again when sessions come back.
func TestLeasesStopWhereSessionsJustEnd(t *testing.T) {
	ss := newSessions(LeaseConfig{})
	granted := func(turns int) int {
		n := 0
		for range turns {
			if ss.worthwhile() {
				n++
			}
		}
		return n
	}
	require.Equal(t, 80, granted(80))
	for range 300 { // one in three does not come back
		ss.returned()
		ss.returned()
		ss.lapsed(1)
	}
	require.Equal(t, 80/probeEvery, granted(80))
	for range 100 {
		ss.returned()
	}
	require.Equal(t, 80, granted(80))
}
