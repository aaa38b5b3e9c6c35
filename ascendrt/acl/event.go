//go:build cgo && linux

package acl

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

type eventState struct {
	d    *device
	kind ascendrt.EventKind
	raw  eventPtr
	// Of an external event: a record was submitted that no wait has consumed.
	pending atomic.Bool

	mu     sync.Mutex
	last   []ascendrt.Point // by stream: the last submissions that name it
	graphs int              // that name it
	closed bool
}

// touch notes a submission that names the event: it may not be destroyed before.
func (e *eventState) touch(p ascendrt.Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = base.Latest(e.last, p)
}

// hold keeps the event for a graph.
func (e *eventState) hold() {
	e.mu.Lock()
	e.graphs++
	e.mu.Unlock()
}

// drop is the end of a graph that named the event.
func (e *eventState) drop() {
	e.mu.Lock()
	e.graphs--
	free, points := e.closed && e.graphs == 0, e.last
	e.mu.Unlock()
	if free {
		e.d.Later(points, func() { e.d.eventFree(e.raw) })
	}
}

func (d *device) NewEvent(k ascendrt.EventKind) (ascendrt.Event, error) {
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	var flags uint32
	switch k {
	case ascendrt.EventOrder:
		flags = eventSync
	case ascendrt.EventTiming:
		flags = eventSync | eventTimeLine
	case ascendrt.EventExternal:
		flags = eventExternal
	case ascendrt.EventIPC:
		return nil, invalid("event", "this backend shares no events between processes", ascendrt.ErrUnsupported)
	default:
		return nil, invalid("event", "unknown kind "+strconv.Itoa(int(k)), ascendrt.ErrInvalid)
	}
	raw, err := base.Make(&d.Core, base.Events, func() (eventPtr, error) { return d.eventNew(flags) })
	if err != nil {
		return nil, err
	}
	return base.NewEvent(&d.Core, &eventState{d: d, kind: k, raw: raw}, d.elapsed), nil
}

func (d *device) elapsed(from, to *eventState) (time.Duration, error) {
	return d.eventElapsed(from.raw, to.raw)
}

// Kind is the event's.
func (e *eventState) Kind() ascendrt.EventKind { return e.kind }

// Done asks the runtime.
func (e *eventState) Done() (bool, error) {
	if e.kind == ascendrt.EventExternal && !e.pending.Load() {
		return true, nil // never recorded, or its record was consumed
	}
	return e.d.eventDone(e.raw)
}

// Free destroys the event, when no graph and no submission names it any more.
func (e *eventState) Free() {
	e.mu.Lock()
	e.closed = true
	free, points := e.graphs == 0, e.last
	e.mu.Unlock()
	if free {
		e.d.Later(points, func() { e.d.eventFree(e.raw) })
	}
}
