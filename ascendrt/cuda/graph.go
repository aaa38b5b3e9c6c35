//go:build cgo && linux

package cuda

import (
	"errors"
	"slices"
	"strconv"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

type graphState struct {
	d     *device
	graph graphPtr
	exec  execPtr

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
	g := &graphState{d: d, targets: map[ascendrt.OpRef]*target{}, allocs: t.Allocs}
	if err := g.findTargets(d, c, o.Updatable); err != nil {
		return nil, err
	}
	if g, err = base.Make(&d.Core, base.Graphs, func() (*graphState, error) { return g, d.captureInto(g, s, t, o) }); err != nil {
		return nil, err
	}
	memory.Hold(g.allocs)
	return base.NewGraph(&d.Core, g), nil
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
	g.Info.Streams = len(t.streams.All)
	if g.graph, g.exec, g.Info.Nodes, err = d.captureGraph(s.raw, t.Words, o.Upload == ascendrt.UploadNow, nodes); err != nil {
		return base.Uncaptured(err)
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

// Update translates each changed command again and sets the parameters of its
// node. The driver applies them to later launches only.
func (g *graphState) Update(u []ascendrt.Slot) error {
	d := g.d
	refs, next, err := base.Changed(&d.Core, u, func(ref ascendrt.OpRef) (*target, bool) {
		old := g.targets[ref]
		if old == nil {
			return nil, false
		}
		x := *old
		x.args, x.record = slices.Clone(x.args), slices.Clone(x.record)
		return &x, true
	}, (*target).set)
	if err != nil {
		return err
	}
	for i, x := range next {
		if err := x.again(d); err != nil {
			return d.Unchanged(refs[i], err)
		}
	}
	for i, x := range next {
		if x.node == nil {
			continue
		}
		if err := d.updateNode(g.exec, x.node, x.record); err != nil {
			return err
		}
		memory.Drop(g.targets[refs[i]].allocs)
		memory.Hold(x.allocs)
		g.targets[refs[i]] = x
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

// Drop lets go of memory.
func (g *graphState) Drop() {
	memory.Drop(g.allocs)
	for _, x := range g.targets {
		memory.Drop(x.allocs)
	}
}

// Free gives the driver's objects back.
func (g *graphState) Free() { g.d.graphFree(g.graph, g.exec) }
