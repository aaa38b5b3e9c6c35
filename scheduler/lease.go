package scheduler

import (
	"container/list"
	"fmt"
	"math"
	"time"

	"github.com/sluice-serving/sluice/kvcache"
)

// LeaseConfig keeps the KV of sessions between their turns: when a turn ends,
// its cached prefix is leased until the next one is expected, and gives way
// only after all blocks without a lease. How large a share of the pool leases
// may cover is the cache's to say (kvcache.Config.LeaseShare). A session that
// finds no room under it gets none: taking the room from a session whose turn
// is nearer would help neither. Leases need clients that say when a session has
// ended; where too many just stay away, hardly any is granted. They also need
// clients that come back after about the same time: where the times differ more
// than by chance, who has been away longest is the least likely to come, and the
// order of last use is kept instead. The zero value of a field is its default.
type LeaseConfig struct {
	// ToolWait and TurnWait are expected before anything was learned: the time
	// to the next turn after a tool call, and after an answer to a person.
	// Default 8 s and 126 s, the medians of recorded coding agents.
	ToolWait, TurnWait time.Duration
	// Spread is the number of standard deviations that a lease lasts beyond
	// the mean. Default 2.
	Spread float64
	// Longest bounds a lease. Default 5 min.
	Longest time.Duration
}

func (c LeaseConfig) withDefaults() LeaseConfig {
	if c.ToolWait == 0 {
		c.ToolWait = 8 * time.Second
	}
	if c.TurnWait == 0 {
		c.TurnWait = 126 * time.Second
	}
	if c.Spread == 0 {
		c.Spread = 2
	}
	if c.Longest == 0 {
		c.Longest = 5 * time.Minute
	}
	return c
}

func (c LeaseConfig) validate(bad func(field, format string, args ...any)) {
	for _, f := range []struct {
		name string
		v    time.Duration
	}{{"ToolWait", c.ToolWait}, {"TurnWait", c.TurnWait}, {"Longest", c.Longest}} {
		if f.v < 0 {
			bad("Lease."+f.name, "is %v, must not be negative", f.v)
		}
	}
	if !(c.Spread >= 0 && c.Spread <= 100) {
		bad("Lease.Spread", "is %v, must lie in [0, 100]", c.Spread)
	}
}

// TurnEnd says what a client does after a turn.
type TurnEnd uint8

const (
	EndOfTurn    TurnEnd = iota // a person reads the answer
	EndInTool                   // a tool runs, and its result comes back
	EndOfSession                // nothing
)

func (e TurnEnd) String() string {
	switch e {
	case EndOfTurn:
		return "end_of_turn"
	case EndInTool:
		return "tool_call"
	case EndOfSession:
		return "end_of_session"
	}
	return fmt.Sprintf("TurnEnd(%d)", uint8(e))
}

// gap learns the time between two turns: mean and variance, at first of all
// samples, later with the past counting less and less. The first guess gives
// way to the first sample.
type gap struct {
	mean, variance float64
	n              int
}

const gapForget = 0.05

func guess(d time.Duration) gap {
	s := d.Seconds()
	return gap{mean: s, variance: s * s / 4}
}

func (g *gap) add(seconds float64) {
	if g.n++; g.n == 1 {
		*g = gap{mean: seconds, variance: seconds * seconds / 4, n: 1}
		return
	}
	w := max(gapForget, 1/float64(g.n))
	d := seconds - g.mean
	g.mean += w * d
	g.variance = (1 - w) * (g.variance + w*d*d)
}

// within is the time within which a next turn is expected.
func (g *gap) within(spread float64) time.Duration {
	return time.Duration((g.mean + spread*max(math.Sqrt(g.variance), g.mean/8)) * 1e9)
}

// regular reports whether the longer a client is away, the sooner it is to be
// expected: the times vary at most half as much as those of a memoryless client.
// Where they vary more, who has been away longest is the least likely to come back.
func (g *gap) regular() bool { return 4*g.variance <= g.mean*g.mean }

// sessionState is what is remembered of a session between two turns.
type sessionState struct {
	name    string
	lease   kvcache.LeaseID
	await   kvcache.LeaseID // of the same blocks, when the lease has ended or was not granted
	until   Time            // the lease's deadline
	ended   Time            // of the last complete turn
	end     TurnEnd
	away    bool // no turn has come since
	over    bool // it was said to have ended while turns were under way
	open    int  // turns under way
	recent  *list.Element
	granted *list.Element // nil without a lease
	barely  *list.Element // in bare[bareEnd], nil if it is not there
	bareEnd TurnEnd
}

