//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

type graphState struct {
	graph   graphPtr
	exec    execPtr
	count   int
	streams int

	base.Graph // guards what follows
	targets    map[ascendrt.OpRef]*target
	allocs     []*memory.Alloc // pinned by the capture
}

// target is an updatable command.
type target struct {
	node   nodePtr // nil: the command did nothing
	op     *opState
	ws     ascendrt.View
	args   []ascendrt.Tensor
	record []uint64        // the launch as it is
	allocs []*memory.Alloc // pinned by updates
}

type graph struct {
	d       *device
	state   *graphState
	ref     ascendrt.Ref
	cleanup runtime.Cleanup
}

var _ ascendrt.Graph = (*graph)(nil)

func (d *device) Capture(st ascendrt.Stream, c *ascendrt.Commands, o ascendrt.CaptureOptions) (ascendrt.Graph, error) {
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	s, err := base.CheckCapture[*stream, *eventState](&d.Core, st, c)
	if err != nil {
		return nil, err
	}
	t := &translator{}
	t.reset(d, s, base.Capturing)
	t.updatable, t.nodes = o.Updatable, make([]int, len(o.Updatable))
	if _, err := t.translate(c); err != nil {
		return nil, err
	}
	g := &graphState{streams: len(t.streams.All), targets: map[ascendrt.OpRef]*target{}, allocs: t.Allocs}
	if err := g.findTargets(d, c, o.Updatable); err != nil {
		return nil, err
	}
	if err := d.Take(base.Graphs); err != nil {
		return nil, err
	}
	if err := d.captureInto(g, s, t, o); err != nil {
		d.Give(base.Graphs)
		return nil, err
	}
	memory.Hold(g.allocs)
	h := &graph{d: d, state: g}
	h.ref = d.Refs.Add(g)
	h.cleanup = runtime.AddCleanup(h, d.Leaks.Report, handles.Dropped{What: "graph"})
	return h, nil
}

// findTargets keeps what an update needs to translate a command again.
func (g *graphState) findTargets(d *device, c *ascendrt.Commands, refs []ascendrt.OpRef) error {
	for r := range ascendrt.Records(c.Words()) {
		ref := ascendrt.OpRef(r.Index)
		if !slices.Contains(refs, ref) {
			continue
		}
		x := &target{}
		switch r.Kind {
		case ascendrt.KindOp:
			var err error
			if x.op, err = base.Handle[*opState](&d.Core, r.A[0], "operation"); err != nil {
				return err
			}
			x.ws, x.args = base.Workspace(r), base.Tensors(nil, r)
		case ascendrt.KindLaunch:
		default:
			return invalid("capture", "updatable command "+strconv.Itoa(r.Index)+" is no operation", ascendrt.ErrInvalid)
		}
		g.targets[ref] = x
	}
	for _, ref := range refs {
		if g.targets[ref] == nil {
			return invalid("capture", "updatable command "+strconv.Itoa(int(ref))+" is not in the buffer", ascendrt.ErrInvalid)
		}
	}
	return nil
}

// captureInto makes the driver's graph under the locks of all streams in it.
func (d *device) captureInto(g *graphState, s *stream, t *translator, o ascendrt.CaptureOptions) (err error) {
	if err := t.streams.Lock(&d.Core, "capture"); err != nil {
		return err
	}
	defer t.streams.Unlock()
	nodes := make([]nodePtr, len(o.Updatable))
	if g.graph, g.exec, g.count, err = d.captureGraph(s.raw, t.Words, o.Upload == ascendrt.UploadNow, nodes); err != nil {
		var e *ascendrt.Error
		if errors.As(err, &e) && e.Class == ascendrt.ErrInvalid {
			e.Class = ascendrt.ErrCapture // the shape runs eagerly from now on
		}
		return err
	}
	for i, ref := range o.Updatable {
		if at := t.nodes[i]; at > 0 {
			x := g.targets[ref]
			x.node = nodes[i]
			n := recWords + int(t.Words[at-1]>>32)
			x.record = slices.Clone(t.Words[at-1 : at-1+n])
		}
	}
	return nil
}

func (g *graph) Ref() ascendrt.Ref { return g.ref }

func (g *graph) Info() ascendrt.GraphInfo {
	return ascendrt.GraphInfo{Nodes: g.state.count, Streams: g.state.streams}
}

// Update translates each changed command again and sets the parameters of its
// node. The driver applies them to later launches only.
func (g *graph) Update(u []ascendrt.Slot) error {
	d, s := g.d, g.state
	if err := d.Enter(); err != nil {
		return err
	}
	defer d.Leave()
	s.Lock()
	defer s.Unlock()
	if !s.Open() {
		return invalid("graph update", "the graph was closed before", ascendrt.ErrClosed)
	}
	next := map[ascendrt.OpRef]*target{}
	var order []ascendrt.OpRef
	for _, v := range u {
		x := next[v.Op]
		if x == nil {
			old := s.targets[v.Op]
			if old == nil {
				return invalid("graph update", "command "+strconv.Itoa(int(v.Op))+" was not captured as updatable", ascendrt.ErrGraphUpdate)
			}
			c := *old
			c.args, c.record = slices.Clone(c.args), slices.Clone(c.record)
			x = &c
			next[v.Op] = x
			order = append(order, v.Op)
		}
		if err := x.set(v); err != nil {
			return invalid("graph update", fmt.Sprintf("command %d: %v", v.Op, err), ascendrt.ErrGraphUpdate)
		}
	}
	for _, ref := range order {
		if err := next[ref].again(d); err != nil {
			return invalid("graph update", fmt.Sprintf("command %d: %v", ref, err), ascendrt.ErrGraphUpdate)
		}
	}
	for _, ref := range order {
		x := next[ref]
		if x.node == nil {
			continue
		}
		if err := d.updateNode(s.exec, x.node, x.record); err != nil {
			return err
		}
		memory.Drop(s.targets[ref].allocs)
		memory.Hold(x.allocs)
		s.targets[ref] = x
	}
	return nil
}

// set applies one slot value.
func (x *target) set(v ascendrt.Slot) error {
	if x.op == nil { // a raw launch
		return base.SetWord(x.record, v)
	}
	return base.SetSlot(x.op.slots, x.args, nil, v)
}

// again translates an operation with its new arguments.
func (x *target) again(d *device) error {
	if x.op == nil {
		return nil
	}
	t := &translator{}
	t.reset(d, nil, base.Capturing)
	if err := t.op(x.op, x.ws, x.args); err != nil {
		return err
	}
	if x.node != nil && (len(t.Words) < recWords || uint32(t.Words[0]) != recLaunch) {
		return errors.New("the operation is no single kernel")
	}
	x.record, x.allocs = t.Words, t.Allocs
	return nil
}

func (g *graph) Close() error {
	d, s := g.d, g.state
	s.Graph.Close(&d.Core, g.ref, &g.cleanup, func() {
		memory.Drop(s.allocs)
		for _, x := range s.targets {
			memory.Drop(x.allocs)
		}
	}, func() { d.graphFree(s.graph, s.exec) })
	return nil
}
