package tcp

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// depth is how many requests of one kind may be on a connection: one in
// transfer and one that waits at the peer, so that the peer never idles for a
// round trip.
const depth = 2

// slot is one of a peer's connections: a goroutine that dials when there is
// work, sends requests and receives the answers in order.
//
// Only requests of one kind are pipelined, so the two sides never both wait
// for the other to take a payload.
type slot struct {
	p    *peer
	w    *wire // nil: not connected
	id   uint64
	idle bool // w was unused before the requests that are on it now, and has answered none of them

	parked bool // on the connection, until its deadline is set; guarded by peer.mu

	mu   sync.Mutex
	kill func() // breaks off what the slot is doing; nil when idle
}

// cut breaks the connection, or the dialing of it. Any goroutine.
func (s *slot) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kill != nil {
		s.kill()
	}
}

func (s *slot) setKill(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill = f
}

func (s *slot) run() {
	defer s.disconnect()
	var pending []*chunk
	var ids []uint64
	for {
		var only kind
		if len(pending) > 0 {
			only = pending[0].op.kind
		}
		if len(pending) < s.atOnce() {
			if c := s.next(only, len(pending) == 0); c != nil {
				if len(pending) == 0 {
					s.idle = s.w != nil
				}
				c.attempts++
				pending = append(pending, c)
				if chunkErr, err := s.start(c); err != nil {
					pending, ids = s.broken(pending, err), ids[:0]
					continue
				} else if chunkErr != nil {
					s.p.finish(c, chunkErr, final)
					if errors.Is(chunkErr, ErrFar) { // nothing was sent
						pending = pending[:len(pending)-1]
						continue
					}
					// The local memory failed in the middle of a payload.
					pending, ids = s.broken(pending[:len(pending)-1], chunkErr), ids[:0]
					continue
				}
				ids = append(ids, s.id)
				continue
			} else if len(pending) == 0 {
				return // closed
			}
		}
		chunkErr, err := s.receive(pending[0], ids[0])
		if err != nil {
			pending, ids = s.broken(pending, err), ids[:0]
			continue
		}
		s.idle = false
		again := final
		if errors.Is(chunkErr, ErrFar) {
			pending[0].far = true
			pending[0].attempts--        // the connection itself was not at fault
			if pending[0].units == nil { // else its op goes on piece by piece
				again = repeat
			}
		}
		if errors.Is(chunkErr, transport.ErrCorrupt) {
			again = repeat
		}
		s.p.finish(pending[0], chunkErr, again)
		pending, ids = pending[1:], ids[1:]
	}
}

// next is the next chunk, waited for if there is nothing else to do.
func (s *slot) next(only kind, wait bool) *chunk {
	if !wait || s.w == nil || s.w.near == nil && !s.w.lend {
		return s.p.take(s, only, wait)
	}
	for {
		if c := s.p.take(s, only, false); c != nil {
			return c
		}
		if !s.park() {
			return s.p.take(s, only, true)
		}
	}
}

// park waits on the connection to a neighbour until there is work. It is false when the
// connection has ended, and with it the way to the neighbour's memory, or the peer is
// closed. The next request then has a connection of its own made.
func (s *slot) park() bool {
	w := s.w
	if w.conn.SetReadDeadline(time.Time{}) == nil {
		switch parked, closed := s.p.park(s); {
		case closed:
			return false
		case !parked:
			return true
		}
		_, err := w.br.Peek(1)
		s.p.unpark(s)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return true
		}
	}
	s.disconnect()
	return false
}

// unwatch ends the wait on the connection.
func (s *slot) unwatch() {
	if s.w.conn.SetReadDeadline(time.Unix(1, 0)) != nil {
		s.w.conn.Close()
	}
}

// atOnce is how many requests may be on the connection.
func (s *slot) atOnce() int {
	if s.p.t.direct != nil || s.w != nil && s.w.near != nil {
		return 1 // what is lent is given back before the next request
	}
	return depth
}

// broken drops the connection and queues its chunks again, or fails them.
func (s *slot) broken(pending []*chunk, err error) []*chunk {
	for _, c := range pending {
		_ = c.land() // from memory that the connection leads to
	}
	s.disconnect()
	again := repeat
	if errors.Is(err, transport.ErrPeerRestarted) || errors.Is(err, transport.ErrProtocol) {
		again = final
	}
	if s.p.ctx.Err() != nil {
		err = transport.ErrClosed
	} else if !isOurs(err) {
		err = fmt.Errorf("%w: %v", transport.ErrUnreachable, err)
	}
	for _, c := range pending {
		again := again
		if s.idle { // the peer had hung up before, which says nothing about now
			c.attempts--
		}
		if c.shown {
			again = final // it may be fetching still, when the memory is another's long since
		}
		s.p.finish(c, err, again)
	}
	s.idle = false
	return nil
}