// sessions remembers who may come back. Its size is bounded: the oldest are
// forgotten first.
type sessions struct {
	cfg    LeaseConfig
	byName map[string]*sessionState
	recent list.List    // of *sessionState, the one touched longest ago first
	leased list.List    // those with a lease, the one that left first first
	bare   [2]list.List // those that are away without one, by TurnEnd, in the same order
	waits  [2]gap       // by TurnEnd

	lapse  float64 // share of leases that nobody came back for, of the recent ones
	probes int     // turns that went without a lease because of it
}

// Where many sessions end without a word, leases protect the blocks of those
// that have gone from those that are there: worse than no lease. Beyond a
// share of maxLapse only every probeEvery-th turn is leased, to notice when
// that changes.
const (
	maxLapse   = 0.2
	probeEvery = 8
	lapseStep  = 1.0 / 32
)

// returned and lapsed follow what becomes of leases.
func (ss *sessions) returned() { ss.lapse -= lapseStep * ss.lapse }

func (ss *sessions) lapsed(n int) {
	for range n {
		ss.lapse += lapseStep * (1 - ss.lapse)
	}
}

// worthwhile reports whether a turn that has just ended should be leased.
func (ss *sessions) worthwhile() bool {
	if ss.lapse <= maxLapse {
		return true
	}
	ss.probes++
	return ss.probes%probeEvery == 0
}

// maxSessions bounds how many sessions are remembered; leases themselves are
// bounded by the blocks that they cover.
const maxSessions = 1 << 16

func newSessions(cfg LeaseConfig) *sessions {
	cfg = cfg.withDefaults()
	return &sessions{cfg: cfg, byName: map[string]*sessionState{}, waits: [2]gap{EndOfTurn: guess(cfg.TurnWait), EndInTool: guess(cfg.ToolWait)}}
}

// sessionTurn learns from the coming of a turn how long its client was away.
func (s *Scheduler) sessionTurn(r *request) {
	ss := s.appends.sessions
	if ss == nil || r.req.Session == "" {
		return
	}
	e := ss.touch(s, r.req.Session)
	if at := max(s.now, r.req.Arrival); e.open == 0 && e.away && at >= e.ended && e.end != EndOfSession {
		// Of an attempt and its fallback the first one says how long the client was away.
		e.away = false
		if away := at.Sub(e.ended); away <= ss.cfg.Longest {
			ss.waits[e.end].add(away.Seconds())
		}
		if s.cache.LeaseTokens(e.lease) > 0 {
			ss.returned()
		}
	}
	ss.unbare(e)
	e.open++
	e.over = false
}

// touch is the state of a session, new if it is not known, and now the most
// recent one. The oldest beyond the bound are forgotten.
func (ss *sessions) touch(s *Scheduler, name string) *sessionState {
	e := ss.byName[name]
	if e == nil {
		e = &sessionState{name: name}
		e.recent = ss.recent.PushBack(e)
		ss.byName[name] = e
	}
	ss.recent.MoveToBack(e.recent)
	for len(ss.byName) > maxSessions {
		ss.forget(s, ss.recent.Front().Value.(*sessionState))
	}
	return e
}

// forget drops a session: nobody is expected back for its blocks.
func (ss *sessions) forget(s *Scheduler, e *sessionState) {
	ss.endAwait(s, e)
	ss.unbare(e)
	ss.recent.Remove(e.recent)
	delete(ss.byName, e.name)
}

// sessionHolds ends the lease of a session one of whose turns has just been
// admitted: it holds its blocks now, and the room is for others. Its await goes on
// until the turn ends, for what a preemption lets go.
func (s *Scheduler) sessionHolds(r *request) {
	if ss := s.appends.sessions; ss != nil && r.req.Session != "" {
		if e := ss.byName[r.req.Session]; e != nil {
			ss.endLease(s, e)
		}
	}
}

// leaseTurn leases the prefix of a turn that has just ended, before its blocks
// are let go.
func (s *Scheduler) leaseTurn(r *request, complete bool) {
	ss := s.appends.sessions
	if ss == nil || r.req.Session == "" {
		return
	}
	e := ss.byName[r.req.Session]
	if e == nil {
		return
	}
	e.open = max(e.open-1, 0)
	if !complete {
		if e.over && e.open == 0 {
			ss.forget(s, e)
		}
		return
	}
	ss.recent.MoveToBack(e.recent)
	e.ended, e.end, e.away = s.now, r.req.TurnEnd, true
	if e.over {
		e.end = EndOfSession
	}
	ss.endAwait(s, e)
	if e.end == EndOfSession {
		if e.open == 0 {
			ss.forget(s, e)
		}
	} else if r.seq.Open() && r.seq.Published() > 0 {
		// Even without a lease it gives way after what nobody comes back for, and,
		// where that can be told, before what is wanted sooner.
		deadline, until := ss.deadline(e), kvcache.Anytime
		if ss.waits[e.end].regular() {
			until = kvcache.Time(deadline)
		}
		e.await, _ = s.cache.Await(&r.seq, until) // windows may have left nothing to keep
		if ss.waits[e.end].regular() && ss.worthwhile() && ss.first(s.now, deadline) && ss.makeRoom(s, r.seq.Published()) {
			id, result, err := s.cache.Lease(&r.seq, kvcache.Time(deadline))
			if err == nil && result == kvcache.LeaseGranted {
				e.lease, e.until = id, deadline
				e.granted = ss.leased.PushBack(e)
				s.stats.Leases++
				return
			}
		}
		e.bareEnd = e.end
		e.barely = ss.bare[e.end].PushBack(e)
	}
}

