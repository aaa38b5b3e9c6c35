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
	node, off := c.place(s, tokens, from)
	for i := from; i < upto; i++ {
		node, off = c.extend(node, off, tokens[i*c.bs:upto*c.bs])
		for g := range c.groups {
			if id := s.tables[g][i]; id != NullBlock {
				c.addCopy(id, node, g, off)
			}
		}
	}
	if c.full == 0 {
		c.trim(node)
	}
	s.published = upto
	s.settle()
}

// place returns the position of the sequence's last published block, which is
// the root for depth 0.
func (c *Cache) place(s *Seq, tokens []Token, depth int) (int32, int) {
	node, off := c.spaces[s.space].root, -1
	if depth == 0 {
		return node, off
	}
	for g := range s.tables {
		if id := s.tables[g][depth-1]; id != NullBlock && c.blocks[id].node != 0 {
			return c.blocks[id].node, int(c.blocks[id].off)
		}
	}
	// Every copy has left its window and may have been evicted since: only
	// without a full-attention group. Follow the tokens, and make positions
	// without copies where the path is gone.
	for i := range depth {
		node, off = c.extend(node, off, tokens[i*c.bs:depth*c.bs])
	}
	return node, off
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
