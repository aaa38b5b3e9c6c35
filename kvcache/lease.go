package kvcache

import (
	"fmt"
	"slices"

	"github.com/google/btree"
)

// Time is an instant on the caller's clock, in nanoseconds. The cache compares
// instants and reads no clock.
type Time int64

// LeaseID names a lease. The zero value is no lease.
type LeaseID struct {
	slot int32
	gen  uint32
}

// LeaseResult says whether a lease was granted.
type LeaseResult uint8

const (
	// LeaseGranted: the prefix is protected.
	LeaseGranted LeaseResult = iota
	// LeaseOverBudget: the leases with later deadlines leave no room in the budget.
	LeaseOverBudget
	// LeaseTooLong: the prefix alone is longer than the whole budget.
	LeaseTooLong
)

// String returns the result in words.
func (r LeaseResult) String() string {
	switch r {
	case LeaseGranted:
		return "granted"
	case LeaseOverBudget:
		return "over budget"
	case LeaseTooLong:
		return "longer than the budget"
	}
	return fmt.Sprintf("LeaseResult(%d)", uint8(r))
}

// lease protects the path from a root to the end of a node's edge. The blocks
// above the end need no mark of their own: a last copy is never evicted while
// something is cached below it. When the end is evicted all the same, the lease
// goes on with one position less.
type lease struct {
	node     int32
	next     int32 // next lease of the node, or of the free list
	gen      uint32
	live     bool
	deadline Time
	window   []BlockID // copies of sliding-window groups that a hit at the end needs
}

type dueLease struct {
	deadline Time
	slot     int32
}

type leaseBook struct {
	leases          []lease
	freeLease       int32
	leaseCount      int
	leasedPositions int // positions that some lease covers
	leaseBudget     int
	due             *btree.BTreeG[dueLease]
	pins            map[BlockID][]int32 // window copies under lease: their leases
}

func (l *leaseBook) init(cfg Config, usable int) {
	gen := make([]lease, max(len(l.leases), 1))
	for i := range l.leases { // an id from before a reset stays unknown
		gen[i].gen = l.leases[i].gen
	}
	share := cfg.LeaseShare
	if share == 0 {
		share = DefaultLeaseShare
	}
	*l = leaseBook{leases: gen, leaseBudget: int(share * float64(usable)), pins: map[BlockID][]int32{}}
	for i := len(gen) - 1; i > 0; i-- {
		gen[i].next, l.freeLease = l.freeLease, int32(i)
	}
	l.due = btree.NewG(16, func(a, b dueLease) bool {
		if a.deadline != b.deadline {
			return a.deadline < b.deadline
		}
		return a.slot < b.slot
	})
}

// Lease protects the published blocks of a sequence until deadline: they give
// way after every block that has no lease. Leases may cover a share of the pool
// (Config.LeaseShare); blocks that several leases cover count once. Over the
// budget the leases with the earliest deadlines end to make room, but none
// whose deadline is later than the new one's. A refusal changes nothing.
//
// A lease does not hold blocks: Available is the same with it and without.
func (c *Cache) Lease(s *Seq, deadline Time) (LeaseID, LeaseResult, error) {
	if err := c.own(s); err != nil {
		return LeaseID{}, 0, err
	}
	if s.published == 0 {
		return LeaseID{}, 0, ErrNothingToLease
	}
	for g := range s.tables {
		if id := s.tables[g][s.published-1]; id != NullBlock && c.blocks[id].at != 0 {
			unit := c.blocks[id].at - 1
			i := c.owner(unit)
			return c.grant(i, int(unit-c.t.at(i).run), deadline)
		}
	}
	return LeaseID{}, 0, ErrNothingToLease
}

// Renew moves the deadline of a lease.
func (c *Cache) Renew(id LeaseID, deadline Time) error {
	if !c.leased(id) {
		return ErrUnknownLease
	}
	c.epoch++
	l := &c.leases[id.slot]
	c.due.Delete(dueLease{l.deadline, id.slot})
	i := l.node
	c.unfixLease(i, id.slot)
	c.unlinkLease(i, id.slot)
	l.deadline = deadline
	c.linkLease(i, id.slot)
	c.due.ReplaceOrInsert(dueLease{deadline, id.slot})
	c.fixLease(i, id.slot)
	c.check()
	return nil
}

