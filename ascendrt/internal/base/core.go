// Package base is what the devices of all backends have in common, whatever
// their runtime: whether a device still answers, which handles live on it, and
// what is to be done once a point has passed.
package base

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

// Core is the common part of a device. A backend embeds it, and calls Init
// before anything else. It is safe for concurrent use.
type Core struct {
	Backend string // names it in errors
	Options ascendrt.OpenOptions
	Refs    handles.Registry
	Leaks   handles.Leaks
	// Life orders the end of a runtime's handles and of memory against the
	// submissions that name them: submitters hold it for reading.
	Life sync.RWMutex

	closed  atomic.Bool
	loss    sync.Mutex
	lossErr error
	lost    chan struct{}

	late    sync.Mutex
	pending []deferred // what waits for points

	count  sync.Mutex
	live   [kinds]int
	forgot bool // the device is closed
}

type deferred struct {
	points []ascendrt.Point
	fn     func()
}

// Init makes the core of a device that was opened with o.
func (c *Core) Init(backend string, o ascendrt.OpenOptions) {
	c.Backend, c.Options, c.lost = backend, o, make(chan struct{})
	c.Leaks.Log = o.Logger
}

// Invalid is the error of a call that no runtime saw.
func (c *Core) Invalid(call, text string, class error) error {
	return &ascendrt.Error{Backend: c.Backend, Call: call, Text: text, Command: -1, Class: class}
}

// Alive is the gate of every method: nil, ErrDeviceLost or ErrClosed.
func (c *Core) Alive() error {
	if c.closed.Load() {
		return c.Invalid("device", "closed", ascendrt.ErrClosed)
	}
	return c.LostError()
}

// LostError is the error that lost the device; nil while it lives.
func (c *Core) LostError() error {
	select {
	case <-c.lost:
		c.loss.Lock()
		defer c.loss.Unlock()
		return c.lossErr
	default:
		return nil
	}
}

// Fail loses the device with err, unless it is lost already.
func (c *Core) Fail(err error) {
	c.loss.Lock()
	defer c.loss.Unlock()
	if c.lossErr == nil {
		c.lossErr = err
		close(c.lost)
	}
}

// Failed is the error of a call of the runtime that has answered err, which
// loses the device if that is what it says.
func (c *Core) Failed(err error) error {
	if errors.Is(err, ascendrt.ErrDeviceLost) {
		c.Fail(err)
		return c.LostError()
	}
	return err
}

// Lost is closed when the device is lost.
func (c *Core) Lost() <-chan struct{} { return c.lost }

// Closed tells whether Shut was called.
func (c *Core) Closed() bool { return c.closed.Load() }

// Enter is Alive for a call that makes a handle: until it calls Leave the device
// does not close, so that no handle is missed. It does not nest.
func (c *Core) Enter() error {
	c.Life.RLock()
	if err := c.Alive(); err != nil {
		c.Life.RUnlock()
		return err
	}
	return nil
}

// Leave ends what Enter began.
func (c *Core) Leave() { c.Life.RUnlock() }

// Shut makes Alive answer ErrClosed, ends the reports of leaks and waits for the
// calls that have entered.
func (c *Core) Shut() {
	c.Life.Lock()
	c.closed.Store(true)
	c.Life.Unlock()
	c.Leaks.Stop()
}

// Later runs fn once the points have passed: now, at a later Reap, or by Drain.
func (c *Core) Later(points []ascendrt.Point, fn func()) {
	if passed(points) {
		fn()
		return
	}
	c.late.Lock()
	c.pending = append(c.pending, deferred{points, fn})
	c.late.Unlock()
}

func passed(points []ascendrt.Point) bool {
	for _, p := range points {
		if !p.Done() {
			return false
		}
	}
	return true
}

// Reap runs what waits for points that have passed.
func (c *Core) Reap() {
	if c.Enter() != nil {
		return // Close drains; a lost device passes no point
	}
	defer c.Leave()
	c.late.Lock()
	if len(c.pending) == 0 {
		c.late.Unlock()
		return
	}
	var ready []deferred
	keep := c.pending[:0]
	for _, f := range c.pending {
		if passed(f.points) {
			ready = append(ready, f)
		} else {
			keep = append(keep, f)
		}
	}
	clear(c.pending[len(keep):])
	c.pending = keep
	c.late.Unlock()
	for _, f := range ready {
		f.fn()
	}
}

