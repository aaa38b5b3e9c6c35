package base

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// Graph is what the captured graphs of all drivers have in common. Its lock
// guards what a backend keeps beside it.
type Graph struct {
	sync.Mutex
	closed bool
	last   []ascendrt.Point // by stream: the last launches
}

// Open tells whether the graph was not closed yet. It is locked.
func (g *Graph) Open() bool { return !g.closed }

// Launched notes the point behind which the graph is idle.
func (g *Graph) Launched(p ascendrt.Point) {
	g.Lock()
	defer g.Unlock()
	g.last = Latest(g.last, p)
}

// Close ends the owner's use of the graph with that ref: drop lets go of the
// memory that it names, free gives the driver's objects back once every launch has
// passed. Later calls do nothing.
func (g *Graph) Close(c *Core, ref ascendrt.Ref, cleanup *runtime.Cleanup, drop, free func()) {
	c.Life.Lock() // no submission is about to launch it
	defer c.Life.Unlock()
	g.Lock()
	defer g.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	cleanup.Stop()
	if c.Closed() {
		return
	}
	drop()
	c.Refs.Remove(ref)
	c.Give(Graphs)
	if c.LostError() == nil {
		c.Later(g.last, free)
	}
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
