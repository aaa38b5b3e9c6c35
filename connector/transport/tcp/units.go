package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/sluice-serving/sluice/connector/transport"
)

// A read of units names regions and units once, in place of their product: the pieces
// of a prompt are its blocks times the tensors of all layers. Only neighbours that
// lend device memory speak so; each region and each unit is checked once.

const (
	unitsBase   = 24
	unitsRegion = 8
	unitsUnit   = 4
	maxUnits    = 64 << 10 // of one request
	maxLent     = 8 << 30  // bytes that one request may lend

	ticketBase = 2
)

// asks are the bits by which this side says of what it speaks.
func (t *Transport) asks() byte {
	switch {
	case t.cfg.Pieces:
		return 0
	case t.cfg.NoTickets:
		return cardUnits
	}
	return cardUnits | cardTickets
}

// unitsRead is a part of a read of units.
type unitsRead struct {
	regions       []transport.RegionPair
	local, remote []int32
	bytes         int64 // of one unit of each region
}

var (
	_ transport.BlockReader  = (*peer)(nil)
	_ transport.TicketReader = (*peer)(nil)
)

// ReadBlocks reads units of a neighbour's device memory without a list of pieces, and
// all other blocks piece by piece.
func (p *peer) ReadBlocks(ctx context.Context, c transport.Capability, b transport.Blocks) error {
	if err := b.Check(); err != nil {
		return err
	}
	if len(b.Local) == 0 || len(b.Regions) == 0 {
		return nil
	}
	if p.units.Load() && len(b.Regions) <= maxSegments {
		err := p.readUnits(ctx, c, nil, b)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrFar) {
			return fmt.Errorf("read from %s: %w", p.addr, err)
		}
	}
	return transport.ReadPieces(ctx, p, c, b)
}

// ReadTicket reads units of a neighbour's device memory; all else is not for tickets.
func (p *peer) ReadTicket(ctx context.Context, ticket []byte, b transport.Blocks) error {
	if err := b.Check(); err != nil {
		return err
	}
	if !p.tickets.Load() || len(ticket) == 0 || len(ticket) > transport.MaxTicket || len(b.Local) == 0 || len(b.Regions) == 0 || len(b.Regions) > maxSegments {
		return transport.ErrNoTickets
	}
	err := p.readUnits(ctx, transport.Capability{}, ticket, b)
	if errors.Is(err, ErrFar) {
		return fmt.Errorf("%w: %w", transport.ErrNoTickets, err)
	}
	if err != nil {
		return fmt.Errorf("read from %s: %w", p.addr, err)
	}
	return nil
}

// readUnits returns ErrFar where the memory of one side is not for this.
func (p *peer) readUnits(ctx context.Context, c transport.Capability, ticket []byte, b transport.Blocks) error {
	var held []*transport.Region
	defer func() {
		for _, r := range held {
			r.Release()
		}
	}()
	most := slices.Max(b.Local)
	each := int64(0)
	for i, x := range b.Regions {
		r, err := p.t.regions.Acquire(x.Local)
		if err != nil {
			return fmt.Errorf("pair %d of regions: %w", i, err)
		}
		held = append(held, r)
		if !r.HoldsUnits(x.Bytes, most) {
			return fmt.Errorf("pair %d of regions: %w: unit %d of %d bytes of region %d", i, transport.ErrRegion, most, x.Bytes, x.Local)
		}
		if x.Bytes > min(maxLent-each, math.MaxUint32) {
			return ErrFar
		}
		each += x.Bytes
	}
	if !p.t.near(held) {
		return ErrFar
	}
	o := &op{kind: kindUnits, key: c, ticket: ticket, failed: make([]bool, len(b.Local)), done: make(chan struct{})}
	n := int(min(maxUnits, maxLent/each))
	for first := 0; first < len(b.Local); first += n {
		last := min(first+n, len(b.Local))
		u := &unitsRead{regions: b.Regions, local: b.Local[first:last], remote: b.Remote[first:last], bytes: each}
		o.chunks = append(o.chunks, &chunk{op: o, first: first, last: last - 1, total: each * int64(last-first), units: u})
	}
	o.all = slices.Clone(o.chunks)
	o.open = len(o.chunks)
	if err := p.wait(ctx, o); err != nil {
		return o.transferError(err)
	}
	p.t.counters.read.Add(uint64(each) * uint64(len(b.Local)))
	return nil
}

