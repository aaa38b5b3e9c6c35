package engine

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/scheduler"
)

// noise overwrites KV of requests that ask for it, before the first step that
// reads it, and again when a preempted one has got other blocks.
func (r *rank) noise(ctx context.Context, p *scheduler.Plan) error {
	for i, id := range p.Requests {
		s := r.streams[id]
		if s == nil || !s.req.Noise {
			continue
		}
		blocks := r.exec.Blocks(id)
		if p.Kinds[i] != scheduler.RowRunning {
			_, blocks = p.Table(i, 0)
			s.noisy = false
		}
		if s.noisy || p.Computed[i] == 0 {
			continue
		}
		s.noisy = true
		at := (int(p.Computed[i]) + r.cfg.BlockSize - 1) / r.cfg.BlockSize / 2
		if err := r.exec.Noise(ctx, blocks[at], p.Seq); err != nil {
			return fmt.Errorf("rank %d: %w", r.index, err)
		}
	}
	return nil
}
