//go:build cgo && linux

package acl

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// mark is an event recorded behind a submission.
type mark struct {
	seq uint64
	ev  eventPtr
}

type stream struct {
	d   *device
	raw streamPtr
	ref ascendrt.Ref

	base.Gate
	seq  atomic.Uint64 // submitted
	done atomic.Uint64 // known to have passed

	ring  sync.Mutex
	marks []mark     // recorded and not yet seen to be reached, in order
	spare []eventPtr // free to be recorded
	freed bool       // the runtime's stream and events are gone
	using sync.RWMutex
}

var _ ascendrt.Stream = (*stream)(nil)

func (d *device) NewStream(ascendrt.StreamOptions) (ascendrt.Stream, error) {
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	raw, err := base.Make(&d.Core, base.Streams, d.streamNew)
	if err != nil {
		return nil, err
	}
	s := &stream{d: d, raw: raw}
	s.ref = d.Refs.Add(s)
	d.streams.Add(s)
	return s, nil
}

func (s *stream) Ref() ascendrt.Ref { return s.ref }

// Owner is the device's core.
func (s *stream) Owner() *base.Core { return &s.d.Core }

// Submit translates the buffer, then replays it in one crossing under the locks
// of all streams and graphs it uses, in the order of their refs.
func (s *stream) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	d := s.d
	if err := d.Enter(); err != nil {
		return ascendrt.Point{}, 0, err
	}
	defer d.Leave()
	t := translators.Get().(*translator)
	defer translators.Put(t)
	t.reset(d, s, base.Submitting)
	n, err := t.translate(c)
	if err != nil && n == 0 {
		return ascendrt.Point{}, 0, err
	}
	if err := t.streams.Lock(&d.Core, "submit"); err != nil {
		return ascendrt.Point{}, 0, err
	}
	defer t.streams.Unlock()
	for i, x := range t.streams.All {
		ev, err := x.event()
		if err != nil {
			for k, ev := range t.signals {
				t.streams.All[k].giveEvent(ev)
			}
			return ascendrt.Point{}, 0, err
		}
		t.signals = append(t.signals, ev)
		if i > 0 || t.streams.Current != s {
			t.Record(recStream, 0, word(x.raw))
		}
		t.Record(recSignal, 0, word(ev))
	}
	p := ascendrt.Point{Stream: s, Seq: s.seq.Load() + 1}
	t.lockGraphs()
	for _, g := range t.graphs {
		g.Launched(p)
	}
	for _, e := range t.events {
		e.touch(p)
	}
	rerr := d.replay(s.raw, t.Words)
	t.unlockGraphs()
	for i, x := range t.streams.All {
		x.ring.Lock()
		x.marks = append(x.marks, mark{x.seq.Add(1), t.signals[i]})
		x.ring.Unlock()
	}
	if rerr != nil {
		return p, base.Accepted(rerr, n), rerr
	}
	return p, n, err
}

// event gives an event to record behind a submission.
func (s *stream) event() (eventPtr, error) {
	s.poll()
	s.ring.Lock()
	defer s.ring.Unlock()
	if n := len(s.spare); n > 0 {
		ev := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return ev, nil
	}
	return s.d.eventNew(eventSync)
}

func (s *stream) giveEvent(ev eventPtr) {
	s.ring.Lock()
	s.spare = append(s.spare, ev)
	s.ring.Unlock()
}

// poll asks for the events that lead the queue.
func (s *stream) poll() {
	s.ring.Lock()
	defer s.ring.Unlock()
	if s.freed {
		return
	}
	n := 0
	for ; n < len(s.marks); n++ {
		done, err := s.d.eventDone(s.marks[n].ev)
		if err != nil || !done {
			break
		}
		s.spare = append(s.spare, s.marks[n].ev)
		s.done.Store(s.marks[n].seq)
	}
	s.marks = s.marks[:copy(s.marks, s.marks[n:])]
}

// pending is the event of the first submission that is at least seq; nil if it
// has passed.
func (s *stream) pending(seq uint64) eventPtr {
	s.ring.Lock()
	defer s.ring.Unlock()
	for _, m := range s.marks {
		if m.seq >= seq {
			return m.ev
		}
	}
	return nil
}

// Done crosses only if the answer is not known yet.
func (s *stream) Done(seq uint64) bool {
	if s.d.LostError() != nil || seq > s.seq.Load() {
		return false
	}
	if s.done.Load() >= seq {
		return true
	}
	s.poll()
	return s.done.Load() >= seq && s.d.LostError() == nil
}

// Wait polls for a while, then waits in C by slices.
func (s *stream) Wait(ctx context.Context, seq uint64) error {
	return base.Wait(ctx, &s.d.Core, s, seq, s.seq.Load())
}

// Reached asks the runtime if the answer is not known yet.
func (s *stream) Reached(seq uint64) bool { return s.Done(seq) }

// Block waits in C.
func (s *stream) Block(seq uint64, most time.Duration) (bool, error) {
	if err := s.slice(seq, most); err != nil {
		return false, err
	}
	return s.Done(seq), nil
}

// slice waits in C for a while. An event that another submission records
// meanwhile costs no more than the slice.
func (s *stream) slice(seq uint64, at time.Duration) error {
	s.using.RLock()
	defer s.using.RUnlock()
	s.ring.Lock()
	freed := s.freed
	s.ring.Unlock()
	if freed {
		if s.done.Load() >= seq {
			return nil
		}
		return invalid("wait", "the stream was closed", ascendrt.ErrClosed)
	}
	ev := s.pending(seq)
	if ev == nil {
		return nil
	}
	_, err := s.d.eventWait(ev, at)
	return err
}

// submitted is the last sequence number.
func (s *stream) submitted() uint64 { return s.seq.Load() }

// Stop refuses further submissions and gives the last sequence number.
func (s *stream) Stop() uint64 {
	s.Shut(nil)
	return s.seq.Load()
}

func (s *stream) Close() error {
	if s.d.Closed() || !s.d.Refs.Remove(s.ref) {
		return nil
	}
	return base.CloseStream(&s.d.Core, &s.d.streams, s, func(idle bool) {
		s.d.Give(base.Streams)
		if idle {
			s.free()
		}
	})
}

// free gives the runtime's stream and events back; the stream is idle.
func (s *stream) free() {
	s.using.Lock()
	defer s.using.Unlock()
	s.ring.Lock()
	defer s.ring.Unlock()
	if s.freed {
		return
	}
	s.freed = true
	for _, m := range s.marks {
		s.d.eventFree(m.ev)
	}
	for _, ev := range s.spare {
		s.d.eventFree(ev)
	}
	s.marks, s.spare = nil, nil
	s.d.streamFree(s.raw)
}
