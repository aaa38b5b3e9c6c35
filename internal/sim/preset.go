package sim

import (
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/scheduler"
)

// The published experiment: Qwen3-30B-A3B on three NPUs, one Prefiller and a
// Decoder of two ranks; 90 sessions of three turns, arrivals over 120 s, 10 s
// of think time, first prompts of 12,254 to 12,288 tokens, 2,408 tokens of
// answers in 270 requests.
const (
	publishedPrompt  = 12271.0 // tokens, mean of the first prompts
	publishedPrefill = 1.085   // seconds for one prompt: the ordinary P/D run's total over its 270 prompts
	publishedDecode  = 0.2095  // seconds for a decode step: that run's median time per output token
	publishedBlock   = 128     // tokens
	publishedChunk   = 0.136   // seconds that a large append chunk adds: the append run's 95th percentile of time per output token over the ordinary one
)

// PublishedWorkload is the experiment's workload.
func PublishedWorkload() *Conversations {
	return &Conversations{
		Count: 90, Rounds: 3, Window: 120, ThinkTime: 10,
		PromptMin: 12254, PromptMax: 12288, AddMin: 40, AddMax: 200,
		OutMin: 8, OutMax: 9, OutMean: 2408.0 / 270, Seed: 19884,
	}
}

// PublishedCluster is the experiment's cluster with so many blocks on each
// Decoder rank.
func PublishedCluster(decodeBlocks int) ClusterConfig {
	graph := func(seqs, tokens int) graphs.Config {
		return graphs.Config{Mode: graphs.ModeFullAndPiecewise, MaxNumSeqs: seqs, MaxNumBatchedTokens: tokens}
	}
	p := scheduler.Config{MaxNumSeqs: 64, MaxBatchedTokens: 12288, MaxModelLen: 32768, LoadTimeout: 600e9, HoldTimeout: 600e9, LoadFailure: scheduler.RecomputeLoad}
	d := scheduler.Config{MaxNumSeqs: 64, MaxBatchedTokens: 2048, MaxModelLen: 32768, LoadTimeout: 600e9, LoadFailure: scheduler.RecomputeLoad}
	return ClusterConfig{
		Prefillers: 1, Decoders: 1, Ranks: 2, Lockstep: Lockstep,
		Prefill: RankConfig{
			Blocks: 8192, BlockSize: publishedBlock, Scheduler: p, Graphs: graph(64, 12288), Caching: kvcache.CachingOff,
			Cost: Linear{Prefill: publishedPrefill / publishedPrompt},
		},
		Decode: RankConfig{
			Blocks: decodeBlocks, BlockSize: publishedBlock, Scheduler: d, Graphs: graph(64, 2048),
			Cost: Linear{Base: publishedDecode, Prefill: publishedChunk / 2048},
		},
		Route: route.Config{}, Hop: 0.001, TransferAt: 0.01, Transfer: 0.05 / publishedPrompt, Window: 120, Sample: 1,
	}
}

// Asynchronous makes every rank plan one step ahead of the one that runs.
func Asynchronous(cfg ClusterConfig) ClusterConfig {
	cfg.Prefill.Scheduler.Scheduling = scheduler.Async
	cfg.Decode.Scheduler.Scheduling = scheduler.Async
	return cfg
}
