//go:build cgo && linux

package cuda

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

type stream struct {
	d    *device
	raw  streamPtr
	ref  ascendrt.Ref
	done *uint64 // the device writes here the sequence number that has passed
	word uint64  // the same place, as the device addresses it

	base.Gate
	freed   bool // under the device's life: the driver's stream is gone
	seq     atomic.Uint64
	counted bool
}

var _ ascendrt.Stream = (*stream)(nil)

func (d *device) NewStream(o ascendrt.StreamOptions) (ascendrt.Stream, error) {
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	s, err := base.Make(&d.Core, base.Streams, func() (*stream, error) { return d.newStream(o) })
	if err != nil {
		return nil, err
	}
	s.counted = true
	return s, nil
}

// newStream makes a stream that no limit counts.
func (d *device) newStream(o ascendrt.StreamOptions) (*stream, error) {
	page, at, err := d.takeWord()
	if err != nil {
		return nil, err
	}
	// Higher runs first here; the driver counts down from its lowest priority.
	s := &stream{d: d, done: page, word: at}
	if s.raw, err = d.streamNew(max(d.high, d.low-max(0, o.Priority))); err != nil {
		return nil, err
	}
	s.ref = d.Refs.Add(s)
	d.streams.Add(s)
	return s, nil
}

func (s *stream) Ref() ascendrt.Ref { return s.ref }

// Owner is the device's core.
func (s *stream) Owner() *base.Core { return &s.d.Core }

// Submit translates the buffer, then replays it in one crossing under the locks
// of all streams it uses, in the order of their refs.
func (s *stream) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	d := s.d
	if err := d.Enter(); err != nil {
		return ascendrt.Point{}, 0, err
	}
	defer d.Leave()
	t := translators.Get().(*translator)
	defer translators.Put(t)
	t.reset(d, s, base.Submitting)
	var p ascendrt.Point
	defer func() { t.endLists(p) }()
	n, err := t.translate(c)
	if err != nil && n == 0 {
		return ascendrt.Point{}, 0, err
	}
	if err := t.streams.Lock(&d.Core, "submit"); err != nil {
		return ascendrt.Point{}, 0, err
	}
	defer t.streams.Unlock()
	for i, x := range t.streams.All {
		seq := x.seq.Add(1)
		if i == 0 {
			p = ascendrt.Point{Stream: s, Seq: seq}
		}
		if i > 0 || t.streams.Current != s {
			t.Record(recStream, 0, word(unsafe.Pointer(x.raw)))
		}
		t.Record(recSignal, 0, x.word, seq)
	}
	for _, g := range t.graphs {
		g.Launched(p)
	}
	if rerr := d.replay(s.raw, t.Words); rerr != nil {
		return p, base.Accepted(rerr, n), rerr
	}
	return p, n, err
}

// Done reads the word; it crosses nothing.
func (s *stream) Done(seq uint64) bool {
	return atomic.LoadUint64(s.done) >= seq && s.d.LostError() == nil
}

// Wait spins on the word, then waits in C by slices.
func (s *stream) Wait(ctx context.Context, seq uint64) error {
	return base.Wait(ctx, &s.d.Core, s, seq, s.seq.Load())
}

// Reached looks at the word for a short while.
func (s *stream) Reached(seq uint64) bool {
	for range 64 {
		if atomic.LoadUint64(s.done) >= seq {
			return true
		}
	}
	return false
}

// Block waits in C.
func (s *stream) Block(seq uint64, most time.Duration) (bool, error) {
	if pollWord(s.done, seq, most) {
		return true, nil
	}
	return false, s.check()
}

// check looks for the reasons why the word may never come: a loss, or the end
// of the stream.
func (s *stream) check() error {
	if err := s.d.LostError(); err != nil {
		return err
	}
	s.d.Life.RLock()
	defer s.d.Life.RUnlock()
	if s.freed {
		if s.Done(s.seq.Load()) {
			return nil
		}
		return invalid("wait", "the stream was closed", ascendrt.ErrClosed)
	}
	return s.d.streamCheck(s.raw)
}

// takeWord gives a word for a new stream. Words are never reused: another
// stream may still be asked to wait for one.
func (d *device) takeWord() (*uint64, uint64, error) {
	d.words.Lock()
	defer d.words.Unlock()
	if n := len(d.pages); n == 0 || d.nextWord == pageWords {
		page, dev, err := d.newWords()
		if err != nil {
			return nil, 0, err
		}
		d.pages = append(d.pages, wordPage{page, dev})
		d.nextWord = 0
	}
	p := d.pages[len(d.pages)-1]
	i := d.nextWord
	d.nextWord++
	return &p.words[i], p.dev + uint64(8*i), nil
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
	return s.finish()
}

// end closes a stream of our own.
func (s *stream) end() {
	if s.d.Refs.Remove(s.ref) {
		_ = s.finish() // it carries nothing that anybody waits for
	}
}

func (s *stream) finish() error {
	return base.CloseStream(&s.d.Core, &s.d.streams, s, func(idle bool) {
		if s.counted {
			s.d.Give(base.Streams)
		}
		if idle {
			s.freed = true
			s.d.streamFree(s.raw)
		}
	})
}
