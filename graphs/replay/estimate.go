package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/graphs"
)

// minGraphBytes is the least that a graph is taken to cost where it was not
// measured.
const minGraphBytes = 1 << 20

// sampledFull is how many FULL graphs an estimate captures.
const sampledFull = 2

// Estimate is the device memory that capturing would take, in bytes.
type Estimate struct {
	Piecewise uint64 // measured, all of them
	Full      uint64 // the largest two measured, the others taken to cost as much as the second
	Graphs    int    // keys
}

// Total is the sum.
func (e Estimate) Total() uint64 { return e.Piecewise + e.Full }

// Estimate measures what the graphs will cost before the KV pool is sized. It
// captures a sample, during which the dispatcher answers only with what exists,
// and destroys it again: FULL graphs name the memory that they were captured
// with. The set is as before, with nothing captured.
func (s *Set) Estimate(ctx context.Context) (est Estimate, err error) {
	if s.sealed || s.captured > 0 {
		return Estimate{}, ErrSealed
	}
	d := s.cfg.Dispatcher
	d.SetCaptureState(graphs.Sampling)
	defer func() {
		err = errors.Join(err, s.drop())
		d.Unmark()
		d.SetCaptureState(graphs.NothingCaptured)
	}()
	full := 0
	var last uint64
	for i, k := range d.Keys() {
		est.Graphs++
		if k.Mode == graphs.Full {
			if full++; full > sampledFull {
				est.Full += max(last, minGraphBytes)
				continue
			}
		}
		if err := s.CaptureKey(ctx, graphs.KeyID(i)); err != nil {
			return Estimate{}, fmt.Errorf("estimate: %w", err)
		}
		if last = s.entries[i].bytes; k.Mode == graphs.Full {
			est.Full += last
		} else {
			est.Piecewise += last
		}
	}
	return est, nil
}
