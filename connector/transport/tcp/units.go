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

// A transfer of units names regions and units once, in place of their product: the pieces
// of a prompt are its blocks times the tensors of all layers. Only neighbours that
// lend device memory speak so; each region and each unit is checked once. Reads are
// here, writes in put.go.

const (
	unitsBase   = 24
	unitsRegion = 8
	unitsUnit   = 4
	maxUnits    = 64 << 10 // of one request
	maxLent     = 8 << 30  // bytes that one request may move

	ticketBase = 2
)

// asks are the bits by which this side says of what it speaks.
func (t *Transport) asks() byte {
	switch {
	case t.cfg.Pieces:
		return 0
	case t.cfg.NoTickets:
		return cardUnits | cardPuts
	}
	return cardUnits | cardTickets | cardPuts
}

// unitsPart is a part of a transfer of units.
type unitsPart struct {
	regions       []transport.RegionPair
	local, remote []int32
	bytes         int64   // of one unit of each region
	firsts        []piece // of a write: the first unit of each region here
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
	if p.units.Load() {
		n, err := p.transferUnits(ctx, kindUnits, c, nil, b)
		if err == nil {
			p.t.counters.read.Add(uint64(n))
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
	if !p.tickets.Load() || len(ticket) == 0 || len(ticket) > transport.MaxTicket || len(b.Local) == 0 || len(b.Regions) == 0 {
		return transport.ErrNoTickets
	}
	n, err := p.transferUnits(ctx, kindUnits, transport.Capability{}, ticket, b)
	if errors.Is(err, ErrFar) {
		return fmt.Errorf("%w: %w", transport.ErrNoTickets, err)
	}
	if err != nil {
		return fmt.Errorf("read from %s: %w", p.addr, err)
	}
	p.t.counters.read.Add(uint64(n))
	return nil
}

// transferUnits is transfer for units. It returns ErrFar where the memory of one side is
// not for this.
func (p *peer) transferUnits(ctx context.Context, k kind, c transport.Capability, ticket []byte, b transport.Blocks) (int64, error) {
	if len(b.Regions) > maxSegments {
		return 0, ErrFar
	}
	var firsts []piece
	defer func() {
		for _, x := range firsts {
			x.region.Release()
		}
	}()
	most := slices.Max(b.Local)
	each := int64(0)
	for i, x := range b.Regions {
		r, err := p.t.regions.Acquire(x.Local)
		if err != nil {
			return 0, fmt.Errorf("pair %d of regions: %w", i, err)
		}
		firsts = append(firsts, piece{r, 0, x.Bytes})
		if !r.HoldsUnits(x.Bytes, most) {
			return 0, fmt.Errorf("pair %d of regions: %w: unit %d of %d bytes of region %d", i, transport.ErrRegion, most, x.Bytes, x.Local)
		}
		if x.Bytes > min(maxLent-each, math.MaxUint32) {
			return 0, ErrFar
		}
		each += x.Bytes
	}
	if !p.t.allNear(firsts) {
		return 0, ErrFar
	}
	o := &op{kind: k, key: c, ticket: ticket, failed: make([]bool, len(b.Local)), done: make(chan struct{})}
	n := int(min(maxUnits, maxLent/each))
	for first := 0; first < len(b.Local); first += n {
		last := min(first+n, len(b.Local))
		u := &unitsPart{regions: b.Regions, local: b.Local[first:last], remote: b.Remote[first:last], bytes: each, firsts: firsts}
		o.chunks = append(o.chunks, &chunk{op: o, first: first, last: last - 1, total: each * int64(last-first), units: u})
	}
	o.all = slices.Clone(o.chunks)
	o.open = len(o.chunks)
	if err := p.wait(ctx, o); err != nil {
		return 0, o.transferError(err)
	}
	return each * int64(len(b.Local)), nil
}

// appendUnits encodes a request:
//
//	capability | number of regions u32 | number of units u32 | regions: id u32, bytes of a unit u32 | units u32
//
// Regions and units are those of the other side.
func appendUnits(b []byte, c transport.Capability, u *unitsPart) []byte {
	b = append(b, c[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(u.regions)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(u.remote)))
	for _, r := range u.regions {
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Remote))
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Bytes))
	}
	return appendNumbers(b, u.remote)
}

