package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/connector/transport"
)

// Near reads memory of peers on this host that no CPU addresses, past the
// connections: device memory that another process has opened to it. As with
// Direct, requests, grants and answers stay on the connections, and all such
// access is reading, made by the side whose memory receives: what a peer writes
// here is fetched from it. Where a peer is not near, or its memory turns out
// not to be readable, everything travels on the connections.
//
// Its methods may be called from any goroutine. The transport closes it.
type Near interface {
	// Card is what every peer is told at the hello, at most MaxCard bytes.
	Card() []byte
	// Meet looks at a peer's card. The error says why the peer's memory cannot
	// be read here. It may block for the time of a small copy. The transport
	// closes the result.
	Meet(card []byte) (Neighbour, error)
	// Expose makes memory readable by neighbours that have its key, until the
	// result is closed. Nil without an error: it is no memory for this.
	Expose(m transport.Memory) (Exposed, error)
	// Close is called when all neighbours and exposed memory are closed.
	Close() error
}

// Neighbour is a peer whose memory can be read, as one connection sees it.
type Neighbour interface {
	// Fetch copies memory of the peer and returns when none of the local memory
	// can be touched any more. One call at a time per neighbour; the ranges are
	// not kept. An error that wraps ErrFar has touched nothing and says that the
	// memory cannot be read this way; any other is one of the memory.
	Fetch(ranges []NearRange) error
	// Close is called once nothing of this connection is fetched any more.
	Close()
}

// BlockNeighbour is a Neighbour that takes units of many regions as they are named,
// without a list of pieces.
type BlockNeighbour interface {
	Neighbour
	// FetchBlocks is as Fetch: of each region, the peer's unit Remote[i] to Local[i].
	// The slices are not kept.
	FetchBlocks(regions []NearRegion, local, remote []int32) error
}

// StartNeighbour is a BlockNeighbour that copies while its caller does something else.
type StartNeighbour interface {
	BlockNeighbour
	// StartBlocks is FetchBlocks up to the begin of the copies. Their end, and that the
	// local memory is not touched any more, is the return of wait, which is called
	// once and ahead of any other call of the neighbour.
	StartBlocks(regions []NearRegion, local, remote []int32) (wait func() error, err error)
}

// NearRegion is memory of a neighbour and the memory for it, in units of one size.
type NearRegion struct {
	Memory transport.Memory // as it was exposed here
	Key    []byte           // of the peer's Exposed
	From   int64            // where the first unit begins in the peer's memory
	Bytes  int64            // of a unit
}

// NearRange is memory of a neighbour and the place for it.
type NearRange struct {
	Memory transport.Memory // as it was exposed here
	Offset int64            // in it
	Key    []byte           // of the peer's Exposed
	From   int64            // offset in the peer's memory
	Length int64
}

// ErrFar says that a peer's memory has to travel on the connections.
var ErrFar = errors.New("memory is not readable from here")

// MaxCard is the greatest length of a card, in bytes.
const MaxCard = 1 << 10

// cardHead is a byte in front of a card: bits of what its sender can do. One that
// accepted the connection says only what the other side asks for, as peers that know
// of no units take any other value than cardFetches for none of it.
const (
	cardHead    = 1
	cardFetches = 1 << 0 // it accepted the connection and fetches what is offered
	cardUnits   = 1 << 1 // it speaks of units of regions
	cardTickets = 1 << 2 // and names them by tickets
	cardPuts    = 1 << 3 // and fetches them, when it accepted the connection
)

// showCard tells the accepting side who this is and learns who it is.
func (p *peer) showCard(w *wire) error {
	if err := w.send(header{kind: kindCard}, append([]byte{p.t.asks()}, p.t.cfg.Near.Card()...)); err != nil {
		return err
	}
	card, err := w.readCard(p.t)
	if err != nil {
		return err
	}
	w.lend = card[0]&cardFetches != 0
	p.t.meet(w, p.addr, card[cardHead:])
	_, blocks := w.near.(BlockNeighbour)
	w.units = blocks && card[0]&p.t.asks()&cardUnits != 0
	w.tickets = w.units && card[0]&p.t.asks()&cardTickets != 0
	w.puts = card[0]&p.t.asks()&cardPuts != 0
	return nil
}

// takeCard is the accepting side of showCard.
func (s *server) takeCard() error {
	card, err := s.w.readCard(s.t)
	if err != nil {
		return err
	}
	s.t.meet(s.w, s.w.conn.RemoteAddr().String(), card[cardHead:])
	head := card[0] & s.t.asks()
	if head&cardUnits == 0 {
		head = 0
	}
	if _, blocks := s.w.near.(BlockNeighbour); !blocks {
		head &^= cardPuts
	}
	if s.tickets = s.t.tickets.Load(); s.tickets == nil {
		head &^= cardTickets
	}
	if head&cardTickets == 0 {
		s.tickets = nil
	}
	if s.w.near != nil {
		head |= cardFetches
	}
	return s.w.send(header{kind: kindCard}, append([]byte{head}, s.t.cfg.Near.Card()...))
}

func (w *wire) readCard(t *Transport) ([]byte, error) {
	h, err := w.readHeader(t.cfg.DialTimeout)
	if err != nil {
		return nil, err
	}
	if h.kind != kindCard || h.length <= cardHead {
		return nil, unexpected(h)
	}
	return w.readPayload(h, make([]byte, h.length))
}

