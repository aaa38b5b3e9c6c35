package route

import (
	"errors"
	"fmt"
	"time"
)

// Rank is the data-parallel rank behind one Decoder address.
type Rank int32

// Leg is one of the requests that a turn sends to an instance.
type Leg uint8

// The legs of a turn.
const (
	LegLocal   Leg = iota // the append-prefill attempt on the owner
	LegPrefill            // the prompt on a Prefiller
	LegDecode             // the answer on a Decoder, with KV from the Prefiller
	legs
)

func (l Leg) String() string { return [...]string{"local", "p", "d"}[l] }

// Target is a Decoder and one of its ranks.
type Target struct {
	Decoder string
	Rank    Rank
	Ranks   int // ranks behind the Decoder's address
}

// Guard bounds the append-prefill work that the router sends to one rank of a
// Decoder that does not bound it itself. Zero fields bound nothing.
type Guard struct {
	// MaxSuffixTokens is the longest predicted suffix that is attempted locally.
	MaxSuffixTokens int
	// MaxAppendTokensInFlight is the sum of predicted suffixes per rank.
	MaxAppendTokensInFlight int
	// MaxLocalAttempts is the number of attempts under way per rank.
	MaxLocalAttempts int
	// PaceTarget is the time per output token of the rank's live streams above
	// which nothing is attempted there.
	PaceTarget time.Duration
	// RequireResident attempts only when the resident prefix can be predicted,
	// for engines that never refuse.
	RequireResident bool
}

// DecoderSpec describes a Decoder that joins.
type DecoderSpec struct {
	Name  string // address, unique
	Ranks int    // data-parallel ranks behind the address; 0 means 1
	Guard Guard
}

// Errors of membership calls.
var (
	ErrInstanceExists  = errors.New("instance already known")
	ErrInstanceUnknown = errors.New("instance not known")
	// ErrInstanceEnding says that one of that name, described otherwise, has
	// requests that have to end first.
	ErrInstanceEnding = errors.New("instance still has requests of before")
)

// rank is the router's view of one rank of a Decoder.
type rank struct {
	inFlight   int   // turns
	bytes      int64 // bodies of the turns in flight
	attempts   int   // local attempts in flight
	appendToks int64 // predicted suffix tokens of the local attempts in flight
	resident   int64 // tokens of the sessions bound here
	coming     int64 // tokens, as estimated, of the P/D turns in flight
	assigned   uint64
	external   Load
	generation uint32
	engine     string // generation marker of the last answer; empty unknown
	suspect    bool   // the connection failed; the next answer tells whether it is the same life
	blocked    bool   // local attempts stopped: it does not refuse
	cold       []time.Time
	pace       float64 // nanoseconds per output event of the live streams, a moving mean
	paceAt     time.Time
}

// paceMaxAge is how long a rank's pace counts after its last stream event.
const paceMaxAge = 2 * time.Second

// slow reports whether the rank's live streams are slower than the target.
func (k *rank) slow(now time.Time, target time.Duration) bool {
	return target > 0 && now.Sub(k.paceAt) < paceMaxAge && k.pace > float64(target)
}

// Pace notes how far a live stream of a rank came: so many output events after
// the last ones took so long.
func (r *Router) Pace(now time.Time, name string, rk Rank, events int, took time.Duration) {
	d, ok := r.decoderOf[name]
	if !ok || int(rk) < 0 || int(rk) >= len(d.ranks) || events <= 0 {
		return
	}
	k, per := &d.ranks[rk], float64(took)/float64(events)
	if now.Sub(k.paceAt) >= paceMaxAge {
		k.pace = per
	} else {
		k.pace += (per - k.pace) * min(float64(events)/32, 1)
	}
	k.paceAt = now
}

// Load is what an instance says about itself; the zero value says nothing.
type Load struct {
	Waiting int     // requests queued
	Running int     // requests running
	KVUsage float64 // used share of the KV blocks, 0 to 1
	At      time.Time
}

type decoder struct {
	spec     DecoderSpec
	serial   uint32
	ranks    []rank
	draining bool
	removed  bool
	breakers [legs]breaker
	start    float64 // as its metrics told last; 0 never
	tells    bool    // the last scrape told it
}

