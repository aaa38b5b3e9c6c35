package kvcache

// This file keeps what the tree says of a position, what the blocks say of
// themselves and the eviction order consistent with each other.

// head returns the oldest copy in a unit, or NullBlock for a hole.
func (c *Cache) head(unit int32, g int) BlockID {
	return c.t.slab.pages[unit>>edgeBits].copies[int(unit&unitMask)*len(c.groups)+g]
}

func (c *Cache) setHead(unit int32, g int, id BlockID) {
	c.t.slab.pages[unit>>edgeBits].copies[int(unit&unitMask)*len(c.groups)+g] = id
}

// owner returns the node that owns a unit.
func (c *Cache) owner(unit int32) int32 {
	return c.t.slab.pages[unit>>edgeBits].owner[unit&unitMask]
}

// tail returns the unit of a node's last position.
func (nd *node) tail() int32 { return nd.run + int32(nd.n) - 1 }

// evictable reports whether a copy that nobody holds may be taken: a surplus
// copy wherever it stands, a window copy wherever it stands, and the last copy
// of a position below which nothing is cached.
func (c *Cache) evictable(id BlockID, b *block) bool {
	if b.refs != 0 || b.at == 0 {
		return false
	}
	if b.next != id || c.groups[b.group].spec.Kind == SlidingWindow {
		return true
	}
	nd := c.t.at(c.owner(b.at - 1))
	return nd.tail() == b.at-1 && nd.child == 0
}

// fix enters a block in the eviction order, or takes it out, as its state asks.
func (c *Cache) fix(id BlockID) {
	b := &c.blocks[id]
	want := uint8(0)
	if c.evictable(id, b) {
		want = blockQueued
		if slot := c.guard(id, b); slot != 0 {
			want = [...]uint8{isLease: blockLeased, isAwait: blockAwaited}[c.leases[slot].kind]
		}
	}
	if have := b.state & blockOrdered; have != want {
		c.unqueue(id, b)
		c.enqueue(id, b, want)
	}
}

func (c *Cache) enqueue(id BlockID, b *block, want uint8) {
	switch want {
	case blockQueued:
		c.plain.insert(evictKey{b.stamp, id})
	case blockAwaited:
		c.awaitq.ReplaceOrInsert(c.awaitKeyOf(id, b))
	case blockLeased:
		c.leasedq.ReplaceOrInsert(c.leaseKeyOf(id, b))
	}
	b.state |= want
}

func (c *Cache) unqueue(id BlockID, b *block) {
	switch {
	case b.state&blockQueued != 0:
		c.plain.remove(evictKey{b.stamp, id})
	case b.state&blockAwaited != 0:
		c.awaitq.Delete(c.awaitKeyOf(id, b))
	case b.state&blockLeased != 0:
		c.leasedq.Delete(c.leaseKeyOf(id, b))
	}
	b.state &^= blockOrdered
}

// fixTail settles the copies at the end of a node's edge after something below it came or went.
func (c *Cache) fixTail(nd *node) {
	if nd.isRoot() {
		return
	}
	for g := range c.groups {
		if id := c.head(nd.tail(), g); id != NullBlock {
			c.fix(id)
		}
	}
}

