package executor

import (
	"context"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Logits reads what the newest submitted step computed for one of its rows, one
// value per token id, and waits for that step. It is for tests and comparisons:
// a step of its own overwrites them.
func (e *Executor) Logits(ctx context.Context, row int) ([]float32, error) {
	t := e.act.logits
	if row < 0 || row >= t.Rows() {
		return nil, &PlanError{Row: row, Reason: "no step has this row"}
	}
	n := t.RowLen()
	raw := make([]byte, n*t.Type.Size())
	if err := ascendrt.Download(ctx, e.dev, e.stream, raw, t.View.Slice(row*len(raw), len(raw))); err != nil {
		return nil, err
	}
	return widen(make([]float32, 0, n), raw, t.Type), nil
}
