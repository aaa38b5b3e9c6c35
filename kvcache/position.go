package kvcache

// This file keeps what the tree says of a position, what the blocks say of
// themselves and the eviction order consistent with each other.

// head returns the oldest copy at a position, or NullBlock for a hole.
func (c *Cache) head(nd *node, g, off int) BlockID {
	return BlockID(c.t.slab.words(nd.run, nd.order)[(c.bs+g)<<nd.order+int(nd.start)+off])
}

func (c *Cache) setHead(nd *node, g, off int, id BlockID) {
	c.t.slab.words(nd.run, nd.order)[(c.bs+g)<<nd.order+int(nd.start)+off] = Token(id)
}

// evictable reports whether a copy that nobody holds may be taken: a surplus
// copy wherever it stands, a window copy wherever it stands, and the last copy
// of a position below which nothing is cached.
func (c *Cache) evictable(id BlockID, b *block) bool {
	if b.refs != 0 || b.node == 0 {
		return false
	}
	if b.next != id || c.groups[b.group].spec.Kind == SlidingWindow {
		return true
	}
	nd := c.t.at(b.node)
	return int(b.off)+1 == int(nd.n) && nd.child == 0
}

// fix enters a block in the eviction order, or takes it out, as its state asks.
func (c *Cache) fix(id BlockID) {
	b := &c.blocks[id]
	want := uint8(0)
	if c.evictable(id, b) {
		want = blockQueued
		if c.leaseCount > 0 && c.underLease(id, b) {
			want = blockLeased
		}
	}
	if have := b.state & (blockQueued | blockLeased); have != want {
		c.unqueue(id, b)
		c.enqueue(id, b, want)
	}
}

func (c *Cache) enqueue(id BlockID, b *block, want uint8) {
	switch want {
	case blockQueued:
		c.plain.ReplaceOrInsert(evictKey{b.stamp, id})
	case blockLeased:
		c.leasedq.ReplaceOrInsert(leaseKey{c.deadlineOf(b, id), b.stamp, id})
	}
	b.state |= want
}

func (c *Cache) unqueue(id BlockID, b *block) {
	switch {
	case b.state&blockQueued != 0:
		c.plain.Delete(evictKey{b.stamp, id})
	case b.state&blockLeased != 0:
		c.leasedq.Delete(leaseKey{c.deadlineOf(b, id), b.stamp, id})
	}
	b.state &^= blockQueued | blockLeased
}

// fixTail settles the copies at the end of a node's edge after something below it came or went.
func (c *Cache) fixTail(nd *node) {
	if nd.isRoot() {
		return
	}
	for g := range c.groups {
		if id := c.head(nd, g, int(nd.n)-1); id != NullBlock {
			c.fix(id)
		}
	}
}

// hold adds a holder.
func (c *Cache) hold(id BlockID) {
	b := &c.blocks[id]
	if b.refs == 0 {
		c.unqueue(id, b)
		c.held++
		if b.node != 0 {
			c.heldPos++
		}
	}
	b.refs++
}

// release takes a holder away. A block without a position is left to the
// caller, who puts it on the free stack in the order the stack needs; release
// then returns true.
func (c *Cache) release(id BlockID, class uint8) (loose bool) {
	b := &c.blocks[id]
	b.refs--
	if b.refs > 0 {
		return false
	}
	c.held--
	if b.node == 0 {
		return true
	}
	c.heldPos--
	c.releases++
	b.stamp = uint64(class)<<stampBits | c.releases
	c.fix(id)
	return false
}

// addCopy makes a block the youngest copy at a position.
func (c *Cache) addCopy(id BlockID, i int32, g, off int) {
	nd := c.t.at(i)
	b := &c.blocks[id]
	b.node, b.off, b.group = i, uint16(off), uint8(g)
	c.cached++
	if b.refs > 0 {
		c.heldPos++
	}
	first := c.head(nd, g, off)
	if first == NullBlock {
		b.next, b.prev = id, id
		c.setHead(nd, g, off, id)
		c.recordStored(i, g, off)
		return
	}
	h := &c.blocks[first]
	last := h.prev
	b.next, b.prev = first, last
	c.blocks[last].next = id
	h.prev = id
	if last == first { // the only copy so far has become one of two
		c.fix(first)
	}
}

// dropCopy takes a block away from its position. The position may be left without a copy.
func (c *Cache) dropCopy(id BlockID) {
	b := &c.blocks[id]
	c.unqueue(id, b)
	c.unpin(id, b)
	nd := c.t.at(b.node)
	g, off := int(b.group), int(b.off)
	b.node = 0
	c.cached--
	if b.refs > 0 {
		c.heldPos--
	}
	if b.next == id {
		c.setHead(nd, g, off, NullBlock)
		return
	}
	next, prev := b.next, b.prev
	c.blocks[next].prev = prev
	c.blocks[prev].next = next
	if c.head(nd, g, off) == id {
		c.setHead(nd, g, off, next)
	}
	if next == prev { // one copy is left
		c.fix(next)
	}
}

// take returns a block for a new holder: freed ones first, then unused ones,
// then the first of the eviction order. The caller has made sure that one is available.
func (c *Cache) take() BlockID {
	id, ok := c.pop()
	if !ok {
		id = c.evict()
	}
	b := &c.blocks[id]
	b.refs = 1
	c.held++
	return id
}