// meet decides whether the peer's memory is read past the connection.
func (t *Transport) meet(w *wire, addr string, card []byte) {
	n, err := t.cfg.Near.Meet(card)
	if err != nil {
		t.far(addr, err)
		return
	}
	w.near = n
}

// far counts and logs that device memory of a peer travels on the connections.
func (t *Transport) far(addr string, why error) {
	t.counters.far.Add(1)
	t.cfg.Log.Info("transport: device memory of the peer moves through the host", "peer", addr, "reason", why.Error())
}

// exposeNear makes device memory readable by neighbours. That it cannot be is
// no error: it travels on the connections.
func (t *Transport) exposeNear(id transport.RegionID, m transport.Memory) {
	x, err := t.cfg.Near.Expose(m)
	if err == nil && x == nil {
		return
	}
	if err == nil && len(x.Key()) > MaxKey {
		err = errors.Join(fmt.Errorf("key of %d bytes, limit %d", len(x.Key()), MaxKey), x.Close())
	}
	if err != nil {
		t.cfg.Log.Warn("transport: device memory cannot be opened to other processes", "error", err)
		return
	}
	t.exposedMu.Lock()
	defer t.exposedMu.Unlock()
	t.exposed[id] = exposure{Exposed: x, memory: m}
}

// allNear reports whether all pieces lie in memory that was exposed to neighbours.
func (t *Transport) allNear(pieces []piece) bool {
	if t.cfg.Near == nil {
		return false
	}
	t.exposedMu.RLock()
	defer t.exposedMu.RUnlock()
	for _, p := range pieces {
		if t.exposed[p.region.ID].memory == nil {
			return false
		}
	}
	return true
}

// borrowNear fetches lent memory into the memory under pieces, of the same
// total. The error is one of the memory, or ErrFar.
func (t *Transport) borrowNear(w *wire, l *lent, pieces []piece, total int64) error {
	if w.near == nil {
		return ErrFar
	}
	ranges := make([]NearRange, 0, max(len(pieces), len(l.pieces)))
	cur := &cursor{pieces: pieces}
	t.exposedMu.RLock()
	for i, at := 0, int64(0); total > 0; {
		r, off, n := cur.take(l.length[i] - at)
		x := l.pieces[i]
		ranges = append(ranges, NearRange{Memory: t.exposed[r.ID].memory, Offset: off, Key: x.Key, From: int64(x.Address) + at, Length: n})
		total -= n
		if at += n; at == l.length[i] {
			i, at = i+1, 0
		}
	}
	t.exposedMu.RUnlock()
	return w.fetched(t, w.near.Fetch(ranges))
}

// fetched is what a neighbour's error means.
func (w *wire) fetched(t *Transport, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrFar):
		w.leaveNear()
		t.far(w.conn.RemoteAddr().String(), err)
		return err
	}
	return fmt.Errorf("%w: %w", transport.ErrMemory, err)
}

// leaveNear ends the way past the connection, if there is one.
func (w *wire) leaveNear() {
	if w.near != nil {
		w.near.Close()
		w.near, w.units, w.tickets = nil, false, false
	}
}

// lendNear answers a read with the place of the memory. It is as lend.
func (s *server) lendNear(h header, hold *transport.Hold, total int64) (bool, error) {
	if h.flags&flagNear == 0 || !s.t.allNear(s.pieces) {
		return false, nil
	}
	b, ok := s.t.appendLend(nil, s.pieces, false)
	if !ok {
		return false, nil
	}
	return true, s.lend(header{flags: flagNear, id: h.id}, b, total, revoked(hold))
}

// offerNear sends an offer of device memory. It reports false if the payload
// has to travel on the connection.
func (s *slot) offerNear(c *chunk, request []byte) (bool, error) {
	if !s.w.lend || c.far || !s.p.t.allNear(c.pieces) {
		return false, nil
	}
	offer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(request))), request...)
	b, ok := s.p.t.appendLend(offer, c.pieces, false)
	if !ok {
		return false, nil
	}
	return true, s.show(c, header{kind: kindOffer, flags: flagNear, id: s.id}, b)
}

// chunkBytes is the greatest part of a transfer on one connection: where no
// byte travels on it, what a request may name at most.
func (p *peer) chunkBytes(regions map[transport.RegionID]*transport.Region) int64 {
	if !p.near.Load() {
		return p.t.cfg.ChunkBytes
	}
	p.t.exposedMu.RLock()
	defer p.t.exposedMu.RUnlock()
	for id := range regions {
		if p.t.exposed[id].memory == nil {
			return p.t.cfg.ChunkBytes
		}
	}
	return maxRequest
}

// cards exchanges cards on a fresh connection if both sides have one.
func (p *peer) cards(ctx context.Context, w *wire, theirs hello) error {
	if p.t.cfg.Near == nil || theirs.near == 0 {
		return nil
	}
	if err := p.showCard(w); err != nil {
		return err
	}
	if ctx.Err() != nil {
		w.leaveNear()
		return context.Cause(ctx)
	}
	p.near.Store(w.near != nil || w.lend)
	p.units.Store(w.units)
	p.tickets.Store(w.tickets)
	p.puts.Store(w.puts)
	return nil
}
