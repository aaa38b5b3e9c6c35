package scheduler

import (
	"math"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// place says which queue a request is in.
type place uint8

const (
	nowhere place = iota
	inWaiting
	inSkipped
	inRunning
)

// request is the state of one live request. What a steady decode step touches
// comes first and fills two cache lines.
type request struct {
	id           RequestID
	tokens       []Token // prompt, then output
	name         string  // the caller's ID
	lastSeq      uint64  // newest plan with a row of it
	stale        uint64  // results of plans up to this one belong to a run before its preemption
	void         uint64  // results of plans up to this one are void: their input was not computed
	computed     int32   // tokens computed or planned; rolled back by rejected drafts and failures
	placeholders int32   // sampled tokens and drafts of plans in flight (asynchronous scheduling)
	inFlight     int32   // tokens scheduled in plans that are not applied
	prompt       int32   // tokens of the prompt
	prefill      int32   // tokens known at the last admission
	limit        int32   // length at which it ends: MaxTokens or the model's length
	minLen       int32   // length below which nothing ends it
	drafts       int32   // drafts proposed for the next plan
	firstEOS     Token   // the first EOS id, or -1
	last         Token   // the last of tokens
	table        int32   // length of the block tables
	room         int32   // tokens that they have room for
	quiet        int32   // a step up to fewer tokens makes no block matchable
	status       Status
	place        place
	chunk        bool // its last plan left known tokens over
	stops        bool // has stop ids, several EOS ids or a repetition rule
	dropStale    bool // stale results are dropped, not delivered
	grammar      bool // its rows need a mask
	started      bool // its first output was delivered
	adapter      bool // runs with an adapter

	seq kvcache.Seq // open while it holds blocks

	req         Request
	view        connector.Request
	draftTokens []Token // ids of the drafts; empty in asynchronous scheduling

	prev, next *request // in a FCFS queue
	order      int64    // sequence number of Add
	since      Time     // its arrival, or the time of Add

	cutAt       int32 // tokens that were left when void was set
	admittedAt  int32 // tokens generated before the last admission
	preemptions int32
	cached      int32 // hits of the first admission
	external    int32
	prefilling  bool // admitted and with known tokens left to compute, or its load runs

	load     loadState
	lookupBy Time // when pending lookups are no longer waited for
	deadline Time // of what its status waits for, or of its hold; Never if of nothing
	acks     workerSet
	reason   FinishReason
	turns    []Request // continuations of a session that wait for the end of its turn
}

// loadState is about an asynchronous load.
type loadState struct {
	running bool          // not every worker has reported it complete
	done    bool          // complete, and not yet taken up by an admission
	failed  bool          // some of it did not arrive; computed is cut to what did
	fence   kvcache.Fence // keeps the table of a load that goes on without its request's sequence
}

// outputs is the number of tokens generated.
func (r *request) outputs() int32 { return int32(len(r.tokens)) - r.prompt }

// tabled takes over from the sequence what a step looks at, after its tables
// or what is matchable of them have changed.
func (s *Scheduler) tabled(r *request) {
	r.table = int32(len(r.seq.Table(0)))
	r.room = int32(r.seq.Capacity())
	switch {
	case s.windowed:
		r.quiet = 0 // the cache is asked each time
	case s.cache.Caching() == kvcache.CachingOn:
		r.quiet = int32(r.seq.Published()+1) * s.blockSize
	default:
		r.quiet = math.MaxInt32
	}
}

// total is the number of tokens known.
func (r *request) total() int32 { return int32(len(r.tokens)) }

// known is what connectors see of the request, as it is now.
func (r *request) known() *connector.Request {
	r.view.Tokens = r.tokens
	r.view.Prompt = int(r.prompt)
	return &r.view
}

// workerSet is a set of worker ranks.
type workerSet struct {
	bits []uint64
	n    int
}

func (w *workerSet) clear() {
	clear(w.bits)
	w.n = 0
}

// add reports whether the rank is new.
func (w *workerSet) add(rank int) bool {
	word := rank / 64
	for len(w.bits) <= word {
		w.bits = append(w.bits, 0)
	}
	bit := uint64(1) << (rank % 64)
	if w.bits[word]&bit != 0 {
		return false
	}
	w.bits[word] |= bit
	w.n++
	return true
}

// slots is the dense table of live requests.
type slots struct {
	at   []*request
	gens []uint32
	free []uint32
	live int
}

// put gives r a slot and its handle.
func (s *slots) put(r *request) {
	var slot uint32
	if n := len(s.free); n > 0 {
		slot = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		slot = uint32(len(s.at))
		s.at = append(s.at, nil)
		s.gens = append(s.gens, 0)
	}
	s.gens[slot]++
	s.at[slot] = r
	s.live++
	r.id = connector.NewRequestID(slot, s.gens[slot])
}

// get is the request with this handle, or nil.
func (s *slots) get(id RequestID) *request {
	slot := id.Slot()
	if int(slot) >= len(s.at) {
		return nil
	}
	if r := s.at[slot]; r != nil && r.id == id {
		return r
	}
	return nil
}

// drop frees the slot.
func (s *slots) drop(r *request) {
	slot := r.id.Slot()
	s.at[slot] = nil
	s.free = append(s.free, slot)
	s.live--
}