type prefiller struct {
	name     string
	serial   uint32
	inFlight int
	running  float64 // score of the prompts being computed
	speed    speed
	kv       float64 // score of the KV not yet pulled
	assigned uint64
	external Load
	draining bool
	removed  bool
	breaker  breaker
}

// fleet holds the instances in order of joining.
type fleet struct {
	decoders   []*decoder
	prefillers []*prefiller
	decoderOf  map[string]*decoder
	prefillOf  map[string]*prefiller
	bySerial   map[uint32]*decoder
	serial     uint32
	picks      uint64
}

func newFleet() fleet {
	return fleet{decoderOf: map[string]*decoder{}, prefillOf: map[string]*prefiller{}, bySerial: map[uint32]*decoder{}}
}

// AddDecoder lets a Decoder join. One that is still draining takes requests again.
func (r *Router) AddDecoder(spec DecoderSpec) error {
	if spec.Ranks <= 0 {
		spec.Ranks = 1
	}
	if d, ok := r.decoderOf[spec.Name]; ok {
		if d.draining && d.spec == spec {
			d.draining, d.removed = false, false
			return nil
		}
		if d.removed {
			return fmt.Errorf("decoder %s: %w", spec.Name, ErrInstanceEnding)
		}
		return fmt.Errorf("decoder %s: %w", spec.Name, ErrInstanceExists)
	}
	r.serial++
	d := &decoder{spec: spec, serial: r.serial, ranks: make([]rank, spec.Ranks)}
	r.decoders = append(r.decoders, d)
	r.decoderOf[spec.Name] = d
	r.bySerial[d.serial] = d
	return nil
}

// AddPrefiller lets a Prefiller join. One that is still draining takes requests again.
func (r *Router) AddPrefiller(name string) error {
	if p, ok := r.prefillOf[name]; ok {
		if p.draining {
			p.draining, p.removed = false, false
			return nil
		}
		return fmt.Errorf("prefiller %s: %w", name, ErrInstanceExists)
	}
	r.serial++
	p := &prefiller{name: name, serial: r.serial}
	r.prefillers = append(r.prefillers, p)
	r.prefillOf[name] = p
	return nil
}

// DrainDecoder stops new requests to a Decoder but keeps it known, so that its
// sessions return when it is added again.
func (r *Router) DrainDecoder(name string) error {
	d, ok := r.decoderOf[name]
	if !ok {
		return fmt.Errorf("decoder %s: %w", name, ErrInstanceUnknown)
	}
	d.draining = true
	return nil
}

// RemoveDecoder stops new requests to a Decoder and forgets it as soon as its
// own requests have ended.
func (r *Router) RemoveDecoder(name string) error {
	d, ok := r.decoderOf[name]
	if !ok {
		return fmt.Errorf("decoder %s: %w", name, ErrInstanceUnknown)
	}
	d.draining, d.removed = true, true
	r.sweepDecoder(d)
	return nil
}

// DrainPrefiller stops new requests to a Prefiller but keeps it known.
func (r *Router) DrainPrefiller(name string) error {
	p, ok := r.prefillOf[name]
	if !ok {
		return fmt.Errorf("prefiller %s: %w", name, ErrInstanceUnknown)
	}
	p.draining = true
	return nil
}

// RemovePrefiller stops new requests to a Prefiller and forgets it as soon as
// its own requests have ended.
func (r *Router) RemovePrefiller(name string) error {
	p, ok := r.prefillOf[name]
	if !ok {
		return fmt.Errorf("prefiller %s: %w", name, ErrInstanceUnknown)
	}
	p.draining, p.removed = true, true
	r.sweepPrefiller(p)
	return nil
}

func (r *Router) sweepDecoder(d *decoder) {
	if !d.removed || d.inFlight() > 0 || r.decoderOf[d.spec.Name] != d {
		return
	}
	delete(r.decoderOf, d.spec.Name)
	delete(r.bySerial, d.serial)
	r.decoders = without(r.decoders, d)
}

