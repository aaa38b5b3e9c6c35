package host

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// item is one thing a stream goroutine does, in order.
type item struct {
	run   func(*scratch) error // a command; nil otherwise
	wait  *mark                // hold until it is reached
	reach *mark                // mark as reached
	other *stream              // wait for seq of this stream
	seq   uint64               // end of a submission (other nil), or the sequence to wait for
	index int                  // command index for error texts
	what  string
}

type stream struct {
	d    *device
	opts ascendrt.StreamOptions
	ref  ascendrt.Ref

	base.Gate

	mu      sync.Mutex
	queue   []item
	wake    chan struct{} // one token when the queue is not empty
	stopped bool          // no more items come
	gone    bool          // the goroutine runs no more items
	after   []deferred
	waiters []waiter

	seq   atomic.Uint64 // last sequence number given out; written under submit
	done  atomic.Uint64
	ended chan struct{}
}

type deferred struct {
	seq uint64
	fn  func()
}

type waiter struct {
	seq uint64
	ch  chan struct{}
}

var _ ascendrt.Stream = (*stream)(nil)

func (d *device) NewStream(o ascendrt.StreamOptions) (ascendrt.Stream, error) {
	if err := d.inject("stream"); err != nil {
		return nil, err
	}
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	if err := d.Take(base.Streams); err != nil {
		return nil, err
	}
	s := &stream{d: d, opts: o, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	s.ref = d.Refs.Add(s)
	d.streams.Add(s)
	go s.loop()
	return s, nil
}

func (s *stream) Ref() ascendrt.Ref { return s.ref }

// Owner is the device's core.
func (s *stream) Owner() *base.Core { return &s.d.Core }

// loop is the goroutine of the stream. It ends when the queue was ended and is
// empty, when the device is lost or when Close gave up.
func (s *stream) loop() {
	defer close(s.ended)
	var sc scratch
	var batch []item
	for {
		s.mu.Lock()
		batch, s.queue = s.queue, batch[:0]
		stopped := s.stopped
		s.mu.Unlock()
		if len(batch) == 0 {
			if stopped {
				s.finish()
				return
			}
			select {
			case <-s.wake:
			case <-s.d.Lost():
				s.finish()
				return
			case <-s.d.abandoned:
				s.finish()
				return
			}
			continue
		}
		for i := range batch {
			if !s.do(&batch[i], &sc) {
				s.finish()
				return
			}
			batch[i] = item{}
		}
	}
}

// finish runs what waits for points that will not come any more.
func (s *stream) finish() {
	s.mu.Lock()
	after := s.after
	s.after = nil
	s.gone = true
	s.mu.Unlock()
	for _, a := range after {
		a.fn()
	}
}

// do runs one item; false ends the stream.
func (s *stream) do(it *item, sc *scratch) bool {
	select {
	case <-s.d.Lost():
		return false
	case <-s.d.abandoned:
		return false
	default:
	}
	switch {
	case it.run != nil:
		if e, ok := s.d.faults.next("command"); ok {
			if e.kind == faultLost {
				s.d.Fail(s.fault(it, errors.New("injected loss")))
				return false
			}
			time.Sleep(e.delay)
		}
		if err := it.run(sc); err != nil {
			s.d.Fail(s.fault(it, err))
			return false
		}
	case it.wait != nil:
		return s.hold(it.wait.reached)
	case it.reach != nil:
		it.reach.reach()
	case it.other != nil:
		ch := it.other.notify(it.seq)
		return ch == nil || s.hold(ch)
	default:
		s.complete(it.seq)
	}
	return true
}

func (s *stream) fault(it *item, err error) error {
	return &ascendrt.Error{Backend: name, Call: it.what, Text: err.Error(), Command: it.index, Class: ascendrt.ErrDeviceLost}
}

func (s *stream) hold(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-s.d.Lost():
	case <-s.d.abandoned:
	}
	return false
}

func (s *stream) complete(seq uint64) {
	s.done.Store(seq)
	s.mu.Lock()
	var run []deferred
	s.after = slices.DeleteFunc(s.after, func(a deferred) bool {
		if a.seq <= seq {
			run = append(run, a)
			return true
		}
		return false
	})
	s.waiters = slices.DeleteFunc(s.waiters, func(w waiter) bool {
		if w.seq <= seq {
			close(w.ch)
			return true
		}
		return false
	})
	s.mu.Unlock()
	for _, a := range run {
		a.fn()
	}
}