// near reports whether all regions were exposed to neighbours.
func (t *Transport) near(regions []*transport.Region) bool {
	t.exposedMu.RLock()
	defer t.exposedMu.RUnlock()
	for _, r := range regions {
		if t.exposed[r.ID].memory == nil {
			return false
		}
	}
	return true
}

// appendUnits encodes a request:
//
//	capability | number of regions u32 | number of units u32 | regions: id u32, bytes of a unit u32 | units u32
func appendUnits(b []byte, c transport.Capability, u *unitsRead) []byte {
	b = append(b, c[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(u.regions)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(u.remote)))
	for _, r := range u.regions {
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Remote))
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Bytes))
	}
	for _, x := range u.remote {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// parseUnits decodes a request into slices whose arrays are reused. Sizes are above 0
// and their sum times the number of units, which is total, is at most maxLent; most is
// the greatest unit.
func parseUnits(b []byte, spans []span, units []int32) (c transport.Capability, _ []span, _ []int32, most int32, total int64, err error) {
	bad := func(format string, args ...any) (transport.Capability, []span, []int32, int32, int64, error) {
		return c, spans, units, 0, 0, fmt.Errorf("%w: units: "+format, append([]any{transport.ErrProtocol}, args...)...)
	}
	if len(b) < unitsBase {
		return bad("request of %d bytes", len(b))
	}
	copy(c[:], b)
	regions, n := binary.LittleEndian.Uint32(b[16:]), binary.LittleEndian.Uint32(b[20:])
	b = b[unitsBase:]
	if regions == 0 || n == 0 || regions > maxSegments || n > maxUnits || len(b) != int(regions)*unitsRegion+int(n)*unitsUnit {
		return bad("%d units of %d regions in %d bytes", n, regions, len(b))
	}
	spans, units = spans[:0], units[:0]
	for range regions {
		bytes := int64(binary.LittleEndian.Uint32(b[4:]))
		if bytes == 0 {
			return bad("region with units of no bytes")
		}
		spans = append(spans, span{region: transport.RegionID(binary.LittleEndian.Uint32(b)), length: bytes})
		total += bytes
		b = b[unitsRegion:]
	}
	for range n {
		u := int32(binary.LittleEndian.Uint32(b))
		if u < 0 {
			return bad("unit %d", uint32(u))
		}
		units = append(units, u)
		most = max(most, u)
		b = b[unitsUnit:]
	}
	if total > maxLent/int64(n) {
		return bad("%d units of %d bytes, limit %d", n, total, int64(maxLent))
	}
	return c, spans, units, most, total * int64(n), nil
}

// readUnits lends units of several regions to a neighbour.
func (s *server) readUnits(h header) error {
	if s.t.cfg.Near == nil {
		return unexpected(h)
	}
	if int(h.length) > len(s.buf) {
		s.buf = make([]byte, kindUnits.limit())
	}
	b, err := s.w.readPayload(h, s.buf)
	if err != nil {
		return err
	}
	ticket, b, err := s.takeTicket(h, b)
	if err != nil {
		return err
	}
	hold, total, refuse, err := s.openUnits(ticket, b)
	if err != nil {
		return err
	}
	if refuse != nil {
		return s.done(h.id, refuse)
	}
	defer s.release(hold)
	if !s.t.allNear(s.pieces) {
		return s.done(h.id, ErrFar)
	}
	answer, ok := s.t.appendLend(nil, s.pieces, false)
	if !ok {
		return s.done(h.id, ErrFar)
	}
	stands := revoked(hold)
	if ticket != nil {
		stands = func() error {
			if err := (*s.tickets).Stands(ticket); err != nil {
				return fmt.Errorf("%w: %w", transport.ErrDenied, err)
			}
			return revoked(hold)()
		}
	}
	return s.lend(header{flags: flagNear, id: h.id}, answer, total, stands)
}

// takeTicket cuts the ticket off a request; nil if there is none. It stays in b's
// array, which is used again with the next request.
func (s *server) takeTicket(h header, b []byte) (ticket, rest []byte, err error) {
	if h.flags&flagTicket == 0 {
		return nil, b, nil
	}
	if s.tickets == nil || len(b) < ticketBase {
		return nil, nil, unexpected(h)
	}
	n := int(binary.LittleEndian.Uint16(b))
	if b = b[ticketBase:]; n == 0 || n > transport.MaxTicket || n > len(b) {
		return nil, nil, fmt.Errorf("%w: ticket of %d bytes in %d", transport.ErrProtocol, n, len(b))
	}
	return b[:n:n], b[n:], nil
}

// openUnits is open for units; the pieces are the first unit of each region. The
// capability is that of the ticket if there is one.
func (s *server) openUnits(ticket, b []byte) (*transport.Hold, int64, error, error) {
	c, spans, units, most, total, err := parseUnits(b, s.spans, s.units)
	s.spans, s.units = spans, units
	if err != nil {
		return nil, 0, nil, err
	}
	if ticket != nil {
		if c, err = (*s.tickets).Open(ticket); err != nil {
			s.t.counters.denied.Add(1)
			return nil, total, fmt.Errorf("%w: %w", transport.ErrDenied, err), nil
		}
	}
	hold, err := s.t.grants.Acquire(c, transport.PeerReads, func() { s.w.conn.Close() })
	if err != nil {
		s.t.counters.denied.Add(1)
		return nil, total, err, nil
	}
	s.pieces, s.ids = s.pieces[:0], s.ids[:0]
	for _, x := range spans {
		r, err := s.t.regions.Acquire(x.region)
		if err == nil && !r.HoldsUnits(x.length, most) {
			r.Release()
			err = transport.ErrRegion
		}
		if err != nil {
			s.release(hold)
			return nil, total, err, nil
		}
		s.pieces, s.ids = append(s.pieces, piece{r, 0, x.length}), append(s.ids, x.region)
	}
	if !hold.AllowsUnits(s.ids, units) {
		s.t.counters.denied.Add(1)
		s.release(hold)
		return nil, total, transport.ErrDenied, nil
	}
	return hold, total, nil, nil
}

// startUnits sends the request, or says that this connection's peer knows of no units.
func (s *slot) startUnits(c *chunk) (error, error) {
	if !s.w.units {
		return ErrFar, nil
	}
	u, ticket := c.units, c.op.ticket
	b := make([]byte, 0, ticketBase+len(ticket)+unitsBase+len(u.regions)*unitsRegion+len(u.remote)*unitsUnit)
	h := header{kind: kindUnits, flags: flagNear, id: s.id}
	if ticket != nil {
		if !s.w.tickets {
			return ErrFar, nil
		}
		h.flags |= flagTicket
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(ticket))), ticket...)
	}
	return nil, s.w.send(h, appendUnits(b, c.op.key, u))
}

// borrowUnits fetches lent units. The first error is one of the memory, or ErrFar, the
// second one of the connection.
func (t *Transport) borrowUnits(w *wire, l *lent, u *unitsRead) (error, error) {
	if len(l.pieces) != len(u.regions) {
		return nil, fmt.Errorf("%w: %d regions are lent of %d", transport.ErrProtocol, len(l.pieces), len(u.regions))
	}
	regions := make([]NearRegion, 0, len(u.regions))
	t.exposedMu.RLock()
	for i, r := range u.regions {
		if l.length[i] != r.Bytes {
			t.exposedMu.RUnlock()
			return nil, fmt.Errorf("%w: units of %d bytes are lent of %d", transport.ErrProtocol, l.length[i], r.Bytes)
		}
		x := l.pieces[i]
		regions = append(regions, NearRegion{Memory: t.exposed[r.Local].memory, Key: x.Key, From: int64(x.Address), Bytes: r.Bytes})
	}
	t.exposedMu.RUnlock()
	near, ok := w.near.(BlockNeighbour)
	if !ok {
		return ErrFar, nil
	}
	return w.fetched(t, near.FetchBlocks(regions, u.local, u.remote)), nil
}
