package route

import "time"

// Snapshot is the state of a Router at one moment, for metrics and status.
type Snapshot struct {
	Sessions   int    // rows of the owner table
	Evicted    uint64 // rows dropped for the size cap, since the start
	Expired    uint64 // rows dropped for their age, since the start
	OpenTurns  int
	Decoders   []DecoderState
	Prefillers []PrefillerState
}

// DecoderState is one Decoder in a Snapshot.
type DecoderState struct {
	Name     string
	Draining bool
	Breakers [2]BreakerState // of local attempts and of decode legs
	Ranks    []RankState
}

// RankState is one rank in a Snapshot.
type RankState struct {
	InFlight       int
	Bytes          int64 // bodies of the turns in flight
	LocalAttempts  int
	AppendTokens   int64 // predicted suffixes of the local attempts in flight
	ResidentTokens int64 // of the sessions bound here
	Generation     uint32
	Engine         string
	Suspect        bool
	Blocked        bool          // local attempts stopped: it does not refuse
	Pace           time.Duration // per output event of the live streams; 0 without any
	Reported       Load
}

// PrefillerState is one Prefiller in a Snapshot.
type PrefillerState struct {
	Name     string
	Draining bool
	Breaker  BreakerState
	InFlight int
	Running  float64 // score of the prompts being computed
	KV       float64 // score of the KV not yet pulled
	Reported Load
}

// Snapshot copies the Router's state; instances are in order of joining.
func (r *Router) Snapshot(now time.Time) Snapshot {
	s := Snapshot{Sessions: r.table.len(), Evicted: r.table.evicted, Expired: r.table.expired, OpenTurns: r.open}
	for _, d := range r.decoders {
		ds := DecoderState{Name: d.spec.Name, Draining: d.draining, Breakers: [2]BreakerState{d.breakers[LegLocal].state(now), d.breakers[LegDecode].state(now)}}
		for i := range d.ranks {
			k := &d.ranks[i]
			ds.Ranks = append(ds.Ranks, RankState{
				InFlight: k.inFlight, Bytes: k.bytes, LocalAttempts: k.attempts, AppendTokens: k.appendToks, ResidentTokens: k.resident,
				Pace: k.paceNow(now), Generation: k.generation, Engine: k.engine, Suspect: k.suspect, Blocked: k.blocked, Reported: k.external,
			})
		}
		s.Decoders = append(s.Decoders, ds)
	}
	for _, p := range r.prefillers {
		s.Prefillers = append(s.Prefillers, PrefillerState{
			Name: p.name, Draining: p.draining, Breaker: p.breaker.state(now), InFlight: p.inFlight, Running: p.running, KV: p.kv, Reported: p.external,
		})
	}
	return s
}

// Owner is the target that a session belongs to and how firmly; false when it
// has none.
func (r *Router) Owner(key SessionKey) (t Target, state string, ok bool) {
	row := r.table.get(key)
	if row == nil {
		return Target{}, "", false
	}
	d, ok := r.bySerial[row.owner]
	if !ok {
		return Target{}, "", false
	}
	return Target{Decoder: d.spec.Name, Rank: row.rank, Ranks: len(d.ranks)}, row.state.String(), true
}

func (k *rank) paceNow(now time.Time) time.Duration {
	if now.Sub(k.paceAt) >= paceMaxAge {
		return 0
	}
	return time.Duration(k.pace)
}