func appendNumbers(b []byte, units []int32) []byte {
	for _, x := range units {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// parseNumbers decodes all of b into a slice whose array is reused, and gives the
// greatest. No number is below 0.
func parseNumbers(b []byte, units []int32) (_ []int32, most int32, _ error) {
	units = units[:0]
	for ; len(b) >= unitsUnit; b = b[unitsUnit:] {
		u := int32(binary.LittleEndian.Uint32(b))
		if u < 0 {
			return units, 0, fmt.Errorf("%w: unit %d", transport.ErrProtocol, uint32(u))
		}
		units = append(units, u)
		most = max(most, u)
	}
	return units, most, nil
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
	spans = spans[:0]
	for range regions {
		bytes := int64(binary.LittleEndian.Uint32(b[4:]))
		if bytes == 0 {
			return bad("region with units of no bytes")
		}
		spans = append(spans, span{region: transport.RegionID(binary.LittleEndian.Uint32(b)), length: bytes})
		total += bytes
		b = b[unitsRegion:]
	}
	if units, most, err = parseNumbers(b, units); err != nil {
		return c, spans, units, 0, 0, err
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
	b, err := s.request(h)
	if err != nil {
		return err
	}
	ticket, b, err := s.takeTicket(h, b)
	if err != nil {
		return err
	}
	c, spans, units, most, total, err := parseUnits(b, s.spans, s.units)
	s.spans, s.units = spans, units
	if err != nil {
		return err
	}
	if ticket != nil {
		if c, err = (*s.tickets).Open(ticket); err != nil {
			s.t.counters.denied.Add(1)
			return s.done(h.id, fmt.Errorf("%w: %w", transport.ErrDenied, err))
		}
	}
	hold, err := s.openUnits(c, transport.PeerReads, spans, units, most)
	if err != nil {
		return s.done(h.id, err)
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

// request reads the payload of a request of units, into an array that is used again.
func (s *server) request(h header) ([]byte, error) {
	if int(h.length) > len(s.buf) {
		s.buf = make([]byte, h.length) // at most the limit of the kind
	}
	return s.w.readPayload(h, s.buf)
}

// openUnits is open for units, up to most, of regions; the pieces are the first unit of
// each region. The error is the peer's to know.
func (s *server) openUnits(c transport.Capability, a transport.Access, spans []span, units []int32, most int32) (*transport.Hold, error) {
	hold, err := s.t.grants.Acquire(c, a, func() { s.w.conn.Close() })
	if err != nil {
		s.t.counters.denied.Add(1)
		return nil, err
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
			return nil, err
		}
		s.pieces, s.ids = append(s.pieces, piece{r, 0, x.length}), append(s.ids, x.region)
	}
	if !hold.AllowsUnits(s.ids, units) {
		s.t.counters.denied.Add(1)
		s.release(hold)
		return nil, transport.ErrDenied
	}
	return hold, nil
}

// startUnits sends the request, or says that this connection's peer knows of no units.
func (s *slot) startUnits(c *chunk) (error, error) {
	if c.op.kind == kindPut {
		return s.put(c)
	}
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
	if err := s.w.send(h, appendUnits(b, c.op.key, u)); err != nil {
		return nil, err
	}
	s.begin(c)
	return nil, nil
}

// nearRegions is where lent units lie and where they are to go. The error is one of the
// connection.
func (t *Transport) nearRegions(l *lent, u *unitsPart) ([]NearRegion, error) {
	if len(l.pieces) != len(u.regions) {
		return nil, fmt.Errorf("%w: %d regions are lent of %d", transport.ErrProtocol, len(l.pieces), len(u.regions))
	}
	regions := make([]NearRegion, 0, len(u.regions))
	t.exposedMu.RLock()
	defer t.exposedMu.RUnlock()
	for i, r := range u.regions {
		if l.length[i] != r.Bytes {
			return nil, fmt.Errorf("%w: units of %d bytes are lent of %d", transport.ErrProtocol, l.length[i], r.Bytes)
		}
		x := l.pieces[i]
		regions = append(regions, NearRegion{Memory: t.exposed[r.Local].memory, Key: x.Key, From: int64(x.Address), Bytes: r.Bytes})
	}
	return regions, nil
}

// fetchUnits fetches units into the local ones. The error is one of the memory, or ErrFar.
func (w *wire) fetchUnits(t *Transport, regions []NearRegion, u *unitsPart) error {
	near, ok := w.near.(BlockNeighbour)
	if !ok {
		return ErrFar
	}
	return w.fetched(t, near.FetchBlocks(regions, u.local, u.remote))
}
