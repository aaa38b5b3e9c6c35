package route

import "time"

// Turn is one client request on its way. It belongs to the caller, who passes
// it to the Router's calls; its fields are the Router's.
type Turn struct {
	Query
	key    SessionKey
	keyed  bool // key names a session: the turn's own, or the one that it continues
	affine bool // its outcome moves the owner table
	local  bool // a local attempt was made
	done   bool
	output bool

	onRank     *decoder // reserved decoder, nil when none
	rank       int
	leg        Leg
	appendToks int64

	onPrefill *prefiller // reserved prefiller, nil when none
	score     float64
	running   bool // the prompt is being computed
	began     time.Time
	compute   int // body bytes that the Prefiller is thought to compute
	lastP     uint32
	lastD     *decoder // decoder of the last decode or local leg
	lastRank  int
	counted   bool  // counted in the session's in-flight turns
	lost      bool  // the owner holds nothing of the session any more
	coming    int64 // tokens counted in the rank's coming

	excluded []uint32 // instances that failed this turn
}

func (t *Turn) bindable() bool { return t.affine && t.keyed }

func (t *Turn) target() Target {
	return Target{Decoder: t.onRank.spec.Name, Rank: Rank(t.rank), Ranks: len(t.onRank.ranks)}
}

func (r *Router) reserve(now time.Time, t *Turn, d *decoder, rk int, leg Leg) {
	t.onRank, t.rank, t.leg, t.lastD, t.lastRank = d, rk, leg, d, rk
	k := &d.ranks[rk]
	k.inFlight++
	k.bytes += int64(t.Bytes)
	r.picks++
	k.assigned = r.picks
	if leg == LegLocal {
		k.attempts++
		k.appendToks += t.appendToks
	} else {
		t.coming = int64(t.Bytes / 4)
		k.coming += t.coming
	}
	d.breakers[leg].sent(now)
}

func (r *Router) releaseRank(t *Turn) {
	d := t.onRank
	if d == nil {
		return
	}
	t.onRank = nil
	k := &d.ranks[t.rank]
	k.inFlight--
	k.bytes -= int64(t.Bytes)
	k.coming -= t.coming
	t.coming = 0
	if t.leg == LegLocal {
		k.attempts--
		k.appendToks -= t.appendToks
	}
	r.sweepDecoder(d)
}

func (r *Router) releasePrefill(t *Turn) {
	p := t.onPrefill
	if p == nil {
		return
	}
	t.onPrefill = nil
	p.inFlight--
	if t.running {
		p.running -= t.score
		p.speed.left(t.compute)
		t.running = false
	} else {
		p.kv -= t.score
	}
	if p.inFlight == 0 { // no rounding error survives an idle moment
		p.running, p.kv, p.speed.queued = 0, 0, 0
	}
	r.sweepPrefiller(p)
}

// Missed ends the local attempt of a turn without output: refused, failed, or
// cut before any output. The turn goes on with P/D.
func (r *Router) Missed(t *Turn) {
	if t.leg == LegLocal {
		r.releaseRank(t)
	}
}

// Lost notes that a local attempt was refused because its owner holds too
// little of the session. It is called after Missed and matters to PlaceRoom.
func (r *Router) Lost(t *Turn) {
	if t.done || !t.affine || r.cfg.Placement != PlaceRoom {
		return
	}
	t.lost = true
	if row := r.table.get(t.key); row != nil && t.lastD != nil && row.owner == t.lastD.serial && int(row.rank) == t.lastRank {
		r.uncount(row)
	}
}

// Prefiller reserves a Prefiller for the turn; false when none can take it.
func (r *Router) Prefiller(now time.Time, t *Turn) (name string, ok bool) {
	r.releasePrefill(t)
	p := r.choosePrefiller(now, t)
	if p == nil {
		return "", false
	}
	t.onPrefill, t.score, t.running, t.lastP = p, prefillScore(t.Bytes), true, p.serial
	t.began, t.compute = now, r.toCompute(p, t)
	p.speed.entered(t.compute)
	p.inFlight++
	p.running += t.score
	r.picks++
	p.assigned = r.picks
	p.breaker.sent(now)
	return p.name, true
}

// Prefilled notes that the prompt is computed and its KV waits to be pulled.
func (r *Router) Prefilled(now time.Time, t *Turn) {
	if p := t.onPrefill; p != nil && t.running {
		t.running = false
		p.speed.left(t.compute)
		p.speed.done(now, t.began, t.compute)
		p.running -= t.score
		p.kv += t.score
	}
}

// Decoder reserves a Decoder and rank for the turn; false when none can take
// it. A session's first turn is placed here: concurrent ones follow it.
func (r *Router) Decoder(now time.Time, t *Turn) (Target, bool) {
	r.releaseRank(t)
	c, ok := r.place(now, t)
	if !ok {
		return Target{}, false
	}
	r.reserve(now, t, c.d, c.rank, LegDecode)
	if t.bindable() {
		row, fresh := r.table.touch(now, t.key)
		if !t.counted {
			t.counted = true
			row.inFlight++
		}
		if fresh || (row.state == placed && row.owner != c.d.serial) {
			row.state, row.owner, row.rank, row.generation = placed, c.d.serial, Rank(c.rank), c.state().generation
		}
	}
	return t.target(), true
}

