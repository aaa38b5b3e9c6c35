package sim

import (
	"fmt"
	"strconv"

	"github.com/sluice-serving/sluice/internal/sim/report"
	"github.com/sluice-serving/sluice/internal/sim/trace"
)

// LoadsReport is a study at several loads.
type LoadsReport struct {
	Workload string     `json:"workload"`
	Loads    []LoadRows `json:"loads"`
}

// LoadRows are the profiles at one load.
type LoadRows struct {
	Gap  float64     `json:"seconds_between_sessions"`
	Rows []*StudyRow `json:"profiles"`
}

// Loads plays a trace with its sessions closer and closer together: everything
// inside a session keeps the times that were recorded.
func (s StudyConfig) Loads(t *trace.Trace, ids trace.IDs, opt ReplayOptions, gaps []float64, profiles []Profile, g Goodput) (*LoadsReport, error) {
	rep := &LoadsReport{Workload: t.Name}
	for _, gap := range gaps {
		if !(gap > 0) {
			return nil, fmt.Errorf("gap between sessions is %v s, must be positive", gap)
		}
		opt.Gap = gap
		load, err := NewReplay(t, ids, opt)
		if err != nil {
			return nil, err
		}
		rows := LoadRows{Gap: gap}
		for _, p := range profiles {
			row, err := s.Study(p, load, g)
			if err != nil {
				return nil, err
			}
			rows.Rows = append(rows.Rows, row)
		}
		rep.Loads = append(rep.Loads, rows)
	}
	return rep, nil
}

// Page is the report as a page: the figures, and the goodput by both limits.
func (r *LoadsReport) Page() report.Page {
	p := report.Page{
		Title:   "Simulated: " + r.Workload + " at several loads",
		Summary: "Sessions as recorded, starting closer and closer together.",
		Table:   report.Table{Columns: append([]string{"gap s"}, studyColumns...)},
	}
	good := report.Plot{Title: "Goodput", X: "seconds between sessions", Y: "share of requests", Kind: report.Bars}
	for i, l := range r.Loads {
		good.Labels = append(good.Labels, fixed(l.Gap, 0))
		for k, row := range l.Rows {
			p.Table.Rows = append(p.Table.Rows, append([]string{fixed(l.Gap, 0)}, row.cells()...))
			if i == 0 {
				good.Series = append(good.Series, report.Series{Name: string(row.Profile)})
			}
			good.Series[k].Values = append(good.Series[k].Values, row.GoodShare)
		}
	}
	p.Plots = []report.Plot{good}
	return p
}

// Sweep is the goodput of every row by both limits.
func (r *LoadsReport) Sweep() report.Table {
	t := report.Table{Columns: []string{"gap s", "profile"}}
	for _, by := range sweep.ttft {
		for _, tpot := range sweep.tpot {
			t.Columns = append(t.Columns, "TTFT ×"+strconv.FormatFloat(by, 'g', -1, 64)+" TPOT "+strconv.FormatFloat(tpot, 'g', -1, 64))
		}
	}
	for _, l := range r.Loads {
		for _, row := range l.Rows {
			cells := []string{fixed(l.Gap, 0), string(row.Profile)}
			for _, v := range row.Sweep {
				cells = append(cells, fixed(100*v, 1))
			}
			t.Rows = append(t.Rows, cells)
		}
	}
	return t
}