func isOurs(err error) bool {
	for _, e := range []error{transport.ErrPeerRestarted, transport.ErrProtocol, transport.ErrStalled, transport.ErrCorrupt, transport.ErrUnreachable} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *slot) disconnect() {
	s.setKill(nil)
	if s.w != nil {
		s.p.hangUp(s.w)
		s.w = nil
	}
}

// start sends a request, and for a write its payload. The first error is of
// the local memory, the second of the connection.
func (s *slot) start(c *chunk) (error, error) {
	c.shown = false
	if err := s.connect(); err != nil {
		return nil, err
	}
	s.id++
	o := c.op
	if o.kind == kindNotify {
		return nil, s.w.send(header{kind: kindNotify, id: s.id}, c.msg)
	}
	if c.units != nil {
		return s.startUnits(c)
	}
	payload := appendRequest(make([]byte, 0, requestBase+len(c.spans)*segmentSize), o.key, c.total, c.spans)
	if s.w.offer && o.kind == kindWrite {
		offer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), payload...)
		if b, ok := s.p.t.appendLend(offer, c.pieces, s.w.crc); ok {
			return nil, s.show(c, header{kind: kindOffer, id: s.id}, b)
		}
	}
	if o.kind == kindWrite {
		if ok, err := s.offerNear(c, payload); ok {
			return nil, err
		}
	}
	var flags uint8
	if s.w.fetch != nil && o.kind == kindRead {
		flags = flagFetch
	}
	if s.w.near != nil && !c.far && o.kind == kindRead && s.p.t.allNear(c.pieces) {
		flags |= flagNear
	}
	if err := s.w.send(header{kind: o.kind, flags: flags, id: s.id}, payload); err != nil || o.kind == kindRead {
		return nil, err
	}
	return s.w.sendData(s.id, &cursor{pieces: c.pieces}, c.total, func() error { return nil })
}

// show tells the peer where pieces lie that it then fetches. Whether a peer that hung up
// behind this has fetched them cannot be told, so it is asked first.
func (s *slot) show(c *chunk, h header, b []byte) error {
	if s.idle && s.w.hungUp() {
		return io.EOF
	}
	err := s.w.send(h, b)
	c.shown = err == nil // else it has not got all of it
	return err
}

// receive takes the answer to a chunk. The first error is the chunk's, with
// the connection intact, the second the connection's.
func (s *slot) receive(c *chunk, id uint64) (error, error) {
	cur := &cursor{pieces: c.pieces}
	left := c.total
	var chunkErr error
	borrowed := false
	for {
		h, err := s.w.readHeader(s.w.stall)
		if err != nil {
			return nil, err
		}
		if h.id != id {
			return nil, unexpected(h)
		}
		switch h.kind {
		case kindDone:
			var buf [maxText]byte
			text, err := s.w.readPayload(h, buf[:])
			if err != nil {
				return nil, err
			}
			if h.status == statusOK && c.op.reads() && !borrowed {
				return nil, unexpected(h)
			}
			if err := h.status.err(text); err != nil {
				if c.op.kind == kindPut && h.status == statusFar {
					s.w.puts = false
				}
				return err, nil
			}
			if borrowed && chunkErr == nil {
				s.p.t.counters.fetched.Add(uint64(c.total))
			}
			return chunkErr, nil
		case kindLend:
			if !c.op.reads() || borrowed || left < c.total || !s.mayLend(h, c) {
				return nil, unexpected(h)
			}
			if chunkErr, err = s.borrow(h, c); err != nil {
				return nil, err
			}
			borrowed = true
		case kindData:
			if borrowed || c.op.kind != kindRead || h.length == 0 || int64(h.length) > left {
				return nil, unexpected(h)
			}
			left -= int64(h.length)
			if last := h.flags&flagLast != 0; last != (left == 0) {
				return nil, unexpected(h)
			}
			if chunkErr != nil {
				err = s.w.discard(h)
			} else if chunkErr, err = s.w.recvData(h, cur); errors.Is(chunkErr, transport.ErrCorrupt) {
				s.p.t.counters.corrupt.Add(1)
			}
			if err != nil {
				return nil, err
			}
			if left == 0 {
				return chunkErr, nil
			}
		default:
			return nil, unexpected(h)
		}
	}
}

// reads reports whether an op is answered by what its pieces hold.
func (o *op) reads() bool { return o.kind == kindRead || o.kind == kindUnits }

// mayLend reports whether a chunk can be answered with this frame.
func (s *slot) mayLend(h header, c *chunk) bool {
	if c.units != nil {
		return h.flags&flagNear != 0 && s.w.units
	}
	if h.flags&flagNear != 0 {
		return s.w.near != nil && !c.far && s.p.t.allNear(c.pieces)
	}
	return s.w.fetch != nil
}