// Drain runs all that waits: the device is idle.
func (c *Core) Drain() {
	c.late.Lock()
	all := c.pending
	c.pending = nil
	c.late.Unlock()
	for _, f := range all {
		f.fn()
	}
}

// Kind is a kind of handle that is counted.
type Kind int

// The kinds of handles beside memory.
const (
	Streams Kind = iota
	Events
	Graphs
	Ops
	Modules
	Communicators
	kinds
)

func (k Kind) String() string {
	return [...]string{"stream", "event", "capture", "operation", "module", "communicator"}[k]
}

// limit is the most handles of a kind that the options allow; 0: any number.
func (c *Core) limit(k Kind) int {
	switch k {
	case Streams:
		return c.Options.MaxStreams
	case Events:
		return c.Options.MaxEvents
	case Graphs:
		return c.Options.MaxGraphs
	}
	return 0
}

// Take counts a new handle; at its limit it gives ErrResourceLimit.
func (c *Core) Take(k Kind) error {
	c.count.Lock()
	defer c.count.Unlock()
	if c.forgot {
		return c.Invalid(k.String(), "closed", ascendrt.ErrClosed)
	}
	if n := c.limit(k); n > 0 && c.live[k] >= n {
		return c.Invalid(k.String(), strconv.Itoa(n)+" exist: close some", ascendrt.ErrResourceLimit)
	}
	c.live[k]++
	return nil
}

// Make makes a handle that is counted, unless it is at its limit or f fails.
func Make[T any](c *Core, k Kind, f func() (T, error)) (v T, err error) {
	if err := c.Take(k); err != nil {
		return v, err
	}
	if v, err = f(); err != nil {
		c.Give(k)
	}
	return v, err
}

// Add counts a new handle of a kind that has no limit.
func (c *Core) Add(k Kind) {
	c.count.Lock()
	defer c.count.Unlock()
	if !c.forgot {
		c.live[k]++
	}
}

// Give counts a handle as closed.
func (c *Core) Give(k Kind) {
	c.count.Lock()
	defer c.count.Unlock()
	if !c.forgot {
		c.live[k]--
	}
}

// Forget counts nothing any more: the device is closed, and its handles with it.
func (c *Core) Forget() {
	c.count.Lock()
	c.live, c.forgot = [kinds]int{}, true
	c.count.Unlock()
}

// FillLive sets all counts of l but those of memory.
func (c *Core) FillLive(l *ascendrt.Live) {
	c.count.Lock()
	defer c.count.Unlock()
	n := &c.live
	l.Streams, l.Events, l.Ops, l.Modules, l.Graphs, l.Communicators = n[Streams], n[Events], n[Ops], n[Modules], n[Graphs], n[Communicators]
	l.Leaked = c.Leaks.Count()
}

// Limits are those of the runtime, with as many streams and events left (-1: it
// does not say), and of the options.
func (c *Core) Limits(largestAlloc uint64, streams, events int) ascendrt.Limits {
	l := ascendrt.Limits{Streams: -1, StreamsFree: streams, Events: -1, EventsFree: events, GraphNodes: -1, LargestAlloc: largestAlloc}
	c.count.Lock()
	defer c.count.Unlock()
	if n := c.limit(Streams); n > 0 {
		l.Streams, l.StreamsFree = n, n-c.live[Streams]
	}
	if n := c.limit(Events); n > 0 {
		l.Events, l.EventsFree = n, n-c.live[Events]
	}
	return l
}

// Wrap makes err, of a check before any crossing, an error of the call; one
// that has a class already stays.
func (c *Core) Wrap(call string, command int, err error) error {
	var own *ascendrt.Error
	if errors.As(err, &own) {
		return err
	}
	class := ascendrt.ErrInvalid
	for _, known := range []error{ascendrt.ErrClosed, ascendrt.ErrUnsupported, ascendrt.ErrCapture} {
		if errors.Is(err, known) {
			class = known
		}
	}
	return &ascendrt.Error{Backend: c.Backend, Call: call, Text: err.Error(), Command: command, Class: class}
}
