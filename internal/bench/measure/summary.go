package measure

import (
	"math"
	"slices"
	"time"
)

// Percentile is the p-th percentile (0 to 100) of values with linear
// interpolation between the two nearest ranks; NaN for no values. It does not
// change the slice.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return interpolate(slices.Sorted(slices.Values(values)), p)
}

// interpolate is Percentile of ascending values.
func interpolate(sorted []float64, p float64) float64 {
	at := p / 100 * float64(len(sorted)-1)
	at = min(max(at, 0), float64(len(sorted)-1))
	low := int(at)
	if low == len(sorted)-1 {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Percentiles are n percentiles of values at equal distances, from the least
// value to the greatest; nil for no values, and n is at least 2.
func Percentiles(values []float64, n int) []float64 {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	out := make([]float64, n)
	for i := range out {
		out[i] = interpolate(sorted, 100*float64(i)/float64(n-1))
	}
	return out
}

// Mean is the arithmetic mean; NaN for no values.
func Mean(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// HigherIsBetter is the gain of a figure that should grow: positive when value exceeds base.
func HigherIsBetter(base, value float64) float64 { return (value - base) / base }

// LowerIsBetter is the gain of a figure that should shrink: positive when value is below base.
func LowerIsBetter(base, value float64) float64 { return (base - value) / base }

// Spread holds the percentiles of one figure.
type Spread struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// NewSpread computes the percentiles of values; a spread of nothing is all zero.
func NewSpread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{
		Count: len(values), Mean: Mean(values), Max: slices.Max(values),
		P50: Percentile(values, 50), P95: Percentile(values, 95), P99: Percentile(values, 99),
	}
}

// Summary holds the figures of one run.
type Summary struct {
	Requests     int     `json:"requests"`
	Valid        int     `json:"valid"`
	FollowUps    int     `json:"follow_ups"`
	PromptTokens int     `json:"prompt_tokens"`
	CachedTokens int     `json:"cached_tokens"`
	OutputTokens int     `json:"output_tokens"`
	TotalSeconds float64 `json:"total_s"`

	OutputThroughput  float64 `json:"output_tokens_per_s"`
	RequestThroughput float64 `json:"requests_per_s"`

	TTFT Spread `json:"ttft_s"`  // seconds
	TPOT Spread `json:"tpot_ms"` // milliseconds
	ITL  Spread `json:"itl_ms"`  // milliseconds

	FirstError string `json:"first_error,omitempty"` // of the first request that failed
}

// Summarize computes the figures of a run from the records of all its requests.
func Summarize(records []Record) Summary {
	var s Summary
	var end time.Duration
	var ttft, tpot, itl []float64
	for i := range records {
		r := &records[i]
		s.Requests++
		if r.Error != "" && s.FirstError == "" {
			s.FirstError = r.RequestID + ": " + r.Error
		}
		if r.Valid() {
			s.Valid++
		}
		if r.FollowUp() {
			s.FollowUps++
		}
		s.PromptTokens += r.PromptTokens
		s.CachedTokens += r.CachedTokens
		s.OutputTokens += r.OutputTokens
		end = max(end, r.End)
		if d, ok := r.TTFT(); ok {
			ttft = append(ttft, d.Seconds())
		}
		if d, ok := r.TPOT(); ok {
			tpot = append(tpot, milliseconds(d))
		}
		for _, g := range r.Gaps {
			itl = append(itl, milliseconds(g))
		}
	}
	s.TotalSeconds = end.Seconds()
	if end > 0 {
		s.OutputThroughput = float64(s.OutputTokens) / s.TotalSeconds
		s.RequestThroughput = float64(s.Valid) / s.TotalSeconds
	}
	s.TTFT, s.TPOT, s.ITL = NewSpread(ttft), NewSpread(tpot), NewSpread(itl)
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
