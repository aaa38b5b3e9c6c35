package kvcache

import "slices"

// Publish makes the blocks matchable that the first n tokens fill, after an
// asynchronous load or after sampled tokens have filled a block. tokens are the
// sequence's token ids from its first on; at least n of them. Publishing what
// is published already does nothing.
func (c *Cache) Publish(s *Seq, tokens []Token, n int) error {
	if err := c.own(s); err != nil {
		return err
	}
	if n < 0 || n > min(len(tokens), s.capacity) {
		return &RangeError{"tokens to publish", n, 0, min(len(tokens), s.capacity)}
	}
	if c.on {
		c.epoch++
		c.publish(s, tokens, n)
	}
	c.check()
	return nil
}

// publish makes the full blocks within the first n tokens matchable.
func (c *Cache) publish(s *Seq, tokens []Token, n int) {
	upto := min(n/c.bs, len(s.tables[0]))
	if upto <= s.published {
		return
	}
	from := s.published
	root := c.spaces[s.space].root
	unit := c.place(s, root, tokens, from)
	for i := from; i < upto; i++ {
		unit = c.extend(root, unit, tokens[i*c.bs:upto*c.bs])
		for g := range c.groups {
			if id := s.tables[g][i]; id != NullBlock {
				c.addCopy(id, unit, g)
			}
		}
	}
	if c.full == 0 {
		c.trim(c.owner(unit))
	}
	s.published = upto
	s.settle()
}

// place returns the unit of the sequence's last published block, or -1 for depth 0.
func (c *Cache) place(s *Seq, root int32, tokens []Token, depth int) int32 {
	if depth == 0 {
		return -1
	}
	for g := range s.tables {
		if id := s.tables[g][depth-1]; id != NullBlock && c.blocks[id].at != 0 {
			return c.blocks[id].at - 1
		}
	}
	// Every copy has left its window and may have been evicted since: only
	// without a full-attention group. Follow the tokens, and make positions
	// without copies where the path is gone.
	unit := int32(-1)
	for i := range depth {
		unit = c.extend(root, unit, tokens[i*c.bs:depth*c.bs])
	}
	return unit
}

// CommonPrefix returns the number of leading blocks of the sequence's first
// full-attention table that every holder of blocks holds: attention over them
// can be shared. It is 0 without caching or without such a group.
func (c *Cache) CommonPrefix(s *Seq) int {
	g := slices.IndexFunc(c.groups, func(g group) bool { return g.spec.Kind == FullAttention })
	if c.own(s) != nil || !c.on || g < 0 {
		return 0
	}
	for i, id := range s.tables[g] {
		if int(c.blocks[id].refs) != c.holders {
			return i
		}
	}
	return len(s.tables[g])
}
