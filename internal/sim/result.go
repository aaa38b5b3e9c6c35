package sim

import (
	"fmt"
	"math"
	"slices"
)

// Route of a turn, as it was served.
type Route uint8

const (
	PD       Route = iota // ordinary P/D without a local attempt
	Hit                   // append-prefill on the Decoder
	Fallback              // refused there, then P/D
)

func (r Route) String() string {
	switch r {
	case PD:
		return "pd"
	case Hit:
		return "hit"
	case Fallback:
		return "fallback"
	}
	return fmt.Sprintf("Route(%d)", uint8(r))
}

// Record is what happened to one request.
type Record struct {
	Session, Turn int32
	Tries         int32 // times that the client asked
	Failed        bool  // the client gave up: there is no answer
	Phase         Phase // in runs with faults
	Route         Route
	Reason        string // why not local, or why refused
	Eligible      Time
	First, Last   Time // first and last token at the client
	Prompt        int32
	Fresh         int32 // prompt tokens that neither the session's last prompt nor its answer has
	Cached        int32 // prompt tokens found in the cache of the rank that served it
	Out           int32
	Pure          float64 // seconds from first to last token, had the steps between had no prefill
}

// TTFT is the time from eligibility to the first token, in seconds.
func (r *Record) TTFT() float64 { return float64(r.First-r.Eligible) / 1e9 }

// TPOT is the mean time between tokens in seconds, NaN for a single token.
func (r *Record) TPOT() float64 {
	if r.Out < 2 {
		return math.NaN()
	}
	return float64(r.Last-r.First) / 1e9 / float64(r.Out-1)
}

// Slowdown is the time per output token in terms of decode-only steps; NaN for
// a single token.
func (r *Record) Slowdown() float64 {
	if r.Out < 2 || r.Pure <= 0 {
		return math.NaN()
	}
	return float64(r.Last-r.First) / 1e9 / r.Pure
}

// Result is what a run gave.
type Result struct {
	Records       []Record // in the order of their ends
	Total         float64  // seconds to the last token
	Hits          int
	Fallbacks     int
	Skipped       int // follow-ups without a local attempt
	QueuePeak     int
	Queue         []int32 // length of the Prefillers' queues, sample by sample
	PrefillCalls  int
	PrefillTokens int // computed by Prefillers
	OutputTokens  int
	Prefill       GroupStats
	Decode        GroupStats
	Events        int
	LivePeak      int   // sessions open at one time
	Gaps          []Gap // between tokens at the client, in the order of their ends; nil unless they were asked for
	Faults        FaultCounts
}

// Gap is the time between two tokens of an answer, in seconds.
type Gap struct {
	Took   float64
	Beside float64 // that Prefillers computed meanwhile on the same device
}

// ended notes a request that has ended.
func (c *Cluster) ended(rec Record) {
	c.result.add(rec)
	if c.cfg.Observe != nil {
		c.cfg.Observe(len(c.result.Records))
	}
}

func (r *Result) add(rec Record) {
	r.Records = append(r.Records, rec)
	if rec.Failed {
		return
	}
	if rec.Turn > 0 {
		p := r.Faults.phase(rec.Phase)
		p.FollowUps++
		if rec.Route == Hit {
			p.Hits++
		}
	}
	r.Total = max(r.Total, float64(rec.Last)/1e9)
	r.OutputTokens += int(rec.Out)
	switch {
	case rec.Route == Hit:
		r.Hits++
	case rec.Route == Fallback:
		r.Fallbacks++
	case rec.Turn > 0:
		r.Skipped++
	}
}

func (s *GroupStats) merge(o GroupStats) {
	s.Steps += o.Steps
	s.NonFull += o.NonFull
	s.Mixed += o.Mixed
	s.Seconds += o.Seconds
}

// NonFullShare is the share of steps that replayed no FULL graph.
func (s GroupStats) NonFullShare() float64 {
	if s.Steps == 0 {
		return 0
	}
	return float64(s.NonFull) / float64(s.Steps)
}

// Values collects one number of each answered request, without NaN, in ascending order.
func (r *Result) Values(of func(*Record) float64) []float64 {
	out := make([]float64, 0, len(r.Records))
	for i := range r.Records {
		if v := of(&r.Records[i]); !r.Records[i].Failed && !math.IsNaN(v) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

// Percentile of ascending values, by linear interpolation between the two
// nearest ranks; NaN if there are none.
func Percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := p / 100 * float64(len(sorted)-1)
	lo := int(at)
	if lo+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[lo] + (at-float64(lo))*(sorted[lo+1]-sorted[lo])
}
