package demo

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-serving/sluice/internal/bench/join"
	"github.com/sluice-serving/sluice/internal/bench/measure"
)

const none = "–"

// better says which direction of a figure is a gain.
type better uint8

const (
	neither better = iota
	higher
	lower
)

// row is one line of the table.
type row struct {
	name   string
	better better
	value  func(a *Arm) float64           // NaN: the arm has none
	text   func(a *Arm, v float64) string // nil: four significant digits
}

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return none
	case v != 0 && math.Abs(v) < 10:
		return fmt.Sprintf("%.3f", v)
	case math.Abs(v) < 1000:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func whole(_ *Arm, v float64) string { return fmt.Sprintf("%.0f", v) }

func (r *runner) rows() []row {
	followUps := r.report.Workload.FollowUps
	ofFollowUps := func(a *Arm, v float64) string {
		if a.Hits+a.Fallbacks == 0 {
			return "N/A"
		}
		return fmt.Sprintf("%.0f / %d", v, followUps)
	}
	rows := []row{
		{"Protocol-valid / answer-correct requests", neither, func(a *Arm) float64 { return float64(a.Correct) }, func(a *Arm, v float64) string { return fmt.Sprintf("%d / %.0f", a.Summary.Valid, v) }},
		{"Local append hits / follow-ups", neither, func(a *Arm) float64 { return float64(a.Hits) }, ofFollowUps},
		{"Safe P/D fallbacks / follow-ups", neither, func(a *Arm) float64 { return float64(a.Fallbacks) }, ofFollowUps},
		{"Output throughput, tokens/s", higher, func(a *Arm) float64 { return a.Summary.OutputThroughput }, nil},
		{"Request throughput, requests/s", higher, func(a *Arm) float64 { return a.Summary.RequestThroughput }, nil},
		{"Total completion time, s", lower, func(a *Arm) float64 { return a.Summary.TotalSeconds }, nil},
		{"TTFT p50, s", lower, func(a *Arm) float64 { return a.Summary.TTFT.P50 }, nil},
		{"TTFT p95, s", lower, func(a *Arm) float64 { return a.Summary.TTFT.P95 }, nil},
		{"TPOT p50, ms", lower, func(a *Arm) float64 { return a.Summary.TPOT.P50 }, nil},
		{"TPOT p95, ms", lower, func(a *Arm) float64 { return a.Summary.TPOT.P95 }, nil},
		{"Prefiller queue peak in the arrival window", lower, func(a *Arm) float64 { return a.QueuePeak }, whole},
		{"Fallback cost p50, ms", neither, func(a *Arm) float64 {
			if a.FallbackCost.Count == 0 {
				return math.NaN()
			}
			return a.FallbackCost.P50
		}, nil},
		{"Prompt tokens computed by the Prefiller", lower, func(a *Arm) float64 { return a.PrefillTokens }, whole},
		{"KV blocks pulled from the Prefiller", lower, func(a *Arm) float64 { return float64(a.KVBlocks) }, whole},
		{"Cached share of the hits' prompts", neither, func(a *Arm) float64 {
			if a.HitPromptTokens == 0 {
				return math.NaN()
			}
			return float64(a.HitTokens) / float64(a.HitPromptTokens)
		}, percent},
		{"FULL-graph share of the Decoder's steps", higher, func(a *Arm) float64 {
			if a.Steps == 0 {
				return math.NaN()
			}
			return a.FullShare
		}, percent},
		{"Mean FULL step, ms", lower, func(a *Arm) float64 { return a.FullStepMs }, nil},
		{"Mean step without a FULL graph, ms", neither, func(a *Arm) float64 {
			if a.OtherStepMs == 0 {
				return math.NaN()
			}
			return a.OtherStepMs
		}, nil},
		{"Decoder steps", neither, func(a *Arm) float64 { return a.Steps }, whole},
	}
	for _, reason := range r.reasons() {
		rows = append(rows, row{"  not FULL: " + reason, neither, func(a *Arm) float64 { return float64(a.NonFull[reason]) }, whole})
	}
	return rows
}

