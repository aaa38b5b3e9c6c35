package sim

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/scheduler"
)

// ClusterConfig describes a P/D cluster and its front door.
type ClusterConfig struct {
	Prefillers int
	Decoders   int
	Ranks      int  // data-parallel ranks of each Decoder
	Lockstep   Sync // whether the ranks of a Decoder step together
	Prefill    RankConfig
	Decode     RankConfig
	Route      route.Config
	Guard      route.Guard
	Hop        float64 // seconds between client, proxy and engine, one way
	Transfer   float64 // seconds to move the KV of one token from P to D
	TransferAt float64 // seconds that a transfer takes however short it is
	Attempt    float64 // seconds more that an append attempt is on its way to its Decoder
	Late       float64 // seconds that the first event of an answer comes later than others would
	Share      float64 // of its speed that a step keeps while another instance computes, all being on one device; 0 or 1: nobody slows the others down
	Window     float64 // seconds in which the queue's peak counts; 0: always
	Local      Local
	Reverse    Reverse
	Ends       Ends    // whether clients say that a turn is a session's last
	Sample     float64 // seconds between samples of the queue; 0: none
	Faults     []Fault // ranks must compute what did not arrive

	Gaps    bool            // the result keeps the times between the tokens of answers
	Observe func(ended int) // called with each request that has ended; nil: nobody looks
}

// Sync says whether ranks wait for each other.
type Sync uint8

const (
	Lockstep    Sync = iota // a step ends when the slowest rank's does (expert parallelism)
	Independent             // each rank steps on its own
)

// Local says what a Decoder does with a turn that the front door sends to it
// without a Prefiller.
type Local uint8

const (
	Attempts Local = iota // refuses it without a usable prefix
	Forced                // computes whatever is missing: the front door's prediction stands
)

// Reverse says whether a Prefiller reads back what a Decoder still holds.
type Reverse uint8

const (
	NoReverse   Reverse = iota
	ReversePull         // the session's blocks are read from the Decoder that served its last turn
)

// Ends says whether clients announce the last turn of a session.
type Ends uint8

const (
	EndsUnknown   Ends = iota // sessions just stop
	EndsAnnounced             // the last turn says so
)

// Validate reports what cannot be run, joined.
func (c *ClusterConfig) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int
	}{{"prefillers", c.Prefillers}, {"decoders", c.Decoders}, {"ranks", c.Ranks}, {"prefiller blocks", c.Prefill.Blocks}, {"decoder blocks", c.Decode.Blocks}} {
		if f.v < 1 {
			errs = append(errs, fmt.Errorf("cluster: %s is %d, must be at least 1", f.name, f.v))
		}
	}
	for _, f := range []struct {
		name string
		v    float64
	}{{"hop", c.Hop}, {"transfer per token", c.Transfer}, {"transfer", c.TransferAt}, {"attempt", c.Attempt}, {"first event", c.Late}, {"window", c.Window}, {"sample", c.Sample}, {"save", c.Decode.Save}, {"restore", c.Decode.Restore}} {
		if !(f.v >= 0) {
			errs = append(errs, fmt.Errorf("cluster: %s is %v s, must not be negative", f.name, f.v))
		}
	}
	if c.Share != 0 && !(c.Share >= 0.01 && c.Share <= 1) {
		errs = append(errs, fmt.Errorf("cluster: the share of a device is %v, must be 0.01 to 1, or 0", c.Share))
	}
	for _, slowed := range []float64{c.Prefill.Slowed, c.Decode.Slowed} {
		if !(slowed >= 0 && slowed <= 1000) {
			errs = append(errs, fmt.Errorf("cluster: copies make steps longer by a share of %v, must be 0 to 1000", slowed))
		}
	}
	for _, f := range c.Faults {
		errs = append(errs, f.check(c.Prefillers, c.Decoders))
	}
	if len(c.Faults) > 0 && (c.Prefill.Scheduler.LoadFailure != scheduler.RecomputeLoad || c.Decode.Scheduler.LoadFailure != scheduler.RecomputeLoad) {
		errs = append(errs, errors.New("cluster: a run with faults needs ranks that compute what did not arrive"))
	}
	if c.Prefill.Cost == nil || c.Decode.Cost == nil {
		errs = append(errs, errors.New("cluster: a cost model is missing"))
	}
	return errors.Join(errs...)
}

