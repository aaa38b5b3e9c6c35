package offload

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// Stats are counters since the start, and gauges.
type Stats struct {
	Saves         uint64 // preempted requests saved
	NoRoom        uint64 // preempted requests that did not fit
	Restores      uint64 // preempted requests brought back
	Turns         uint64 // finished turns of which something was saved
	Hits          uint64 // loads of shared content
	HitTokens     uint64
	Failed        uint64 // saves and loads that failed
	Unknown       uint64 // reports of jobs that are not waited for
	Duplicate     uint64 // reports that came twice from one worker
	Slots, Free   int
	Cached        int // slots of shared content without a user
	Records, Jobs int
	FileBlocks    int

	Saving, Ready, Restoring int // preempted requests by state

	SavesSkipped uint64 // blocks not copied because their content was there
}

// Scheduler is the scheduler's side. It has no goroutine, lock, clock or I/O.
type Scheduler struct {
	cfg     Config
	hasher  *kvcache.Hasher
	pool    *pool
	files   map[Key]struct{}
	chains  map[connector.RequestID]*chain
	records map[connector.RequestID]*record
	jobs    map[uint64]*job
	lastJob uint64
	ops     []connector.Op
	journal journal
	speed   float64 // seconds per token of loads, a moving average; 0: not measured
	stats   Stats
}

var (
	_ connector.Scheduler  = (*Scheduler)(nil)
	_ connector.Recovering = (*Scheduler)(nil)
	_ connector.Tier       = (*Scheduler)(nil)
	_ connector.Resetter   = (*Scheduler)(nil)
)

type recordState uint8

const (
	saving recordState = iota
	ready
	restoring
)

// record is the KV of a preempted request.
type record struct {
	state    recordState
	computed int
	slots    [][]slot // per group, position by position; noSlot where the table has the null block
	over     bool     // nobody wants it: drop it when its job ends
}

type jobKind uint8

const (
	jobSave jobKind = iota // of a preempted request
	jobTurn                // of a finished turn
	jobLoad
)

// job is a piece of work that the workers do. Its slots have a user until it
// ends.
type job struct {
	kind     jobKind
	request  connector.RequestID
	slots    []slot
	publish  []slot // matchable once the copy is complete
	told     []told // the same, where events are recorded
	seen     uint64 // workers that have reported the copy
	filed    uint64 // and the files
	willFile bool   // the workers also write files
	failed   bool
	tokens   int // of a load
}

// item is one block of a job.
type item struct {
	group int
	block kvcache.BlockID
	slot  slot // noSlot: from a file
	key   Key  // of a block that is also filed, or comes from a file
	filed bool // key is set
}

// work is the payload of the ops.
type work struct {
	job   uint64
	kind  jobKind
	items []item
}

// NewScheduler makes the scheduler's side.
func NewScheduler(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	h, err := kvcache.NewHasher(kvcache.SHA256CBOR, "", kvcache.SharedScope)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{
		cfg: cfg, hasher: h, pool: newPool(cfg.Slots, cfg.Policy), files: make(map[Key]struct{}, len(cfg.Files)),
		chains: map[connector.RequestID]*chain{}, records: map[connector.RequestID]*record{}, jobs: map[uint64]*job{},
	}
	if s.journal, err = newJournal(cfg.Events); err != nil {
		return nil, err
	}
	if s.journal.hasher != nil {
		s.pool.gone = func(x *slotUse) { s.journal.recordRemoved(int(x.key.Group), cfg.Groups[x.key.Group], x.name) }
	}
	for _, k := range cfg.Files {
		s.files[k] = struct{}{}
	}
	s.cfg.Files = nil
	return s, nil
}

// Stats returns counters and gauges.
func (s *Scheduler) Stats() Stats {
	out := s.stats
	out.Slots, out.Free, out.Cached = len(s.pool.slots), len(s.pool.free), s.pool.unused
	out.Records, out.Jobs, out.FileBlocks = len(s.records), len(s.jobs), len(s.files)
	for _, r := range s.records {
		switch r.state {
		case saving:
			out.Saving++
		case ready:
			out.Ready++
		case restoring:
			out.Restoring++
		}
	}
	return out
}

