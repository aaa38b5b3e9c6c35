package host

import (
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// graphState is a captured buffer. Its nodes are never changed, only replaced,
// so a launch keeps the ones it was submitted with.
type graphState struct {
	mu        sync.Mutex
	nodes     []*node
	byIndex   map[int]int // command index -> position in nodes
	updatable map[int]bool
	last      *mark // end of the latest submitted launch
	closed    bool
	streams   int
}

type graph struct {
	d       *device
	state   *graphState
	ref     ascendrt.Ref
	cleanup runtime.Cleanup
}

var _ ascendrt.Graph = (*graph)(nil)

// Capture compiles the buffer into a graph. The order of the buffer is one
// that its events allow, so a launch runs all branches on one stream.
func (d *device) Capture(s ascendrt.Stream, c *ascendrt.Commands, o ascendrt.CaptureOptions) (ascendrt.Graph, error) {
	if err := d.inject("capture"); err != nil {
		return nil, err
	}
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	own, err := base.CheckCapture[*stream, *eventState](&d.Core, s, c)
	if err != nil {
		return nil, err
	}
	nodes, _, err := d.compile(c)
	if err != nil {
		return nil, err
	}
	g := &graphState{byIndex: map[int]int{}, updatable: map[int]bool{}, streams: 1}
	seen := map[*stream]bool{own: true}
	for _, x := range nodes {
		switch {
		case x.kind == ascendrt.KindStream:
			if !seen[x.stream] {
				seen[x.stream] = true
				g.streams++
			}
			continue
		case (x.kind == ascendrt.KindRecord || x.kind == ascendrt.KindWaitEvent) && x.event.kind != ascendrt.EventExternal:
			continue // an edge inside the graph: the order of the nodes keeps it
		}
		g.byIndex[x.index] = len(g.nodes)
		g.nodes = append(g.nodes, x)
	}
	for _, ref := range o.Updatable {
		i, ok := g.byIndex[int(ref)]
		if !ok || g.nodes[i].op == nil {
			return nil, invalid("capture", "updatable command "+strconv.Itoa(int(ref))+" is no operation of this buffer", ascendrt.ErrInvalid)
		}
		g.updatable[int(ref)] = true
	}
	if err := d.Take(base.Graphs); err != nil {
		return nil, err
	}
	if err := claim(g.nodes); err != nil {
		d.Give(base.Graphs)
		return nil, err
	}
	h := &graph{d: d, state: g}
	h.ref = d.Refs.Add(g)
	h.cleanup = runtime.AddCleanup(h, d.Leaks.Report, handles.Dropped{What: "graph"})
	return h, nil
}

// claim pins the memory of the nodes; all or nothing. The caller has entered the
// device, so that nothing is freed meanwhile.
func claim(nodes []*node) error {
	for _, x := range nodes {
		for _, a := range x.allocs {
			if a.dead.Load() {
				return invalid("capture", "a buffer was freed meanwhile", ascendrt.ErrClosed)
			}
		}
	}
	for _, x := range nodes {
		for _, a := range x.allocs {
			a.graphs.Add(1)
		}
	}
	return nil
}

func unclaim(nodes []*node) {
	for _, x := range nodes {
		for _, a := range x.allocs {
			a.graphs.Add(-1)
		}
	}
}

// launch appends one run of the graph behind the launch before it.
func (g *graphState) launch(q []item) []item {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != nil && !g.last.done() {
		q = append(q, item{wait: g.last})
	}
	g.last = newMark()
	for _, x := range g.nodes {
		q = x.items(q)
	}
	return append(q, item{reach: g.last})
}

func (g *graph) Ref() ascendrt.Ref { return g.ref }

func (g *graph) Info() ascendrt.GraphInfo {
	g.state.mu.Lock()
	defer g.state.mu.Unlock()
	return ascendrt.GraphInfo{Nodes: len(g.state.nodes), Streams: g.state.streams}
}

func (g *graph) Update(u []ascendrt.Slot) error {
	if err := g.d.Enter(); err != nil {
		return err
	}
	defer g.d.Leave()
	s := g.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return invalid("graph update", "the graph was closed before", ascendrt.ErrClosed)
	}
	refs, next, err := base.Changed(&g.d.Core, u, func(ref ascendrt.OpRef) (*node, bool) {
		if !s.updatable[int(ref)] {
			return nil, false
		}
		x := *s.nodes[s.byIndex[int(ref)]]
		x.args, x.slots, x.allocs = slices.Clone(x.args), slices.Clone(x.slots), nil
		return &x, true
	}, (*node).set)
	if err != nil {
		return err
	}
	nodes := slices.Clone(s.nodes)
	var before []*node
	for k, x := range next {
		if err := g.d.bind(x); err != nil {
			return g.d.Unchanged(refs[k], err)
		}
		i := s.byIndex[x.index]
		before, nodes[i] = append(before, nodes[i]), x
	}
	if err := claim(next); err != nil {
		return err
	}
	unclaim(before)
	s.nodes = nodes
	return nil
}

// set applies one slot value to the node's arguments.
func (x *node) set(v ascendrt.Slot) error {
	return base.SetSlot(x.op.slots, x.args, (*[][]int64)(&x.slots), v)
}

func (g *graph) Close() error {
	g.d.Life.Lock() // no update is under way
	defer g.d.Life.Unlock()
	g.state.mu.Lock()
	defer g.state.mu.Unlock()
	if g.state.closed {
		return nil
	}
	g.state.closed = true
	g.cleanup.Stop()
	if g.d.Closed() {
		return nil
	}
	g.d.Refs.Remove(g.ref)
	unclaim(g.state.nodes)
	g.d.Give(base.Graphs)
	return nil
}
