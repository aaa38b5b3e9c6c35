package points

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/sluice-serving/sluice/internal/bench/measure"
)

// complete reports whether nearly all answers of a point are valid; one that
// is not is measured again.
func (l *Line) complete() bool { return l.Requests > 0 && 100*l.Valid >= 99*l.Requests }

// Row is the repeats of one case in one setting, by their medians.
type Row struct {
	Setting string
	Line           // of the first repeat; its figures are medians
	Lines   []Line // the repeats
	Least   Figures
	Most    Figures
}

// Rows gathers the lines of a table by setting and case, in the order of their
// first appearance in the file.
func Rows(lines []Line, table string) []Row {
	var rows []Row
	at := map[string]int{}
	for i := range lines {
		l := &lines[i]
		if l.Table != table {
			continue
		}
		key := l.setting() + "\x00" + l.Case()
		k, ok := at[key]
		if !ok {
			k = len(rows)
			at[key] = k
			rows = append(rows, Row{Setting: l.setting(), Line: *l})
		}
		rows[k].Lines = append(rows[k].Lines, *l)
	}
	for i := range rows {
		rows[i].medians()
	}
	return rows
}

// measures are the numbers of a line of which a median is taken.
func (f *Figures) measures() []*float64 {
	return []*float64{
		&f.WallS, &f.TotalS, &f.OutputPS, &f.NonFullShare, &f.FullMs, &f.OtherMs, &f.KVBytes, &f.PrefillTokens, &f.HeldAfter,
		&f.TPOT.Mean, &f.TPOT.P50, &f.TPOT.P95, &f.TPOT.P99, &f.ITL.Mean, &f.ITL.P50, &f.ITL.P95, &f.ITL.P99, &f.ITL.Max,
		&f.TTFT.Mean, &f.TTFT.P50, &f.TTFT.P95, &f.TTFT.P99, &f.QueuePeak, &f.PromptMs, &f.Factor, &f.Restored,
		&f.Client.SentP50Ms, &f.Client.SentP99Ms, &f.Client.SentMaxMs, &f.Client.TimerP99Ms, &f.Client.TimerMaxMs, &f.Client.Processor, &f.Client.EventsPS,
	}
}

// counts are the whole numbers of a line of which a median is taken.
func (f *Figures) counts() []*int {
	return []*int{&f.Full, &f.Piecewise, &f.None, &f.Preempted, &f.Hits, &f.Fallbacks, &f.Tokens, &f.Events}
}

func (r *Row) medians() {
	all := func(n int, of func(*Figures) float64) []float64 {
		values := make([]float64, n)
		for i := range r.Lines {
			values[i] = of(&r.Lines[i].Figures)
		}
		return values
	}
	n := len(r.Lines)
	r.Figures, r.Least, r.Most = r.Lines[0].Figures, r.Lines[0].Figures, r.Lines[0].Figures
	for k, p := range r.Figures.measures() {
		values := all(n, func(f *Figures) float64 { return *f.measures()[k] })
		*p, *r.Least.measures()[k], *r.Most.measures()[k] = measure.Percentile(values, 50), slices.Min(values), slices.Max(values)
	}
	for k, p := range r.Figures.counts() {
		values := all(n, func(f *Figures) float64 { return float64(*f.counts()[k]) })
		*p, *r.Least.counts()[k], *r.Most.counts()[k] = int(math.Round(measure.Percentile(values, 50))), int(slices.Min(values)), int(slices.Max(values))
	}
	for i := range r.Lines {
		r.Valid, r.Requests = r.Valid+r.Lines[i].Valid, r.Requests+r.Lines[i].Requests
	}
	r.Valid, r.Requests = r.Valid-r.Lines[0].Valid, r.Requests-r.Lines[0].Requests
}

// Expected is the share of steps outside of FULL graphs that an unsaturated
// Decoder has when every arrival costs one.
func (r *Row) Expected() float64 { return 1 - math.Exp(-r.Rate*r.TPOT.Mean/1e3) }

func fixed(x float64, digits int) string { return strconv.FormatFloat(x, 'f', digits, 64) }

// over writes a median with the least and the greatest of several repeats.
func (r *Row) over(digits int, of func(*Figures) float64) string {
	if len(r.Lines) == 1 {
		return fixed(of(&r.Figures), digits)
	}
	return fmt.Sprintf("%s (%s–%s)", fixed(of(&r.Figures), digits), fixed(of(&r.Least), digits), fixed(of(&r.Most), digits))
}