func percent(_ *Arm, v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

// reasons are those of any arm's steps without a FULL graph, in order.
func (r *runner) reasons() []string {
	all := make(map[string]bool)
	for i := range r.report.Arms {
		for reason := range r.report.Arms[i].NonFull {
			all[reason] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// cells are the table's cells, header first.
func (r *runner) cells() [][]string {
	header := []string{"Metric", r.report.Arms[baseline].Title, r.report.Arms[feature].Title, "Gain (+) / loss (-)"}
	for i := feature + 1; i < len(r.report.Arms); i++ {
		header = append(header, r.report.Arms[i].Title)
	}
	out := [][]string{header}
	for _, row := range r.rows() {
		cells := make([]string, 0, len(header))
		cells = append(cells, row.name)
		for i := range r.report.Arms {
			a := &r.report.Arms[i]
			v := row.value(a)
			text := number(v)
			if row.text != nil && !math.IsNaN(v) {
				text = row.text(a, v)
			}
			cells = append(cells, text)
			if i == feature {
				cells = append(cells, gain(row.better, row.value(&r.report.Arms[baseline]), v))
			}
		}
		out = append(out, cells)
	}
	return out
}

func gain(b better, base, v float64) string {
	var g float64
	switch b {
	case higher:
		g = measure.HigherIsBetter(base, v)
	case lower:
		g = measure.LowerIsBetter(base, v)
	default:
		return ""
	}
	if math.IsNaN(g) || math.IsInf(g, 0) {
		return none
	}
	return fmt.Sprintf("%+.2f %%", 100*g)
}

// table prints the comparison and the checks.
func (r *runner) table() {
	cells := r.cells()
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	b.WriteByte('\n')
	for i, line := range cells {
		for j, c := range line {
			pad := strings.Repeat(" ", widths[j]-utf8.RuneCountInString(c))
			if j == 0 {
				b.WriteString("| " + c + pad + " |")
			} else {
				b.WriteString(" " + pad + c + " |")
			}
		}
		b.WriteByte('\n')
		if i == 0 {
			for j, w := range widths {
				if j == 0 {
					b.WriteString("|" + strings.Repeat("-", w+2) + "|")
				} else {
					b.WriteString(strings.Repeat("-", w+1) + ":|")
				}
			}
			b.WriteByte('\n')
		}
	}
	w := r.report.Workload
	fmt.Fprintf(&b, "\n%d sessions, %d requests, %d follow-ups, arrivals over %.1f s, workload sha256 %.12s\n", w.Sessions, w.Requests, w.FollowUps, w.Window*w.TimeScale, w.Hash)
	for _, e := range r.report.Engines {
		fmt.Fprintf(&b, "%-5s %s, model %s\n", e.Name, &e, e.Model)
	}
	b.WriteByte('\n')
	for _, c := range r.report.Checks {
		state := "ok  "
		if !c.OK {
			state = "FAIL"
		}
		fmt.Fprintf(&b, "%s %s: %s\n", state, c.Name, c.Detail)
	}
	fmt.Fprintf(&b, "%.1f s in all\n", r.report.Seconds)
	fmt.Fprint(r.out, b.String())
}

// writeFiles keeps the workload, the joined rows and the report.
func (r *runner) writeFiles() error {
	var rows []join.Row
	for i := range r.report.Arms {
		rows = append(rows, r.report.Arms[i].rows...)
	}
	for name, write := range map[string]func(io.Writer) error{
		"workload.json": r.w.Write,
		"report.json":   r.report.WriteJSON,
		"join.jsonl":    func(dst io.Writer) error { return join.Write(dst, rows) },
	} {
		if err := writeFile(filepath.Join(r.p.Dir, name), write); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(r.out, "report.json, join.jsonl, workload.json, traces and logs: %s\n", r.p.Dir)
	return err
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Close()
}
