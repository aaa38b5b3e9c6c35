package kvcache

// A Fence keeps the blocks of a freed sequence held until it is lifted: while
// a step that writes them, or a transfer that touches them, is not done. The
// zero value is no fence.
type Fence struct {
	slot int32
	gen  uint32
}

type fence struct {
	gen  uint32
	live bool
	next int32
	seq  Seq // the tables, under the name of a sequence that is not open
}

// Free closes the sequence and lets its blocks go, each table's last block
// first. Matchable blocks stay cached, to be evicted after everything that was
// let go before; the others are free and are taken first. A second Free of one
// sequence is ErrClosedSeq.
func (c *Cache) Free(s *Seq) error {
	if err := c.own(s); err != nil {
		return err
	}
	c.epoch++
	c.releaseTables(s)
	c.close(s)
	c.check()
	return nil
}

func (c *Cache) releaseTables(s *Seq) {
	if len(s.tables[0]) > 0 {
		c.holders--
	}
	for g := range s.tables {
		c.releaseRun(s.tables[g], s)
		s.tables[g] = s.tables[g][:0]
	}
}

// FreeFenced closes the sequence and keeps its blocks held until Lift. They
// stay matchable meanwhile. A sequence without blocks gives a fence too.
func (c *Cache) FreeFenced(s *Seq) (Fence, error) {
	if err := c.own(s); err != nil {
		return Fence{}, err
	}
	c.epoch++
	i := c.freeFence
	if i != 0 {
		c.freeFence = c.fences[i].next
	} else {
		if len(c.fences) == 0 {
			c.fences = append(c.fences, fence{}) // fence 0 is none
		}
		i = int32(len(c.fences))
		c.fences = append(c.fences, fence{})
	}
	f := &c.fences[i]
	f.gen++
	f.live = true
	f.seq.tables, s.tables = s.tables, f.seq.tables
	f.seq.gone, s.gone = s.gone, f.seq.gone
	f.seq.held, f.seq.class, f.seq.published = s.held, s.class, s.published
	c.close(s)
	c.check()
	return Fence{i, f.gen}, nil
}

// Lift lets the blocks behind a fence go, as Free does. A fence is lifted
// once; then it is ErrUnknownFence.
func (c *Cache) Lift(f Fence) error {
	if f.slot <= 0 || int(f.slot) >= len(c.fences) || !c.fences[f.slot].live || c.fences[f.slot].gen != f.gen {
		return ErrUnknownFence
	}
	c.epoch++
	e := &c.fences[f.slot]
	c.releaseTables(&e.seq)
	e.live = false
	e.next, c.freeFence = c.freeFence, f.slot
	c.check()
	return nil
}

// Truncate gives up what the sequence keeps beyond its first n tokens, e.g.
// rejected drafts with their slots or the part of a load that failed. It
// returns the number of tokens that are kept: n, or less when n lies inside a
// matchable block, since a matchable block is never written again; then the
// block goes too and its tokens are to be computed anew. Blocks let go stay
// matchable when they were. To take back blocks that were planned and never
// computed, see Retract.
func (c *Cache) Truncate(s *Seq, n int) (int, error) {
	if err := c.own(s); err != nil {
		return 0, err
	}
	if n < 0 || n > s.capacity {
		return 0, &RangeError{"tokens to keep", n, 0, s.capacity}
	}
	keep := ceilDiv(n, c.bs)
	if n/c.bs < s.published {
		keep = n / c.bs
		n = keep * c.bs
	}
	c.epoch++
	c.cutTables(s, keep)
	c.check()
	return n, nil
}

// cutTables lets go of everything behind the first keep blocks of each table.
func (c *Cache) cutTables(s *Seq, keep int) {
	if len(s.tables[0]) <= keep {
		return
	}
	if keep == 0 {
		c.holders--
	}
	for g := range s.tables {
		c.releaseRun(s.tables[g][keep:], s)
		s.tables[g] = s.tables[g][:keep]
		s.gone[g] = min(s.gone[g], keep)
	}
	s.published = min(s.published, keep)
	s.settle()
}
