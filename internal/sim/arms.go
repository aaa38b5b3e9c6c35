package sim

import (
	"fmt"
	"math"
	"slices"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/scheduler"
)

// Arm is one way of serving a workload.
type Arm struct {
	Name    string
	Cluster ClusterConfig
}

// The arms of the append-prefill preset. Each is also there with the suffix
// "_async".
const (
	ArmPD          = "pd"                // ordinary P/D for every turn
	ArmPDCache     = "pd_p_cache"        // the same, and the Prefiller reuses prefixes
	ArmPlain       = "plain"             // append attempts, any prefix, nothing pinned, no governor
	ArmGuarded     = "guarded"           // with thresholds, governor, leases, overload rule
	ArmGuardedTier = "guarded_host_tier" // and a host tier
	asyncSuffix    = "_async"
)

// publishedHits is the number of local hits in the published experiment's run.
const publishedHits = 113

// hostTokens is the host tier of one Decoder rank in tokens: 64 GiB at 96 KiB.
const hostTokens = 64 << 30 / (96 << 10)

// hostCopy is the time to bring one token's 96 KiB there or back at 20 GB/s.
const hostCopy = 96 << 10 / 20e9

// HostTier is the host tier of these experiments: tokens of a rank, and seconds
// to bring one there and back.
func HostTier() (tokens int, save, restore float64) { return hostTokens, hostCopy, hostCopy }

// AppendPrefillArms are the arms over the published cluster with so many
// blocks on each Decoder rank.
func AppendPrefillArms(decodeBlocks int) []Arm {
	base := PublishedCluster(decodeBlocks)
	cached := base
	cached.Prefill.Caching = kvcache.CachingOn
	plain := base
	plain.Route.Append = true
	plain.Decode.Scheduler.Append.Enable = true
	guarded := Guard(plain)
	tiered := guarded
	tiered.Decode.Host, tiered.Decode.Save, tiered.Decode.Restore = HostTier()
	tiered.Decode.Scheduler.Append.Tier = scheduler.RestoreFromTier
	arms := []Arm{{ArmPD, base}, {ArmPDCache, cached}, {ArmPlain, plain}, {ArmGuarded, guarded}, {ArmGuardedTier, tiered}}
	for _, a := range slices.Clone(arms) {
		arms = append(arms, Arm{a.Name + asyncSuffix, Asynchronous(a.Cluster)})
	}
	return arms
}

// Guard turns a plain append-prefill cluster into a guarded one, whose clients
// also announce the last turn of a session.
func Guard(cfg ClusterConfig) ClusterConfig {
	cfg.Decode.Scheduler.Append = scheduler.Guarded(cfg.Decode.Scheduler.MaxBatchedTokens)
	cfg.Ends = EndsAnnounced
	cfg.Route.Placement = route.PlaceRoom
	return cfg
}

// The pools that Capacity looks at: near nine sessions of a first prompt's
// blocks on a rank.
const (
	sessionBlocks = 97
	fewest        = 8 * sessionBlocks
	most          = 10 * sessionBlocks
	calibration   = 3 // workload seeds
)

// Capacity is the number of blocks of a Decoder rank with which the plain arm
// hits as often as in the published run. Hits rise with the pool, but not
// evenly: a few blocks more may cost some, since what counts is how many
// sessions fit as a whole. Therefore no single run decides: a line is laid
// through the hits of pools of eight to ten sessions and of several seeds of
// the workload, and it is asked where it meets the published number.
func Capacity(load Workload) (blocks int, err error) {
	var n, x, y, xx, xy float64
	for b := fewest; b <= most; b += sessionBlocks / 6 {
		cfg := PublishedCluster(b)
		cfg.Route.Append = true
		cfg.Decode.Scheduler.Append.Enable = true
		cfg.Sample = 0
		for seed := range calibration {
			r, err := runOnce(cfg, reseeded(load, seed))
			if err != nil {
				return 0, err
			}
			n++
			x += float64(b)
			y += float64(r.Hits)
			xx += float64(b) * float64(b)
			xy += float64(b) * float64(r.Hits)
		}
	}
	slope := (n*xy - x*y) / (n*xx - x*x)
	if !(slope > 0) {
		return 0, fmt.Errorf("hits do not rise with the pool between %d and %d blocks", fewest, most)
	}
	at := (publishedHits-y/n)/slope + x/n
	return min(max(int(math.Round(at)), fewest), most), nil
}

