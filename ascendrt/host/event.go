package host

import (
	"strconv"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
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

func (d *device) NewEvent(k ascendrt.EventKind) (ascendrt.Event, error) {
	if err := d.inject("event"); err != nil {
		return nil, err
	}
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	switch {
	case k == ascendrt.EventIPC:
		return nil, d.unsupported("event of kind ipc")
	case k > ascendrt.EventIPC:
		return nil, invalid("event", "unknown kind "+strconv.Itoa(int(k)), ascendrt.ErrInvalid)
	}
	if err := d.Take(base.Events); err != nil {
		return nil, err
	}
	return base.NewEvent(&d.Core, &eventState{kind: k}, elapsed), nil
}

// Kind is the event's.
func (e *eventState) Kind() ascendrt.EventKind { return e.kind }

// Done tells whether the last record was reached.
func (e *eventState) Done() (bool, error) {
	m := e.latest()
	return m == nil || m.done(), nil
}

// Free has nothing to give back.
func (e *eventState) Free() {}

func elapsed(from, to *eventState) (time.Duration, error) {
	a, b := from.latest(), to.latest()
	if a == nil || b == nil || !a.done() || !b.done() {
		return 0, invalid("elapsed", "an event has not been reached", ascendrt.ErrInvalid)
	}
	return b.at.Sub(a.at), nil
}
