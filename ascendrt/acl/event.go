//go:build cgo && linux

package acl

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

type eventState struct {
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
	e.last = latest(e.last, p)
}

// latest replaces the point of a stream among points.
func latest(points []ascendrt.Point, p ascendrt.Point) []ascendrt.Point {
	for i := range points {
		if points[i].Stream == p.Stream {
			points[i] = p
			return points
		}
	}
	return append(points, p)
}

// hold keeps the event for a graph.
func (e *eventState) hold() {
	e.mu.Lock()
	e.graphs++
	e.mu.Unlock()
}

// drop is the end of a graph that named the event.
func (e *eventState) drop(d *device) {
	e.mu.Lock()
	e.graphs--
	free, points := e.closed && e.graphs == 0, e.last
	e.mu.Unlock()
	if free {
		d.Later(points, func() { d.eventFree(e.raw) })
	}
}

// close ends the owner's use.
func (e *eventState) close(d *device) {
	e.mu.Lock()
	e.closed = true
	free, points := e.graphs == 0, e.last
	e.mu.Unlock()
	if free && d.LostError() == nil {
		d.Later(points, func() { d.eventFree(e.raw) })
	}
}

type event struct {
	d       *device
	state   *eventState
	ref     ascendrt.Ref
	cleanup runtime.Cleanup
}

var _ ascendrt.Event = (*event)(nil)

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
	if err := d.Take(base.Events); err != nil {
		return nil, err
	}
	raw, err := d.eventNew(flags)
	if err != nil {
		d.Give(base.Events)
		return nil, err
	}
	e := &event{d: d, state: &eventState{kind: k, raw: raw}}
	e.ref = d.Refs.Add(e.state)
	e.cleanup = runtime.AddCleanup(e, d.Leaks.Report, handles.Dropped{What: "event"})
	return e, nil
}

func (e *event) Ref() ascendrt.Ref { return e.ref }

// hold keeps the event's handle alive until release is called.
func (e *event) hold() (release func(), err error) {
	if err := e.d.Enter(); err != nil {
		return nil, err
	}
	if _, ok := lookupEvent(e.d, e.ref); !ok {
		e.d.Leave()
		return nil, invalid("event", "closed before", ascendrt.ErrClosed)
	}
	return e.d.Leave, nil
}

func (e *event) Done() (bool, error) {
	release, err := e.hold()
	if err != nil {
		return false, err
	}
	defer release()
	if e.state.kind == ascendrt.EventExternal && !e.state.pending.Load() {
		return true, nil // never recorded, or its record was consumed
	}
	return e.d.eventDone(e.state.raw)
}

func (e *event) Elapsed(since ascendrt.Event) (time.Duration, error) {
	from, ok := since.(*event)
	if !ok || from.d != e.d {
		return 0, invalid("elapsed", "the events belong to different devices", ascendrt.ErrInvalid)
	}
	release, err := e.hold()
	if err != nil {
		return 0, err
	}
	defer release()
	if _, ok := lookupEvent(e.d, from.ref); !ok {
		return 0, invalid("elapsed", "an event was closed before", ascendrt.ErrClosed)
	}
	if e.state.kind != ascendrt.EventTiming || from.state.kind != ascendrt.EventTiming {
		return 0, invalid("elapsed", "both events must be of kind timing", ascendrt.ErrInvalid)
	}
	return e.d.eventElapsed(from.state.raw, e.state.raw)
}

func (e *event) Close() error {
	e.d.Life.Lock()
	defer e.d.Life.Unlock()
	e.cleanup.Stop()
	if e.d.Closed() || !e.d.Refs.Remove(e.ref) {
		return nil
	}
	e.d.Give(base.Events)
	e.state.close(e.d)
	return nil
}
