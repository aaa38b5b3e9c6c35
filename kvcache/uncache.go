package kvcache

import "slices"

// A Holder is a sequence that must roll back.
type Holder struct {
	Seq *Seq
	// Tokens is the number of its leading tokens whose KV is still good, a multiple of the block size.
	Tokens int
}

// Uncache takes back blocks whose KV was never computed or never arrived,
// though they are matchable already: a failed step or a failed load. The
// blocks lose their position, and so does everything that depends on them:
// whatever a holder of such a block has behind it in its table. No request can
// match them any more.
//
// It appends to dst every sequence that has such a block, in the order in which
// the sequences were opened, and returns dst. Those are rolled back here to
// Tokens tokens. The first holder keeps its blocks in its table, as private ones
// to be computed again in place; a later one loses its table from the first block
// on that an earlier one keeps. Blocks behind a fence lose their position too and
// stay held, and no sequence keeps them, since the step or the transfer behind the
// fence may still write to them. The null block and ids out of range are a *BlockError.
func (c *Cache) Uncache(failed []BlockID, dst []Holder) ([]Holder, error) {
	for _, id := range failed {
		if id <= NullBlock || int(id) >= len(c.blocks) {
			return dst, &BlockError{id, "not a block of the pool"}
		}
	}
	if len(failed) == 0 {
		return dst, nil
	}
	c.epoch++
	c.worklist = c.worklist[:0]
	for _, id := range failed {
		c.markBad(id)
	}
	// What stands behind a bad block in any table is bad as well.
	for done := false; !done; {
		done = true
		for _, s := range c.seqs {
			done = c.spread(s) && done
		}
		for i := range c.fences {
			if c.fences[i].live {
				done = c.spread(&c.fences[i].seq) && done
			}
		}
	}
	// The deepest first, so that what was never announced is taken out of the pending events from its end.
	slices.SortFunc(c.worklist, func(a, b BlockID) int { return c.depth(b) - c.depth(a) })
	c.cancelling = true
	for _, id := range c.worklist {
		c.withdraw(id)
	}
	c.cancelling = false
	first := len(dst)
	for _, s := range c.seqs {
		if at := c.firstBad(s); at >= 0 {
			dst = append(dst, Holder{s, at * c.bs})
		}
	}
	found := dst[first:]
	slices.SortFunc(found, func(a, b Holder) int {
		if a.Seq.order < b.Seq.order {
			return -1
		}
		return 1
	})
	for i := range c.fences {
		if f := &c.fences[i]; f.live {
			c.ownFenced(&f.seq)
		}
	}
	for _, h := range found {
		c.rollBack(h.Seq, h.Tokens/c.bs)
	}
	for _, id := range c.worklist {
		c.blocks[id].state &^= blockBad | blockOwned
	}
	c.check()
	return dst, nil
}

// Retract takes back what the sequence published behind its first n tokens
// because the step that was to compute it failed. It is Uncache of those
// blocks; the sequence itself is among the holders unless it published nothing there.
func (c *Cache) Retract(s *Seq, n int, dst []Holder) ([]Holder, error) {
	if err := c.own(s); err != nil {
		return dst, err
	}
	if n < 0 || n > s.capacity {
		return dst, &RangeError{"tokens to keep", n, 0, s.capacity}
	}
	var failed []BlockID
	for g := range s.tables {
		for _, id := range s.tables[g][min(n/c.bs, s.published):s.published] {
			if id != NullBlock {
				failed = append(failed, id)
			}
		}
	}
	return c.Uncache(failed, dst)
}

func (c *Cache) markBad(id BlockID) bool {
	b := &c.blocks[id]
	if b.state&blockBad != 0 {
		return false
	}
	b.state |= blockBad
	c.worklist = append(c.worklist, id)
	return true
}

// firstBad returns the least index at which a table of s has a bad block, or -1.
func (c *Cache) firstBad(s *Seq) int {
	at := -1
	for g := range s.tables {
		for i, id := range s.tables[g] {
			if at >= 0 && i >= at {
				break
			}
			if c.blocks[id].state&blockBad != 0 {
				at = i
				break
			}
		}
	}
	return at
}

// spread marks what stands behind the first bad block of s and reports whether nothing was new.
func (c *Cache) spread(s *Seq) bool {
	at := c.firstBad(s)
	if at < 0 {
		return true
	}
	same := true
	for g := range s.tables {
		for _, id := range s.tables[g][at:max(at, s.published)] {
			if id != NullBlock && c.markBad(id) {
				same = false
			}
		}
	}
	return same
}

// withdraw takes a bad block out of the tree. Positions that lose their last copy go, with all below them.
func (c *Cache) withdraw(id BlockID) {
	b := &c.blocks[id]
	if b.at == 0 {
		return
	}
	c.stats.uncached++
	unit, g := b.at-1, int(b.group)
	c.dropCopy(id)
	if b.refs == 0 {
		c.push(id)
	}
	c.vacated(unit, g)
}

// depth returns the position of a block, counted in blocks from the root, or -1.
func (c *Cache) depth(id BlockID) int {
	b := &c.blocks[id]
	if b.at == 0 {
		return -1
	}
	nd := c.t.at(c.owner(b.at - 1))
	return int(nd.depth + b.at - 1 - nd.run)
}

// ownFenced marks the bad blocks behind a fence as kept: something may still
// write to them, so no sequence computes them anew in place.
func (c *Cache) ownFenced(s *Seq) {
	at := c.firstBad(s)
	if at < 0 {
		return
	}
	s.published = min(s.published, at)
	for g := range s.tables {
		for _, id := range s.tables[g][at:] {
			if b := &c.blocks[id]; b.state&blockBad != 0 {
				b.state |= blockOwned
			}
		}
	}
}

// rollBack cuts a holder back to its good blocks. Blocks that no earlier holder kept stay, as private ones.
func (c *Cache) rollBack(s *Seq, good int) {
	s.published = min(s.published, good)
	keep := len(s.tables[0])
	for g := range s.tables {
		for i := good; i < keep; i++ {
			id := s.tables[g][i]
			if id == NullBlock || c.blocks[id].state&blockBad == 0 {
				continue
			}
			if c.blocks[id].state&blockOwned != 0 {
				keep = i
				break
			}
		}
	}
	for g := range s.tables {
		for _, id := range s.tables[g][good:keep] {
			if b := &c.blocks[id]; b.state&blockBad != 0 {
				b.state |= blockOwned
			}
		}
	}
	c.cutTables(s, keep)
	s.settle()
}