// ResetCache forgets all shared content that nobody uses, in files too. It
// reports whether that is all there is: requests that were preempted and copies
// in progress stay.
func (s *Scheduler) ResetCache() bool {
	s.pool.reset()
	clear(s.files)
	return len(s.jobs) == 0 && len(s.records) == 0
}

// Recovering is true while the KV of a preempted request is here.
func (s *Scheduler) Recovering(id connector.RequestID) bool {
	r := s.records[id]
	return r != nil && !r.over
}

// Added needs nothing.
func (s *Scheduler) Added(*connector.Request) {}

// Lookup offers what was saved of a preempted request, or the shared content
// that continues the local hit.
func (s *Scheduler) Lookup(r *connector.Request, local int) connector.Answer {
	if rec := s.records[r.ID]; rec != nil && !rec.over {
		switch rec.state {
		case saving:
			return connector.Answer{Pending: true, Timeout: s.cfg.Save}
		case ready:
			if n := min(rec.computed, len(r.Tokens)) - local; n > 0 {
				return connector.Answer{Tokens: n, Async: true, Timeout: s.cfg.Load}
			}
			s.dropRecord(r.ID, rec) // the local prefix covers it
		case restoring:
			return connector.Answer{}
		}
	}
	n, pending := s.shared(r, local)
	if pending {
		return connector.Answer{Pending: true, Timeout: s.cfg.Save}
	}
	if n == 0 {
		return connector.Answer{}
	}
	return connector.Answer{Tokens: n, Async: true, Timeout: s.cfg.Load}
}

// shared is the number of tokens behind the local ones whose blocks are in the
// tier. pending is true when the next block is being saved right now.
func (s *Scheduler) shared(r *connector.Request, local int) (tokens int, pending bool) {
	if s.cfg.Sharing != Turns || r.SkipRead {
		return 0, false
	}
	first := local / s.cfg.BlockSize
	i := first
	for ; i < len(r.Tokens)/s.cfg.BlockSize; i++ {
		switch s.position(r, i) {
		case absent:
			return (i - first) * s.cfg.BlockSize, false
		case arriving:
			return 0, true
		}
	}
	return (i - first) * s.cfg.BlockSize, false
}

type presence uint8

const (
	absent presence = iota
	arriving
	present
)

// position says whether all groups of a full block are in the tier.
func (s *Scheduler) position(r *connector.Request, i int) presence {
	all := present
	for g := range s.cfg.Groups {
		k := s.key(r, g, i)
		_, isReady, ok := s.pool.find(k)
		_, filed := s.files[k]
		switch {
		case isReady || filed:
		case ok:
			all = arriving
		default:
			return absent
		}
	}
	return all
}

// Restorable says what could be brought back, and how long that took lately.
func (s *Scheduler) Restorable(r *connector.Request, local int) (int, time.Duration) {
	n, _ := s.shared(r, local)
	if rec := s.records[r.ID]; rec != nil && !rec.over && rec.state == ready {
		n = max(n, min(rec.computed, len(r.Tokens))-local)
	}
	return n, time.Duration(float64(n) * s.speed * float64(time.Second))
}

// Allocated stages a load, or gives up what is not wanted.
func (s *Scheduler) Allocated(r *connector.Request, tables connector.Tables, local, external int) {
	rec := s.records[r.ID]
	switch {
	case rec != nil && !rec.over && rec.state == ready && external > 0:
		s.restore(r, rec, tables, local, external)
	case rec != nil && !rec.over && external <= 0:
		s.dropRecord(r.ID, rec)
	case external > 0:
		s.load(r, tables, local, external)
	}
}

