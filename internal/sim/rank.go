package sim

import (
	"fmt"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// RankConfig describes the ranks of one role.
type RankConfig struct {
	Blocks    int // blocks that requests can have, without the null block
	BlockSize int // tokens
	Scheduler scheduler.Config
	Graphs    graphs.Config // MaxNumSeqs 0: no dispatcher
	Caching   kvcache.Caching
	Leases    float64 // share of the pool that leases may cover; 0: the cache's default
	Cost      Cost
	Host      int     // tokens that the rank's host tier holds; 0: no tier
	Save      float64 // seconds to copy one of them there
	Restore   float64 // seconds to bring one of them back
	Slowed    float64 // share by which a step takes longer while such copies are under way
}

// rank is one scheduler over one cache.
type rank struct {
	index int32
	cache *kvcache.Cache
	sched *scheduler.Scheduler
	link  *link
	cost  Cost
	group *group

	slowed float64 // by copies under way

	name  string // of its instance
	dp    int    // which of the instance's ranks
	steps uint64
	life  uint32 // restarts so far
	down  int    // faults that keep it away

	backlog int64 // prompt tokens that a Prefiller has taken in and not computed

	owners []owner                       // by request slot
	late   map[scheduler.RequestID]int32 // turns of ended requests whose slot is taken

	res scheduler.Result
}

func newRank(index int32, cfg RankConfig) (*rank, error) {
	cache, err := kvcache.New(kvcache.Config{Blocks: cfg.Blocks + 1, BlockSize: cfg.BlockSize, Caching: cfg.Caching, LeaseShare: cfg.Leases})
	if err != nil {
		return nil, err
	}
	r := &rank{index: index, cache: cache, link: &link{}, cost: cfg.Cost, slowed: cfg.Slowed, late: map[scheduler.RequestID]int32{}}
	if cfg.Host > 0 {
		r.link.host = newTier(cfg.Host, cfg.Save, cfg.Restore)
	}
	opts := []scheduler.Option{scheduler.WithConnector(r.link)}
	if cfg.Graphs.MaxNumSeqs > 0 {
		d, err := graphs.New(cfg.Graphs)
		if err != nil {
			return nil, err
		}
		d.SetCaptureState(graphs.AllCaptured)
		opts = append(opts, scheduler.WithGraphs(d))
	}
	r.sched, err = scheduler.New(cfg.Scheduler, cache, opts...)
	return r, err
}

// owner is the turn of a request.
type owner struct {
	id   scheduler.RequestID
	turn int32
}

// bind remembers which turn a request belongs to. The last output of a request
// may come after its slot has been given to another one; its owner is kept
// aside until then.
func (r *rank) bind(id scheduler.RequestID, turn int32) {
	slot := int(id.Slot())
	for len(r.owners) <= slot {
		r.owners = append(r.owners, owner{})
	}
	if o := r.owners[slot]; o.id != 0 {
		r.late[o.id] = o.turn
	}
	r.owners[slot] = owner{id, turn}
}

// unbind forgets a request after its last output.
func (r *rank) unbind(id scheduler.RequestID) {
	if o := &r.owners[id.Slot()]; o.id == id {
		*o = owner{}
		return
	}
	delete(r.late, id)
}

func (r *rank) turn(id scheduler.RequestID) int32 {
	if o := r.owners[id.Slot()]; o.id == id {
		return o.turn
	}
	return r.late[id]
}

// slot is one step of a group: a plan per rank.
type slot struct {
	plans   []*scheduler.Plan
	took    []float64 // seconds that each rank would take alone
	seconds float64
	wall    float64 // seconds that it took, when it has ended
	pure    float64 // seconds without its prefill rows
	tokens  int64
	ready   Time // when the blocks of preempted requests are saved: it begins no sooner
	rows    bool // some rank has rows
	full    bool // every rank with rows replays a FULL graph
	mixed   bool // some rank prefills
}

// group is the ranks that step together.
type group struct {
	index    int32
	life     int32 // restarts so far
	ranks    []*rank
	depth    int // plans that may be made ahead: 1 synchronous, 2 asynchronous
	queue    []slot
	free     []slot
	busy     bool    // queue[0] is running
	pace     pace    // of it
	computed Time    // of all steps that could be slowed down and have ended
	waking   bool    // an eventWake is under way
	wakeAt   Time    // latest deadline asked for
	pure     float64 // Σ of decode-only times of all steps
	prefix   string
	instance int // which Prefiller or Decoder

	last struct { // the last step that had rows
		seconds float64
		tokens  int64
	}
	proposals []scheduler.Proposal
	stats     GroupStats
}

// GroupStats counts the steps of a group that had rows.
type GroupStats struct {
	Steps   int
	NonFull int
	Mixed   int     // steps with prefill tokens
	Seconds float64 // busy time
}

func (g *group) String() string { return fmt.Sprintf("%s%d", g.prefix, g.index) }

// hasWork reports whether a plan is worth making: there is something to do, or a wait has ended.
func (g *group) hasWork(now Time) bool {
	for _, r := range g.ranks {
		if at, ok := r.sched.NextDeadline(); r.sched.HasWork() || ok && at <= now {
			return true
		}
	}
	return false
}

// agree bounds append tokens by what all ranks of the group can bear.
func (g *group) agree() {
	g.proposals = g.proposals[:0]
	for _, r := range g.ranks {
		g.proposals = append(g.proposals, r.sched.Propose())
	}
	a := scheduler.Agree(g.proposals)
	for _, r := range g.ranks {
		r.sched.SetAgreement(a)
	}
}

// plan makes the next step of every rank.
func (g *group) plan(now Time) slot {
	var s slot
	if n := len(g.free); n > 0 {
		s, g.free = g.free[n-1], g.free[:n-1]
		s = slot{plans: s.plans[:0], took: s.took[:0]}
	}
	s.full = true
	g.agree()
	for _, r := range g.ranks {
		p := r.sched.Plan(now)
		s.plans = append(s.plans, p)
		s.took = append(s.took, 0)
		if p.Rows() == 0 {
			continue
		}
		s.rows = true
		s.tokens += int64(p.Total)
		w := WorkOf(p)
		took := r.cost.Step(w, r.steps)
		pure := took
		if w.Prefill > 0 {
			alone := w
			alone.Prefill, alone.Context, alone.Padded = 0, 0, 0
			pure = r.cost.Step(alone, r.steps)
		}
		s.pure = max(s.pure, pure)
		s.took[len(s.took)-1] = took
		s.seconds = max(s.seconds, took)
		r.steps++
		s.mixed = s.mixed || w.Prefill > 0
		s.full = s.full && w.Mode == graphs.Full
	}
	return s
}