func shape(model string) string { return strings.TrimPrefix(model, "random:") }

// Columns of the tables, and below each what a row has there.
var tailsColumns = []string{
	"model", "in/out", "req/s", "policy", "repeats", "valid", "FULL", "PIECEWISE", "eager", "non-FULL %", "expected %", "preempted",
	"TPOT ms", "TPOT p99 ms", "ITL p99 ms", "TTFT p50 ms", "FULL step ms", "other ms", "tokens/event", "sent p99 ms", "timer p99 ms", "client cores",
}

// perEvent is how many tokens an event of the answers carried.
func (r *Row) perEvent() float64 { return float64(r.Tokens) / float64(max(r.Events, 1)) }

// preempted is the preemptions; where some repeat did not record them they are unknown.
func (r *Row) preempted() string {
	if r.Least.Preempted == notRecorded {
		return "-"
	}
	return r.over(0, func(f *Figures) float64 { return float64(f.Preempted) })
}

func (r *Row) tailsCells() []string {
	expected := "-"
	switch {
	case r.Piecewise+r.None == 0:
	case r.Saturated():
		expected = "(" + fixed(100*r.Expected(), 2) + ")"
	default:
		expected = fixed(100*r.Expected(), 2)
	}
	return []string{
		shape(r.Model), fmt.Sprintf("%d/%d", r.Input, r.Output), number(r.Rate), r.Policy, strconv.Itoa(len(r.Lines)), fmt.Sprintf("%d/%d", r.Valid, r.Requests),
		strconv.Itoa(r.Full), strconv.Itoa(r.Piecewise), strconv.Itoa(r.None), r.over(2, func(f *Figures) float64 { return 100 * f.NonFullShare }), expected, r.preempted(),
		r.over(3, func(f *Figures) float64 { return f.TPOT.Mean }), fixed(r.TPOT.P99, 3), r.over(3, func(f *Figures) float64 { return f.ITL.P99 }),
		r.over(2, func(f *Figures) float64 { return f.TTFT.P50 }), fixed(r.FullMs, 3), fixed(r.OtherMs, 3),
		fixed(r.perEvent(), 2), fixed(r.Client.SentP99Ms, 2), fixed(r.Client.TimerP99Ms, 2), fixed(r.Client.Processor, 2),
	}
}

var appendColumns = []string{
	"model", "prompt", "output", "arm", "repeats", "valid", "total s", "req/s", "tokens/s", "TTFT p50 ms", "TTFT p95 ms", "TPOT p50 ms", "TPOT p95 ms",
	"hits", "fallbacks", "preempted", "P queue peak", "non-FULL %", "FULL step ms", "other ms", "P tokens", "as pd", "contradictions", "prompt ms", "times ÷", "sent p99 ms", "client cores",
}

// same is how many answers of the row's repeats are those of the ordinary arm,
// of how many that can be compared.
func (r *Row) same(rows []Row) (same, of int) {
	for i := range rows {
		base := &rows[i]
		if base.Setting != r.Setting || base.Arm != ArmPD || base.load() != r.load() {
			continue
		}
		for k := range r.Lines {
			same += SameAnswers(&r.Lines[k], &base.Lines[0])
			of += len(r.Lines[k].Answers)
		}
	}
	return same, of
}

func (r *Row) appendCells(rows []Row) []string {
	as := "-"
	if same, of := r.same(rows); of > 0 {
		as = fmt.Sprintf("%d/%d", same, of)
	}
	contradictions := 0
	for i := range r.Lines {
		contradictions += r.Lines[i].Contradicts
	}
	return []string{
		shape(r.Model), strconv.Itoa(r.Prompt), strconv.Itoa(r.Output), r.Arm, strconv.Itoa(len(r.Lines)), fmt.Sprintf("%d/%d", r.Valid, r.Requests),
		r.over(3, func(f *Figures) float64 { return f.TotalS }), fixed(float64(r.Lines[0].Valid)/r.TotalS, 2), fixed(r.OutputPS, 1),
		fixed(r.TTFT.P50, 1), r.over(1, func(f *Figures) float64 { return f.TTFT.P95 }),
		fixed(r.TPOT.P50, 3), r.over(3, func(f *Figures) float64 { return f.TPOT.P95 }), r.over(0, func(f *Figures) float64 { return float64(f.Hits) }), strconv.Itoa(r.Fallbacks), r.preempted(), fixed(r.QueuePeak, 0), fixed(100*r.NonFullShare, 1),
		fixed(r.FullMs, 3), fixed(r.OtherMs, 3), fixed(r.PrefillTokens, 0), as, strconv.Itoa(contradictions), fixed(r.PromptMs, 2), fixed(r.Factor, 2),
		fixed(r.Client.SentP99Ms, 2), fixed(r.Client.Processor, 2),
	}
}