// first reports whether nobody who is away without a lease is expected before
// a deadline. A lease for somebody who comes later would take the room from them.
func (ss *sessions) first(now, deadline Time) bool {
	for end := range ss.bare {
		l := &ss.bare[end]
		for at := l.Front(); at != nil; at = l.Front() {
			e := at.Value.(*sessionState)
			if by := ss.deadline(e); by > now {
				if by < deadline {
					return false
				}
				break
			}
			ss.unbare(e) // it should have come
		}
	}
	return true
}

func (ss *sessions) unbare(e *sessionState) {
	if e.barely != nil {
		ss.bare[e.bareEnd].Remove(e.barely)
		e.barely = nil
	}
}

// makeRoom reports whether so many blocks fit under the budget. It ends leases
// of sessions that, by what is known now, should have been back.
func (ss *sessions) makeRoom(s *Scheduler, blocks int) bool {
	soonest := min(ss.waits[EndOfTurn].within(ss.cfg.Spread), ss.waits[EndInTool].within(ss.cfg.Spread))
	for at := ss.leased.Front(); at != nil && s.leaseRoom() < blocks; {
		e := at.Value.(*sessionState)
		at = at.Next()
		switch {
		case s.cache.LeaseTokens(e.lease) == 0: // it has ended by itself
			ss.endLease(s, e)
		case e.open > 0:
		case e.ended.Add(soonest) > s.now:
			return false // those behind it left later
		case ss.deadline(e) <= s.now:
			ss.endLease(s, e)
			ss.lapsed(1)
		}
	}
	return s.leaseRoom() >= blocks
}

func (s *Scheduler) leaseRoom() int {
	st := s.cache.Stats()
	return st.LeaseBudget - st.LeasedPositions
}

// deadline is when a session's next turn should have come.
func (ss *sessions) deadline(e *sessionState) Time {
	return e.ended.Add(min(ss.waits[e.end].within(ss.cfg.Spread), ss.cfg.Longest))
}

func (ss *sessions) endLease(s *Scheduler, e *sessionState) {
	if e.granted == nil {
		return
	}
	_ = s.cache.EndLease(e.lease) // it may have ended by itself
	ss.leased.Remove(e.granted)
	e.lease, e.granted = kvcache.LeaseID{}, nil
}

// endAwait ends all that is kept for a session.
func (ss *sessions) endAwait(s *Scheduler, e *sessionState) {
	ss.endLease(s, e)
	_ = s.cache.EndLease(e.await) // it may have ended by itself, or never been
	e.await = kvcache.LeaseID{}
}

// EndTurn says what the client of a session does after its last turn, when
// that becomes known only from the answer: a tool call, say. The lease of the
// session is renewed accordingly. With EndOfSession, which may come long after
// the turn and in the midst of another one, nothing is kept for the session any
// more, until a new turn comes: its blocks give way as if it had never been. A
// session that is not known, or no longer, is ErrUnknown.
func (s *Scheduler) EndTurn(session string, end TurnEnd) error {
	if s.rec != nil {
		s.rec.turnEnded(session, end)
	}
	ss := s.appends.sessions
	if ss == nil {
		return nil
	}
	e := ss.byName[session]
	if e == nil {
		return ErrUnknown
	}
	e.end = end
	switch {
	case end == EndOfSession && e.open > 0:
		ss.endAwait(s, e)
		e.over = true
	case end == EndOfSession:
		ss.forget(s, e)
	case e.granted != nil:
		e.until = ss.deadline(e)
		if s.cache.Renew(e.lease, kvcache.Time(e.until)) != nil {
			ss.endLease(s, e)
		}
	}
	return nil
}

// LeasedUntil is until when the prefix of a session's last turn is kept, as far
// as the pool allows, and how many tokens of it; 0 and 0 without a lease.
func (s *Scheduler) LeasedUntil(session string) (until Time, tokens int) {
	ss := s.appends.sessions
	if ss == nil {
		return 0, 0
	}
	e := ss.byName[session]
	if e == nil || e.granted == nil {
		return 0, 0
	}
	if tokens = s.cache.LeaseTokens(e.lease); tokens == 0 {
		return 0, 0
	}
	return e.until, tokens
}