// hold adds a holder.
func (c *Cache) hold(id BlockID) {
	b := &c.blocks[id]
	if b.refs == 0 {
		if b.state&blockOrdered != 0 {
			c.unqueue(id, b)
		}
		c.held++
		if b.at != 0 {
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
	if b.at == 0 {
		return true
	}
	c.heldPos--
	c.releases++
	b.stamp = uint64(class)<<stampBits | c.releases
	if c.evictable(id, b) {
		c.fix(id)
	}
	return false
}

// addCopy makes a block the youngest copy at a position.
func (c *Cache) addCopy(id BlockID, unit int32, g int) {
	b := &c.blocks[id]
	b.at, b.group = unit+1, uint8(g)
	c.cached++
	if b.refs > 0 {
		c.heldPos++
	}
	first := c.head(unit, g)
	if first == NullBlock {
		b.next, b.prev = id, id
		c.setHead(unit, g, id)
		c.recordStored(unit, g)
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
	unit, g := b.at-1, int(b.group)
	b.at = 0
	c.cached--
	if b.refs > 0 {
		c.heldPos--
	}
	if b.next == id {
		c.setHead(unit, g, NullBlock)
		return
	}
	next, prev := b.next, b.prev
	c.blocks[next].prev = prev
	c.blocks[prev].next = next
	if c.head(unit, g) == id {
		c.setHead(unit, g, next)
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
	if k, ok := c.plain.takeFirst(); ok {
		id = k.block
	} else if k, ok := c.awaitq.DeleteMin(); ok {
		id = k.block
	} else if k, ok := c.leasedq.DeleteMin(); ok {
		id = k.block
	} else {
		panic("kvcache: broken invariant: no evictable block among the available ones")
	}
	b := &c.blocks[id]
	c.account(id, b)
	b.state &^= blockOrdered
	unit, g := b.at-1, int(b.group)
	c.dropCopy(id)
	c.vacated(unit, g)
	return id
}

// vacated cleans up after a copy of a group has left a position: the position
// goes when a full-attention group has no copy left there, or when no group has.
func (c *Cache) vacated(unit int32, g int) {
	if c.head(unit, g) != NullBlock {
		return
	}
	c.recordRemoved(unit, g)
	i := c.owner(unit)
	if c.groups[g].spec.Kind == FullAttention {
		c.cut(i, unit)
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
		for g := range c.groups {
			if c.head(nd.tail(), g) != NullBlock {
				return
			}
		}
		i = c.shorten(i)
	}
}

// cut removes the positions of node i from a unit on, with everything below
// them. Copies there lose their position; those that nobody holds are free.
func (c *Cache) cut(i, unit int32) {
	// Deepest first: descend to a leaf, empty it, repeat.
	for {
		j := i
		for c.t.at(j).child != 0 {
			j = c.t.at(j).child
		}
		nd := c.t.at(j)
		stop := nd.run
		if j == i {
			stop = unit
		}
		for last := nd.tail(); last >= stop; last-- {
			for g := range c.groups {
				for id := c.head(last, g); id != NullBlock; id = c.head(last, g) {
					c.dropCopy(id)
					if c.blocks[id].refs == 0 {
						c.push(id)
					}
					if c.head(last, g) == NullBlock {
						c.recordRemoved(last, g)
					}
				}
			}
			c.shorten(j)
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
	if t.rest(i).covers > 0 {
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
			c.forget(t.rest(parent).space)
			return 0
		}
		if p.child == 0 {
			c.fixTail(p)
		}
		return parent
	}
	if nd.room > 2*nd.n {
		t.trim(nd)
	}
	c.fixTail(nd)
	return i
}

// extend returns the position below that holds the first block of toks, as a
// unit: below the position of a unit, or at a root where unit is -1. Where the tree has
// none it adds positions for as much of toks as one edge takes; their copies
// are the caller's to add.
func (c *Cache) extend(root, unit int32, toks []Token) int32 {
	t := &c.t
	i := root
	if unit >= 0 {
		i = c.owner(unit)
	}
	nd := t.at(i)
	if unit >= 0 && unit < nd.tail() {
		if equalTokens(t.slab.tokens(unit+1, 1), toks[:c.bs]) {
			return unit + 1
		}
		i = c.splitNode(i, int(unit-nd.run)+1)
		nd = t.at(i)
	}
	if nd.child != 0 || nd.isRoot() || t.rest(i).leases != 0 || int(nd.n) >= t.edge {
		if j := t.find(i, toks[:c.bs]); j != 0 {
			return t.at(j).run
		}
		grew := nd.child == 0 && !nd.isRoot()
		if grew {
			t.trim(nd)
		}
		m := min(len(toks)/c.bs, t.edge)
		j := t.newChild(i, toks[:m*c.bs])
		c.growHashes(j)
		if grew {
			c.fixTail(t.at(i))
		}
		return t.at(j).run
	}
	n := int(nd.n)
	m := min(len(toks)/c.bs, t.edge-n)
	if n+m > int(nd.room) {
		c.move(nd, 1<<orderFor(n+m))
	}
	nd.n += uint16(m)
	t.fill(i, nd, toks[:m*c.bs], n)
	c.growHashes(i)
	for g := range c.groups { // the former end of the edge is an inner position now
		if id := c.head(nd.run+int32(n)-1, g); id != NullBlock {
			c.fix(id)
		}
	}
	return nd.run + int32(n)
}

// move gives an edge a run with more room.
func (c *Cache) move(nd *node, room int) {
	s := &c.t.slab
	n, old := int(nd.n), nd.run
	run := s.get(room)
	copy(s.tokens(run, n), s.tokens(old, n))
	copy(s.owners(run, n), s.owners(old, n))
	heads := s.copies(run, n)
	copy(heads, s.copies(old, n))
	for k, first := range heads {
		for id := first; id != NullBlock; {
			b := &c.blocks[id]
			b.at = run + int32(k/len(c.groups)) + 1
			if id = b.next; id == first {
				break
			}
		}
	}
	s.put(old, int(nd.room))
	nd.run, nd.room = run, uint16(room)
}

// splitNode splits an edge behind its first k positions and returns the upper node.
func (c *Cache) splitNode(i int32, k int) int32 {
	u := c.t.split(i, k)
	c.splitHashes(i, u, k)
	return u
}