// EndLease ends a lease. Its blocks stay cached, in the class and with the age they have without it.
func (c *Cache) EndLease(id LeaseID) error {
	if !c.leased(id) {
		return ErrUnknownLease
	}
	c.epoch++
	c.endLease(id.slot)
	c.check()
	return nil
}

// ExpireLeases ends every lease whose deadline is not after now and returns
// their number. Blocks that are awaited until an instant not after now become plain.
func (c *Cache) ExpireLeases(now Time) int {
	n := 0
	for {
		d, ok := c.due.Min()
		if !ok || d.deadline > now {
			break
		}
		c.epoch++
		c.endLease(d.slot)
		n++
	}
	c.expireRuns(now)
	c.check()
	return n
}

// LeaseTokens returns the number of tokens that a lease protects now, and 0 when it has ended.
func (c *Cache) LeaseTokens(id LeaseID) int {
	if !c.leased(id) {
		return 0
	}
	nd := c.t.at(c.leases[id.slot].node)
	return (int(nd.depth) + int(nd.n)) * c.bs
}

func (c *Cache) leased(id LeaseID) bool {
	return id.slot > 0 && int(id.slot) < len(c.leases) && c.leases[id.slot].live && c.leases[id.slot].gen == id.gen
}

// grant leases the path to a position.
func (c *Cache) grant(i int32, off int, deadline Time) (LeaseID, LeaseResult, error) {
	length := int(c.t.at(i).depth) + off + 1
	if length > c.leaseBudget {
		return LeaseID{}, LeaseTooLong, nil
	}
	var ended []lease // what made room, to be restored if it was not enough
	result := LeaseGranted
	for c.leasedPositions+c.uncovered(i, off) > c.leaseBudget {
		d, ok := c.due.Min()
		if !ok || d.deadline > deadline {
			result = LeaseOverBudget
			break
		}
		ended = append(ended, c.leases[d.slot])
		c.endLease(d.slot)
	}
	var id LeaseID
	if result == LeaseGranted {
		c.epoch++
		if off+1 < int(c.t.at(i).n) {
			i = c.splitNode(i, off+1)
		}
		slot := c.newLease(i, deadline)
		id = LeaseID{slot, c.leases[slot].gen}
		c.stats.leasesDisplaced += uint64(len(ended))
	} else {
		for _, l := range slices.Backward(ended) { // the slots come back in the order of the free list
			slot := c.newLease(l.node, l.deadline)
			c.leases[slot].gen = l.gen
		}
	}
	c.check()
	return id, result, nil
}

// uncovered counts the positions on the path to a position that no lease covers.
func (c *Cache) uncovered(i int32, off int) int {
	n := 0
	for k := off + 1; c.t.rest(i).covers == 0 && !c.t.at(i).isRoot(); k = int(c.t.at(i).n) {
		n += k
		i = c.t.at(i).parent
	}
	return n
}

func (c *Cache) newLease(i int32, deadline Time) int32 {
	slot := c.freeLease
	if slot != 0 {
		c.freeLease = c.leases[slot].next
	} else {
		slot = int32(len(c.leases))
		c.leases = append(c.leases, lease{})
	}
	l := &c.leases[slot]
	l.node, l.deadline, l.live = i, deadline, true
	l.gen++
	c.unfixLease(i, slot)
	c.linkLease(i, slot)
	c.leaseCount++
	c.due.ReplaceOrInsert(dueLease{deadline, slot})
	for j := i; ; j = c.t.at(j).parent {
		covers := &c.t.rest(j).covers
		*covers++
		if *covers > 1 || c.t.at(j).isRoot() {
			break
		}
		c.leasedPositions += int(c.t.at(j).n)
	}
	c.pinWindow(slot)
	c.fixLease(i, slot)
	return slot
}