// borrow fetches what the peer lends and says that it is done with it.
func (s *slot) borrow(h header, c *chunk) (error, error) {
	b, err := s.w.readPayload(h, make([]byte, h.length)) // at most the limit of the kind
	if err != nil {
		return nil, err
	}
	total := c.total
	if c.units != nil {
		total = c.units.bytes // of one unit of each region
	}
	l, err := parseLend(b, total)
	if err != nil {
		return nil, err
	}
	var chunkErr error
	if c.units != nil {
		if chunkErr, err = s.borrowUnits(l, c); err != nil {
			return nil, err
		}
	} else if h.flags&flagNear != 0 {
		chunkErr = s.p.t.borrowNear(s.w, l, c.pieces, c.total)
	} else if chunkErr, err = s.w.borrow(l, c.pieces, c.total); err != nil {
		return nil, err
	}
	if errors.Is(chunkErr, transport.ErrCorrupt) {
		s.p.t.counters.corrupt.Add(1)
	}
	back := header{kind: kindBack, id: h.id}
	if errors.Is(chunkErr, ErrFar) {
		back.status = statusFar // nothing was read
	}
	return chunkErr, s.w.send(back, nil)
}

func unexpected(h header) error {
	return fmt.Errorf("%w: unexpected %v frame of %d bytes, status %d", transport.ErrProtocol, h.kind, h.length, h.status)
}

// connect makes the slot's connection and checks that the same process
// answers as at Connect.
func (s *slot) connect() error {
	if s.w == nil {
		ctx, cancel := context.WithCancel(s.p.ctx)
		defer cancel()
		s.setKill(cancel)
		w, theirs, err := s.p.dial(ctx)
		if err != nil {
			return err
		}
		s.w = w
		if theirs.instance != s.p.instance {
			return fmt.Errorf("%w: %v became %v", transport.ErrPeerRestarted, s.p.instance, theirs.instance)
		}
	}
	w := s.w
	s.setKill(w.sever)
	if s.p.ctx.Err() != nil { // closed before the kill was set
		return transport.ErrClosed
	}
	return nil
}

// dial connects and exchanges hellos.
func (p *peer) dial(ctx context.Context) (*wire, hello, error) {
	ctx, cancel := context.WithTimeout(ctx, p.t.cfg.DialTimeout)
	defer cancel()
	c, err := p.t.cfg.Network.Dial(ctx, p.addr)
	if err != nil {
		return nil, hello{}, fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	p.t.counters.dials.Add(1)
	p.t.counters.openConns.Add(1)
	fetch, _ := c.(Fetcher)
	if p.t.cfg.WrapConn != nil {
		c = p.t.cfg.WrapConn(c)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	w, theirs, err := p.greet(ctx, c)
	if err == nil && fetch != nil && fetch.CanFetch() {
		w.fetch = fetch
	}
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.t.counters.openConns.Add(-1)
		c.Close()
		if w != nil {
			w.leaveNear()
		}
		return nil, hello{}, fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	return w, theirs, nil
}

func (p *peer) greet(ctx context.Context, c net.Conn) (*wire, hello, error) {
	if p.t.cfg.ClientTLS != nil {
		cfg := p.t.cfg.ClientTLS
		if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
			host, _, err := net.SplitHostPort(p.addr)
			if err != nil {
				return nil, hello{}, err
			}
			cfg = cfg.Clone()
			cfg.ServerName = host
		}
		tc := tls.Client(c, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			return nil, hello{}, fmt.Errorf("tls with %s: %w", p.addr, err)
		}
		c = tc
	}
	w := newWire(c, p.t.cfg.StallTimeout)
	ours := p.t.hello()
	buf := make([]byte, helloSize)
	ours.put(buf)
	if err := w.send(header{kind: kindHello}, buf); err != nil {
		return nil, hello{}, err
	}
	h, err := w.readHeader(p.t.cfg.DialTimeout)
	if err != nil {
		return nil, hello{}, err
	}
	if h.kind != kindHello {
		return nil, hello{}, unexpected(h)
	}
	b, err := w.readPayload(h, buf)
	if err != nil {
		return nil, hello{}, err
	}
	theirs, err := parseHello(b)
	if err != nil {
		return nil, hello{}, err
	}
	w.crc = ours.crc == 1 || theirs.crc == 1
	w.offer = theirs.fetch == 1
	if err := p.cards(ctx, w, theirs); err != nil {
		return nil, hello{}, err
	}
	return w, theirs, nil
}

func (p *peer) hangUp(w *wire) {
	w.conn.Close()
	w.leaveNear()
	p.t.counters.openConns.Add(-1)
}
