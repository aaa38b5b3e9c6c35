//go:build cgo && linux

package acl

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

type graphState struct {
	d      *device
	raw    graphPtr
	tail   eventPtr  // recorded behind each launch
	update streamPtr // where task groups are issued again; nil without targets

	order sync.Mutex // held while a launch reaches the runtime

	base.Graph     // guards what follows
	byRef          map[ascendrt.OpRef]*target
	targets        []*target
	allocs         []*memory.Alloc // pinned by the capture
	waits, records []*eventState   // external events
	events         []*eventState   // all that it names
}

// target is an updatable command.
type target struct {
	gate  eventPtr // the graph waits for it before the command
	group groupPtr
	live  bool // false: the command did nothing
	raw   bool // a launch of a kernel

	op     *opState
	ws     ascendrt.View
	args   []ascendrt.Tensor
	slots  [][]int64
	record []uint64        // what a launch issues again
	allocs []*memory.Alloc // pinned by updates
}

// launch translates a launch: it runs behind the launch before it, wherever
// that was, and its updatable commands are issued again behind that one too.
func (t *translator) launch(g *graphState) error {
	g.Lock()
	defer g.Unlock()
	t.graphs = append(t.graphs, g)
	t.events = append(t.events, g.events...)
	for _, e := range g.waits {
		e.pending.Store(false)
		t.consumed = append(t.consumed, consumer{e, t.streams.Current})
	}
	for _, e := range g.records {
		if slices.Contains(g.waits, e) {
			e.pending.Store(true) // within the graph's own order
			continue
		}
		if err := t.setFlag(e); err != nil {
			return err
		}
	}
	if g.update != nil {
		t.Record(recStream, 0, word(g.update))
		t.Record(recWait, 0, word(g.tail))
		t.Record(recStream, 0, word(t.streams.Current.raw))
	}
	t.Record(recWait, 0, word(g.tail))
	t.Record(recGraph, 0, word(g.raw))
	t.Record(recRecord, 0, word(g.tail))
	if g.update == nil {
		return nil
	}
	t.Record(recStream, 0, word(g.update))
	for _, x := range g.targets {
		if !x.live {
			continue
		}
		t.Record(recUpdateBegin, 0, word(x.group))
		at := len(t.Words)
		t.Words = append(t.Words, x.record...)
		for ; at < len(t.Words); at += recWords + int(t.Words[at]>>32) {
			t.Words[at+1] = uint64(uint32(t.Index))
		}
		t.Record(recUpdateEnd, 0)
		t.Record(recSignal, 0, word(x.gate)) // also behind an error: the graph waits for it
	}
	t.Record(recStream, 0, word(t.streams.Current.raw))
	return nil
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
	if err := checkUpdatable(c, o.Updatable); err != nil {
		return nil, err
	}
	g, err := base.Make(&d.Core, base.Graphs, func() (*graphState, error) {
		g := &graphState{d: d, byRef: map[ascendrt.OpRef]*target{}}
		err := d.captureInto(g, s, c, o)
		if err != nil {
			g.Free()
		}
		return g, err
	})
	if err != nil {
		return nil, err
	}
	memory.Hold(g.allocs)
	for _, e := range g.events {
		e.hold()
	}
	return base.NewGraph(&d.Core, g), nil
}

// checkUpdatable looks whether the named commands are operations or launches.
func checkUpdatable(c *ascendrt.Commands, refs []ascendrt.OpRef) error {
	found := 0
	for r := range ascendrt.Records(c.Words()) {
		if !slices.Contains(refs, ascendrt.OpRef(r.Index)) {
			continue
		}
		if r.Kind != ascendrt.KindOp && r.Kind != ascendrt.KindLaunch {
			return invalid("capture", "updatable command "+strconv.Itoa(r.Index)+" is no operation", ascendrt.ErrInvalid)
		}
		found++
	}
	if found < len(refs) && c.Err() == nil {
		return invalid("capture", "an updatable command is not in the buffer, or is named twice", ascendrt.ErrInvalid)
	}
	return nil
}

