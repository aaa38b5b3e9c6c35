package sim

import (
	"fmt"
	"strconv"

	"github.com/sluice-serving/sluice/internal/sim/report"
)

// Targets of the guarded arm of the published experiment.
const (
	targetHits  = 155
	targetTotal = 155.0 // seconds
	targetTTFT  = 6.5   // seconds, 95th percentile
	targetTPOT  = 1.05  // 95th percentile over that of ordinary P/D
)

// Spread is how a figure varies over the seeds of a workload.
type Spread struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
	n    int
}

func (s *Spread) add(v float64) {
	if s.n == 0 {
		s.Min, s.Max = v, v
	}
	s.n++
	s.Mean += (v - s.Mean) / float64(s.n)
	s.Min, s.Max = min(s.Min, v), max(s.Max, v)
}

func (s *Spread) cell(digits int) string {
	return fmt.Sprintf("%s (%s–%s)", fixed(s.Mean, digits), fixed(s.Min, digits), fixed(s.Max, digits))
}

// PoolRow is the published experiment at one size of the Decoder's pool.
type PoolRow struct {
	Blocks    int     `json:"decode_blocks_per_rank"`
	Sessions  float64 `json:"sessions_per_rank"` // that fit
	PlainHits Spread  `json:"plain_hits"`
	Hits      Spread  `json:"hits"`
	TotalS    Spread  `json:"total_s"`
	TTFTp95S  Spread  `json:"ttft_p95_s"`
	TPOTRatio Spread  `json:"tpot_p95_over_pd"`
	Seeds     int     `json:"seeds"`
	Met       int     `json:"seeds_that_meet_all_targets"`
}

// PoolReport shows how much of a result hangs on the size of the pool and on
// the seed of the workload.
type PoolReport struct {
	Rows []PoolRow `json:"pools"`
}

// Pools plays the arms pd, plain and guarded at pools from one size to another
// and with so many seeds of the workload. It tells observe how many runs are done.
func Pools(from, to, step, seeds int, observe func(done, all int)) (*PoolReport, error) {
	rep := &PoolReport{}
	done, all := 0, ((to-from)/step+1)*seeds*3
	for b := from; b <= to; b += step {
		row := PoolRow{Blocks: b, Sessions: float64(b) / sessionBlocks, Seeds: seeds}
		base := PublishedCluster(b)
		base.Sample = 0
		plain := base
		plain.Route.Append = true
		plain.Decode.Scheduler.Append.Enable = true
		for seed := range seeds {
			var got [3]ArmReport
			for i, a := range []Arm{{ArmPD, base}, {ArmPlain, plain}, {ArmGuarded, Guard(plain)}} {
				r, err := runOnce(a.Cluster, reseeded(PublishedWorkload(), seed))
				if err != nil {
					return nil, fmt.Errorf("%d blocks, seed %d, arm %s: %w", b, seed, a.Name, err)
				}
				got[i] = Summarise(a.Name, r)
				done++
				observe(done, all)
			}
			g, ratio := &got[2], got[2].TPOTp95MS/got[0].TPOTp95MS
			row.PlainHits.add(float64(got[1].Hits))
			row.Hits.add(float64(g.Hits))
			row.TotalS.add(g.TotalS)
			row.TTFTp95S.add(g.TTFTp95S)
			row.TPOTRatio.add(ratio)
			if g.Hits >= targetHits && g.TotalS <= targetTotal && g.TTFTp95S <= targetTTFT && ratio <= targetTPOT {
				row.Met++
			}
		}
		rep.Rows = append(rep.Rows, row)
	}
	return rep, nil
}

// Page is the report as a page.
func (r *PoolReport) Page() report.Page {
	p := report.Page{
		Title:   "Simulated: the guarded arm by the size of the Decoder's pool",
		Summary: "Mean, least and largest over the seeds of the workload.",
		Table: report.Table{Columns: []string{
			"blocks", "sessions", "plain hits", "guarded hits", "total s", "TTFT p95 s", "TPOT p95 ÷ pd", "all targets met",
		}},
	}
	hits := report.Plot{Title: "Local hits of 180", X: "pool", Y: "requests", Kind: report.Bars}
	plain, guarded := report.Series{Name: ArmPlain}, report.Series{Name: ArmGuarded}
	for i := range r.Rows {
		w := &r.Rows[i]
		p.Table.Rows = append(p.Table.Rows, []string{
			strconv.Itoa(w.Blocks), fixed(w.Sessions, 2), w.PlainHits.cell(0), w.Hits.cell(0), w.TotalS.cell(1), w.TTFTp95S.cell(2), w.TPOTRatio.cell(3),
			fmt.Sprintf("%d of %d", w.Met, w.Seeds),
		})
		hits.Labels = append(hits.Labels, strconv.Itoa(w.Blocks))
		plain.Values = append(plain.Values, w.PlainHits.Mean)
		guarded.Values = append(guarded.Values, w.Hits.Mean)
	}
	hits.Series = []report.Series{plain, guarded}
	p.Plots = []report.Plot{hits}
	return p
}
