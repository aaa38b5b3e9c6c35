package route

import (
	"time"
)

// Config sets a Router. The zero value is ordinary P/D without sessions.
type Config struct {
	// Append switches Decoder Append-Prefill on; without it session ids are ignored.
	Append bool
	// Placement chooses the rank of a session without an owner.
	Placement Placement
	// TryUnknown attempts a follow-up whose session is unknown on its hash owner.
	TryUnknown bool
	// MaxSessions bounds the owner table; 0 means 1,000,000.
	MaxSessions int
	// SessionTTL is how long an unused session is remembered; 0 means 1 h.
	SessionTTL time.Duration
	// SlackBytes is how much more loaded, in body bytes, a session's earlier
	// owner or the emptier rank may be and still be preferred; 0 means 64 KiB.
	SlackBytes int
	// LoadMaxAge is how long a reported load counts; 0 means 5 s.
	LoadMaxAge time.Duration
	// ColdHits and ColdWindow stop local attempts on a rank that answered so
	// many attempts within the window without any cached token although the
	// prompt was longer than the guard's MaxSuffixTokens, or than 4096 tokens
	// where the guard names none: it does not refuse. 0 means 3 and 60 s.
	ColdHits   int
	ColdWindow time.Duration
	Breaker    BreakerConfig
}

func (c Config) withDefaults() Config {
	if c.MaxSessions <= 0 {
		c.MaxSessions = 1_000_000
	}
	if c.SessionTTL <= 0 {
		c.SessionTTL = time.Hour
	}
	if c.SlackBytes == 0 {
		c.SlackBytes = 64 << 10
	}
	if c.LoadMaxAge <= 0 {
		c.LoadMaxAge = 5 * time.Second
	}
	if c.ColdHits <= 0 {
		c.ColdHits = 3
	}
	if c.ColdWindow <= 0 {
		c.ColdWindow = time.Minute
	}
	c.Breaker = c.Breaker.WithDefaults()
	return c
}

// Router decides where turns go. It is not for concurrent use.
type Router struct {
	fleet
	cfg       Config
	table     *table
	open      int     // turns begun and not finished
	meanBytes float64 // exponentially weighted mean body size
	scratch   []candidate
}

// New makes a Router without instances.
func New(cfg Config) *Router {
	r := &Router{fleet: newFleet(), cfg: cfg.withDefaults()}
	r.table = newTable(r.cfg.MaxSessions, r.cfg.SessionTTL, r.uncount)
	return r
}

// Route is the way of one request.
type Route uint8

// The routes.
const (
	PD    Route = iota // Prefiller, then Decoder
	Local              // append-prefill attempt on the owner
)

func (r Route) String() string { return [...]string{"pd", "local"}[r] }

// Reason says why a turn takes its route.
type Reason string

// Reasons for P/D.
const (
	ReasonDisabled       Reason = "disabled"        // append-prefill is off
	ReasonNoSession      Reason = "no_session"      // the request names no session
	ReasonNoOwner        Reason = "no_owner"        // first turn, or the session was forgotten
	ReasonNotEligible    Reason = "not_eligible"    // several prompts or choices, echo, prompt logprobs
	ReasonOwnerGone      Reason = "owner_gone"      // the owner was removed
	ReasonOwnerDraining  Reason = "owner_draining"  // the owner takes no new work
	ReasonOwnerDown      Reason = "owner_down"      // the owner failed repeatedly or cannot be reached
	ReasonOwnerRestarted Reason = "owner_restarted" // the owner began a new life without the KV
	ReasonPredictedMiss  Reason = "predicted_miss"  // the owner said that nothing is resident
	ReasonSuffixTooLong  Reason = "suffix_too_long" // the predicted suffix is above the guard
	ReasonBusy           Reason = "busy"            // the guard's limits are reached
	ReasonNotRefusing    Reason = "not_refusing"    // the owner was found not to refuse
)

// Reasons for a local attempt.
const (
	ReasonOwner   Reason = "owner"            // the session's owner is known
	ReasonUnknown Reason = "unknown_followup" // the hash owner of a follow-up of an unknown session
)

// Query is what the router needs to know of a request.
type Query struct {
	HasSession bool
	Session    SessionKey
	Parent     SessionKey // session whose owner is preferred for a first turn; used when HasParent
	HasParent  bool
	// Chained turns name no session of their own. They continue the one that
	// Parent names, when HasParent, and their own name comes with their outcome.
	Chained bool
	// ByHash places the turn by its session's hash whatever the configuration
	// says: what others know of it could not be asked.
	ByHash   bool
	Bytes    int  // length of the body
	Eligible bool // a single prompt with a single answer, without echo or prompt logprobs
	FollowUp bool // the body holds an assistant message
}

// Decision is where a turn goes first. Target and RemoteETA are set for Local
// only.
type Decision struct {
	Route  Route
	Reason Reason
	Target Target
	// RemoteETA is how long a Prefiller is thought to take for the prompt
	// instead; 0 while no Prefiller was seen to compute one.
	RemoteETA time.Duration
}

