package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/scheduler"
)

// Profile is a way of serving follow-up turns.
type Profile string

// The profiles that a study compares.
const (
	ProfilePD        Profile = "pd"        // every turn by the Prefillers
	ProfileReverse   Profile = "reverse"   // the same; a Prefiller reads the session's blocks back from the Decoder
	ProfilePlain     Profile = "plain"     // append attempts, any usable prefix
	ProfileThreshold Profile = "threshold" // local where the front door predicts fewer than 2,048 uncached tokens and less than 0.7 of the prompt
	ProfileGuarded   Profile = "guarded"   // append attempts with all guards
)

// Profiles are all of them, in the order of a report.
var Profiles = []Profile{ProfilePD, ProfileReverse, ProfilePlain, ProfileThreshold, ProfileGuarded}

// The guarded profile with one of its guards off.
const (
	ProfileNoGovernor Profile = "no-governor"
	ProfileNoLeases   Profile = "no-leases"
	ProfileNoOverload Profile = "no-overload"
	ProfileNoWait     Profile = "no-wait"
)

// Ablated are these, in the order of a report.
var Ablated = []Profile{ProfileNoGovernor, ProfileNoLeases, ProfileNoOverload, ProfileNoWait}

// ParseProfile checks a name.
func ParseProfile(s string) (Profile, error) {
	known := slices.Concat(Profiles, Ablated)
	if !slices.Contains(known, Profile(s)) {
		var names []string
		for _, p := range known {
			names = append(names, string(p))
		}
		return "", fmt.Errorf("profile %q is unknown: there are %s", s, strings.Join(names, ", "))
	}
	return Profile(s), nil
}

// StudyConfig is a cluster for recorded or made workloads.
type StudyConfig struct {
	Prefillers, Decoders, Ranks int
	PrefillBlocks, DecodeBlocks int // per rank
	BlockSize                   int // tokens
	MaxSeqs                     int // per rank
	StepTokens                  int // token budget of a Decoder's step; a Prefiller's is four times as large
	MaxModelLen                 int
	Prefill, Decode             Cost
	Transfer                    float64
	Hop                         float64
	Scheduling                  scheduler.Scheduling
	Faults                      []Fault
}

// DefaultStudy is a cluster of accelerators of the size of an H200 that serve a
// mixture of experts with 3 B active parameters: 96 KiB of KV per token, one
// million tokens of KV on a Decoder rank, 25,000 tokens of prefill a second on
// short contexts and 40 GB/s between machines. The figures are assumptions, to
// be replaced by measured ones.
func DefaultStudy() StudyConfig {
	decode := Linear{Base: 0.008, Decode: 5e-5, Prefill: 4e-5, Context: 2.5e-10, DecodeContext: 2.4e-8, Eager: 0.002}
	return StudyConfig{
		Prefillers: 1, Decoders: 1, Ranks: 2, PrefillBlocks: 1 << 14, DecodeBlocks: 1 << 14, BlockSize: 64,
		MaxSeqs: 128, StepTokens: 2048, MaxModelLen: 1 << 20,
		Prefill: Linear{Base: 0.004, Prefill: 4e-5, Context: 2.5e-10}, Decode: decode,
		Transfer: 96 << 10 / 40e9, Hop: 0.0005,
	}
}

// Cluster is the cluster of a profile.
func (s StudyConfig) Cluster(p Profile) ClusterConfig {
	rank := func(blocks, tokens int, cost Cost) RankConfig {
		return RankConfig{
			Blocks: blocks, BlockSize: s.BlockSize, Cost: cost, Caching: kvcache.CachingOn,
			Scheduler: scheduler.Config{
				MaxNumSeqs: s.MaxSeqs, MaxBatchedTokens: tokens, MaxModelLen: s.MaxModelLen, Scheduling: s.Scheduling,
				LoadTimeout: 3600e9, HoldTimeout: 3600e9, LoadFailure: scheduler.RecomputeLoad, Admission: scheduler.WholeSequence,
			},
			Graphs: graphs.Config{Mode: graphs.ModeFullAndPiecewise, MaxNumSeqs: s.MaxSeqs, MaxNumBatchedTokens: tokens},
		}
	}
	cfg := ClusterConfig{
		Prefillers: s.Prefillers, Decoders: s.Decoders, Ranks: s.Ranks, Lockstep: Lockstep,
		Prefill: rank(s.PrefillBlocks, 4*s.StepTokens, s.Prefill), Decode: rank(s.DecodeBlocks, s.StepTokens, s.Decode),
		Hop: s.Hop, TransferAt: 0.002, Transfer: s.Transfer, Sample: 1, Faults: s.Faults,
	}
	switch p {
	case ProfileReverse:
		cfg.Reverse = ReversePull
	case ProfilePlain:
		cfg.Route.Append = true
		cfg.Decode.Scheduler.Append.Enable = true
	case ProfileThreshold:
		cfg.Route.Append = true
		cfg.Local = Forced
		cfg.Guard = route.Guard{MaxSuffixTokens: 2048, RequireResident: true}
	case ProfileGuarded, ProfileNoGovernor, ProfileNoLeases, ProfileNoOverload, ProfileNoWait:
		cfg.Route.Append = true
		cfg = Guard(cfg)
		cfg.Reverse = ReversePull
		// The governor is set to the target of DefaultGoodput. No length is refused
		// as such: what the other route would take is known and decides.
		a := &cfg.Decode.Scheduler.Append
		a.MinPrefixRatio, a.MaxSuffixTokens = 0, 0
		a.Governor = &scheduler.GovernorConfig{TargetRatio: 1 + 0.8*(DefaultGoodput.TPOT-1)}
		switch p {
		case ProfileNoGovernor:
			a.Governor = nil
		case ProfileNoLeases:
			a.Lease = nil
		case ProfileNoOverload:
			a.Overload = scheduler.IgnoreRemote
		case ProfileNoWait:
			a.MaxWait = 0
		}
	}
	return cfg
}

