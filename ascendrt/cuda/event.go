//go:build cgo && linux

package cuda

import (
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
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
	if err := d.alive(); err != nil {
		return nil, err
	}
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
	if err := d.take(&d.nevents, d.opts.MaxEvents, "event"); err != nil {
		return nil, err
	}
	raw, err := d.eventNew(flags)
	if err != nil {
		d.give(&d.nevents)
		return nil, err
	}
	e := &event{d: d, state: &eventState{kind: k, raw: raw}}
	e.ref = d.refs.Add(e.state)
	e.cleanup = runtime.AddCleanup(e, d.leaks.Report, handles.Dropped{What: "event"})
	return e, nil
}

func (e *event) Ref() ascendrt.Ref { return e.ref }

// hold keeps the event's driver handle alive until release is called.
func (e *event) hold() (release func(), err error) {
	if err := e.d.alive(); err != nil {
		return nil, err
	}
	e.d.life.RLock()
	if _, ok := lookupEvent(e.d, e.ref); !ok {
		e.d.life.RUnlock()
		return nil, invalid("event", "closed before", ascendrt.ErrClosed)
	}
	return e.d.life.RUnlock, nil
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
	if e.d.closed.Load() {
		e.cleanup.Stop()
		return nil
	}
	e.d.life.Lock()
	defer e.d.life.Unlock()
	if !e.d.refs.Remove(e.ref) {
		return nil
	}
	e.cleanup.Stop()
	e.d.give(&e.d.nevents)
	if e.d.lostError() == nil {
		e.d.eventFree(e.state.raw)
	}
	return nil
}

func word2(s streamPtr) uint64 { return word(unsafe.Pointer(s)) }
