package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

// captured is the graph of one key. A FULL key has one segment, the whole
// forward pass; a PIECEWISE key has one between each two attention calls, which
// run eagerly because their work depends on the rows.
type captured struct {
	segments []ascendrt.Graph
	attn     []ascendrt.OpRef // attention of a FULL graph, where lengths are updated at replay
}

func (g captured) close() {
	for _, s := range g.segments {
		_ = s.Close() // of a closed device: nothing is left to release
	}
}

// capture records a graph for every key of the dispatcher. A key that the
// device cannot take runs eagerly from then on.
func (e *Executor) capture(ctx context.Context) error {
	keys := e.dispatch.Keys()
	if len(keys) == 0 || !e.dev.Caps().Graphs {
		return nil
	}
	e.graphs = make([]captured, len(keys))
	complete := true
	for i, k := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		g, err := e.captureKey(k)
		switch {
		case err == nil:
			e.graphs[i] = g
			e.dispatch.MarkCaptured(graphs.KeyID(i))
		case errors.Is(err, ascendrt.ErrCapture), errors.Is(err, ascendrt.ErrResourceLimit), errors.Is(err, ascendrt.ErrOutOfMemory):
			complete = false
		default:
			return fmt.Errorf("capture %s: %w", k, err)
		}
	}
	if complete {
		e.dispatch.SetCaptureState(graphs.AllCaptured)
	} else {
		e.dispatch.SetCaptureState(graphs.Sampling)
	}
	return nil
}

func (e *Executor) captureKey(k graphs.Key) (g captured, err error) {
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	segment := func(record func(pass)) {
		if err != nil {
			return
		}
		var c ascendrt.Commands
		record(pass{e: e, c: &c, t: int(k.Tokens), r: int(k.Reqs)})
		var s ascendrt.Graph
		if s, err = e.dev.Capture(e.stream, &c, ascendrt.CaptureOptions{Updatable: g.attn, Workspace: e.act.workspace}); err == nil {
			g.segments = append(g.segments, s)
		}
	}
	if k.Mode == graphs.Full {
		segment(func(p pass) { g.attn = p.whole() })
		return g, err
	}
	last := len(e.w.layers) - 1
	segment(func(p pass) {
		p.begin()
		p.project(0)
	})
	for l := range last {
		segment(func(p pass) {
			p.finish(l)
			p.project(l + 1)
		})
	}
	segment(func(p pass) { p.finish(last) })
	return g, err
}

// run appends the forward pass over t tokens and r rows in the chosen mode.
func (e *Executor) run(dec graphs.Decision, t, r int) error {
	p := pass{e: e, c: &e.cmd, t: t, r: r}
	if dec.Mode == graphs.None {
		p.whole()
		return nil
	}
	if int(dec.KeyID) >= len(e.graphs) || dec.KeyID < 0 || len(e.graphs[dec.KeyID].segments) == 0 {
		return fmt.Errorf("executor: the plan replays %s, which is not captured", dec.Key)
	}
	g := &e.graphs[dec.KeyID]
	if dec.Mode == graphs.Full {
		if e.hostLengths != nil {
			if err := e.updateLengths(g, r); err != nil {
				return err
			}
		}
		e.cmd.Graph(g.segments[0])
		return nil
	}
	for l := range e.w.layers {
		e.cmd.Graph(g.segments[l])
		p.attend(l)
	}
	e.cmd.Graph(g.segments[len(e.w.layers)])
	p.sample()
	return nil
}

// updateLengths gives this launch's lengths to the attention of every layer.
func (e *Executor) updateLengths(g *captured, r int) error {
	slots := make([]ascendrt.Slot, len(g.attn))
	for i, ref := range g.attn {
		slots[i] = ascendrt.Slot{Op: ref, I64: e.hostLengths[:r]}
	}
	if err := g.segments[0].Update(slots); err != nil {
		return fmt.Errorf("update lengths: %w", err)
	}
	return nil
}