// restore stages the way back of a preempted request's blocks.
func (s *Scheduler) restore(r *connector.Request, rec *record, tables connector.Tables, local, external int) {
	rec.state = restoring
	w := s.newWork(jobLoad, r.ID)
	j := s.jobs[w.job]
	blocks := make(connector.Tables, len(tables))
	s.eachLoaded(tables, local, external, func(g, i int, b kvcache.BlockID) {
		from := noSlot
		if g < len(rec.slots) && i < len(rec.slots[g]) {
			from = rec.slots[g][i]
		}
		w.items = append(w.items, item{group: g, block: b, slot: from})
		blocks[g] = append(blocks[g], b)
	})
	for _, list := range rec.slots { // the job uses them all, so that the record's end is the job's
		for _, x := range list {
			if x != noSlot {
				j.slots = append(j.slots, x)
			}
		}
	}
	s.stageLoad(r, w, j, blocks, local, external)
}

// load stages the way back of shared content. What went since the lookup is
// loaded from nowhere, and so reported as failed by the worker.
func (s *Scheduler) load(r *connector.Request, tables connector.Tables, local, external int) {
	w := s.newWork(jobLoad, r.ID)
	j := s.jobs[w.job]
	blocks := make(connector.Tables, len(tables))
	s.eachLoaded(tables, local, external, func(g, i int, b kvcache.BlockID) {
		it := item{group: g, block: b, slot: noSlot}
		if (i+1)*s.cfg.BlockSize <= len(r.Tokens) {
			k := s.key(r, g, i)
			if x, isReady, _ := s.pool.find(k); isReady {
				it.slot = x
			} else if _, ok := s.files[k]; ok {
				it.key, it.filed = k, true
			}
		}
		w.items = append(w.items, it)
		blocks[g] = append(blocks[g], b)
	})
	for i := len(w.items) - 1; i >= 0; i-- { // the start of a prefix is used last, so it is evicted last
		if x := w.items[i].slot; x != noSlot {
			s.pool.hold(x)
			j.slots = append(j.slots, x)
		}
	}
	s.stats.Hits++
	s.stats.HitTokens += uint64(external)
	s.stageLoad(r, w, j, blocks, local, external)
}

func (s *Scheduler) stageLoad(r *connector.Request, w *work, j *job, blocks connector.Tables, local, external int) {
	j.tokens = external
	s.ops = append(s.ops, connector.Op{
		Kind: connector.OpLoad, Request: r.ID, Tokens: connector.Range{From: local, To: local + external}, Blocks: blocks,
		Timeout: s.cfg.Load, Payload: w,
	})
}

// eachLoaded visits the blocks behind the local ones that a load fills.
func (s *Scheduler) eachLoaded(tables connector.Tables, local, external int, visit func(g, i int, b kvcache.BlockID)) {
	from, to := local/s.cfg.BlockSize, ceilDiv(local+external, s.cfg.BlockSize)
	for g, table := range tables {
		for i := from; i < min(to, len(table)); i++ {
			if table[i] != kvcache.NullBlock {
				visit(g, i, table[i])
			}
		}
	}
}

func (s *Scheduler) newWork(k jobKind, id connector.RequestID) *work {
	s.lastJob++
	s.jobs[s.lastJob] = &job{kind: k, request: id}
	return &work{job: s.lastJob, kind: k}
}

// dropRecord gives a record up; its slots go when no job uses them.
func (s *Scheduler) dropRecord(id connector.RequestID, rec *record) {
	if rec.state != ready {
		rec.over = true
		return
	}
	delete(s.records, id)
	for _, list := range rec.slots {
		for _, x := range list {
			if x != noSlot {
				s.pool.drop(x)
			}
		}
	}
}

// Ops hands over what was staged, saves first.
func (s *Scheduler) Ops(step uint64, dst []connector.Op) []connector.Op {
	for _, saves := range []bool{true, false} {
		for i := range s.ops {
			if (s.ops[i].Kind == connector.OpSave) == saves {
				s.ops[i].Step = step
				dst = append(dst, s.ops[i])
			}
		}
	}
	clear(s.ops)
	s.ops = s.ops[:0]
	return dst
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
