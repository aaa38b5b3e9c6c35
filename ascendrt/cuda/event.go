//go:build cgo && linux

package cuda

import (
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

type eventState struct {
	d    *device
	kind ascendrt.EventKind
	raw  eventPtr
}

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

// Done asks the driver.
func (e *eventState) Done() (bool, error) { return e.d.eventDone(e.raw) }

// Free destroys the event; the driver keeps it for what was submitted before.
func (e *eventState) Free() { e.d.eventFree(e.raw) }