// reseeded is the workload with other lengths; a recorded one is what it is.
func reseeded(load Workload, seed int) Workload {
	c, ok := load.(*Conversations)
	if !ok {
		return load
	}
	other := *c
	other.Seed += uint64(seed)
	return &other
}

func runOnce(cfg ClusterConfig, load Workload) (*Result, error) {
	c, err := NewCluster(cfg, load)
	if err != nil {
		return nil, err
	}
	return c.Run()
}

// ArmReport is what an arm gave, in the units of its names.
type ArmReport struct {
	Name         string  `json:"name"`
	TotalS       float64 `json:"total_s"`
	TTFTp50S     float64 `json:"ttft_p50_s"`
	TTFTp95S     float64 `json:"ttft_p95_s"`
	TPOTp50MS    float64 `json:"tpot_p50_ms"`
	TPOTp95MS    float64 `json:"tpot_p95_ms"`
	Hits         int     `json:"hits"`
	Fallbacks    int     `json:"fallbacks"`
	QueuePeak    int     `json:"queue_peak"`
	NonFullShare float64 `json:"non_full_share"`

	Requests        int            `json:"requests"`
	OutputTokens    int            `json:"output_tokens"`
	OutputPerS      float64        `json:"output_tokens_per_s"`
	RequestsPerS    float64        `json:"requests_per_s"`
	PrefillerCalls  int            `json:"prefiller_calls"`
	PrefillerTokens int            `json:"prefiller_tokens"`
	MixedShare      float64        `json:"mixed_step_share"`
	Refusals        map[string]int `json:"refusals,omitempty"`
	HitsByTurn      []int          `json:"hits_by_turn"`

	result *Result
}

// Report is what a preset gave.
type Report struct {
	Preset       string      `json:"preset"`
	DecodeBlocks int         `json:"decode_blocks_per_rank"`
	BlockSize    int         `json:"block_size"`
	Arms         []ArmReport `json:"arms"`
}

// Summarise computes the figures of a result.
func Summarise(name string, r *Result) ArmReport {
	ttft, tpot := r.Values((*Record).TTFT), r.Values((*Record).TPOT)
	a := ArmReport{
		Name: name, TotalS: r.Total,
		TTFTp50S: Percentile(ttft, 50), TTFTp95S: Percentile(ttft, 95),
		TPOTp50MS: 1e3 * Percentile(tpot, 50), TPOTp95MS: 1e3 * Percentile(tpot, 95),
		Hits: r.Hits, Fallbacks: r.Fallbacks, QueuePeak: r.QueuePeak, NonFullShare: r.Decode.NonFullShare(),
		Requests: len(r.Records), OutputTokens: r.OutputTokens, OutputPerS: float64(r.OutputTokens) / r.Total,
		RequestsPerS: float64(len(r.Records)) / r.Total, PrefillerCalls: r.PrefillCalls, PrefillerTokens: r.PrefillTokens,
		result: r,
	}
	if r.Decode.Steps > 0 {
		a.MixedShare = float64(r.Decode.Mixed) / float64(r.Decode.Steps)
	}
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Route == Fallback {
			if a.Refusals == nil {
				a.Refusals = map[string]int{}
			}
			a.Refusals[rec.Reason]++
		}
		for int(rec.Turn) >= len(a.HitsByTurn) {
			a.HitsByTurn = append(a.HitsByTurn, 0)
		}
		if rec.Route == Hit {
			a.HitsByTurn[rec.Turn]++
		}
	}
	return a
}

// Result is the run behind a report's figures.
func (a *ArmReport) Result() *Result { return a.result }