// notify gives a channel that closes when seq is done, nil if it is.
func (s *stream) notify(seq uint64) <-chan struct{} {
	if s.done.Load() >= seq {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done.Load() >= seq {
		return nil
	}
	w := waiter{seq, make(chan struct{})}
	s.waiters = append(s.waiters, w)
	return w.ch
}

// afterPoint runs fn when seq is done: at once, on the stream's goroutine, or
// when the stream ends.
func (s *stream) afterPoint(seq uint64, fn func()) {
	s.mu.Lock()
	if s.done.Load() >= seq || s.gone {
		s.mu.Unlock()
		fn()
		return
	}
	s.after = append(s.after, deferred{seq, fn})
	s.mu.Unlock()
}

// push appends the items of one submission; the caller holds the gate, so the
// queue is not ended meanwhile.
func (s *stream) push(items []item) {
	s.mu.Lock()
	s.queue = append(s.queue, items...)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Submit compiles the buffer, then enqueues it on all streams it uses, under
// their locks in the order of their refs.
func (s *stream) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	if err := s.d.inject("submit"); err != nil {
		return ascendrt.Point{}, 0, err
	}
	if err := s.d.Enter(); err != nil {
		return ascendrt.Point{}, 0, err
	}
	defer s.d.Leave()
	nodes, n, err := s.d.compile(c)
	if len(nodes) == 0 && err != nil {
		return ascendrt.Point{}, 0, err
	}
	used := []*stream{s}
	for _, x := range nodes {
		if x.kind == ascendrt.KindStream && !slices.Contains(used, x.stream) {
			used = append(used, x.stream)
		}
	}
	locked := slices.Clone(used)
	if err := base.LockAll(&s.d.Core, "submit", locked); err != nil {
		return ascendrt.Point{}, 0, err
	}
	defer base.UnlockAll(locked)
	queues := make([][]item, len(used))
	at := 0
	for _, x := range nodes {
		if x.kind == ascendrt.KindStream {
			at = slices.Index(used, x.stream)
			continue
		}
		queues[at] = x.items(queues[at])
	}
	for i, t := range used {
		queues[i] = append(queues[i], item{seq: t.seq.Add(1)})
		t.push(queues[i])
	}
	p := ascendrt.Point{Stream: s, Seq: s.seq.Load()}
	return p, n, err
}

func (s *stream) Done(seq uint64) bool { return s.done.Load() >= seq && s.d.LostError() == nil }

func (s *stream) Wait(ctx context.Context, seq uint64) error {
	if err := s.d.LostError(); err != nil {
		return err
	}
	if s.done.Load() >= seq {
		return nil
	}
	if seq > s.seq.Load() {
		return invalid("wait", "sequence number "+strconv.FormatUint(seq, 10)+" was never submitted", ascendrt.ErrInvalid)
	}
	for end := time.Now().Add(s.d.spin()); s.d.spin() > 0 && time.Now().Before(end); {
		if s.done.Load() >= seq {
			return nil
		}
		runtime.Gosched()
	}
	ch := s.notify(seq)
	if ch == nil {
		return nil
	}
	defer s.forget(ch)
	select {
	case <-ch:
		return nil
	case <-s.d.Lost():
		return s.d.LostError()
	case <-s.d.abandoned:
		if s.done.Load() >= seq {
			return nil
		}
		return invalid("wait", "closed", ascendrt.ErrClosed)
	case <-s.ended:
		if s.done.Load() >= seq {
			return nil
		}
		if err := s.d.LostError(); err != nil {
			return err
		}
		return invalid("wait", "the stream was closed", ascendrt.ErrClosed)
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return invalid("wait", "sequence number "+strconv.FormatUint(seq, 10)+" is not done", ascendrt.ErrTimeout)
		}
		return ctx.Err()
	}
}

// forget drops a waiter that nobody listens to any more.
func (s *stream) forget(ch <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters = slices.DeleteFunc(s.waiters, func(w waiter) bool { return w.ch == ch })
}

// endQueue lets the goroutine end once the queue is empty.
func (s *stream) endQueue() {
	s.Shut(func() {
		s.mu.Lock()
		s.stopped = true
		s.mu.Unlock()
	})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) Close() error {
	if !s.d.Refs.Remove(s.ref) {
		return nil
	}
	s.endQueue()
	<-s.ended
	if s.d.streams.Drop(s) {
		s.d.Give(base.Streams)
	}
	return nil
}
