package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/connector/transport"
)

var _ transport.BlockWriter = (*peer)(nil)

// WriteBlocks lets a neighbour fetch units of device memory without a list of pieces, and
// writes all other blocks piece by piece.
func (p *peer) WriteBlocks(ctx context.Context, c transport.Capability, b transport.Blocks) error {
	if err := b.Check(); err != nil {
		return err
	}
	if len(b.Local) == 0 || len(b.Regions) == 0 {
		return nil
	}
	if p.puts.Load() {
		n, err := p.transferUnits(ctx, kindPut, c, nil, b)
		if err == nil {
			p.t.counters.written.Add(uint64(n))
			return nil
		}
		if !errors.Is(err, ErrFar) {
			return fmt.Errorf("write to %s: %w", p.addr, err)
		}
	}
	return transport.WritePieces(ctx, p, c, b)
}

// put is an offer of units, as parsePut decodes it. Its slices are reused.
type put struct {
	key      transport.Capability
	spans    []span
	to, from []int32 // units here and there
	most     int32   // of to
	total    int64
	lent     *lent // of each region the first unit
}

// appendPut encodes an offer without what appendLend puts behind it:
//
//	length of the request u32 | request as of units | the writer's units u32 | lent memory
func appendPut(b []byte, c transport.Capability, u *unitsPart) []byte {
	n := len(b)
	b = appendUnits(append(b, 0, 0, 0, 0), c, u)
	binary.LittleEndian.PutUint32(b[n:], uint32(len(b)-n-4))
	return appendNumbers(b, u.local)
}

// parsePut decodes an offer. It holds as many units as the request names, and memory
// for one of each of its regions, whose sizes are for the caller to compare.
func parsePut(b []byte, p *put) error {
	if len(b) < 4 || int64(binary.LittleEndian.Uint32(b)) > int64(len(b)-4) {
		return fmt.Errorf("%w: offer of units in %d bytes", transport.ErrProtocol, len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	request, b := b[4:4+n], b[4+n:]
	var err error
	if p.key, p.spans, p.to, p.most, p.total, err = parseUnits(request, p.spans, p.to); err != nil {
		return err
	}
	size := len(p.to) * unitsUnit
	if len(b) < size {
		return fmt.Errorf("%w: %d units are offered in %d bytes", transport.ErrProtocol, len(p.to), len(b))
	}
	if p.from, _, err = parseNumbers(b[:size], p.from); err != nil {
		return err
	}
	p.lent, err = parseLend(b[size:], p.total/int64(len(p.to)))
	return err
}

// put offers units, or says that this connection's peer does not fetch them.
func (s *slot) put(c *chunk) (error, error) {
	if !s.w.puts {
		return ErrFar, nil
	}
	b, ok := s.p.t.appendLend(appendPut(nil, c.op.key, c.units), c.units.firsts, false)
	if !ok {
		return ErrFar, nil
	}
	return nil, s.show(c, header{kind: kindPut, flags: flagNear, id: s.id}, b)
}

// takePut fetches the units that a neighbour writes.
func (s *server) takePut(h header) error {
	if s.t.cfg.Near == nil {
		return unexpected(h)
	}
	b, err := s.request(h)
	if err != nil {
		return err
	}
	if err := parsePut(b, &s.put); err != nil {
		return err
	}
	refuse, err := s.fetchPut()
	if err != nil {
		return err
	}
	if refuse == nil {
		s.t.counters.servedWrites.Add(uint64(s.put.total))
		s.t.counters.fetched.Add(uint64(s.put.total))
	}
	return s.done(h.id, refuse)
}

// fetchPut fetches s.put under its grant. The first error is the peer's to know, the
// second ends the connection.
func (s *server) fetchPut() (error, error) {
	p := &s.put
	hold, err := s.openUnits(p.key, transport.PeerWrites, p.spans, p.to, p.most)
	if err != nil {
		return err, nil
	}
	defer s.release(hold)
	if !s.t.allNear(s.pieces) {
		return ErrFar, nil
	}
	u := unitsPart{local: p.to, remote: p.from}
	for _, x := range p.spans {
		u.regions = append(u.regions, transport.RegionPair{Local: x.region, Bytes: x.length})
	}
	regions, err := s.t.nearRegions(p.lent, &u)
	if err != nil {
		return nil, err
	}
	refuse := s.w.fetchUnits(s.t, regions, &u)
	if refuse == nil {
		refuse = revoked(hold)()
	}
	return refuse, nil
}