func (r *Router) sweepPrefiller(p *prefiller) {
	if !p.removed || p.inFlight > 0 || r.prefillOf[p.name] != p {
		return
	}
	delete(r.prefillOf, p.name)
	r.prefillers = without(r.prefillers, p)
}

func without[T comparable](list []T, x T) []T {
	out := list[:0:0]
	for _, e := range list {
		if e != x {
			out = append(out, e)
		}
	}
	return out
}

func (d *decoder) inFlight() int {
	n := 0
	for i := range d.ranks {
		n += d.ranks[i].inFlight
	}
	return n
}

// Observe notes which life of an engine answered: the value of the answer's
// engine header, empty when it has none. A life other than the last one known
// makes every session bound to that rank ownerless. What has no name has a
// start time, where its metrics tell one; only what has neither is taken to
// have restarted when it answers after its connection had failed.
func (r *Router) Observe(name string, rk Rank, engine string) {
	d, ok := r.decoderOf[name]
	if !ok || int(rk) < 0 || int(rk) >= len(d.ranks) {
		return
	}
	k := &d.ranks[rk]
	if engine == "" && k.engine == "" && d.tells {
		return // Started tells more
	}
	switch {
	case k.engine != "" && engine != "" && k.engine != engine, // it says that it restarted
		k.suspect && (engine == "" || k.engine == ""): // it may have restarted and cannot say
		k.restart()
	}
	k.suspect = false
	if engine != "" {
		k.engine = engine
	}
}

// Started notes what a Decoder's metrics say of its start, in seconds since
// 1970; 0 when they say nothing at the moment. Another time is another life of
// the ranks that do not name theirs; those that do are not attempted until an
// answer names it.
func (r *Router) Started(name string, start float64) {
	d, ok := r.decoderOf[name]
	if !ok {
		return
	}
	if d.tells = start > 0; !d.tells {
		return
	}
	before := d.start
	d.start = start
	for i := range d.ranks {
		k := &d.ranks[i]
		switch {
		case k.engine != "":
			k.suspect = k.suspect || (before > 0 && before != start)
		case before > 0 && before != start:
			k.restart()
		default:
			k.suspect = false // the same life, or the first that is known
		}
	}
}

func (k *rank) restart() {
	k.generation++
	k.suspect, k.blocked, k.cold = false, false, nil
}

// Unreachable notes that no connection to a Decoder could be made, or that it
// was reset. Its sessions are not attempted until an answer tells whether it
// is still the same life.
func (r *Router) Unreachable(name string) {
	if d, ok := r.decoderOf[name]; ok {
		for i := range d.ranks {
			d.ranks[i].suspect = true
		}
	}
}

// LegDone teaches the breakers: ok is a leg that the instance answered, with
// whatever status below 500.
func (r *Router) LegDone(now time.Time, leg Leg, name string, result LegResult) {
	var b *breaker
	if leg == LegPrefill {
		if p, ok := r.prefillOf[name]; ok {
			b = &p.breaker
		}
	} else if d, ok := r.decoderOf[name]; ok {
		b = &d.breakers[leg]
	}
	if b == nil {
		return
	}
	switch result {
	case LegOK:
		b.success()
	case LegFailed:
		b.failure(now, r.cfg.Breaker)
	case LegAbandoned:
		b.abandoned()
	}
}

// LegResult is what a leg tells about the health of its instance.
type LegResult uint8

// The results.
const (
	LegOK        LegResult = iota // it answered; a 4xx is an answer
	LegFailed                     // no connection, a 5xx, or cut short
	LegAbandoned                  // cancelled by us or by the client: says nothing
)

// SetDecoderLoad notes what a rank says about its load.
func (r *Router) SetDecoderLoad(name string, rk Rank, l Load) {
	if d, ok := r.decoderOf[name]; ok && int(rk) >= 0 && int(rk) < len(d.ranks) {
		d.ranks[rk].external = l
	}
}

// SetPrefillerLoad notes what a Prefiller says about its load.
func (r *Router) SetPrefillerLoad(name string, l Load) {
	if p, ok := r.prefillOf[name]; ok {
		p.external = l
	}
}