// RunArms plays a workload through each arm.
func RunArms(preset string, blocks int, arms []Arm, load Workload) (*Report, error) {
	rep := &Report{Preset: preset, DecodeBlocks: blocks}
	for _, a := range arms {
		r, err := runOnce(a.Cluster, load)
		if err != nil {
			return nil, fmt.Errorf("arm %s: %w", a.Name, err)
		}
		rep.BlockSize = a.Cluster.Decode.BlockSize
		rep.Arms = append(rep.Arms, Summarise(a.Name, r))
	}
	return rep, nil
}

// AppendPrefill runs the published experiment in all arms, with the Decoder's
// pool at the published number of hits.
func AppendPrefill() (*Report, error) {
	load := PublishedWorkload()
	blocks, err := Capacity(load)
	if err != nil {
		return nil, err
	}
	return RunArms("append-prefill", blocks, AppendPrefillArms(blocks), load)
}

// SharedPrompt is the same with a system prompt of 512 tokens that all
// sessions have in common: every follow-up then finds some prefix.
func SharedPrompt() (*Report, error) {
	blocks, err := Capacity(PublishedWorkload())
	if err != nil {
		return nil, err
	}
	load := PublishedWorkload()
	load.SharedPrompt = 512
	return RunArms("shared-prompt", blocks, AppendPrefillArms(blocks), load)
}

// ablation is the guarded arm with something off.
type ablation struct {
	name string
	set  func(*ClusterConfig, *scheduler.AppendConfig)
}

// tight begins the names of arms whose Decoder has three quarters of the pool.
// There leases cannot keep every session whole: follow-ups find parts of their
// prefix and bring long suffixes, which is what governor and thresholds are for.
const tight = "3/4 pool: "

// Ablations runs the guarded arm, and with each of its guards off in turn.
func Ablations() (*Report, error) {
	load := PublishedWorkload()
	blocks, err := Capacity(load)
	if err != nil {
		return nil, err
	}
	byName := map[string]ClusterConfig{}
	for _, a := range AppendPrefillArms(blocks) {
		byName[a.Name] = a.Cluster
	}
	arms := []Arm{{ArmPD, byName[ArmPD]}, {ArmGuarded, byName[ArmGuarded]}, {ArmGuardedTier, byName[ArmGuardedTier]}}
	pace := []ablation{
		{"no governor", func(_ *ClusterConfig, a *scheduler.AppendConfig) { a.Governor = nil }},
		{"no thresholds", func(_ *ClusterConfig, a *scheduler.AppendConfig) { a.MinPrefixRatio, a.MaxSuffixTokens = 0, 0 }},
		{"no governor, no thresholds", func(_ *ClusterConfig, a *scheduler.AppendConfig) {
			a.Governor, a.MinPrefixRatio, a.MaxSuffixTokens = nil, 0, 0
		}},
	}
	others := []ablation{
		{"no leases", func(_ *ClusterConfig, a *scheduler.AppendConfig) { a.Lease = nil }},
		{"no announced ends", func(c *ClusterConfig, _ *scheduler.AppendConfig) { c.Ends = EndsUnknown }},
		{"no overload rule", func(_ *ClusterConfig, a *scheduler.AppendConfig) { a.Overload = scheduler.IgnoreRemote }},
		{"no bounded wait", func(_ *ClusterConfig, a *scheduler.AppendConfig) { a.MaxWait = 0 }},
	}
	for _, off := range slices.Concat(pace, others) {
		cfg := byName[ArmGuarded]
		off.set(&cfg, &cfg.Decode.Scheduler.Append)
		arms = append(arms, Arm{off.name, cfg})
	}
	for _, off := range append([]ablation{{ArmGuarded, func(*ClusterConfig, *scheduler.AppendConfig) {}}}, pace...) {
		cfg := byName[ArmGuarded]
		cfg.Decode.Blocks = blocks * 3 / 4
		off.set(&cfg, &cfg.Decode.Scheduler.Append)
		arms = append(arms, Arm{tight + off.name, cfg})
	}
	return RunArms("ablations", blocks, arms, load)
}

// Arm finds an arm's report by name.
func (r *Report) Arm(name string) (*ArmReport, bool) {
	for i := range r.Arms {
		if r.Arms[i].Name == name {
			return &r.Arms[i], true
		}
	}
	return nil, false
}
