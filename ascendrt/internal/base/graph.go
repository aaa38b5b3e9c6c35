package base

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// Graph is what the captured graphs of all runtimes have in common; a backend
// embeds it. Its lock guards what the backend keeps beside it.
type Graph struct {
	sync.Mutex
	Info   ascendrt.GraphInfo // set before NewGraph
	ref    ascendrt.Ref
	closed bool
	last   []ascendrt.Point // by stream: the last launches
}

func (g *Graph) common() *Graph { return g }

// Ref names the graph in records.
func (g *Graph) Ref() ascendrt.Ref { return g.ref }

// Launched notes the point behind which the graph is idle.
func (g *Graph) Launched(p ascendrt.Point) {
	g.Lock()
	defer g.Unlock()
	g.last = Latest(g.last, p)
}

// GraphState is a runtime's graph: what command records find under its Ref. It
// embeds Graph.
type GraphState interface {
	common() *Graph
	// Update takes new values, for the launches that follow. The graph is locked and
	// the device entered.
	Update(u []ascendrt.Slot) error
	// Drop lets go of the memory that it names; both are locked.
	Drop()
	// Free gives the runtime's objects back: every launch has passed. It takes no
	// lock of the graph, which Close may hold.
	Free()
}

// NewGraph makes the caller's handle of a runtime's graph, which was counted as
// taken. The caller has entered the device.
func NewGraph(c *Core, state GraphState) ascendrt.Graph {
	own := state.common()
	own.ref = c.Refs.Add(state)
	g := &graph{core: c, state: state, own: own}
	g.cleanup = runtime.AddCleanup(g, c.Leaks.Report, handles.Dropped{What: "graph"})
	return g
}

type graph struct {
	core    *Core
	state   GraphState
	own     *Graph
	cleanup runtime.Cleanup
}

func (g *graph) Ref() ascendrt.Ref        { return g.own.ref }
func (g *graph) Info() ascendrt.GraphInfo { return g.own.Info }

func (g *graph) Update(u []ascendrt.Slot) error {
	if err := g.core.Enter(); err != nil {
		return err
	}
	defer g.core.Leave()
	g.own.Lock()
	defer g.own.Unlock()
	if g.own.closed {
		return g.core.Invalid("graph update", "the graph was closed before", ascendrt.ErrClosed)
	}
	return g.state.Update(u)
}

func (g *graph) Close() error {
	c, own := g.core, g.own
	c.Life.Lock() // no submission is about to launch it
	defer c.Life.Unlock()
	own.Lock()
	defer own.Unlock()
	if own.closed {
		return nil
	}
	own.closed = true
	g.cleanup.Stop()
	if c.Closed() {
		return nil
	}
	g.state.Drop()
	c.Refs.Remove(own.ref)
	c.Give(Graphs)
	if c.LostError() == nil {
		c.Later(own.last, g.state.Free)
	}
	return nil
}

// Uncaptured is the error of a runtime's capture: what is invalid in it alone runs
// eagerly from now on.
func Uncaptured(err error) error {
	var e *ascendrt.Error
	if errors.As(err, &e) && e.Class == ascendrt.ErrInvalid {
		e.Class = ascendrt.ErrCapture
	}
	return err
}

// Changed applies the values of an update to copies of the commands that they name:
// copied gives one of a command that was captured as updatable, and set changes it.
// It gives the commands in the order of the update, and their copies.
func Changed[T any](c *Core, u []ascendrt.Slot, copied func(ascendrt.OpRef) (T, bool), set func(T, ascendrt.Slot) error) ([]ascendrt.OpRef, []T, error) {
	at := map[ascendrt.OpRef]int{}
	var refs []ascendrt.OpRef
	var next []T
	for _, v := range u {
		i, seen := at[v.Op]
		if !seen {
			x, ok := copied(v.Op)
			if !ok {
				return nil, nil, c.Invalid("graph update", "command "+strconv.Itoa(int(v.Op))+" was not captured as updatable", ascendrt.ErrGraphUpdate)
			}
			i = len(refs)
			at[v.Op] = i
			refs, next = append(refs, v.Op), append(next, x)
		}
		if err := set(next[i], v); err != nil {
			return nil, nil, c.Unchanged(v.Op, err)
		}
	}
	return refs, next, nil
}

// Unchanged is the error of an update that a command does not take.
func (c *Core) Unchanged(ref ascendrt.OpRef, err error) error {
	return c.Invalid("graph update", fmt.Sprintf("command %d: %v", ref, err), ascendrt.ErrGraphUpdate)
}

// Owned is a stream that says whose it is.
type Owned interface {
	comparable
	ascendrt.Stream
	Owner() *Core
}

// CheckCapture gives a backend's own stream for a capture of the buffer on st: it
// is an open one of this device, and the buffer is one that can be captured.
func CheckCapture[S Owned, E EventState](c *Core, st ascendrt.Stream, buffer *ascendrt.Commands) (own S, err error) {
	own, ok := st.(S)
	if !ok || own.Owner() != c {
		return own, c.Invalid("capture", "the stream is of another device", ascendrt.ErrInvalid)
	}
	if _, ok := handles.Lookup[S](&c.Refs, st.Ref()); !ok {
		return own, c.Invalid("capture", "the stream was closed before", ascendrt.ErrClosed)
	}
	return own, ascendrt.CheckCapture(buffer, c.Backend, st.Ref(), func(ref ascendrt.Ref) bool {
		e, ok := handles.Lookup[E](&c.Refs, ref)
		return ok && e.Kind() == ascendrt.EventExternal
	})
}

// Latest replaces the point of a stream among points.
func Latest(points []ascendrt.Point, p ascendrt.Point) []ascendrt.Point {
	for i := range points {
		if points[i].Stream == p.Stream {
			points[i] = p
			return points
		}
	}
	return append(points, p)
}

// SetSlot puts the new value of an update into an operation's arguments, which it
// changes in place. ints takes the values of slots that have some; nil: the device
// reads its tensors, and takes none.
func SetSlot(infos []ascendrt.SlotInfo, args []ascendrt.Tensor, ints *[][]int64, v ascendrt.Slot) error {
	if v.Slot < 0 || v.Slot >= len(infos) {
		return fmt.Errorf("slot %d does not exist", v.Slot)
	}
	if infos[v.Slot].Kind == ascendrt.SlotInts {
		if ints == nil {
			return fmt.Errorf("slot %s: this device reads its tensor; no values are taken", infos[v.Slot].Name)
		}
		for len(*ints) <= v.Slot {
			*ints = append(*ints, nil)
		}
		(*ints)[v.Slot] = slices.Clone(v.I64)
		return nil
	}
	t := &args[v.Slot-(len(infos)-len(args))]
	if !v.Addr.Valid() || v.Addr.Len < t.Bytes() {
		return fmt.Errorf("slot %s: the new place is shorter than the tensor", infos[v.Slot].Name)
	}
	t.View = v.Addr
	return nil
}

// SetWord puts the new value of an update into a captured launch, whose slots are
// its argument words.
func SetWord(record []uint64, v ascendrt.Slot) error {
	if len(v.I64) != 1 || v.Slot < 0 || HeaderWords+v.Slot >= len(record) {
		return fmt.Errorf("a launch has %d argument words; slot %d takes one value", max(0, len(record)-HeaderWords), v.Slot)
	}
	record[HeaderWords+v.Slot] = uint64(v.I64[0])
	return nil
}
