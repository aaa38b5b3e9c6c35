package kvcache

import (
	"fmt"
	"math"
	"slices"

	"github.com/google/btree"
)

// Time is an instant on the caller's clock, in nanoseconds. The cache compares
// instants and reads no clock.
type Time int64

// Anytime is the instant of an await whose owner may come back at any time.
const Anytime Time = math.MaxInt64

// LeaseID names a lease or an await. The zero value is neither.
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
// goes on with one position less. An await is a lease that protects from less:
// its blocks give way before leased ones, and no budget counts them.
type lease struct {
	node     int32
	next     int32 // next lease in the node's ring, or of the free list
	prev     int32
	gen      uint32
	live     bool
	kind     leaseKind
	deadline Time
	window   []BlockID // copies of sliding-window groups that a hit at the end needs
}

type leaseKind uint8

const (
	isLease leaseKind = iota
	isAwait
)

// before reports whether l protects a block better than o: a lease before an
// await, the latest lease, and whoever of the awaited is to come first.
func (l *lease) before(o *lease) bool {
	if l.kind != o.kind {
		return l.kind < o.kind
	}
	if l.kind == isAwait {
		return l.deadline < o.deadline
	}
	return l.deadline > o.deadline
}

type dueLease struct {
	deadline Time
	slot     int32
}

type leaseBook struct {
	leases          []lease
	freeLease       int32
	leasedPositions int // positions that some lease covers, awaits aside
	leaseBudget     int
	due             [2]*btree.BTreeG[dueLease] // the live ones, by kind
	pins            map[BlockID][]int32        // window copies under lease: their leases
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
	for kind := range l.due {
		l.due[kind] = btree.NewG(16, func(a, b dueLease) bool {
			if a.deadline != b.deadline {
				return a.deadline < b.deadline
			}
			return a.slot < b.slot
		})
	}
}

// count returns the number of live leases, or of awaits.
func (l *leaseBook) count(kind leaseKind) int { return l.due[kind].Len() }

// Lease protects the published blocks of a sequence until deadline: they give
// way after every block that has no lease. Leases may cover a share of the pool
// (Config.LeaseShare); blocks that several leases cover count once. Over the
// budget the leases with the earliest deadlines end to make room, but none
// whose deadline is later than the new one's. A refusal changes nothing.
//
// A lease does not hold blocks: Available is the same with it and without.
func (c *Cache) Lease(s *Seq, deadline Time) (LeaseID, LeaseResult, error) {
	i, off, err := c.endOf(s)
	if err != nil {
		return LeaseID{}, 0, err
	}
	return c.grant(i, off, deadline)
}

// Await says that somebody is expected back for the published blocks of a
// sequence, at this instant at the latest or at Anytime. Once nobody holds
// them they give way after plain and prioritised blocks and before leased ones,
// those that are awaited longest first: where everybody cannot be kept, the
// next to come are. Of those that are awaited at Anytime the one let go first
// does. It lasts until ExpireLeases is told that the instant has passed, until
// EndLease, or until nothing of the blocks is left; Renew moves the instant.
// Blocks that others await stay awaited when one of them ends.
func (c *Cache) Await(s *Seq, until Time) (LeaseID, error) {
	i, off, err := c.endOf(s)
	if err != nil {
		return LeaseID{}, err
	}
	id := c.enter(i, off, until, isAwait)
	c.check()
	return id, nil
}

// endOf returns the position of a sequence's last published block: its node
// and the offset in the node's edge.
func (c *Cache) endOf(s *Seq) (int32, int, error) {
	if err := c.own(s); err != nil {
		return 0, 0, err
	}
	if s.published == 0 {
		return 0, 0, ErrNothingToLease
	}
	for g := range s.tables {
		if id := s.tables[g][s.published-1]; id != NullBlock && c.blocks[id].at != 0 {
			unit := c.blocks[id].at - 1
			i := c.owner(unit)
			return i, int(unit - c.t.at(i).run), nil
		}
	}
	return 0, 0, ErrNothingToLease
}

// Renew moves the deadline of a lease, or the instant of an await.
func (c *Cache) Renew(id LeaseID, deadline Time) error {
	if !c.leased(id) {
		return ErrUnknownLease
	}
	c.epoch++
	l := &c.leases[id.slot]
	c.due[l.kind].Delete(dueLease{l.deadline, id.slot})
	i := l.node
	c.unfixLease(i, id.slot)
	c.unlinkLease(i, id.slot)
	l.deadline = deadline
	c.linkLease(i, id.slot)
	c.due[l.kind].ReplaceOrInsert(dueLease{deadline, id.slot})
	c.fixLease(i, id.slot)
	c.check()
	return nil
}

// EndLease ends a lease or an await. Its blocks stay cached, in the class and with the age they have without it.
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
// their number. Awaits whose instant is not after now end too.
func (c *Cache) ExpireLeases(now Time) int {
	var n [2]int
	for kind, due := range c.due {
		for {
			d, ok := due.Min()
			if !ok || d.deadline > now {
				break
			}
			c.epoch++
			c.endLease(d.slot)
			n[kind]++
		}
	}
	c.check()
	return n[isLease]
}

// LeaseTokens returns the number of tokens that a lease or an await protects now, and 0 when it has ended.
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
		d, ok := c.due[isLease].Min()
		if !ok || d.deadline > deadline {
			result = LeaseOverBudget
			break
		}
		ended = append(ended, c.leases[d.slot])
		c.endLease(d.slot)
	}
	var id LeaseID
	if result == LeaseGranted {
		id = c.enter(i, off, deadline, isLease)
		c.stats.leasesDisplaced += uint64(len(ended))
	} else {
		for _, l := range slices.Backward(ended) { // the slots come back in the order of the free list
			slot := c.newLease(l.node, l.deadline, isLease)
			c.leases[slot].gen = l.gen
		}
	}
	c.check()
	return id, result, nil
}

// enter makes a lease or an await that ends at a position.
func (c *Cache) enter(i int32, off int, deadline Time, kind leaseKind) LeaseID {
	c.epoch++
	if off+1 < int(c.t.at(i).n) {
		i = c.splitNode(i, off+1)
	}
	slot := c.newLease(i, deadline, kind)
	return LeaseID{slot, c.leases[slot].gen}
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

func (c *Cache) newLease(i int32, deadline Time, kind leaseKind) int32 {
	slot := c.freeLease
	if slot != 0 {
		c.freeLease = c.leases[slot].next
	} else {
		slot = int32(len(c.leases))
		c.leases = append(c.leases, lease{})
	}
	l := &c.leases[slot]
	l.node, l.deadline, l.kind, l.live = i, deadline, kind, true
	l.gen++
	c.unfixLease(i, slot)
	c.linkLease(i, slot)
	c.due[kind].ReplaceOrInsert(dueLease{deadline, slot})
	for j := i; kind == isLease; j = c.t.at(j).parent {
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
	c.due[l.kind].Delete(dueLease{l.deadline, slot})
	c.unlinkLease(i, slot)
	window := l.window
	for _, id := range window {
		c.unpinOne(id, slot)
	}
	for j := i; l.kind == isLease; j = c.t.at(j).parent {
		covers := &c.t.rest(j).covers
		*covers--
		if *covers > 0 || c.t.at(j).isRoot() {
			break
		}
		c.leasedPositions -= int(c.t.at(j).n)
	}
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