// captureInto makes the runtime's graph under the locks of all streams in it.
func (d *device) captureInto(g *graphState, s *stream, c *ascendrt.Commands, o ascendrt.CaptureOptions) (err error) {
	for _, ref := range o.Updatable {
		x := &target{}
		if x.gate, err = d.eventNew(eventExternal); err != nil {
			return err
		}
		g.targets = append(g.targets, x)
		g.byRef[ref] = x
	}
	if len(g.targets) > 0 {
		if !has("aclmdlRICaptureTaskUpdateBegin") {
			return invalid("capture", "this CANN release updates no graph: capture without updatable commands", ascendrt.ErrUnsupported)
		}
		if g.update, err = d.streamNew(); err != nil {
			return err
		}
	}
	if g.tail, err = d.eventNew(eventSync); err != nil {
		return err
	}
	t := &translator{}
	t.reset(d, s, base.Capturing)
	t.updatable, t.targets = o.Updatable, g.targets
	if _, err := t.translate(c); err != nil {
		return err
	}
	g.Graph.Info = ascendrt.GraphInfo{Nodes: t.nodes, Streams: len(t.streams.All)}
	if g.update != nil {
		g.Graph.Info.Streams++
	}
	g.allocs, g.waits, g.records = t.Allocs, t.waits, t.records
	named := t.events
	if err := t.streams.Lock(&d.Core, "capture"); err != nil {
		return err
	}
	defer t.streams.Unlock()
	captures.Lock()
	defer captures.Unlock()
	groups := make([]groupPtr, len(g.targets))
	if g.raw, err = d.captureGraph(s.raw, t.Words, groups); err != nil {
		return base.Uncaptured(err)
	}
	for i, x := range g.targets {
		x.group = groups[i]
	}
	g.events = named
	return nil
}

// Free gives everything of an idle graph back.
func (g *graphState) Free() {
	d := g.d
	if d.LostError() != nil {
		return
	}
	if g.raw != nil {
		d.graphFree(g.raw)
	}
	for _, x := range g.targets {
		if x.gate != nil {
			d.eventFree(x.gate)
		}
	}
	if g.tail != nil {
		d.eventFree(g.tail)
	}
	if g.update != nil {
		d.streamFree(g.update)
	}
	for _, e := range g.events {
		e.drop()
	}
	g.raw, g.tail, g.update, g.targets, g.events = nil, nil, nil, nil, nil
}

// Update translates each changed command again, for the launches that follow.
// It asks the first phase of each operator, so that a launch is not the first
// to find out what is wrong.
func (g *graphState) Update(u []ascendrt.Slot) error {
	d := g.d
	refs, next, err := base.Changed(&d.Core, u, func(ref ascendrt.OpRef) (*target, bool) {
		old := g.byRef[ref]
		if old == nil {
			return nil, false
		}
		x := *old
		x.args, x.slots, x.record = slices.Clone(x.args), slices.Clone(x.slots), slices.Clone(x.record)
		return &x, true
	}, (*target).set)
	if err != nil {
		return err
	}
	for i, x := range next {
		if err := x.again(d, g.byRef[refs[i]]); err != nil {
			if lost := d.LostError(); lost != nil {
				return lost
			}
			return d.Unchanged(refs[i], err)
		}
	}
	for i, x := range next {
		old := g.byRef[refs[i]]
		memory.Drop(old.allocs)
		memory.Hold(x.allocs)
		*old = *x
	}
	return nil
}

// set applies one slot value.
func (x *target) set(v ascendrt.Slot) error {
	if x.raw {
		return base.SetWord(x.record, v)
	}
	return base.SetSlot(x.op.slots, x.args, &x.slots, v)
}

// again translates an operation with its new arguments and checks it against
// what was captured: the same operators over the same shapes.
func (x *target) again(d *device, old *target) error {
	if x.op == nil {
		return nil
	}
	t := &translator{}
	t.reset(d, nil, base.Capturing)
	t.slots = x.slots
	if err := t.op(x.op, x.ws, x.args); err != nil {
		return err
	}
	if !x.live {
		if len(t.Words) > 0 {
			return errors.New("the command did nothing when it was captured")
		}
		return nil
	}
	if !sameCalls(t.Words, old.record) {
		return errors.New("the operators or their shapes are not those that were captured")
	}
	for at := 0; at < len(t.Words); at += recWords + int(t.Words[at]>>32) {
		n, err := d.aclnnNeed(t.Words[at+recWords:][:t.Words[at]>>32])
		if err != nil {
			return err
		}
		if room := int(t.Words[at+3]); n > room {
			return fmt.Errorf("the workspace has %d bytes for it; %d are needed", room, n)
		}
	}
	x.record, x.allocs = t.Words, t.Allocs
	return nil
}

// sameCalls compares operators, and the types and shapes of their tensors; host
// values and addresses may differ.
func sameCalls(a, b []uint64) bool {
	for len(a) > 0 && len(b) > 0 {
		n, m := int(a[0]>>32), int(b[0]>>32)
		x, y := a[recWords:recWords+n], b[recWords:recWords+m]
		if x[0] != y[0] {
			return false
		}
		for i := range int(x[0] >> 16 & 0xff) {
			p, q := x[1+i*tensorWords:][:tensorWords], y[1+i*tensorWords:][:tensorWords]
			if !slices.Equal(p[1:], q[1:]) {
				return false
			}
		}
		a, b = a[recWords+n:], b[recWords+m:]
	}
	return len(a) == len(b)
}

// Drop lets go of memory.
func (g *graphState) Drop() {
	memory.Drop(g.allocs)
	for _, x := range g.targets {
		memory.Drop(x.allocs)
	}
}
