package sim

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serving/sluice/internal/sim/report"
)

// Page is the report as a page with plots.
func (r *Report) Page() report.Page {
	p := report.Page{
		Title: "Simulated: " + r.Preset,
		Summary: fmt.Sprintf("Real scheduler cores, caches and routing decisions on a virtual clock; step times from a cost model. %d blocks of %d tokens on each Decoder rank.",
			r.DecodeBlocks, r.BlockSize),
		Table: report.Table{Columns: []string{"arm", "total s", "TTFT p50 s", "TTFT p95 s", "TPOT p50 ms", "TPOT p95 ms", "hits", "fallbacks", "queue peak", "non-FULL %"}},
	}
	ttft := report.Plot{Title: "Time to first token", X: "seconds from eligibility", Y: "share of requests", Kind: report.Distribution, Note: "Higher and further left is better."}
	tpot := report.Plot{Title: "Time per output token", X: "milliseconds", Y: "share of requests", Kind: report.Distribution, Note: "A long tail to the right is what mixed steps cost those that decode."}
	queue := report.Plot{Title: "Prompts that wait for a Prefiller", X: "seconds", Y: "prompts", Kind: report.Lines, Step: 1, Note: "What append-prefill takes off the Prefiller."}
	hits := report.Plot{Title: "Local hits by turn", X: "turn", Y: "requests", Kind: report.Bars}
	full := report.Plot{Title: "Decoder steps on a FULL graph", Y: "share of steps", Kind: report.Bars, Labels: []string{""}}
	for i := range r.Arms {
		a := &r.Arms[i]
		p.Table.Rows = append(p.Table.Rows, []string{
			a.Name, fixed(a.TotalS, 1), fixed(a.TTFTp50S, 2), fixed(a.TTFTp95S, 2), fixed(a.TPOTp50MS, 1), fixed(a.TPOTp95MS, 1),
			strconv.Itoa(a.Hits), strconv.Itoa(a.Fallbacks), strconv.Itoa(a.QueuePeak), fixed(100*a.NonFullShare, 1),
		})
		if strings.HasSuffix(a.Name, asyncSuffix) || strings.HasPrefix(a.Name, tight) {
			continue // the twins are in the table; in the plots they would hide the others
		}
		ttft.Series = append(ttft.Series, report.Series{Name: a.Name, Values: a.result.Values((*Record).TTFT)})
		tpot.Series = append(tpot.Series, report.Series{Name: a.Name, Values: a.result.Values(func(r *Record) float64 { return 1e3 * r.TPOT() })})
		waiting := make([]float64, len(a.result.Queue))
		for k, n := range a.result.Queue {
			waiting[k] = float64(n)
		}
		queue.Series = append(queue.Series, report.Series{Name: a.Name, Values: waiting})
		by := make([]float64, len(a.HitsByTurn))
		for k, n := range a.HitsByTurn {
			by[k] = float64(n)
		}
		hits.Series = append(hits.Series, report.Series{Name: a.Name, Values: by})
		full.Series = append(full.Series, report.Series{Name: a.Name, Values: []float64{1 - a.NonFullShare}})
		for len(hits.Labels) < len(by) {
			hits.Labels = append(hits.Labels, strconv.Itoa(len(hits.Labels)+1))
		}
	}
	p.Plots = []report.Plot{ttft, tpot, queue, hits, full}
	return p
}

func fixed(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }

// StudyReport is what several profiles gave on one workload.
type StudyReport struct {
	Workload string      `json:"workload"`
	Rows     []*StudyRow `json:"profiles"`
}

// Columns of the table of a study, and the row's values in their order.
var studyColumns = []string{"profile", "requests", "total s", "P busy %", "P Mtokens", "local", "fallbacks", "TTFT p50 s", "TTFT p95 s", "TPOT p50 ms", "TPOT p95 ms", "×decode-only p95", "goodput %"}