// Goodput is the rule for a good request.
type Goodput struct {
	TTFT    float64 // seconds that a first token may always take
	Free    int     // fresh tokens that the limit above covers
	PerMore float64 // seconds more for each fresh token beyond
	TPOT    float64 // times a decode-only step
}

// DefaultGoodput is fixed before any run: two seconds and a millisecond for
// each fresh token beyond 2,000, and time per output token at most 1.25 times a
// decode-only step.
var DefaultGoodput = Goodput{TTFT: 2, Free: 2000, PerMore: 0.001, TPOT: 1.25}

// Good says whether a request was served well. The decode-only step that its
// time per output token is held against is that of its own batches.
func (g Goodput) Good(r *Record) bool {
	limit := g.TTFT + g.PerMore*float64(max(int(r.Fresh)-g.Free, 0))
	slow := r.Slowdown()
	return !r.Failed && r.TTFT() <= limit && (math.IsNaN(slow) || slow <= g.TPOT)
}

// StudyRow is what a profile gave.
type StudyRow struct {
	Profile      Profile `json:"profile"`
	Requests     int     `json:"requests"`
	TotalS       float64 `json:"total_s"`
	PrefillBusy  float64 `json:"prefiller_busy_share"`
	PrefillMTok  float64 `json:"prefiller_million_tokens"`
	Hits         int     `json:"local"`
	Fallbacks    int     `json:"fallbacks"`
	TTFTp50S     float64 `json:"ttft_p50_s"`
	TTFTp95S     float64 `json:"ttft_p95_s"`
	TPOTp50MS    float64 `json:"tpot_p50_ms"`
	TPOTp95MS    float64 `json:"tpot_p95_ms"`
	GoodShare    float64 `json:"goodput_share"`
	NonFullShare float64 `json:"non_full_share"`
	Slowdown95   float64 `json:"tpot_p95_of_decode_only"`
	// Sweep is the good share under the rules of Goodput.Around, in their order.
	Sweep []float64 `json:"goodput_sweep"`
	// Faults is what the faults of the run did; nil without any.
	Faults *FaultCounts `json:"faults,omitempty"`

	result *Result
}

// Result is the run behind a row.
func (r *StudyRow) Result() *Result { return r.result }

// Study plays a workload through one profile.
func (s StudyConfig) Study(p Profile, load Workload, g Goodput) (*StudyRow, error) {
	c, err := NewCluster(s.Cluster(p), load)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", p, err)
	}
	r, err := c.Run()
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", p, err)
	}
	ttft, tpot := r.Values((*Record).TTFT), r.Values((*Record).TPOT)
	row := &StudyRow{
		Profile: p, Requests: len(r.Records), TotalS: r.Total, PrefillMTok: float64(r.PrefillTokens) / 1e6,
		PrefillBusy: r.Prefill.Seconds / r.Total / float64(s.Prefillers), Hits: r.Hits, Fallbacks: r.Fallbacks,
		TTFTp50S: Percentile(ttft, 50), TTFTp95S: Percentile(ttft, 95),
		TPOTp50MS: 1e3 * Percentile(tpot, 50), TPOTp95MS: 1e3 * Percentile(tpot, 95),
		NonFullShare: r.Decode.NonFullShare(), result: r,
	}
	row.Slowdown95 = Percentile(r.Values((*Record).Slowdown), 95)
	row.GoodShare = g.Share(r)
	if len(s.Faults) > 0 {
		row.Faults = &r.Faults
	}
	for _, w := range g.Around() {
		row.Sweep = append(row.Sweep, w.Share(r))
	}
	return row, nil
}

// Share is the share of a run's requests that are good.
func (g Goodput) Share(r *Result) float64 {
	good := 0
	for i := range r.Records {
		if g.Good(&r.Records[i]) {
			good++
		}
	}
	return float64(good) / float64(len(r.Records))
}

// sweep are the factors of the limit of the time to first token, and the limits
// of the time per output token, that a sweep goes through.
var sweep = struct{ ttft, tpot []float64 }{[]float64{0.5, 1, 2}, []float64{1.1, 1.25, 1.5}}

// Around are the rules of a sweep over both limits, those of the first token in
// the outer loop.
func (g Goodput) Around() []Goodput {
	var out []Goodput
	for _, by := range sweep.ttft {
		for _, tpot := range sweep.tpot {
			out = append(out, Goodput{TTFT: by * g.TTFT, Free: g.Free, PerMore: by * g.PerMore, TPOT: tpot})
		}
	}
	return out
}