// evict makes the first block of the eviction order a block without position.
func (c *Cache) evict() BlockID {
	var id BlockID
	if k, ok := c.plain.Min(); ok {
		id = k.block
	} else if k, ok := c.leasedq.Min(); ok {
		id = k.block
	} else {
		panic("kvcache: broken invariant: no evictable block among the available ones")
	}
	b := &c.blocks[id]
	c.account(id, b)
	i, g, off := b.node, int(b.group), int(b.off)
	c.dropCopy(id)
	c.vacated(i, g, off)
	return id
}

// vacated cleans up after the copy of a group has left a position of node i:
// a position goes when a full-attention group has no copy left there, or when no group has.
func (c *Cache) vacated(i int32, g, off int) {
	nd := c.t.at(i)
	if c.head(nd, g, off) != NullBlock {
		return
	}
	c.recordRemoved(i, g, off)
	if c.groups[g].spec.Kind == FullAttention {
		c.cut(i, off)
		return
	}
	if c.full == 0 {
		c.trim(i)
	}
}

// trim removes positions without any copy from the end of an edge, and goes on upwards. Needed where no group is of full attention.
func (c *Cache) trim(i int32) {
	for i != 0 {
		nd := c.t.at(i)
		if nd.isRoot() || nd.child != 0 {
			return
		}
		off := int(nd.n) - 1
		for g := range c.groups {
			if c.head(nd, g, off) != NullBlock {
				return
			}
		}
		i = c.shorten(i)
	}
}

// cut removes the positions of node i from offset off on, with everything
// below them. Copies there lose their position; those that nobody holds are free.
func (c *Cache) cut(i int32, off int) {
	// Deepest first: descend to a leaf, empty it, repeat.
	for {
		j := i
		for c.t.at(j).child != 0 {
			j = c.t.at(j).child
		}
		stop := 0
		if j == i {
			stop = off
		}
		for {
			nd := c.t.at(j)
			last := int(nd.n) - 1
			for g := range c.groups {
				for {
					id := c.head(nd, g, last)
					if id == NullBlock {
						break
					}
					c.dropCopy(id)
					if c.blocks[id].refs == 0 {
						c.push(id)
					}
					if c.head(nd, g, last) == NullBlock {
						c.recordRemoved(j, g, last)
					}
				}
			}
			c.shorten(j)
			if last == stop {
				break
			}
		}
		if j == i {
			return
		}
	}
}

// shorten takes the last position, which has no copies, from the edge of a
// node without children, and the node itself when the edge is empty. It
// returns the node in which the path now ends, 0 for the root.
func (c *Cache) shorten(i int32) int32 {
	t := &c.t
	nd := t.at(i)
	if nd.covers > 0 {
		c.leasedPositions--
	}
	t.positions--
	nd.n--
	c.shrinkHashes(i, int(nd.n))
	if nd.n == 0 {
		parent := nd.parent
		t.unlink(i)
		c.moveLeases(i, parent)
		t.dropNode(i)
		p := t.at(parent)
		if p.isRoot() {
			c.forget(p.space)
			return 0
		}
		if p.child == 0 {
			c.fixTail(p)
		}
		return parent
	}
	if order := orderFor(int(nd.n)); order+1 < nd.order {
		t.resize(nd, order+1)
	}
	c.fixTail(nd)
	return i
}

// extend returns the position below (i, off) that holds the first block of
// toks, as a node and an offset. Where the tree has none it adds positions for
// as much of toks as one edge takes; their copies are the caller's to add.
func (c *Cache) extend(i int32, off int, toks []Token) (int32, int) {
	t := &c.t
	nd := t.at(i)
	if off+1 < int(nd.n) {
		if equalTokens(t.tokens(nd)[(off+1)*c.bs:(off+2)*c.bs], toks[:c.bs]) {
			return i, off + 1
		}
		i = c.splitNode(i, off+1)
		nd = t.at(i)
	}
	if nd.child != 0 || nd.isRoot() || nd.leases != 0 || int(nd.n) >= t.edge {
		if j := t.find(i, toks[:c.bs]); j != 0 {
			return j, 0
		}
		m := min(len(toks)/c.bs, t.edge)
		grew := nd.child == 0
		j := t.newChild(i, toks[:m*c.bs])
		c.growHashes(j)
		if grew {
			c.fixTail(t.at(i))
		}
		return j, 0
	}
	n := int(nd.n)
	m := min(len(toks)/c.bs, t.edge-n)
	t.appendTokens(nd, toks[:m*c.bs])
	c.growHashes(i)
	for g := range c.groups { // the former end of the edge is an inner position now
		if id := c.head(nd, g, n-1); id != NullBlock {
			c.fix(id)
		}
	}
	return i, n
}

// splitNode splits an edge and moves its blocks. It returns the upper node.
func (c *Cache) splitNode(i int32, k int) int32 {
	t := &c.t
	u := t.split(i, k)
	c.splitHashes(i, u, k)
	up, nd := t.at(u), t.at(i)
	for g := range c.groups {
		for off := range k {
			first := c.head(up, g, off)
			for id := first; id != NullBlock; {
				b := &c.blocks[id]
				b.node = u
				if id = b.next; id == first {
					break
				}
			}
		}
		for off := range int(nd.n) {
			first := c.head(nd, g, off)
			for id := first; id != NullBlock; {
				b := &c.blocks[id]
				b.off = uint16(off)
				if id = b.next; id == first {
					break
				}
			}
		}
	}
	return u
}