// Exclude keeps an instance that failed from being chosen for this turn again.
func (r *Router) Exclude(t *Turn, name string) {
	if d, ok := r.decoderOf[name]; ok {
		t.excluded = append(t.excluded, d.serial)
	}
	if p, ok := r.prefillOf[name]; ok {
		t.excluded = append(t.excluded, p.serial)
	}
}

// Output notes the first output of the turn: the KV was pulled, so the
// Prefiller's reservation ends, and a session without a bound owner now has a
// provisional one.
func (r *Router) Output(now time.Time, t *Turn) {
	if t.output || t.done {
		return
	}
	t.output = true
	r.releasePrefill(t)
	if !t.bindable() || t.onRank == nil {
		return
	}
	row, _ := r.table.touch(now, t.key)
	if row.state == bound {
		return
	}
	r.own(row, t)
	row.state = provisional
}

// own makes the turn's decoder the owner of the session.
func (r *Router) own(row *session, t *Turn) {
	r.uncount(row)
	row.claimed = false
	row.owner, row.rank, row.generation = t.lastD.serial, Rank(t.lastRank), t.lastD.ranks[t.lastRank].generation
}

// Resume lets a turn whose answer was given up after output take further
// Prefiller and Decoder reservations.
func (r *Router) Resume(t *Turn) {
	r.releaseRank(t)
	r.releasePrefill(t)
	t.output = false
}

// Result says how a turn ended.
type Result uint8

// The results.
const (
	Completed Result = iota // the whole answer was received
	Failed                  // no answer, or cut short
	Cancelled               // the client went away
)

// Outcome is the end of a turn and what its answer says.
type Outcome struct {
	Result       Result
	PromptTokens int // 0 unknown
	CachedTokens int
	// OutputTokens were generated.
	OutputTokens int
	// Resident is what the owner says to hold of the session after the turn;
	// used when HasResident.
	Resident      int
	HasResident   bool
	ResidentUntil time.Time
	// End is the session's last turn.
	End bool
	// Session is the name under which later turns continue a Chained one; used
	// when HasSession.
	Session    SessionKey
	HasSession bool
}

// Finish ends a turn: it releases what the turn still holds and moves the
// owner table. Further calls with the same turn do nothing. It reports whether
// local attempts on the rank have just been stopped because it does not refuse.
func (r *Router) Finish(now time.Time, t *Turn, o Outcome) (stopped bool) {
	if t.done {
		return false
	}
	t.done = true
	r.open--
	servedLocally := t.onRank != nil && t.leg == LegLocal
	r.releaseRank(t)
	r.releasePrefill(t)
	if o.Result == Completed && servedLocally {
		stopped = r.cold(now, t, o)
	}
	if !t.affine {
		return stopped
	}
	var row *session
	if t.keyed {
		row = r.table.get(t.key)
	}
	if row != nil && t.counted {
		row.inFlight = max(row.inFlight-1, 0)
	}
	if t.Chained {
		r.chain(now, t, o, row)
		return stopped
	}
	switch {
	case o.Result == Completed && o.End:
		r.table.drop(t.key)
	case o.Result == Completed && t.lastD != nil:
		r.bind(now, t.key, t, o)
	case row != nil && row.state == placed && row.inFlight == 0,
		row != nil && row.state == provisional && row.inFlight == 0 && o.Result == Failed:
		r.table.drop(t.key)
	}
	return stopped
}

// bind makes the turn's decoder the owner of a session after a complete answer.
func (r *Router) bind(now time.Time, key SessionKey, t *Turn, o Outcome) {
	row, _ := r.table.touch(now, key)
	r.own(row, t)
	row.state, row.bytes = bound, int32(min(t.Bytes, 1<<30))
	row.promptTokens = int32(min(o.PromptTokens, 1<<30))
	row.resident, row.residentUntil = -1, 0
	if o.HasResident {
		row.resident = int32(min(o.Resident, 1<<30))
		if !o.ResidentUntil.IsZero() {
			row.residentUntil = o.ResidentUntil.UnixNano()
		}
	}
	if t.lastP != 0 {
		row.prefiller = t.lastP
	}
	row.counted = row.promptTokens + int32(min(o.OutputTokens, 1<<30-1))
	if row.resident >= 0 {
		row.counted = row.resident
	}
	t.lastD.ranks[t.lastRank].resident += int64(row.counted)
}

// chain ends a turn that gets its name with its answer. The session that it
// continued stays, so that another turn may continue it too, but its tokens are
// counted once: under the newest name.
func (r *Router) chain(now time.Time, t *Turn, o Outcome, before *session) {
	if before != nil && before.state != bound && before.inFlight == 0 {
		r.table.drop(t.key)
		before = nil
	}
	if o.Result != Completed || t.lastD == nil || !o.HasSession || o.End {
		return
	}
	if before != nil {
		r.uncount(before)
	}
	r.bind(now, o.Session, t, o)
}

// cold counts an attempt that was answered without any cached token although
// it should have been refused.
func (r *Router) cold(now time.Time, t *Turn, o Outcome) bool {
	k, limit := &t.lastD.ranks[t.lastRank], t.lastD.spec.Guard.MaxSuffixTokens
	if limit == 0 {
		limit = 4096
	}
	if o.CachedTokens > 0 || o.PromptTokens <= limit || k.blocked {
		return false
	}
	keep := k.cold[:0]
	for _, at := range k.cold {
		if now.Sub(at) < r.cfg.ColdWindow {
			keep = append(keep, at)
		}
	}
	k.cold = append(keep, now)
	k.blocked = len(k.cold) >= r.cfg.ColdHits
	return k.blocked
}
