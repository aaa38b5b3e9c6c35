package tcp

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// accept owns the listener's connections until the listener is closed.
func (t *Transport) accept() {
	for {
		raw, err := t.ln.Accept()
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, most likely: wait and try again
			case <-t.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		c := raw
		if t.cfg.WrapConn != nil {
			c = t.cfg.WrapConn(c)
		}
		if t.cfg.ServerTLS != nil {
			c = tls.Server(c, t.cfg.ServerTLS)
		}
		t.mu.Lock()
		if t.closed || len(t.accepted) >= t.cfg.MaxConns {
			t.mu.Unlock()
			c.Close()
			continue
		}
		t.accepted[c] = struct{}{}
		t.mu.Unlock()
		t.counters.accepts.Add(1)
		t.counters.openConns.Add(1)
		t.wg.Go(func() {
			t.serve(c, raw)
			c.Close()
			t.counters.openConns.Add(-1)
			t.mu.Lock()
			delete(t.accepted, c)
			t.mu.Unlock()
		})
	}
}

// server answers the requests of one accepted connection, one after the other.
type server struct {
	t      *Transport
	w      *wire
	raw    net.Conn // the network's own
	peer   transport.Instance
	buf    []byte // a request's payload
	spans  []span
	pieces []piece
	ids    []transport.RegionID
	units  []int32
	put    put

	tickets *transport.Tickets // as the peer was told; nil: it has none
}

// serve answers on c, which carries what the network's connection raw does.
func (t *Transport) serve(c, raw net.Conn) {
	s := &server{t: t, w: newWire(c, t.cfg.StallTimeout), buf: make([]byte, kindRead.limit())}
	s.raw = raw
	err := s.run()
	s.w.leaveNear()
	if errors.Is(err, transport.ErrProtocol) {
		t.counters.malformed.Add(1)
		t.cfg.Log.Warn("tcp transport: connection closed", "peer", c.RemoteAddr().String(), "error", err)
	}
}

func (s *server) run() error {
	if err := s.handshake(); err != nil {
		return err
	}
	for {
		h, err := s.w.readHeader(s.t.cfg.IdleTimeout)
		if err != nil {
			return err
		}
		switch h.kind {
		case kindRead:
			err = s.read(h)
		case kindUnits:
			err = s.readUnits(h)
		case kindWrite:
			err = s.write(h)
		case kindOffer:
			err = s.offer(h)
		case kindPut:
			err = s.takePut(h)
		case kindNotify:
			err = s.notify(h)
		default:
			err = unexpected(h)
		}
		if err != nil {
			return err
		}
	}
}

func (s *server) handshake() error {
	h, err := s.w.readHeader(s.t.cfg.DialTimeout)
	if err != nil {
		return err
	}
	if h.kind != kindHello {
		return unexpected(h)
	}
	b, err := s.w.readPayload(h, s.buf)
	if err != nil {
		return err
	}
	theirs, err := parseHello(b)
	if err != nil {
		return err
	}
	s.peer = theirs.instance
	ours := s.t.hello()
	if theirs.crc == 1 {
		ours.crc = 1
	}
	if f, ok := s.raw.(Fetcher); ok && f.CanFetch() {
		s.w.fetch, ours.fetch = f, 1
	}
	ours.put(s.buf[:helloSize])
	if err := s.w.send(header{kind: kindHello}, s.buf[:helloSize]); err != nil {
		return err
	}
	s.w.crc = ours.crc == 1
	if ours.near == 1 && theirs.near == 1 {
		return s.takeCard()
	}
	return nil
}

// open decodes a request and resolves its segments to memory under the grant.
// The first error is the peer's to know, the second ends the connection.
func (s *server) open(b []byte, a transport.Access) (*transport.Hold, int64, error, error) {
	c, total, spans, err := parseRequest(b, s.spans)
	if err != nil {
		return nil, 0, nil, err
	}
	s.spans = spans
	hold, err := s.t.grants.Acquire(c, a, func() { s.w.conn.Close() })
	if err != nil {
		s.t.counters.denied.Add(1)
		return nil, total, err, nil
	}
	s.pieces = s.pieces[:0]
	for _, sp := range spans {
		r, err := s.t.regions.Acquire(sp.region)
		if err == nil && !r.Holds(sp.offset, sp.length) {
			r.Release()
			err = transport.ErrRegion
		}
		if err == nil && !hold.Allows(sp.region, r.Unit, sp.offset, sp.length) {
			r.Release()
			s.t.counters.denied.Add(1)
			err = transport.ErrDenied
		}
		if err != nil {
			s.release(hold)
			return nil, total, err, nil
		}
		s.pieces = append(s.pieces, piece{r, sp.offset, sp.length})
	}
	return hold, total, nil, nil
}

func (s *server) release(hold *transport.Hold) {
	for i := range s.pieces {
		s.pieces[i].region.Release()
	}
	clear(s.pieces)
	s.pieces = s.pieces[:0]
	hold.Release()
}