// cells is a table of rows as text, without its head.
func cells(rows []Row, table string) (columns []string, out [][]string) {
	for i := range rows {
		if table == Tails {
			out = append(out, rows[i].tailsCells())
		} else {
			out = append(out, rows[i].appendCells(rows))
		}
	}
	if table == Tails {
		return tailsColumns, out
	}
	return appendColumns, out
}

// Form is how a table is written.
type Form uint8

// The forms.
const (
	Text     Form = iota // columns side by side
	Markdown             // for a document
)

// write writes a table.
func (f Form) write(out io.Writer, columns []string, rows [][]string) error {
	if f == Markdown {
		fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		for _, row := range rows {
			fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([][]string{columns}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
	}
	return w.Flush()
}

// Print writes the table of a results file's lines: for each setting the
// medians over repeats, then what they are held to.
func Print(out io.Writer, lines []Line, table string, form Form) error {
	rows := Rows(lines, table)
	if len(rows) == 0 {
		_, err := fmt.Fprintf(out, "no point of %s is measured\n", table)
		return err
	}
	var settings []string
	for i := range rows {
		if !slices.Contains(settings, rows[i].Setting) {
			settings = append(settings, rows[i].Setting)
		}
	}
	for _, setting := range settings {
		of := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Setting != setting })
		fmt.Fprintf(out, "\n%s, medians of repeats, on %s; %s\n\n", table, setting, origins(of))
		columns, text := cells(of, table)
		if err := form.write(out, columns, text); err != nil {
			return err
		}
		fmt.Fprintln(out)
		for _, c := range Checks(of, table) {
			if form == Markdown {
				fmt.Fprint(out, "- ")
			}
			fmt.Fprintln(out, c)
		}
	}
	return nil
}

// origins says when and by which commits rows were measured.
func origins(rows []Row) string {
	var commits []string
	first, last := rows[0].Date, rows[0].Date
	for i := range rows {
		for k := range rows[i].Lines {
			l := &rows[i].Lines[k]
			if c := l.Commit; !slices.Contains(commits, c) {
				commits = append(commits, c)
			}
			if l.Date.Before(first) {
				first = l.Date
			}
			if l.Date.After(last) {
				last = l.Date
			}
		}
	}
	return fmt.Sprintf("%s to %s, commit %s", first.Format("2006-01-02 15:04"), last.Format("15:04"), strings.Join(commits, ", "))
}

// brief is one line about a point that was measured.
func (l *Line) brief() string {
	s := fmt.Sprintf("%s: %d/%d valid, %.1f s, FULL %d, other %d (%.2f %%), %d preempted, TPOT %.3f ms, ITL p99 %.3f ms, TTFT p50 %.1f ms, p95 %.1f ms",
		l.Key(), l.Valid, l.Requests, l.WallS, l.Full, l.Piecewise+l.None, 100*l.NonFullShare, l.Preempted, l.TPOT.Mean, l.ITL.P99, l.TTFT.P50, l.TTFT.P95)
	if l.Table == AppendPrefill {
		s += fmt.Sprintf(", TPOT p95 %.3f ms, total %.2f s, %d hits, %d fallbacks, queue peak %.0f, %d contradictions", l.TPOT.P95, l.TotalS, l.Hits, l.Fallbacks, l.QueuePeak, l.Contradicts)
	}
	if l.Way != "" {
		s += ", KV moved by way of " + l.Way
	}
	return s + fmt.Sprintf("; client: %.0f events/s, sent p99 %.2f ms late, timer p99 %.2f ms late, %.2f cores", l.Client.EventsPS, l.Client.SentP99Ms, l.Client.TimerP99Ms, l.Client.Processor)
}
