package scheduler

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
)

// Scheduler decides step by step what runs. It belongs to one goroutine.
type Scheduler struct {
	cfg       Config
	cache     *kvcache.Cache
	conn      connector.Scheduler // nil if none
	graph     *graphs.Dispatcher  // nil if none
	blockSize int32
	groups    int32
	maxLen    int32
	lookahead int32
	windowed  bool // blocks leave sliding windows, also when none is taken
	dropStale bool // the connector's requests must be delivered
	appends   appendState

	slots    slots
	names    map[string]*request // live requests that have not ended
	waiting  queue
	skipped  queue // passed over: waiting for something else than room
	running  []*request
	paused   Pause
	throttle Throttle
	behind   bool // the last plan without a throttle left requests waiting
	idle     int  // sessions between two turns; each keeps a place among MaxNumSeqs

	now     Time
	seq     uint64  // number of the last plan made
	applied uint64  // number of the last plan applied
	flight  []*Plan // made and not applied, oldest first
	spare   []*Plan
	adds    int64

	fences      []fence // oldest first
	fencedCount int     // blocks under them

	timers timers

	rows     []rowDraft
	passed   []*request     // taken off the queues in this plan, to be put back
	loras    []kvcache.LoRA // adapters of this plan
	news     news
	outs     []Output
	rare     []int32       // outputs with more than a running request's
	early    []earlyOutput // outputs that belong to a plan or to none, not yet handed out
	tables   connector.Tables
	holders  []kvcache.Holder
	dirty    bool // something changed since a plan without rows
	recycled []*request
	stats    Stats
	events   uint64    // the cache's events before this mark may be told
	rec      *Recorder // nil if nothing is recorded
	alloc    Allocator // nil: the Go heap
}

// Option sets a part of a scheduler that most do without.
type Option func(*Scheduler)

// WithConnector lets KV arrive and leave through c.
func WithConnector(c connector.Scheduler) Option { return func(s *Scheduler) { s.conn = c } }

// WithGraphs fills Plan.Verdicts and Plan.Graph.
func WithGraphs(d *graphs.Dispatcher) Option { return func(s *Scheduler) { s.graph = d } }

// New makes a scheduler over an empty cache, which it then owns: nobody else
// changes it.
func New(cfg Config, cache *kvcache.Cache, opts ...Option) (*Scheduler, error) {
	if cache == nil {
		return nil, errors.New("scheduler config: no cache")
	}
	given := cfg
	cfg = cfg.withDefaults()
	s := &Scheduler{
		cfg: cfg, cache: cache,
		blockSize: int32(cache.BlockSize()), groups: int32(cache.Groups()), lookahead: int32(cfg.Lookahead),
		names: map[string]*request{},
	}
	s.waiting, s.skipped = newQueues(s)
	for _, o := range opts {
		o(s)
	}
	if err := (&choices{given, true, s.conn}).validate(); err != nil {
		return nil, err
	}
	s.maxLen = int32(min(cfg.MaxModelLen, s.capacity()))
	if d, ok := s.conn.(connector.Delivery); ok {
		s.dropStale = d.RequiresDelivery()
	}
	if err := s.appends.start(cfg.Append); err != nil {
		return nil, err
	}
	s.tables = make(connector.Tables, s.groups)
	for _, g := range cache.Config().Groups {
		s.windowed = s.windowed || g.Window > 0
	}
	if s.rec != nil {
		s.rec.begin(given, s)
	}
	return s, nil
}

// capacity is the longest sequence, in tokens, that the empty pool holds.
func (s *Scheduler) capacity() int {
	return s.cache.Usable() / s.cache.Groups() * s.cache.BlockSize()
}

// MaxLen is the longest sequence in tokens: Config.MaxModelLen, or what the
// pool holds if that is less.
func (s *Scheduler) MaxLen() int { return int(s.maxLen) }

// Config is the configuration with its defaults filled in.
func (s *Scheduler) Config() Config { return s.cfg }

