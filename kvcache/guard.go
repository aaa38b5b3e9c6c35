package kvcache

import "slices"

// This file keeps which leases and awaits protect which positions and copies.

// linkLease enters a lease in its node's ring, the best first. Its place is looked for
// from both ends: what is new mostly belongs near one, what moves up near the other.
func (c *Cache) linkLease(i, slot int32) {
	first, l := &c.t.rest(i).leases, &c.leases[slot]
	if *first == 0 {
		l.next, l.prev, *first = slot, slot, slot
		return
	}
	at, back := *first, *first // l comes in front of one of them
	for c.leases[at].before(l) {
		prev := c.leases[back].prev
		if !l.before(&c.leases[prev]) {
			at = back
			break
		}
		at, back = c.leases[at].next, prev
	}
	if at == *first && !c.leases[at].before(l) {
		*first = slot
	}
	o := &c.leases[at]
	l.next, l.prev = at, o.prev
	c.leases[o.prev].next, o.prev = slot, slot
}

// leasesAt returns the leases of a node, the best first.
func (c *Cache) leasesAt(i int32) []int32 {
	var slots []int32
	first := c.t.rest(i).leases
	for slot := first; slot != 0; {
		slots = append(slots, slot)
		if slot = c.leases[slot].next; slot == first {
			break
		}
	}
	return slots
}

func (c *Cache) unlinkLease(i, slot int32) {
	l, first := &c.leases[slot], &c.t.rest(i).leases
	if l.next == slot {
		*first = 0
		return
	}
	c.leases[l.prev].next, c.leases[l.next].prev = l.next, l.prev
	if *first == slot {
		*first = l.next
	}
}

// moveLeases hands the leases of a node that vanishes to its parent. At a root they end.
func (c *Cache) moveLeases(i, parent int32) {
	nd, p := c.t.rest(i), c.t.rest(parent)
	if nd.covers > 0 {
		p.covers-- // no covered child any more
	}
	for nd.leases != 0 {
		slot := nd.leases
		c.unlinkLease(i, slot)
		l := &c.leases[slot]
		if c.t.at(parent).isRoot() {
			c.due[l.kind].Delete(dueLease{l.deadline, slot})
			l.live = false
			for _, id := range l.window {
				c.unpinOne(id, slot)
			}
			l.window = nil
			l.next, c.freeLease = c.freeLease, slot
			if l.kind == isLease {
				c.stats.leasesEvicted++
			}
			continue
		}
		l.node = parent
		c.linkLease(parent, slot)
		if l.kind == isLease {
			p.covers++
		}
	}
	nd.covers = 0
}

// guard returns the lease or the await that protects a copy best, 0 when there
// is none. Surplus copies have none.
func (c *Cache) guard(id BlockID, b *block) int32 {
	if c.due[isLease].Len()+c.due[isAwait].Len() == 0 || b.next != id && c.groups[b.group].spec.Kind != SlidingWindow {
		return 0
	}
	return c.guardOf(id, b)
}

// guardOf is guard for a copy that was none too many when it entered its order.
func (c *Cache) guardOf(id BlockID, b *block) int32 {
	if c.groups[b.group].spec.Kind != SlidingWindow {
		return c.t.rest(c.owner(b.at - 1)).leases
	}
	best := int32(0)
	if b.state&blockPinned != 0 {
		for _, slot := range c.pins[id] {
			if best == 0 || c.leases[slot].before(&c.leases[best]) {
				best = slot
			}
		}
	}
	return best
}

// leaseKeyOf returns the place of a protected copy in the leased order.
func (c *Cache) leaseKeyOf(id BlockID, b *block) leaseKey {
	return leaseKey{c.leases[c.guardOf(id, b)].deadline, b.stamp, id}
}

// awaitKeyOf returns the place of an awaited copy in its order.
func (c *Cache) awaitKeyOf(id BlockID, b *block) awaitKey {
	return awaitKey{c.leases[c.guardOf(id, b)].deadline, b.stamp & (1<<stampBits - 1), id}
}

// pinWindow protects the window copies that a hit at the lease's end needs.
func (c *Cache) pinWindow(slot int32) {
	l := &c.leases[slot]
	nd := c.t.at(l.node)
	end := int(nd.depth) + int(nd.n)
	for g := range c.groups {
		if c.groups[g].spec.Kind == FullAttention {
			continue
		}
		for i, p := l.node, end-1; p >= max(end-c.groups[g].run, 0); p-- {
			for p < int(c.t.at(i).depth) {
				i = c.t.at(i).parent
			}
			id := c.head(c.t.at(i).run+int32(p)-c.t.at(i).depth, g)
			if id == NullBlock {
				continue
			}
			b := &c.blocks[id]
			c.unqueue(id, b)
			b.state |= blockPinned
			c.pins[id] = append(c.pins[id], slot)
			l.window = append(l.window, id)
		}
	}
}

// unpinOne takes one lease's protection from a window copy, which is out of the eviction order meanwhile.
func (c *Cache) unpinOne(id BlockID, slot int32) {
	b := &c.blocks[id]
	c.unqueue(id, b)
	slots := c.pins[id]
	if i := slices.Index(slots, slot); i >= 0 {
		slots = slices.Delete(slots, i, i+1)
	}
	if len(slots) > 0 {
		c.pins[id] = slots
		return
	}
	delete(c.pins, id)
	b.state &^= blockPinned
}

// unpin takes all protection from a window copy that loses its position.
func (c *Cache) unpin(id BlockID, b *block) {
	if b.state&blockPinned == 0 {
		return
	}
	for _, slot := range c.pins[id] {
		l := &c.leases[slot]
		l.window = slices.DeleteFunc(l.window, func(w BlockID) bool { return w == id })
	}
	delete(c.pins, id)
	b.state &^= blockPinned
}