func (r *StudyRow) cells() []string {
	return []string{
		string(r.Profile), strconv.Itoa(r.Requests), fixed(r.TotalS, 1), fixed(100*r.PrefillBusy, 1), fixed(r.PrefillMTok, 2), strconv.Itoa(r.Hits), strconv.Itoa(r.Fallbacks),
		fixed(r.TTFTp50S, 2), fixed(r.TTFTp95S, 2), fixed(r.TPOTp50MS, 2), fixed(r.TPOTp95MS, 2), fixed(r.Slowdown95, 3), fixed(100*r.GoodShare, 1),
	}
}

// Table is the study as a table.
func (r *StudyReport) Table() report.Table {
	t := report.Table{Columns: studyColumns}
	for _, row := range r.Rows {
		cells := row.cells()
		if row.Faults != nil {
			t.Columns = slices.Concat(studyColumns, faultColumns)
			cells = append(cells, row.Faults.cells()...)
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// Page is the study as a page with plots.
func (r *StudyReport) Page() report.Page {
	ttft := report.Plot{Title: "Time to first token", X: "seconds from eligibility", Y: "share of requests", Kind: report.Distribution, Note: "Higher and further left is better."}
	tpot := report.Plot{Title: "Time per output token", X: "milliseconds", Y: "share of requests", Kind: report.Distribution}
	slow := report.Plot{Title: "Time per output token over that of decode-only steps", X: "times", Y: "share of requests", Kind: report.Distribution, Note: "1 is a decoder that nothing disturbs."}
	queue := report.Plot{Title: "Prompts that wait for a Prefiller", X: "seconds", Y: "prompts, at most", Kind: report.Lines}
	hits := report.Plot{Title: "Local hits by turn", X: "turn", Y: "share of the turns", Kind: report.Bars}
	full := report.Plot{Title: "Decoder steps on a FULL graph", Y: "share of steps", Kind: report.Bars, Labels: []string{""}}
	longest := 0.0
	for _, row := range r.Rows {
		longest = max(longest, row.TotalS)
	}
	queue.Step = max(math.Ceil(longest/queuePoints), 1)
	for _, row := range r.Rows {
		name := string(row.Profile)
		ttft.Series = append(ttft.Series, report.Series{Name: name, Values: row.result.Values((*Record).TTFT)})
		tpot.Series = append(tpot.Series, report.Series{Name: name, Values: row.result.Values(func(r *Record) float64 { return 1e3 * r.TPOT() })})
		slow.Series = append(slow.Series, report.Series{Name: name, Values: row.result.Values((*Record).Slowdown)})
		queue.Series = append(queue.Series, report.Series{Name: name, Values: peaks(row.result.Queue, int(queue.Step))})
		full.Series = append(full.Series, report.Series{Name: name, Values: []float64{1 - row.NonFullShare}})
		labels, shares := hitsByTurn(row.result)
		hits.Labels = labels
		hits.Series = append(hits.Series, report.Series{Name: name, Values: shares})
	}
	return report.Page{
		Title: "Simulated: " + r.Workload, Summary: "Real scheduler cores, caches and routing decisions on a virtual clock; step times from a cost model.",
		Table: r.Table(), Plots: []report.Plot{ttft, tpot, slow, queue, hits, full},
	}
}

// queuePoints is how many points a plot of the queue has at most.
const queuePoints = 400

// peaks are the largest values of each run of so many.
func peaks(values []int32, run int) []float64 {
	var out []float64
	for part := range slices.Chunk(values, run) {
		out = append(out, float64(slices.Max(part)))
	}
	return out
}

// hitsByTurn is the share of turns that hit: of the second, of the third and
// fourth, and so on in doubling ranges.
func hitsByTurn(r *Result) (labels []string, shares []float64) {
	var counts []PhaseCount
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Turn == 0 || rec.Failed {
			continue
		}
		at := bits.Len32(uint32(rec.Turn)) - 1 // turns count from 0
		for len(counts) <= at {
			counts = append(counts, PhaseCount{})
		}
		counts[at].FollowUps++
		if rec.Route == Hit {
			counts[at].Hits++
		}
	}
	for i, c := range counts {
		first, last := 1<<i+1, 2<<i
		label := strconv.Itoa(first)
		if last > first {
			label += "–" + strconv.Itoa(last)
		}
		labels = append(labels, label)
		shares = append(shares, c.Share())
	}
	return labels, shares
}
