package host

import (
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// mark is one reached-or-not position: a record of an event or a launch of a graph.
type mark struct {
	reached chan struct{}
	at      time.Time // set before reached is closed
}

func newMark() *mark { return &mark{reached: make(chan struct{})} }

func (m *mark) reach() {
	m.at = time.Now()
	close(m.reached)
}

func (m *mark) done() bool {
	select {
	case <-m.reached:
		return true
	default:
		return false
	}
}

// eventState is what command records lead to; event is the caller's handle.
type eventState struct {
	kind ascendrt.EventKind
	mu   sync.Mutex
	last *mark // of the latest submitted record, nil if there was none
}

func (e *eventState) record() *mark {
	m := newMark()
	e.mu.Lock()
	e.last = m
	e.mu.Unlock()
	return m
}

func (e *eventState) latest() *mark {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

type event struct {
	d       *device
	state   *eventState
	ref     ascendrt.Ref
	cleanup runtime.Cleanup
}

var _ ascendrt.Event = (*event)(nil)

func (d *device) NewEvent(k ascendrt.EventKind) (ascendrt.Event, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if k == ascendrt.EventIPC {
		return nil, d.unsupported("event of kind ipc")
	}
	if k > ascendrt.EventIPC {
		return nil, invalid("event", "unknown kind "+strconv.Itoa(int(k)), ascendrt.ErrInvalid)
	}
	if err := d.inject("event"); err != nil {
		return nil, err
	}
	if err := d.Take(base.Events); err != nil {
		return nil, err
	}
	e := &event{d: d, state: &eventState{kind: k}}
	e.ref = d.Refs.Add(e.state)
	e.cleanup = runtime.AddCleanup(e, d.Leaks.Report, handles.Dropped{What: "event"})
	return e, nil
}

func (e *event) Ref() ascendrt.Ref { return e.ref }

func (e *event) Done() (bool, error) {
	if err := e.check(); err != nil {
		return false, err
	}
	m := e.state.latest()
	return m == nil || m.done(), nil
}

func (e *event) check() error {
	if err := e.d.Alive(); err != nil {
		return err
	}
	if _, ok := handles.Lookup[*eventState](&e.d.Refs, e.ref); !ok {
		return invalid("event", "closed before", ascendrt.ErrClosed)
	}
	return nil
}

func (e *event) Elapsed(since ascendrt.Event) (time.Duration, error) {
	from, ok := since.(*event)
	if !ok || from.d != e.d {
		return 0, invalid("elapsed", "the events belong to different devices", ascendrt.ErrInvalid)
	}
	if err := e.check(); err != nil {
		return 0, err
	}
	if err := from.check(); err != nil {
		return 0, err
	}
	if e.state.kind != ascendrt.EventTiming || from.state.kind != ascendrt.EventTiming {
		return 0, invalid("elapsed", "both events must be of kind timing", ascendrt.ErrInvalid)
	}
	a, b := from.state.latest(), e.state.latest()
	if a == nil || b == nil || !a.done() || !b.done() {
		return 0, invalid("elapsed", "an event has not been reached", ascendrt.ErrInvalid)
	}
	return b.at.Sub(a.at), nil
}

func (e *event) Close() error {
	if e.d.Closed() {
		e.cleanup.Stop()
		return nil
	}
	if !e.d.Refs.Remove(e.ref) {
		return nil
	}
	e.cleanup.Stop()
	e.d.Give(base.Events)
	return nil
}