// stage is where a turn is.
type stage uint8

const (
	atClient  stage = iota
	attempted       // sent to its owner
	prefilling
	decoding
	finished
)

// turn is one request of a client.
type turn struct {
	rec    Record
	stage  stage
	rt     *route.Turn
	prompt []kvcache.Token
	id     scheduler.RequestID
	on     int32 // rank that has it, -1 none
	kv     transfer
	asked  *transfer // what the engine that has it was told of kv
	begun  bool      // some step has a row of it; of prefilling

	failure failure // of its last leg
	rounds  int     // P/D rounds so far
	legs    int     // requests to engines so far

	prefilled Time // when the Prefiller answered
	beside    Time // of Prefillers up to its last token
}

// session is a conversation under way.
type session struct {
	history []kvcache.Token
	lastOn  int32 // Decoder rank of the last turn, -1 none
	key     route.SessionKey
	met     bool // has had a turn since the first fault, or began after it
}

// Cluster runs a workload.
type Cluster struct {
	cfg    ClusterConfig
	load   Workload
	tools  ToolCaller // nil: the workload does not know
	now    Time
	cal    calendar
	ranks  []*rank // Prefillers, then Decoders rank by rank
	groups []*group
	router *route.Router
	byName map[string]int32 // instance to its first rank

	turns   []turn
	free    []int32
	live    map[int32]*session
	scratch []kvcache.Token
	opened  int // sessions whose first turn was scheduled
	pending int // turns not finished yet

	pace    float64 // ns per prompt token at a Prefiller, as measured
	rest    float64 // ns from a Prefiller's answer to the first token, as measured
	waiting int     // prompts at Prefillers that no step has begun
	result  Result
	events  int
	sampled Time
	faulted bool // the first fault has begun
	ends    Time // of the last turn so far
}

// NewCluster builds an idle cluster for one run of a workload.
func NewCluster(cfg ClusterConfig, load Workload) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tools, _ := load.(ToolCaller)
	for _, f := range cfg.Faults {
		if f.Kind == Burst {
			if n := load.Sessions(); n == 0 || load.Start(n-1) <= Seconds(f.At) {
				return nil, fmt.Errorf("fault %v: no session starts after %v s, so it would move none", f, f.At)
			}
			load = warped{load, Seconds(f.At), Seconds(f.For), f.Times}
		}
	}
	c := &Cluster{cfg: cfg, load: load, tools: tools, router: route.New(cfg.Route), byName: map[string]int32{}, live: map[int32]*session{}}
	depth := func(s scheduler.Config) int {
		if s.Scheduling == scheduler.Async {
			return max(s.InFlight, 2)
		}
		return 1
	}
	add := func(rc RankConfig, name string, dp int, g *group) error {
		r, err := newRank(int32(len(c.ranks)), rc)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.group, r.name, r.dp = g, name, dp
		g.ranks = append(g.ranks, r)
		c.ranks = append(c.ranks, r)
		return nil
	}
	newGroup := func(prefix string, instance, d int) *group {
		g := &group{index: int32(len(c.groups)), instance: instance, depth: d, prefix: prefix, wakeAt: -1}
		c.groups = append(c.groups, g)
		return g
	}
	for i := range cfg.Prefillers {
		name := "p" + strconv.Itoa(i)
		c.byName[name] = int32(len(c.ranks))
		if err := add(cfg.Prefill, name, 0, newGroup("p", i, depth(cfg.Prefill.Scheduler))); err != nil {
			return nil, err
		}
		if err := c.router.AddPrefiller(name); err != nil {
			return nil, err
		}
	}
	for i := range cfg.Decoders {
		name := "d" + strconv.Itoa(i)
		c.byName[name] = int32(len(c.ranks))
		var g *group
		for dp := range cfg.Ranks {
			if g == nil || cfg.Lockstep == Independent {
				g = newGroup("d", i, depth(cfg.Decode.Scheduler))
			}
			if err := add(cfg.Decode, name, dp, g); err != nil {
				return nil, err
			}
		}
		if err := c.router.AddDecoder(route.DecoderSpec{Name: name, Ranks: cfg.Ranks, Guard: cfg.Guard}); err != nil {
			return nil, err
		}
	}
	return c, nil
}