// Begin opens a turn and decides whether it is attempted locally. The turn
// must be given to Finish.
func (r *Router) Begin(now time.Time, q Query) (*Turn, Decision) {
	r.table.expire(now)
	r.open++
	if r.meanBytes == 0 {
		r.meanBytes = float64(q.Bytes)
	}
	r.meanBytes += (float64(q.Bytes) - r.meanBytes) / 64
	t := &Turn{Query: q, key: q.Session, keyed: q.HasSession, affine: r.cfg.Append && (q.HasSession || q.Chained)}
	if !q.HasSession && q.Chained && q.HasParent {
		t.key, t.keyed = q.Parent, true
	}
	d := r.decide(now, t)
	return t, d
}

func (r *Router) decide(now time.Time, t *Turn) Decision {
	switch {
	case !r.cfg.Append:
		return Decision{Reason: ReasonDisabled}
	case !t.affine:
		return Decision{Reason: ReasonNoSession}
	case !t.keyed:
		return Decision{Reason: ReasonNoOwner}
	}
	row := r.table.get(t.key)
	if row == nil && t.HasParent {
		if parent := r.table.get(t.Parent); parent != nil && parent.state != placed {
			row = parent // a sub-agent's first turn extends its parent's history
		}
	}
	if row == nil || row.state == placed {
		if (r.cfg.TryUnknown || t.ByHash) && t.HasSession && t.FollowUp && t.Eligible && row == nil {
			if c, ok := r.hashOwner(now, t); ok && c.d.breakers[LegLocal].allows(now) && !c.state().suspect && !c.state().blocked && !c.d.spec.Guard.RequireResident {
				return r.attempt(now, t, c.d, c.rank, 0, ReasonUnknown)
			}
		}
		return Decision{Reason: ReasonNoOwner}
	}
	d, ok := r.bySerial[row.owner]
	switch {
	case !ok || d.removed:
		if row.key == t.key {
			r.table.drop(t.key)
		}
		return Decision{Reason: ReasonOwnerGone}
	case !r.fresh(row, d):
		if row.key == t.key {
			r.table.drop(t.key)
		}
		return Decision{Reason: ReasonOwnerRestarted}
	case !t.Eligible:
		return Decision{Reason: ReasonNotEligible}
	case d.draining:
		return Decision{Reason: ReasonOwnerDraining}
	case d.ranks[row.rank].suspect || !d.breakers[LegLocal].allows(now):
		return Decision{Reason: ReasonOwnerDown}
	case d.ranks[row.rank].blocked:
		return Decision{Reason: ReasonNotRefusing}
	case row.resident == 0:
		return Decision{Reason: ReasonPredictedMiss}
	}
	suffix := row.suffix(t.Bytes)
	guard, k := d.spec.Guard, &d.ranks[row.rank]
	switch {
	case guard.RequireResident && row.resident < 0 && row.promptTokens == 0:
		return Decision{Reason: ReasonPredictedMiss}
	case guard.MaxSuffixTokens > 0 && suffix > guard.MaxSuffixTokens:
		return Decision{Reason: ReasonSuffixTooLong}
	case guard.MaxLocalAttempts > 0 && k.attempts >= guard.MaxLocalAttempts, k.slow(now, guard.PaceTarget),
		guard.MaxAppendTokensInFlight > 0 && k.appendToks > 0 && k.appendToks+int64(suffix) > int64(guard.MaxAppendTokensInFlight):
		return Decision{Reason: ReasonBusy}
	}
	return r.attempt(now, t, d, int(row.rank), suffix, ReasonOwner)
}

func (r *Router) attempt(now time.Time, t *Turn, d *decoder, rk int, suffix int, why Reason) Decision {
	t.local = true
	t.appendToks = int64(suffix)
	r.reserve(now, t, d, rk, LegLocal)
	return Decision{Route: Local, Reason: why, Target: t.target(), RemoteETA: r.remoteETA(now, t)}
}

// fresh reports whether the session was bound in the present life of its owner's rank.
func (r *Router) fresh(row *session, d *decoder) bool {
	return int(row.rank) < len(d.ranks) && row.generation == d.ranks[row.rank].generation
}

// suffix predicts how many tokens of a body of so many bytes the owner would
// have to compute.
func (s *session) suffix(bytes int) int {
	prompt := s.estimate(bytes)
	held := int(s.promptTokens)
	if s.resident >= 0 {
		held = int(s.resident)
	}
	return max(prompt-held, 0)
}

// estimate predicts the prompt tokens of a body from the session's last turn,
// else as a quarter token per byte.
func (s *session) estimate(bytes int) int {
	if s.promptTokens > 0 && s.bytes > 0 {
		return int(float64(bytes) * float64(s.promptTokens) / float64(s.bytes))
	}
	return bytes / 4
}

// EndSession forgets a session; it reports whether it was known.
func (r *Router) EndSession(key SessionKey) bool { return r.table.drop(key) }

// uncount takes a dropped session out of its rank's resident sum.
func (r *Router) uncount(row *session) {
	if d, ok := r.bySerial[row.owner]; ok && int(row.rank) < len(d.ranks) {
		d.ranks[row.rank].resident -= int64(row.counted)
	}
	row.counted = 0
}
