package base

import (
	"runtime"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// EventState is a runtime's event: what command records find under its Ref.
type EventState interface {
	comparable
	Kind() ascendrt.EventKind
	// Done tells whether the last record of the event has passed.
	Done() (bool, error)
	// Free ends the owner's use; the device is alive.
	Free()
}

// NewEvent makes the caller's handle of a runtime's event, which was counted as
// taken. elapsed is the time from one event to another, both of kind timing. The
// caller has entered the device.
func NewEvent[S EventState](c *Core, state S, elapsed func(from, to S) (time.Duration, error)) ascendrt.Event {
	e := &event[S]{core: c, state: state, ref: c.Refs.Add(state), elapsed: elapsed}
	e.cleanup = runtime.AddCleanup(e, c.Leaks.Report, handles.Dropped{What: "event"})
	return e
}

type event[S EventState] struct {
	core    *Core
	state   S
	ref     ascendrt.Ref
	elapsed func(from, to S) (time.Duration, error)
	cleanup runtime.Cleanup
}

func (e *event[S]) Ref() ascendrt.Ref { return e.ref }

// enter keeps the runtime's event alive until the device is left.
func (e *event[S]) enter() error {
	if err := e.core.Enter(); err != nil {
		return err
	}
	if err := e.open("event"); err != nil {
		e.core.Leave()
		return err
	}
	return nil
}

func (e *event[S]) open(call string) error {
	if _, ok := handles.Lookup[S](&e.core.Refs, e.ref); !ok {
		return e.core.Invalid(call, "the event was closed before", ascendrt.ErrClosed)
	}
	return nil
}

func (e *event[S]) Done() (bool, error) {
	if err := e.enter(); err != nil {
		return false, err
	}
	defer e.core.Leave()
	return e.state.Done()
}

func (e *event[S]) Elapsed(since ascendrt.Event) (time.Duration, error) {
	from, ok := since.(*event[S])
	if !ok || from.core != e.core {
		return 0, e.core.Invalid("elapsed", "the events belong to different devices", ascendrt.ErrInvalid)
	}
	if err := e.enter(); err != nil {
		return 0, err
	}
	defer e.core.Leave()
	if err := from.open("elapsed"); err != nil {
		return 0, err
	}
	if e.state.Kind() != ascendrt.EventTiming || from.state.Kind() != ascendrt.EventTiming {
		return 0, e.core.Invalid("elapsed", "both events must be of kind timing", ascendrt.ErrInvalid)
	}
	return e.elapsed(from.state, e.state)
}

func (e *event[S]) Close() error {
	c := e.core
	c.Life.Lock()
	defer c.Life.Unlock()
	e.cleanup.Stop()
	if c.Closed() || !c.Refs.Remove(e.ref) {
		return nil
	}
	c.Give(Events)
	if c.LostError() == nil {
		e.state.Free()
	}
	return nil
}
