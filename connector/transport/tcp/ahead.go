package tcp

import (
	"bytes"

	"github.com/sluice-serving/sluice/connector/transport"
)

// A read by a ticket may begin ahead of the owner's answer, by what the owner said of the
// same regions before: the copies run while the request travels. They count only if the
// answer says the same once more and the owner ends the read as any other, so if what the
// ticket names stood when all had been read: since it does not begin anew once it has
// ended, it stood when the first byte was read too. What is refused was read in vain, into
// memory that its caller then does not look at; the owner's memory is only read.

// place is where a peer's region lies, as it said.
type place struct {
	key  []byte
	from int64
}

// maxPlaces bounds what is remembered of one peer.
const maxPlaces = 1 << 12

// ahead is a fetch that is under way before the answer to its request.
type ahead struct {
	regions []NearRegion
	wait    func() error
}

// remember notes where the regions of a transfer lie.
func (p *peer) remember(u *unitsPart, regions []NearRegion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.places == nil || len(p.places)+len(regions) > maxPlaces {
		p.places = make(map[transport.RegionPair]place, len(regions))
	}
	for i, r := range u.regions {
		if x, ok := p.places[r]; !ok || x.from != regions[i].From || !bytes.Equal(x.key, regions[i].Key) {
			p.places[r] = place{bytes.Clone(regions[i].Key), regions[i].From}
		}
	}
}

// remembered is where all regions of a transfer lie; nil if it is not known of one.
func (p *peer) remembered(u *unitsPart) []NearRegion {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.exposedMu.RLock()
	defer p.t.exposedMu.RUnlock()
	out := make([]NearRegion, len(u.regions))
	for i, r := range u.regions {
		x, ok := p.places[r]
		if !ok {
			return nil
		}
		out[i] = NearRegion{Memory: p.t.exposed[r.Local].memory, Key: x.key, From: x.from, Bytes: r.Bytes}
	}
	return out
}

// begin starts to fetch a chunk whose request was sent, where that can be.
func (s *slot) begin(c *chunk) {
	near, ok := s.w.near.(StartNeighbour)
	if !ok || c.op.ticket == nil || s.p.t.cfg.NoAhead {
		return
	}
	if end, known := ended(s.w.conn); known && end { // its memory is about to go, and nobody answers
		return
	}
	regions := s.p.remembered(c.units)
	if regions == nil {
		return
	}
	if wait, err := near.StartBlocks(regions, c.units.local, c.units.remote); err == nil { // else the fetch behind the answer says why
		c.ahead = &ahead{regions, wait}
	}
}

// land waits until nothing touches the chunk's memory ahead of the answer any more.
func (c *chunk) land() error {
	if c.ahead == nil {
		return nil
	}
	a := c.ahead
	c.ahead = nil
	return a.wait()
}

// same tells whether it was these regions that were fetched.
func (a *ahead) same(regions []NearRegion) bool {
	for i, r := range regions { // as many, both of one request
		if x := a.regions[i]; x.From != r.From || x.Bytes != r.Bytes || !bytes.Equal(x.Key, r.Key) {
			return false
		}
	}
	return true
}

// borrowUnits fetches lent units, unless they were fetched ahead. It returns as
// fetchUnits does.
func (s *slot) borrowUnits(l *lent, c *chunk) (error, error) {
	t := s.p.t
	regions, err := t.nearRegions(l, c.units)
	if err != nil {
		return nil, err
	}
	if c.ahead != nil && c.ahead.same(regions) {
		return s.w.fetched(t, c.land()), nil
	}
	_ = c.land() // what it fetched is of no use
	err = s.w.fetchUnits(t, regions, c.units)
	if err == nil && c.op.ticket != nil {
		s.p.remember(c.units, regions)
	}
	return err, nil
}