func (s *server) read(h header) error {
	b, err := s.w.readPayload(h, s.buf)
	if err != nil {
		return err
	}
	hold, total, refuse, err := s.open(b, transport.PeerReads)
	if err != nil {
		return err
	}
	if refuse != nil {
		return s.done(h.id, refuse)
	}
	defer s.release(hold)
	if ok, err := s.lendNear(h, hold, total); ok {
		return err
	}
	if h.flags&flagFetch != 0 {
		if b, ok := s.t.appendLend(nil, s.pieces, s.w.crc); ok {
			return s.lend(header{id: h.id}, b, total, revoked(hold))
		}
	}
	memErr, err := s.w.sendData(h.id, &cursor{pieces: s.pieces}, total, revoked(hold))
	if err != nil {
		return err
	}
	if memErr != nil {
		return s.done(h.id, memErr)
	}
	s.t.counters.servedReads.Add(uint64(total))
	return nil
}

// lend tells where the memory lies and waits until the peer is done with it.
// What the peer has fetched counts only if its right to it still stands then.
func (s *server) lend(h header, b []byte, total int64, stands func() error) error {
	h.kind = kindLend
	if err := s.w.send(h, b); err != nil {
		return err
	}
	back, err := s.w.readHeader(2 * s.t.cfg.StallTimeout) // the peer gives up first
	if err != nil {
		return err
	}
	if back.kind != kindBack || back.id != h.id {
		return unexpected(back)
	}
	err = stands()
	if err == nil && back.status == statusOK {
		s.t.counters.servedReads.Add(uint64(total))
	}
	return s.done(h.id, err)
}

// offer fetches what the peer writes.
func (s *server) offer(h header) error {
	near := h.flags&flagNear != 0
	if !near && s.w.fetch == nil || near && s.t.cfg.Near == nil {
		return unexpected(h)
	}
	b, err := s.w.readPayload(h, make([]byte, h.length)) // at most the limit of the kind
	if err != nil {
		return err
	}
	if len(b) < 4 || int64(binary.LittleEndian.Uint32(b)) > int64(len(b)-4) {
		return unexpected(h)
	}
	n := binary.LittleEndian.Uint32(b)
	hold, total, refuse, err := s.open(b[4:4+n], transport.PeerWrites)
	if err != nil {
		return err
	}
	if hold != nil {
		defer s.release(hold)
	}
	l, err := parseLend(b[4+n:], total)
	if err != nil {
		return err
	}
	switch {
	case refuse != nil:
	case near && !s.t.allNear(s.pieces):
		refuse = ErrFar
	case near:
		refuse = s.t.borrowNear(s.w, l, s.pieces, total)
	default:
		if refuse, err = s.w.borrow(l, s.pieces, total); err != nil {
			return err
		}
	}
	if refuse == nil {
		refuse = revoked(hold)()
	}
	if refuse == nil {
		s.t.counters.servedWrites.Add(uint64(total))
		s.t.counters.fetched.Add(uint64(total))
	}
	return s.done(h.id, refuse)
}

func revoked(hold *transport.Hold) func() error {
	return func() error {
		if hold.Revoked() {
			return transport.ErrDenied
		}
		return nil
	}
}

func (s *server) write(h header) error {
	b, err := s.w.readPayload(h, s.buf)
	if err != nil {
		return err
	}
	hold, total, refuse, err := s.open(b, transport.PeerWrites)
	if err != nil {
		return err
	}
	if hold != nil {
		defer s.release(hold)
	}
	cur := &cursor{pieces: s.pieces}
	for left := total; left > 0; {
		d, err := s.w.readHeader(s.t.cfg.StallTimeout)
		if err != nil {
			return err
		}
		if d.kind != kindData || d.id != h.id || d.length == 0 || int64(d.length) > left {
			return unexpected(d)
		}
		left -= int64(d.length)
		if refuse == nil {
			refuse = revoked(hold)()
		}
		if refuse != nil {
			if err := s.w.discard(d); err != nil {
				return err
			}
			continue
		}
		if refuse, err = s.w.recvData(d, cur); err != nil {
			return err
		}
	}
	if refuse == nil {
		s.t.counters.servedWrites.Add(uint64(total))
	}
	return s.done(h.id, refuse)
}

func (s *server) notify(h header) error {
	msg := s.buf
	if int(h.length) > len(msg) {
		msg = make([]byte, h.length) // at most MaxNotify
	}
	b, err := s.w.readPayload(h, msg)
	if err != nil {
		return err
	}
	if s.t.cfg.Notified == nil {
		return s.done(h.id, errNoHandler)
	}
	s.t.cfg.Notified(s.peer, b)
	return s.done(h.id, nil)
}

var errNoHandler = errors.New("notifications are not taken here")

// done ends a request.
func (s *server) done(id uint64, err error) error {
	h := header{kind: kindDone, flags: flagLast, id: id}
	if err == nil {
		return s.w.send(h, nil)
	}
	switch {
	case errors.Is(err, transport.ErrDenied):
		h.status = statusDenied
	case errors.Is(err, transport.ErrRegion):
		h.status = statusRegion
	case errors.Is(err, transport.ErrCorrupt):
		h.status = statusCorrupt
		s.t.counters.corrupt.Add(1)
	case errors.Is(err, ErrFar):
		h.status = statusFar
	case errors.Is(err, errNoHandler):
		h.status = statusRefused
	default:
		h.status = statusMemory
	}
	text := err.Error()
	return s.w.send(h, []byte(text[:min(len(text), maxText)]))
}
