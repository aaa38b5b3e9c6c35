package points

import (
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/internal/sim/report"
)

// Page is a results file's table with plots.
func Page(lines []Line, table string) report.Page {
	rows := Rows(lines, table)
	p := report.Page{Title: "Measured: " + table, Summary: "No point is measured."}
	if len(rows) == 0 {
		return p
	}
	columns, text := cells(rows, table)
	p.Summary = "Medians of repeats, " + origins(rows) + "."
	p.Table.Columns = append([]string{"setting"}, columns...)
	var settings []string
	for i := range rows {
		if !slices.Contains(settings, rows[i].Setting) {
			settings = append(settings, rows[i].Setting)
			p.Summary += fmt.Sprintf(" Setting %d: %s.", len(settings), rows[i].Setting)
		}
		p.Table.Rows = append(p.Table.Rows, append([]string{fmt.Sprint(slices.Index(settings, rows[i].Setting) + 1)}, text[i]...))
	}
	for k, setting := range settings {
		of := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Setting != setting })
		suffix := ""
		if len(settings) > 1 {
			suffix = fmt.Sprintf(", setting %d", k+1)
		}
		if table == Tails {
			p.Plots = append(p.Plots, tailsPlots(of, suffix)...)
		} else {
			p.Plots = append(p.Plots, armPlots(of, suffix)...)
		}
	}
	return p
}

// tailsPlots compare policies over the rates, for each model and shape.
func tailsPlots(rows []Row, suffix string) []report.Plot {
	var out []report.Plot
	for _, shapeOf := range distinct(rows, func(r *Row) string { return fmt.Sprintf("%s %d/%d", shape(r.Model), r.Input, r.Output) }) {
		of := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool {
			return fmt.Sprintf("%s %d/%d", shape(r.Model), r.Input, r.Output) != shapeOf
		})
		rates := distinct(of, func(r *Row) string { return number(r.Rate) })
		policies := distinct(of, func(r *Row) string { return r.Policy })
		bars := func(title, note, unit string, value func(*Row) float64) report.Plot {
			b := report.Plot{Title: title + ", " + shapeOf + suffix, Note: note, X: "requests a second", Y: unit, Kind: report.Bars, Labels: rates}
			for _, policy := range policies {
				s := report.Series{Name: policy, Values: make([]float64, len(rates))}
				for i, rate := range rates {
					at := slices.IndexFunc(of, func(r Row) bool { return number(r.Rate) == rate && r.Policy == policy })
					if at >= 0 {
						s.Values[i] = value(&of[at])
					}
				}
				b.Series = append(b.Series, s)
			}
			return b
		}
		out = append(out,
			bars("Steps outside of FULL graphs", "A policy without a bar lost none, or was not measured.", "per cent of the Decoder's steps", func(r *Row) float64 { return 100 * r.NonFullShare }),
			bars("Mean time per output token", "Lower is better.", "milliseconds", func(r *Row) float64 { return r.TPOT.Mean }),
			bars("99th percentile between two tokens", "It moves where more than one step in a hundred is lost.", "milliseconds", func(r *Row) float64 { return r.ITL.P99 }),
		)
	}
	return out
}

// armPlots compare arms, for each model and length of prompts.
func armPlots(rows []Row, suffix string) []report.Plot {
	var out []report.Plot
	for _, load := range distinct(rows, func(r *Row) string { return r.load() }) {
		of := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.load() != load })
		name := fmt.Sprintf(", %s, prompts of %d tokens%s", shape(of[0].Model), of[0].Prompt, suffix)
		ttft := report.Plot{Title: "Time to first token" + name, X: "milliseconds from eligibility", Y: "share of requests", Kind: report.Distribution, Note: "Of the first repeat. Higher and further left is better."}
		tpot := report.Plot{Title: "Time per output token" + name, X: "milliseconds", Y: "share of requests", Kind: report.Distribution, Note: "Of the first repeat. A long tail to the right is what mixed steps cost those that decode."}
		total := report.Plot{Title: "Total time" + name, Y: "seconds", Kind: report.Bars, Labels: []string{""}}
		for i := range of {
			r := &of[i]
			ttft.Series = append(ttft.Series, report.Series{Name: r.Arm, Values: r.Lines[0].TTFT.Curve})
			tpot.Series = append(tpot.Series, report.Series{Name: r.Arm, Values: r.Lines[0].TPOT.Curve})
			total.Series = append(total.Series, report.Series{Name: r.Arm, Values: []float64{r.TotalS}})
		}
		out = append(out, ttft, tpot, total)
	}
	return out
}

// distinct are the values of f in the order of their first appearance.
func distinct(rows []Row, f func(*Row) string) []string {
	var out []string
	for i := range rows {
		if v := f(&rows[i]); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
