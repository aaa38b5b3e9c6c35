package engine

import (
	"time"

	"github.com/sluice-serving/sluice/graphs"
)

// graphTableEvery is the time between two tables of graph use.
const graphTableEvery = 10 * time.Second

// graphTable collects how steps ran, where the configuration asks for it.
type graphTable struct {
	interval graphs.Interval
	since    time.Time
}

// countGraph collects an executed step and logs the table when it is time.
func (r *rank) countGraph(dec graphs.Decision, now time.Time) {
	if !r.cfg.GraphMetrics {
		return
	}
	if r.graphs.since.IsZero() {
		r.graphs.since = now
	}
	r.graphs.interval.Observe(dec)
	if now.Sub(r.graphs.since) >= graphTableEvery {
		r.logGraphs()
		r.graphs.since = now
	}
}

// logGraphs logs how the steps since the last table ran; nothing if there were none.
func (r *rank) logGraphs() {
	d := r.exec.Dispatcher()
	if table := r.graphs.interval.Table(d.Config().Mode, d.Ladder()); table != "" {
		r.log.Info("graph use\n" + table)
	}
}