// Add takes a request in. It is validated whole; an error changes nothing.
//
// An ID that belongs to a live request is ErrDuplicate, unless that request is
// a session (Resumable): then the new request is its continuation if it is
// resumable too, and its end if it is not. A continuation's Prompt is what
// follows the tokens that the session has so far. The handle of a session does
// not change.
func (s *Scheduler) Add(req Request) (RequestID, error) {
	id, err := s.add(req)
	if err == nil && s.rec != nil {
		s.rec.added(id, req)
	}
	return id, err
}

func (s *Scheduler) add(req Request) (RequestID, error) {
	if old := s.names[req.ID]; old != nil {
		if !old.req.Resumable {
			return 0, fmt.Errorf("request %q: %w", req.ID, ErrDuplicate)
		}
		return s.continueSession(old, req)
	}
	if err := s.validate(&req); err != nil {
		return 0, err
	}
	r := s.take()
	s.adds++
	*r = request{tokens: req.Prompt, name: req.ID, req: req, order: s.adds, deadline: Never, lookupBy: Never, draftTokens: r.draftTokens[:0], acks: r.acks, seq: r.seq}
	r.since = s.now
	if req.Arrival > 0 {
		r.since = req.Arrival
	}
	r.acks.clear()
	r.setLimits(s.maxLen)
	s.slots.put(r)
	s.names[req.ID] = r
	r.view = connector.Request{
		ID: r.id, Name: req.ID, Session: req.Session, Params: req.Params, Route: req.Route,
		Namespace: req.Namespace, SkipRead: req.SkipCacheRead,
	}
	s.stats.Added++
	s.dirty = true
	if r.grammar && req.Grammar != GrammarReady {
		r.status = WaitingGrammar
		s.wait(r, s.now.Add(s.cfg.GrammarTimeout))
		s.enqueue(r, inSkipped)
	} else {
		s.enqueue(r, inWaiting)
		s.boundWait(r)
		s.sessionTurn(r)
	}
	if s.conn != nil {
		s.conn.Added(r.known())
	}
	s.check()
	return r.id, nil
}

// setLimits derives what stop rules compare with from the request.
func (r *request) setLimits(maxLen int32) {
	r.prompt = r.total()
	r.last = r.tokens[r.prompt-1]
	r.adapter = r.req.Namespace.LoRA != kvcache.LoRA{}
	r.prefill = r.prompt
	r.limit = int32(min(int64(r.prompt)+int64(r.req.MaxTokens), int64(maxLen)))
	r.minLen = int32(min(int64(r.prompt)+int64(r.req.MinTokens), int64(r.limit)))
	r.firstEOS = -1
	if len(r.req.EOS) > 0 {
		r.firstEOS = r.req.EOS[0]
	}
	rule := r.req.Repetition
	r.stops = len(r.req.StopIDs) > 0 || len(r.req.EOS) > 1 || (rule.MaxSize > 0 && rule.MinCount >= 2)
	r.grammar = r.req.Grammar != NoGrammar
}

