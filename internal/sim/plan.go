package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/internal/sim/report"
	"github.com/sluice-serving/sluice/scheduler"
)

// SLO are the targets that a capacity answer keeps: 95th percentiles.
type SLO struct {
	TTFT time.Duration
	TPOT time.Duration
}

// ParseSLO reads "ttft=2s,tpot=30ms".
func ParseSLO(s string) (SLO, error) {
	var slo SLO
	for part := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(part, "=")
		to := map[string]*time.Duration{"ttft": &slo.TTFT, "tpot": &slo.TPOT}[name]
		if !ok || to == nil {
			return slo, fmt.Errorf("slo %q: want ttft=DURATION,tpot=DURATION", s)
		}
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return slo, fmt.Errorf("slo %s is %q, must be a positive duration such as 30ms", name, value)
		}
		*to = d
	}
	if slo.TTFT == 0 || slo.TPOT == 0 {
		return slo, fmt.Errorf("slo %q: both ttft and tpot must be given", s)
	}
	return slo, nil
}

// Limits bound the search for a capacity answer.
type Limits struct {
	Instances int     // Prefillers and Decoders together, at most
	Blocks    int     // of a rank, at most and first
	Least     int     // of a rank, at least
	Host      int     // tokens of a rank's host tier, where one is tried
	Save      float64 // seconds to bring one of them there
	Restore   float64 // and back
}

// PlanPoint is one cluster that was tried.
type PlanPoint struct {
	Prefillers int     `json:"prefillers"`
	Decoders   int     `json:"decoders"`
	Blocks     int     `json:"blocks_per_rank"`
	Host       int     `json:"host_tokens_per_rank"`
	TTFTp95S   float64 `json:"ttft_p95_s"`
	TPOTp95MS  float64 `json:"tpot_p95_ms"`
	Meets      bool    `json:"meets"`
}

// PlanReport is the capacity answer with all that was tried on the way.
type PlanReport struct {
	Workload string      `json:"workload"`
	Best     *PlanPoint  `json:"smallest,omitempty"` // nil if nothing within the limits meets the targets
	Curve    []PlanPoint `json:"curve"`
}

// Plan looks for the smallest cluster that keeps the targets in a profile: the
// fewest instances; of their splits into Prefillers and Decoders the one with
// the shortest time to a first token; then half the pool again and again, and
// at the end half of that once more with a host tier.
func (s StudyConfig) Plan(name string, p Profile, load Workload, slo SLO, lim Limits) (*PlanReport, error) {
	if lim.Instances < 2 || lim.Least < 1 || lim.Blocks < lim.Least {
		return nil, fmt.Errorf("plan: %d instances and %d blocks: needs at least 2 instances and a pool of at least %d blocks", lim.Instances, lim.Blocks, max(lim.Least, 1))
	}
	rep := &PlanReport{Workload: name}
	try := func(pt PlanPoint) (PlanPoint, error) {
		c := s
		c.Prefillers, c.Decoders, c.PrefillBlocks, c.DecodeBlocks = pt.Prefillers, pt.Decoders, lim.Blocks, pt.Blocks
		cfg := c.Cluster(p)
		if pt.Host > 0 {
			cfg.Decode.Host, cfg.Decode.Save, cfg.Decode.Restore = pt.Host, lim.Save, lim.Restore
			cfg.Decode.Scheduler.Append.Tier = scheduler.RestoreFromTier
		}
		r, err := runOnce(cfg, load)
		if err != nil {
			return pt, fmt.Errorf("%d prefillers, %d decoders, %d blocks: %w", pt.Prefillers, pt.Decoders, pt.Blocks, err)
		}
		pt.TTFTp95S = Percentile(r.Values((*Record).TTFT), 95)
		pt.TPOTp95MS = 1e3 * Percentile(r.Values((*Record).TPOT), 95)
		pt.Meets = pt.TTFTp95S <= slo.TTFT.Seconds() && pt.TPOTp95MS <= 1e3*slo.TPOT.Seconds()
		rep.Curve = append(rep.Curve, pt)
		return pt, nil
	}
	for n := 2; n <= lim.Instances && rep.Best == nil; n++ {
		for decoders := 1; decoders < n; decoders++ {
			pt, err := try(PlanPoint{Prefillers: n - decoders, Decoders: decoders, Blocks: lim.Blocks})
			if err != nil {
				return nil, err
			}
			if pt.Meets && (rep.Best == nil || pt.TTFTp95S < rep.Best.TTFTp95S) {
				rep.Best = &pt
			}
		}
	}
	if rep.Best == nil {
		return rep, nil
	}
	for half := rep.Best.Blocks / 2; half >= lim.Least; half /= 2 {
		pt, err := try(PlanPoint{Prefillers: rep.Best.Prefillers, Decoders: rep.Best.Decoders, Blocks: half})
		if err != nil {
			return nil, err
		}
		if !pt.Meets {
			break
		}
		rep.Best = &pt
	}
	if half := rep.Best.Blocks / 2; lim.Host > 0 && half >= lim.Least {
		pt, err := try(PlanPoint{Prefillers: rep.Best.Prefillers, Decoders: rep.Best.Decoders, Blocks: half, Host: lim.Host})
		if err != nil {
			return nil, err
		}
		if pt.Meets {
			rep.Best = &pt
		}
	}
	return rep, nil
}

// Page is the answer as a page.
func (r *PlanReport) Page() report.Page {
	p := report.Page{Title: "Capacity for " + r.Workload, Summary: "Nothing within the limits keeps the targets.",
		Table: report.Table{Columns: []string{"prefillers", "decoders", "blocks", "host tokens", "TTFT p95 s", "TPOT p95 ms", "meets"}}}
	if b := r.Best; b != nil {
		p.Summary = fmt.Sprintf("Smallest that keeps the targets: %d Prefillers, %d Decoders, %d blocks a rank, %d tokens of host tier.", b.Prefillers, b.Decoders, b.Blocks, b.Host)
	}
	ttft := report.Plot{Title: "TTFT p95", X: "Prefillers, Decoders, blocks", Y: "seconds", Kind: report.Bars, Note: "With more instances first, then with half the pool again and again."}
	tpot := report.Plot{Title: "TPOT p95", X: ttft.X, Y: "milliseconds", Kind: report.Bars}
	var first, later []float64
	for _, c := range r.Curve {
		meets := "no"
		if c.Meets {
			meets = "yes"
		}
		p.Table.Rows = append(p.Table.Rows, []string{
			strconv.Itoa(c.Prefillers), strconv.Itoa(c.Decoders), strconv.Itoa(c.Blocks), strconv.Itoa(c.Host), fixed(c.TTFTp95S, 2), fixed(c.TPOTp95MS, 2), meets,
		})
		label := fmt.Sprintf("%dP%dD %d", c.Prefillers, c.Decoders, c.Blocks)
		if c.Host > 0 {
			label += " host"
		}
		ttft.Labels = append(ttft.Labels, label)
		first = append(first, c.TTFTp95S)
		later = append(later, c.TPOTp95MS)
	}
	tpot.Labels = ttft.Labels
	ttft.Series = []report.Series{{Name: ttft.Title, Values: first}}
	tpot.Series = []report.Series{{Name: tpot.Title, Values: later}}
	p.Plots = []report.Plot{ttft, tpot}
	return p
}
