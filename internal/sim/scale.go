package sim

import (
	"strconv"

	"github.com/sluice-serving/sluice/internal/sim/report"
)

// ScaleReport is a run of a large fleet or of very many sessions.
type ScaleReport struct {
	Preset     string  `json:"preset"`
	Prefillers int     `json:"prefillers"`
	Decoders   int     `json:"decoders"`
	Sessions   int     `json:"sessions"`
	LivePeak   int     `json:"live_sessions_peak"`
	Requests   int     `json:"requests"`
	Steps      int     `json:"steps"`
	Events     int     `json:"events"`
	TotalS     float64 `json:"total_s"`
	TTFTp95S   float64 `json:"ttft_p95_s"`
	TPOTp95MS  float64 `json:"tpot_p95_ms"`
	Hits       int     `json:"hits"`
	Fallbacks  int     `json:"fallbacks"`
}

// NewSingles is a workload of requests that have nothing to do with each
// other, all of one size, arriving evenly over window seconds.
func NewSingles(count int, window float64, in, out int) *Conversations {
	return &Conversations{
		Count: count, Rounds: 1, Window: window, PromptMin: in, PromptMax: in, AddMin: 1, AddMax: 1, OutMin: out, OutMax: out, Seed: 1,
	}
}

// ScaleStudy is a fleet of so many instances, half of them Prefillers, that
// serve single requests.
func ScaleStudy(instances int) StudyConfig {
	s := DefaultStudy()
	s.Prefillers, s.Decoders, s.Ranks = instances/2, instances-instances/2, 1
	s.PrefillBlocks, s.DecodeBlocks = 512, 512
	s.MaxModelLen = 16384
	return s
}

// fleetRate is the number of requests a second that 1,000 instances get: 60,000
// in an hour.
const fleetRate = 60_000.0 / 3600

// Fleet plays so many single requests of 2,048 tokens in and 100 out through
// ordinary P/D on so many instances, as dense as 60,000 in an hour on 1,000. It
// tells observe how many have ended.
func Fleet(instances, requests int, observe func(done, all int)) (*ScaleReport, error) {
	rate := fleetRate * float64(instances) / 1000
	return scaleRun("scale", ScaleStudy(instances).Cluster(ProfilePD), NewSingles(requests, float64(requests)/rate, 2048, 100), observe)
}

// Crowd plays so many sessions of two turns, some 600 new ones a second, through
// 16 Prefillers and 16 Decoders that append-prefill. Each is open for half a
// minute: fewer than 20,000 are at a time. It tells observe how many turns have
// ended.
func Crowd(sessions int, observe func(done, all int)) (*ScaleReport, error) {
	s := DefaultStudy()
	s.Prefillers, s.Decoders, s.Ranks = 16, 16, 1
	s.PrefillBlocks, s.DecodeBlocks = 4096, 12288
	s.MaxModelLen = 16384
	load := &Conversations{
		Count: sessions, Rounds: 2, Window: float64(sessions) / 600, ThinkTime: 30, PromptMin: 200, PromptMax: 300, AddMin: 20, AddMax: 60, OutMin: 4, OutMax: 8, Seed: 1,
	}
	return scaleRun("sessions", s.Cluster(ProfileGuarded), load, observe)
}

func scaleRun(name string, cfg ClusterConfig, load *Conversations, observe func(done, all int)) (*ScaleReport, error) {
	all := load.Count * load.Rounds
	cfg.Observe = func(ended int) { observe(ended, all) }
	r, err := runOnce(cfg, load)
	if err != nil {
		return nil, err
	}
	return &ScaleReport{
		Preset: name, Prefillers: cfg.Prefillers, Decoders: cfg.Decoders, Sessions: load.Count, LivePeak: r.LivePeak, Requests: len(r.Records),
		Steps: r.Prefill.Steps + r.Decode.Steps, Events: r.Events, TotalS: r.Total, TTFTp95S: Percentile(r.Values((*Record).TTFT), 95),
		TPOTp95MS: 1e3 * Percentile(r.Values((*Record).TPOT), 95), Hits: r.Hits, Fallbacks: r.Fallbacks,
	}, nil
}

// Page is the report as a page.
func (r *ScaleReport) Page() report.Page {
	return report.Page{
		Title: "Simulated: " + r.Preset, Summary: "Real scheduler cores, caches and routing decisions on a virtual clock; step times from a cost model.",
		Table: report.Table{
			Columns: []string{"preset", "prefillers", "decoders", "sessions", "live at most", "requests", "steps", "simulated s", "TTFT p95 s", "TPOT p95 ms", "hits", "fallbacks"},
			Rows: [][]string{{
				r.Preset, strconv.Itoa(r.Prefillers), strconv.Itoa(r.Decoders), strconv.Itoa(r.Sessions), strconv.Itoa(r.LivePeak), strconv.Itoa(r.Requests), strconv.Itoa(r.Steps),
				fixed(r.TotalS, 1), fixed(r.TTFTp95S, 3), fixed(r.TPOTp95MS, 2), strconv.Itoa(r.Hits), strconv.Itoa(r.Fallbacks),
			}},
		},
	}
}
