package sim

import (
	"fmt"
	"strconv"

	"github.com/sluice-serving/sluice/internal/sim/report"
)

// faultsSample is the width of the intervals in which hits are counted over time.
const faultsSample = 20 // seconds

// FaultsReport is what a cluster does with faults, one by one.
type FaultsReport struct {
	Requests int        `json:"requests"`
	Rows     []FaultRow `json:"runs"`
}

// FaultRow is one run.
type FaultRow struct {
	Fault string `json:"fault"`
	ArmReport
	Faults FaultCounts `json:"faults"`
}

// faultsWorkload has sessions of six turns, some 30 of them open at a time.
func faultsWorkload() *Conversations {
	w := PublishedWorkload()
	w.Count, w.Rounds, w.Window = 80, 6, 200
	return w
}

// faultsCluster is the published cluster twice, with room for its sessions and
// those of a burst.
func faultsCluster() ClusterConfig {
	cfg := PublishedCluster(2400)
	cfg.Prefillers, cfg.Decoders, cfg.Window = 2, 2, 0
	return cfg
}

// Faults plays the published conversations, with more turns and on a cluster of
// twice the size, through ordinary P/D and the guarded arm: undisturbed, with a
// Decoder that restarts, with a Prefiller that is lost for good, and with a
// burst of five times the arrivals.
func Faults() (*FaultsReport, error) {
	load := faultsWorkload()
	rep := &FaultsReport{Requests: load.Count * load.Rounds}
	plain := faultsCluster()
	plain.Route.Append = true
	plain.Decode.Scheduler.Append.Enable = true
	for _, faults := range [][]Fault{
		nil,
		{{Kind: DecoderRestart, At: 100.5, For: 15}},
		{{Kind: PrefillerLoss, At: 100.5}},
		{{Kind: Burst, At: 100.5, For: 30, Times: 5}},
	} {
		for _, a := range []Arm{{ArmPD, faultsCluster()}, {ArmGuarded, Guard(plain)}} {
			a.Cluster.Faults = faults
			r, err := runOnce(a.Cluster, load)
			if err != nil {
				return nil, fmt.Errorf("arm %s with %v: %w", a.Name, faults, err)
			}
			row := FaultRow{Fault: "none", ArmReport: Summarise(a.Name, r), Faults: r.Faults}
			if len(faults) > 0 {
				row.Fault = faults[0].String()
			}
			rep.Rows = append(rep.Rows, row)
		}
	}
	return rep, nil
}

// faultColumns and cells are the part of a table that tells of faults.
var faultColumns = []string{"hit % before", "across", "after", "answers cut", "tokens lost", "legs broken", "not connected", "KV lost", "asked again", "given up", "queue before", "from there"}

func (f *FaultCounts) cells() []string {
	out := []string{fixed(100*f.Before.Share(), 1), fixed(100*f.Across.Share(), 1), fixed(100*f.After.Share(), 1)}
	for _, n := range []int{f.Cut, f.LostTokens, f.Broken, f.Unreached, f.LostKV, f.Again, f.GivenUp, f.QueueBefore, f.QueueAfter} {
		out = append(out, strconv.Itoa(n))
	}
	return out
}

// Page is the report as a page.
func (r *FaultsReport) Page() report.Page {
	p := report.Page{
		Title: "Simulated: faults",
		Summary: "Hits are shares of the follow-ups: of those answered before the fault, of those under way when it came and the next turn of each session that was open then, " +
			"and of all later ones. A client whose answer is cut or refused asks again.",
		Table: report.Table{Columns: append([]string{"fault", "arm", "total s", "TTFT p50 s", "TTFT p95 s", "TPOT p95 ms"}, faultColumns...)},
	}
	hits := report.Plot{Title: "Local hits over time", X: "seconds", Y: "share of the follow-ups that end then", Kind: report.Lines, Step: faultsSample}
	queue := report.Plot{Title: "Prompts that wait for a Prefiller", X: "seconds", Y: "prompts", Kind: report.Lines, Step: 1}
	ttft := report.Plot{Title: "Time to first token", X: "seconds from eligibility", Y: "share of requests", Kind: report.Distribution}
	for i := range r.Rows {
		w := &r.Rows[i]
		p.Table.Rows = append(p.Table.Rows, append([]string{w.Fault, w.Name, fixed(w.TotalS, 1), fixed(w.TTFTp50S, 2), fixed(w.TTFTp95S, 2), fixed(w.TPOTp95MS, 1)}, w.Faults.cells()...))
		name := w.Name + ", " + w.Fault
		waiting := make([]float64, len(w.result.Queue))
		for k, n := range w.result.Queue {
			waiting[k] = float64(n)
		}
		queue.Series = append(queue.Series, report.Series{Name: name, Values: waiting})
		ttft.Series = append(ttft.Series, report.Series{Name: name, Values: w.result.Values((*Record).TTFT)})
		if w.Hits > 0 {
			hits.Series = append(hits.Series, report.Series{Name: name, Values: hitsOverTime(w.result)})
		}
	}
	p.Plots = []report.Plot{hits, queue, ttft}
	return p
}

// hitsOverTime is the share of hits among the follow-ups that end in each
// interval; an interval without any has the value of the one before.
func hitsOverTime(r *Result) []float64 {
	counts := make([]PhaseCount, int(r.Total/faultsSample)+1)
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Turn == 0 || rec.Failed {
			continue
		}
		c := &counts[int(float64(rec.Last)/1e9/faultsSample)]
		c.FollowUps++
		if rec.Route == Hit {
			c.Hits++
		}
	}
	out := make([]float64, len(counts))
	for i, c := range counts {
		if c.FollowUps > 0 {
			out[i] = c.Share()
		} else if i > 0 {
			out[i] = out[i-1]
		}
	}
	return out
}
