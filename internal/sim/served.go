package sim

import (
	"fmt"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/scheduler"
)

// ArmNoGovernor is the guarded arm without the governor, and so without the
// comparison with the other route, which asks it.
const ArmNoGovernor = "no_governor"

// Served is an append-prefill experiment on devices whose steps were measured:
// one Prefiller and one Decoder of one rank, asynchronous.
type Served struct {
	Load  Conversations
	Steps *Steps

	BlockSize                      int
	PrefillerTokens, DecoderTokens int     // of KV
	PrefillerStep, DecoderStep     int     // tokens of a step
	Seqs                           int     // requests that run at once on the Decoder
	HostTokens                     int     // of the host tier
	Save, Restore                  float64 // seconds to bring one of them there, and back
	Slowed                         float64 // share by which a step of the Decoder takes longer meanwhile
	Share                          float64 // of its speed that a step keeps while the other engine computes on the same device; 0: each has its own
	Quiet                          int     // the governor's, of arms with one
	Policy                         graphs.Policy
	Hop                            float64 // seconds between client, proxy and engine, one way
	TransferAt, Transfer           float64 // seconds of a transfer between engines, and more for each token
	More                           float64 // seconds that a step of the Decoder takes more where it serves
	Attempt                        float64 // seconds more that an append attempt is on its way
	Late                           float64 // seconds that the first event of an answer comes late
	Ends                           Ends    // of the guarded arms
}

// serving is the cost of an engine whose steps take more than those of its executor alone.
type serving struct {
	*Steps
	more float64
}

func (c serving) Step(w Work, step uint64) float64 {
	if took := c.Steps.Step(w, step); took > 0 {
		return took + c.more
	}
	return 0
}

// cluster is the engines of an arm.
func (s *Served) cluster(arm string) (ClusterConfig, error) {
	length := s.Load.PromptMax + s.Load.Rounds*(s.Load.AddMax+s.Load.OutMax)
	rank := func(tokens, step, seqs int, caching kvcache.Caching) RankConfig {
		return RankConfig{
			Blocks: tokens / s.BlockSize, BlockSize: s.BlockSize, Caching: caching, Cost: s.Steps,
			Scheduler: scheduler.Config{
				MaxNumSeqs: seqs, MaxBatchedTokens: step, MaxModelLen: length, Scheduling: scheduler.Async,
				LoadTimeout: 600e9, HoldTimeout: 600e9, LoadFailure: scheduler.RecomputeLoad,
			},
			Graphs: graphs.Config{Mode: graphs.ModeFullAndPiecewise, MaxNumSeqs: seqs, MaxNumBatchedTokens: step},
		}
	}
	window := s.Load.Window
	cfg := ClusterConfig{
		Prefillers: 1, Decoders: 1, Ranks: 1,
		Prefill: rank(s.PrefillerTokens, s.PrefillerStep, 64, kvcache.CachingOff), Decode: rank(s.DecoderTokens, s.DecoderStep, s.Seqs, kvcache.CachingOn),
		Route: route.Config{}, Hop: s.Hop, TransferAt: s.TransferAt, Transfer: s.Transfer, Attempt: s.Attempt, Late: s.Late, Share: s.Share,
		Window: window, Sample: max(window, 1) / 120, Gaps: true,
	}
	cfg.Prefill.Graphs.Mode = graphs.ModeNone
	cfg.Decode.Cost = serving{s.Steps, s.More}
	cfg.Decode.Graphs.Policy, cfg.Decode.Graphs.KV = s.Policy, graphs.KVTransfer{Role: graphs.RoleConsumer, Connector: "NixlConnector"}
	if arm == ArmPD {
		return cfg, nil
	}
	cfg.Route.Append = true
	cfg.Decode.Scheduler.Append.Enable = true
	if arm == ArmPlain {
		return cfg, nil
	}
	cfg = Guard(cfg)
	cfg.Ends = s.Ends
	a := &cfg.Decode.Scheduler.Append
	a.Governor.Quiet = s.Quiet
	switch arm {
	case ArmGuarded:
	case ArmGuardedTier:
		cfg.Decode.Host, cfg.Decode.Save, cfg.Decode.Restore, cfg.Decode.Slowed = s.HostTokens, s.Save, s.Restore, s.Slowed
		a.Tier = scheduler.RestoreFromTier
	case ArmNoGovernor:
		a.Governor, a.Overload = nil, scheduler.IgnoreRemote
	default:
		return cfg, fmt.Errorf("arm %q is unknown", arm)
	}
	return cfg, nil
}

// Arm plays the workload through one arm.
func (s *Served) Arm(name string) (*ArmReport, error) {
	if err := s.Load.Validate(); err != nil {
		return nil, err
	}
	cfg, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	r, err := runOnce(cfg, &s.Load)
	if err != nil {
		return nil, fmt.Errorf("arm %s: %w", name, err)
	}
	out := Summarise(name, r)
	return &out, nil
}
