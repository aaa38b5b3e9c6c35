//go:build cgo && linux

package cuda

import (
	"runtime"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

type eventState struct {
	kind ascendrt.EventKind
	raw  eventPtr
}

type event struct {
	d       *device
	state   *eventState
	ref     ascendrt.Ref
	cleanup runtime.Cleanup
}

var _ ascendrt.Event = (*event)(nil)

// Flags of the driver.
const (
	eventNoTiming = 2
	eventIPC      = 4
)

func (d *device) NewEvent(k ascendrt.EventKind) (ascendrt.Event, error) {
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	var flags uint32
	switch k {
	case ascendrt.EventOrder, ascendrt.EventExternal:
		flags = eventNoTiming
	case ascendrt.EventIPC:
		flags = eventNoTiming | eventIPC
	case ascendrt.EventTiming:
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

// hold keeps the event's driver handle alive until release is called.
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
	if e.d.LostError() == nil {
		e.d.eventFree(e.state.raw)
	}
	return nil
}
