package tails

import (
	"fmt"
	"strings"

	"github.com/sluice-serving/sluice/graphs"
)

// Point is the mean over several seeds of one rate under one policy.
type Point struct {
	Rate      float64       `json:"rate"`
	Policy    graphs.Policy `json:"-"`
	Name      string        `json:"policy"`
	K         int           `json:"k"`
	Padded    bool          `json:"padded"`
	Left      int           `json:"prompt_tokens_left"`
	Hold      int32         `json:"held_back_steps"`
	Full      float64       `json:"full_steps"`
	NonFull   float64       `json:"non_full_steps"`
	Admitting float64       `json:"admitting_steps"`
	Share     float64       `json:"non_full_share"`
	Predicted float64       `json:"predicted_share"` // under a policy that loses a step per arrival
	TPOT      float64       `json:"mean_tpot_s"`
	P99ITL    float64       `json:"p99_itl_s"`
	TTFT      float64       `json:"median_ttft_s"` // from arrival at the decoder
}

// Rates are the arrivals per second of the published table.
func Rates() []float64 { return []float64{4, 8, 16, 32} }

// Mean runs one configuration with seeds 0 to seeds-1. set changes the
// published parameters.
func Mean(rate float64, seeds int, set func(*Config)) (Point, error) {
	var p Point
	for seed := range uint64(seeds) {
		c := Published(rate, seed)
		if set != nil {
			set(&c)
		}
		r, err := Run(c)
		if err != nil {
			return Point{}, err
		}
		n := float64(seeds)
		p.Left, p.Hold = max(c.Left, 1), c.Hold
		p.TTFT += r.TTFT / n
		full := r.Counts.Modes[graphs.Full]
		p.Rate, p.Policy, p.Name, p.K, p.Padded = rate, c.Graphs.Policy, c.Graphs.Policy.String(), c.Graphs.K, c.Padding == PadTails && c.Graphs.K > 0
		p.Full += float64(full) / n
		p.NonFull += float64(r.Counts.Steps()-full) / n
		p.Admitting += float64(r.Admissions) / n
		p.TPOT += r.MeanTPOT / n
		p.P99ITL += r.P99ITL / n
	}
	p.Share = p.NonFull / (p.Full + p.NonFull)
	p.Predicted = Predicted(rate, p.TPOT)
	return p, nil
}

// Table runs every rate under every policy without speculation, and under the
// default policy the speculative widths with and without padding, and prompts
// of which two tokens are not imported, computed at once and held back.
func Table(seeds int) ([]Point, error) {
	var out []Point
	add := func(rate float64, set func(*Config)) error {
		p, err := Mean(rate, seeds, set)
		out = append(out, p)
		return err
	}
	for _, rate := range Rates() {
		for _, policy := range graphs.Policies() {
			if err := add(rate, func(c *Config) { c.Graphs.Policy = policy }); err != nil {
				return nil, err
			}
		}
	}
	for _, k := range []int{1, 3, 7} {
		for _, pad := range []Padding{LeaveTails, PadTails} {
			if err := add(16, func(c *Config) { c.Graphs.K, c.Padding = k, pad }); err != nil {
				return nil, err
			}
		}
	}
	for _, hold := range []int32{0, 2} {
		if err := add(16, func(c *Config) { c.Left, c.Hold = 2, hold }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Text formats points as a table.
func Text(points []Point) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%6s  %-22s  %1s  %-8s  %10s  %9s  %9s  %10s  %9s  %8s  %8s\n",
		"req/s", "policy", "K", "tails", "FULL steps", "non-FULL", "share", "mean TPOT", "p99 ITL", "TTFT", "expected")
	for _, p := range points {
		tails, expected := "plain", "-"
		if p.K > 0 {
			tails = "left"
		}
		switch {
		case p.Padded:
			tails = "padded"
		case p.Left > 1 && p.Hold > 1:
			tails = "2, held"
		case p.Left > 1:
			tails = "2 tokens"
		}
		if p.NonFull > 0 {
			expected = fmt.Sprintf("%.2f %%", 100*p.Predicted)
		}
		fmt.Fprintf(&s, "%6.0f  %-22s  %d  %-8s  %10.0f  %9.0f  %7.2f %%  %7.2f ms  %6.2f ms  %5.2f ms  %8s\n",
			p.Rate, p.Name, p.K, tails, p.Full, p.NonFull, 100*p.Share, 1e3*p.TPOT, 1e3*p.P99ITL, 1e3*p.TTFT, expected)
	}
	return s.String()
}