// validate checks a new request against the configuration.
func (s *Scheduler) validate(req *Request) error {
	bad := func(field, reason string) error { return &RequestError{ID: req.ID, Field: field, Reason: reason} }
	switch {
	case req.ID == "":
		return bad("ID", "is empty")
	case len(req.Prompt) == 0:
		return bad("Prompt", "is empty")
	case req.MaxTokens < 1:
		return bad("MaxTokens", fmt.Sprintf("is %d, must be at least 1", req.MaxTokens))
	case req.MinTokens < 0 || req.MinTokens > req.MaxTokens:
		return bad("MinTokens", fmt.Sprintf("is %d, must lie in [0, MaxTokens=%d]", req.MinTokens, req.MaxTokens))
	case req.Repetition.MinSize < 0 || req.Repetition.MaxSize < 0 || req.Repetition.MinCount < 0:
		return bad("Repetition", "has a negative number")
	case req.Route > AppendPrefill:
		return bad("Route", "is unknown")
	case req.TurnEnd > EndOfSession:
		return bad("TurnEnd", "is unknown")
	case req.RemoteETA < 0:
		return bad("RemoteETA", fmt.Sprintf("is %v, must not be negative", req.RemoteETA))
	case !(req.CacheHitThreshold >= 0 && req.CacheHitThreshold <= 1):
		return bad("CacheHitThreshold", fmt.Sprintf("is %v, must lie in [0, 1]", req.CacheHitThreshold))
	case req.Grammar > GrammarFailed:
		return bad("Grammar", "is unknown")
	case len(req.Prompt) > s.cfg.MaxModelLen:
		return &TooLongError{ID: req.ID, Prompt: len(req.Prompt), Limit: s.cfg.MaxModelLen}
	case len(req.Prompt) > int(s.maxLen):
		need := (len(req.Prompt) + int(s.blockSize) - 1) / int(s.blockSize) * int(s.groups)
		return &NeverFitsError{ID: req.ID, Need: need, Usable: s.cache.Usable()}
	}
	if i := outOfVocabulary(req.Prompt, s.cfg.VocabSize); i >= 0 {
		return bad("Prompt", fmt.Sprintf("token %d at position %d is outside the vocabulary", req.Prompt[i], i))
	}
	return nil
}

// take is an empty request, from an earlier one if there is one.
func (s *Scheduler) take() *request {
	if n := len(s.recycled); n > 0 {
		r := s.recycled[n-1]
		s.recycled = s.recycled[:n-1]
		return r
	}
	// Together, they lie at equal distances, which the processor foresees.
	block := make([]request, 32)
	for i := len(block) - 1; i > 0; i-- {
		s.recycled = append(s.recycled, &block[i])
	}
	return &block[0]
}

// enqueue puts a request that is nowhere at the end of a queue.
func (s *Scheduler) enqueue(r *request, where place) {
	r.place = where
	s.queueOf(where).push(r)
}

func (s *Scheduler) queueOf(where place) queue {
	if where == inWaiting {
		return s.waiting
	}
	return s.skipped
}

// leave takes a request out of whatever list it is in.
func (s *Scheduler) leave(r *request) {
	switch r.place {
	case inWaiting, inSkipped:
		s.queueOf(r.place).remove(r)
	case inRunning:
		if i := slices.Index(s.running, r); i >= 0 {
			s.running = slices.Delete(s.running, i, i+1)
		}
	}
	r.place = nowhere
}

// Lookup finds a live request by the caller's ID.
func (s *Scheduler) Lookup(id string) (RequestID, bool) {
	if r := s.names[id]; r != nil {
		return r.id, true
	}
	return 0, false
}

// Status of a request; false if the handle is of none that lives.
func (s *Scheduler) Status(id RequestID) (Status, bool) {
	if r := s.slots.get(id); r != nil {
		return r.status, true
	}
	return 0, false
}

// Unfinished is the number of requests that have not ended.
func (s *Scheduler) Unfinished() int { return len(s.names) }

// HasWork reports whether Plan is worth calling now: requests run, or something
// has changed since a plan that had no rows. While it is false and nothing is
// in flight, the next call is due at NextDeadline.
func (s *Scheduler) HasWork() bool {
	return s.dirty || len(s.early) > 0 || s.news.any() || len(s.running) > 0 && s.paused != PauseAll
}

// TakeEvents appends to dst what has happened to the cache and may be told to
// others, and returns dst. An event is held back until the plan that caused it
// is applied: nobody learns of a block before its KV is there, and of a step
// that failed nobody learns at all.
func (s *Scheduler) TakeEvents(dst []kvcache.Event) []kvcache.Event {
	mark := s.events
	if len(s.flight) == 0 {
		mark = s.cache.EventMark()
	}
	return s.cache.TakeEvents(mark, dst)
}

// Free is the number of blocks that are free or evictable.
func (s *Scheduler) Free() int { return s.cache.Available() }