// endLease ends a lease and frees its slot.
func (c *Cache) endLease(slot int32) {
	l := &c.leases[slot]
	i := l.node
	c.unfixLease(i, slot)
	c.due.Delete(dueLease{l.deadline, slot})
	c.unlinkLease(i, slot)
	window := l.window
	for _, id := range window {
		c.unpinOne(id, slot)
	}
	for j := i; ; j = c.t.at(j).parent {
		covers := &c.t.rest(j).covers
		*covers--
		if *covers > 0 || c.t.at(j).isRoot() {
			break
		}
		c.leasedPositions -= int(c.t.at(j).n)
	}
	c.leaseCount--
	l.live, l.window = false, nil
	c.fixTail(c.t.at(i))
	for _, id := range window {
		c.fix(id)
	}
	l.next, c.freeLease = c.freeLease, slot
}

// unfixLease takes what a lease at node i affects out of the eviction order before the lease changes.
func (c *Cache) unfixLease(i, slot int32) {
	nd := c.t.at(i)
	for g := range c.groups {
		if id := c.head(nd.tail(), g); id != NullBlock {
			c.unqueue(id, &c.blocks[id])
		}
	}
	for _, id := range c.leases[slot].window {
		c.unqueue(id, &c.blocks[id])
	}
}

// fixLease enters it again.
func (c *Cache) fixLease(i, slot int32) {
	c.fixTail(c.t.at(i))
	for _, id := range c.leases[slot].window {
		c.fix(id)
	}
}

// linkLease enters a lease in its node's list, the latest deadline first.
func (c *Cache) linkLease(i, slot int32) {
	at := &c.t.rest(i).leases
	for *at != 0 && c.leases[*at].deadline > c.leases[slot].deadline {
		at = &c.leases[*at].next
	}
	c.leases[slot].next, *at = *at, slot
}

func (c *Cache) unlinkLease(i, slot int32) {
	at := &c.t.rest(i).leases
	for *at != slot {
		at = &c.leases[*at].next
	}
	*at = c.leases[slot].next
}

// moveLeases hands the leases of a node that vanishes to its parent. At a root they end.
func (c *Cache) moveLeases(i, parent int32) {
	nd, p := c.t.rest(i), c.t.rest(parent)
	if nd.covers == 0 {
		return
	}
	p.covers-- // no covered child any more
	for slot := nd.leases; slot != 0; {
		l := &c.leases[slot]
		next := l.next
		if c.t.at(parent).isRoot() {
			c.due.Delete(dueLease{l.deadline, slot})
			c.leaseCount--
			l.live = false
			for _, id := range l.window {
				c.unpinOne(id, slot)
			}
			l.window = nil
			l.next, c.freeLease = c.freeLease, slot
			c.stats.leasesEvicted++
		} else {
			l.node = parent
			c.linkLease(parent, slot)
			p.covers++
		}
		slot = next
	}
	nd.leases, nd.covers = 0, 0
}

// underLease reports whether an evictable copy is protected by a lease.
func (c *Cache) underLease(id BlockID, b *block) bool {
	if c.groups[b.group].spec.Kind == SlidingWindow {
		return b.state&blockPinned != 0
	}
	return b.next == id && c.t.rest(c.owner(b.at-1)).leases != 0
}

// leaseKeyOf returns the place of a protected copy in the leased order, where
// an awaited block counts as a plain one.
func (c *Cache) leaseKeyOf(id BlockID, b *block) leaseKey {
	stamp := b.stamp
	if stamp>>stampBits == classAwaited {
		stamp &= 1<<stampBits - 1
	}
	return leaseKey{c.deadlineOf(b, id), stamp, id}
}

// deadlineOf returns the latest deadline among the leases that protect a copy.
func (c *Cache) deadlineOf(b *block, id BlockID) Time {
	if c.groups[b.group].spec.Kind != SlidingWindow {
		return c.leases[c.t.rest(c.owner(b.at-1)).leases].deadline
	}
	slots := c.pins[id]
	d := c.leases[slots[0]].deadline
	for _, s := range slots[1:] {
		d = max(d, c.leases[s].deadline)
	}
	return d
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
