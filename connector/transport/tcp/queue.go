package tcp

import (
	"errors"
	"slices"

	"github.com/sluice-serving/sluice/connector/transport"
)

// op is one call of Read, Write or Notify. Its fields are guarded by peer.mu
// after it was queued.
type op struct {
	kind    kind
	key     transport.Capability
	ticket  []byte // of a read of units: in place of the key
	all     []*chunk
	chunks  []*chunk // queued
	open    int      // queued or in flight
	failed  []bool   // per segment or unit of the call
	err     error    // the first cause
	stopped bool     // no more parts are started or repeated
	done    chan struct{}
}

// chunk is a part of an op that travels on one connection.
type chunk struct {
	op          *op
	first, last int // segments or units of the call that it touches
	pieces      []piece
	spans       []span
	total       int64
	attempts    int
	slot        *slot // in flight on
	far         bool  // it has to travel on the connection
	shown       bool  // of a write: the peer was told where it lies, and fetches it
	units       *unitsPart
	ahead       *ahead // nil: nothing is fetched before the answer; the slot's alone
	msg         []byte
}

// cut divides segments into chunks of at most target bytes and maxSegments
// runs on either side. Adjacent runs are joined on each side by itself.
func (o *op) cut(segs []transport.Segment, regions map[transport.RegionID]*transport.Region, target int64) {
	c := &chunk{op: o}
	flush := func(i int) {
		if c.total > 0 {
			o.chunks = append(o.chunks, c)
		}
		c = &chunk{op: o, first: i, last: i}
	}
	var r *transport.Region
	for i, s := range segs {
		if r == nil || r.ID != s.Local {
			r = regions[s.Local]
		}
		for at := int64(0); at < s.Length; {
			if c.total == target || len(c.spans) == maxSegments || len(c.pieces) == maxSegments {
				flush(i)
			}
			n := min(s.Length-at, target-c.total)
			c.local(r, s.LocalOffset+at, n)
			c.remote(s.Remote, s.RemoteOffset+at, n)
			c.total += n
			c.last = i
			at += n
		}
	}
	flush(0)
	o.all = slices.Clone(o.chunks)
	o.open = len(o.chunks)
}

func (c *chunk) local(r *transport.Region, off, n int64) {
	if k := len(c.pieces); k > 0 {
		if p := &c.pieces[k-1]; p.region == r && p.offset+p.length == off {
			p.length += n
			return
		}
	}
	c.pieces = append(c.pieces, piece{r, off, n})
}

func (c *chunk) remote(r transport.RegionID, off, n int64) {
	if k := len(c.spans); k > 0 {
		if s := &c.spans[k-1]; s.region == r && s.offset+s.length == off {
			s.length += n
			return
		}
	}
	c.spans = append(c.spans, span{r, off, n})
}

// submit queues an op.
func (p *peer) submit(o *op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return transport.ErrClosed
	}
	p.ops = append(p.ops, o)
	p.wake(len(o.chunks))
	return nil
}

// wake lets slots take n chunks, those first that have a connection. The lock is held.
func (p *peer) wake(n int) {
	for _, s := range p.slots {
		if n == 0 {
			return
		}
		if s.parked {
			s.parked = false
			s.unwatch()
			n--
		}
	}
	if n > 0 {
		p.cond.Broadcast()
	}
}

// park notes that a slot waits on its connection, unless there is work or the peer is
// closed.
func (p *peer) park(s *slot) (parked, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.parked = !p.closed && len(p.ops) == 0
	return s.parked, p.closed
}

func (p *peer) unpark(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.parked = false
}

// take hands the next chunk to a slot, ops in turn. Only chunks of the given
// kind are taken when it is not 0. Without wait it returns nil at once when
// there is none; with wait only when the peer is closed.
func (p *peer) take(s *slot, only kind, wait bool) *chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return nil
		}
		for range p.ops {
			if p.turn >= len(p.ops) {
				p.turn = 0
			}
			o := p.ops[p.turn]
			if only != 0 && o.kind != only {
				p.turn++
				continue
			}
			c := o.chunks[0]
			o.chunks = o.chunks[1:]
			if len(o.chunks) == 0 {
				p.ops = slices.Delete(p.ops, p.turn, p.turn+1)
			} else {
				p.turn++
			}
			c.slot = s
			return c
		}
		if !wait {
			return nil
		}
		p.cond.Wait()
	}
}

// finish ends a chunk. With again it is queued once more unless its attempts
// are used up or its op has stopped.
func (p *peer) finish(c *chunk, err error, again retry) {
	_ = c.land() // of a read that was refused
	p.mu.Lock()
	defer p.mu.Unlock()
	o := c.op
	c.slot = nil
	if err != nil && again == repeat && !o.stopped && !p.closed && c.attempts <= p.t.cfg.Retries {
		p.t.counters.retries.Add(1)
		o.chunks = append(o.chunks, c)
		if len(o.chunks) == 1 {
			p.ops = append(p.ops, o)
		}
		p.wake(1)
		return
	}
	if err != nil && !errors.Is(err, transport.ErrCorrupt) && !errors.Is(err, transport.ErrMemory) {
		p.halt(o, err) // the other parts would meet the same
	}
	p.settle(c, err)
}

// halt starts no more parts of an op and fails those that are queued. The lock
// is held.
func (p *peer) halt(o *op, err error) {
	o.stopped = true
	if i := slices.Index(p.ops, o); i >= 0 {
		p.ops = slices.Delete(p.ops, i, i+1)
	}
	queued := o.chunks
	o.chunks = nil
	for _, c := range queued {
		p.settle(c, err)
	}
}

// settle records a chunk's end. The lock is held.
func (p *peer) settle(c *chunk, err error) {
	o := c.op
	if err != nil {
		if o.err == nil || c.shown && errors.Is(o.err, ErrFar) { // of the two, ErrFar would let it be sent again
			o.err = err
		}
		for i := c.first; i <= c.last && i < len(o.failed); i++ {
			o.failed[i] = true
		}
	}
	if o.open--; o.open == 0 {
		close(o.done)
	}
}

// stop ends an op early: queued chunks fail now, those in flight are left to
// their slots.
func (p *peer) stop(o *op, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halt(o, err)
}

// cut breaks the connections that chunks of an op are on. With the lock held, since a
// slot that has just ended its chunk may be at another op's.
func (p *peer) cut(o *op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range o.all {
		if c.slot != nil {
			c.slot.cut()
		}
	}
}

type retry uint8

const (
	final  retry = iota
	repeat       // on another connection
)
