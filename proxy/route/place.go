package route

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"
)

// Placement says how a Decoder and rank are chosen for a session without an
// owner.
type Placement uint8

const (
	// PlaceLoad takes the least loaded rank; among ranks of nearly the same
	// load the session's earlier owner, else the one that holds the fewest
	// session tokens. It needs the owner table to find the owner again.
	PlaceLoad Placement = iota
	// PlaceHash takes the session's rendezvous hash over the healthy ranks, so
	// that replicas and restarted proxies agree without talking.
	PlaceHash
	// PlaceRoom is PlaceLoad with a longer view of who holds session tokens:
	// those of turns that are still on their way to a rank count there, those of
	// sessions that a rank refused as lost do not, and a session that its owner
	// has lost is placed like a new one.
	PlaceRoom
)

func (p Placement) String() string { return [...]string{"load", "hash", "room"}[p] }

// holds is the number of session tokens that count against a rank.
func (p Placement) holds(k *rank) int64 {
	if p == PlaceRoom {
		return k.resident + k.coming
	}
	return k.resident
}

// prefillScore is the estimated cost in milliseconds of a prompt of so many
// body bytes: a quarter token per byte at the slope and offset that the
// example proxies of vllm-ascend use.
func prefillScore(bytes int) float64 { return float64(bytes)/4*0.0345 + 120.0745 }

// kvShare is the weight of KV that waits to be pulled against a prompt being
// computed, as the example proxies weigh it.
const kvShare = 0.3

// candidate is one rank that may be chosen.
type candidate struct {
	d    *decoder
	rank int
	load float64
}

func (c candidate) state() *rank { return &c.d.ranks[c.rank] }

// candidates lists the ranks that may take a turn: not draining, not excluded,
// breaker not open. When every breaker is open they are ignored, so that the
// last instance is never locked away.
func (r *Router) candidates(now time.Time, t *Turn) []candidate {
	for _, ignoreBreaker := range []bool{false, true} {
		out := r.scratch[:0]
		for _, d := range r.decoders {
			if d.draining || slices.Contains(t.excluded, d.serial) || (!ignoreBreaker && !d.breakers[LegDecode].allows(now)) {
				continue
			}
			for i := range d.ranks {
				out = append(out, candidate{d: d, rank: i, load: r.rankLoad(now, &d.ranks[i])})
			}
		}
		r.scratch = out
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// rankLoad is the work on a rank in body bytes: that of our own turns, plus
// what the rank reports beyond them at the size of a usual turn.
func (r *Router) rankLoad(now time.Time, k *rank) float64 {
	load := float64(k.bytes)
	if l := k.external; !l.At.IsZero() && now.Sub(l.At) < r.cfg.LoadMaxAge {
		if foreign := l.Waiting + l.Running - k.inFlight; foreign > 0 {
			load += float64(foreign) * r.meanBytes
		}
		if l.KVUsage > 0.95 {
			load += r.meanBytes * float64(1+l.Waiting)
		}
	}
	return load
}

// place chooses the rank for a turn; false when no Decoder can take it.
func (r *Router) place(now time.Time, t *Turn) (candidate, bool) {
	all := r.candidates(now, t)
	if len(all) == 0 {
		return candidate{}, false
	}
	var row *session
	if t.bindable() {
		row = r.table.get(t.key)
		if row != nil && row.state != bound && (row.inFlight > 0 || row.claimed) {
			// A turn of this session is on its way already: go along with it.
			for _, c := range all {
				if c.d.serial == row.owner && c.rank == int(row.rank) {
					return c, true
				}
			}
		}
	}
	if (r.cfg.Placement == PlaceHash || t.ByHash) && t.HasSession {
		return slices.MaxFunc(all, func(a, b candidate) int {
			return compare(rendezvous(t.key, a), rendezvous(t.key, b))
		}), true
	}
	least := slices.MinFunc(all, func(a, b candidate) int { return compare(a.load, b.load) }).load
	near := least + float64(r.cfg.SlackBytes)
	if row != nil && !(t.lost && r.cfg.Placement == PlaceRoom) {
		for _, c := range all {
			if c.d.serial == row.owner && c.rank == int(row.rank) && c.load <= near && r.fresh(row, c.d) {
				return c, true
			}
		}
	}
	return slices.MinFunc(all, func(a, b candidate) int {
		aNear, bNear := a.load <= near, b.load <= near
		switch {
		case aNear != bNear:
			if aNear {
				return -1
			}
			return 1
		case aNear && t.bindable():
			if c := compare(r.cfg.Placement.holds(a.state()), r.cfg.Placement.holds(b.state())); c != 0 {
				return c
			}
		}
		if c := compare(a.load, b.load); c != 0 {
			return c
		}
		return compare(a.state().assigned, b.state().assigned)
	}), true
}

// hashOwner is the rank that the rendezvous hash gives a session.
func (r *Router) hashOwner(now time.Time, t *Turn) (candidate, bool) {
	all := r.candidates(now, t)
	if len(all) == 0 {
		return candidate{}, false
	}
	return slices.MaxFunc(all, func(a, b candidate) int {
		return compare(rendezvous(t.key, a), rendezvous(t.key, b))
	}), true
}

func compare[T int | int64 | uint64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// rendezvous is the weight of a rank for a session: the rank with the highest
// weight is its hash owner. It depends on the addresses and ranks alone.
func rendezvous(key SessionKey, c candidate) uint64 {
	h := fnv.New64a()
	h.Write(key[:])
	h.Write([]byte(c.d.spec.Name))
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(c.rank))
	h.Write(n[:])
	x := h.Sum64() // FNV's high bits mix poorly; finish with a 64-bit finaliser
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// choosePrefiller takes the Prefiller where the prompt is estimated to be done
// first, given the prefix that the session's last Prefiller may still cache.
func (r *Router) choosePrefiller(now time.Time, t *Turn) *prefiller {
	var best *prefiller
	var bestCost float64
	for _, ignoreBreaker := range []bool{false, true} {
		for _, p := range r.prefillers {
			if p.draining || slices.Contains(t.excluded, p.serial) || (!ignoreBreaker && !p.breaker.allows(now)) {
				continue
			}
			cost := p.running + kvShare*p.kv + prefillScore(r.toCompute(p, t))
			if l := p.external; !l.At.IsZero() && now.Sub(l.At) < r.cfg.LoadMaxAge {
				if foreign := l.Waiting + l.Running - p.inFlight; foreign > 0 {
					cost += float64(foreign) * prefillScore(int(r.meanBytes))
				}
			}
			if best == nil || cost < bestCost || (cost == bestCost && p.assigned < best.assigned) {
				best, bestCost = p, cost
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}
