package route

import "time"

// Record is what routers tell each other about a session's owner. It names the
// owner by its address, which all of them know.
type Record struct {
	Decoder string
	Rank    Rank
	// Engine is the life of the engine that served the session; empty unknown.
	Engine string
	// Bound is false while the session's first turn is only on its way there.
	Bound bool
	// Bytes of the body and PromptTokens of the last complete turn; 0 unknown.
	Bytes, PromptTokens int
	// Resident is what the owner said to hold; -1 unknown.
	Resident int
}

// Record is what this router knows of a session; false when that is nothing
// that concerns others.
func (r *Router) Record(key SessionKey) (Record, bool) {
	row := r.table.get(key)
	if row == nil {
		return Record{}, false
	}
	d, ok := r.bySerial[row.owner]
	if !ok || !r.fresh(row, d) {
		return Record{}, false
	}
	return Record{
		Decoder: d.spec.Name, Rank: row.rank, Engine: d.ranks[row.rank].engine, Bound: row.state != placed,
		Bytes: int(row.bytes), PromptTokens: int(row.promptTokens), Resident: int(row.resident),
	}, true
}

// Adopt takes over what another router knows of a session. An owner that this
// router does not know, or that began a new life meanwhile, makes the session
// ownerless here.
func (r *Router) Adopt(now time.Time, key SessionKey, rec Record) {
	d, ok := r.decoderOf[rec.Decoder]
	if !ok || d.removed || int(rec.Rank) < 0 || int(rec.Rank) >= len(d.ranks) {
		r.table.drop(key)
		return
	}
	k := &d.ranks[rec.Rank]
	if k.engine != "" && rec.Engine != "" && k.engine != rec.Engine {
		r.table.drop(key)
		return
	}
	row, fresh := r.table.touch(now, key)
	same := !fresh && row.owner == d.serial && row.rank == rec.Rank && row.generation == k.generation
	if same && !rec.Bound {
		return // nothing new
	}
	if !same {
		r.uncount(row)
	}
	row.owner, row.rank, row.generation = d.serial, rec.Rank, k.generation
	row.state, row.claimed = placed, !rec.Bound
	if rec.Bound {
		row.state = bound
	}
	row.bytes, row.promptTokens = int32(min(rec.Bytes, 1<<30)), int32(min(rec.PromptTokens, 1<<30))
	row.resident, row.residentUntil = int32(max(min(rec.Resident, 1<<30), -1)), 0
}

// Claimed tells, after Decoder has placed a turn, what the others must be told
// before it goes there: that its session's first turn is on its way. False for
// a turn whose session has an owner, or that has none.
func (r *Router) Claimed(t *Turn) (Record, bool) {
	if !t.HasSession || !t.bindable() || t.onRank == nil {
		return Record{}, false
	}
	row := r.table.get(t.key)
	if row == nil || row.state != placed || row.claimed {
		return Record{}, false
	}
	return r.Record(t.key)
}

// Follow moves a turn that was placed to the Decoder and rank to which another
// router has sent the session's first turn; false, and no change, when that one
// cannot take it.
func (r *Router) Follow(now time.Time, t *Turn, rec Record) (Target, bool) {
	if t.onRank == nil {
		return Target{}, false
	}
	if t.onRank.spec.Name == rec.Decoder && t.rank == int(rec.Rank) {
		return t.target(), true
	}
	for _, c := range r.candidates(now, t) {
		if c.d.spec.Name != rec.Decoder || c.rank != int(rec.Rank) {
			continue
		}
		r.releaseRank(t)
		r.reserve(now, t, c.d, c.rank, LegDecode)
		r.Adopt(now, t.key, rec)
		return t.target(), true
	}
	return Target{}, false
}
