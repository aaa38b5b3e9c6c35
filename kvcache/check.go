package kvcache

import (
	"errors"
	"fmt"
)

// Check compares everything the cache knows with everything else and returns
// the broken invariants of the package's list, joined. It takes time linear in
// the pool. Builds with the tag "invariants" call it after every operation.
func (c *Cache) Check() error {
	k := &checker{c: c, refs: make([]int32, len(c.blocks)), seen: make([]bool, len(c.blocks))}
	k.holders()
	k.free()
	for ns, i := range c.byName {
		if c.spaces[i].ns != ns {
			k.fail(3, "namespace %d is filed under another name", i)
		}
	}
	for i := range c.spaces {
		if sp := &c.spaces[i]; sp.root != 0 {
			k.node(sp.root)
		}
	}
	k.blocks()
	k.order()
	k.leases()
	return errors.Join(k.errs...)
}

type checker struct {
	c               *Cache
	errs            []error
	refs            []int32
	seen            []bool // reached as a copy of a position
	nodes, units    int
	positions       int
	entries         int
	leasedPositions int
}

func (k *checker) fail(invariant int, format string, args ...any) {
	if len(k.errs) < 20 {
		k.errs = append(k.errs, fmt.Errorf("I%d: "+format, append([]any{invariant}, args...)...))
	}
}

// holders counts who holds what.
func (k *checker) holders() {
	c, holders := k.c, 0
	one := func(s *Seq, name string) {
		held := 0
		for g, table := range s.tables {
			if len(table) != len(s.tables[0]) {
				k.fail(9, "%s: tables of unequal length", name)
			}
			for i, id := range table {
				if id == NullBlock {
					if i >= s.gone[g] {
						k.fail(9, "%s: group %d has no block at %d", name, g, i)
					}
					continue
				}
				held++
				k.refs[id]++
				b := &c.blocks[id]
				if i < s.published && b.at == 0 {
					k.fail(8, "%s: published block %d at %d has no position", name, id, i)
				}
				if i >= s.published && b.at != 0 {
					k.fail(8, "%s: block %d at %d is matchable but not published", name, id, i)
				}
				if b.at != 0 && (c.depth(id) != i || int(b.group) != g) {
					k.fail(8, "%s: block %d stands at %d of group %d, in the table at %d of %d", name, id, c.depth(id), b.group, i, g)
				}
			}
		}
		if held != s.held {
			k.fail(2, "%s: holds %d blocks, says %d", name, held, s.held)
		}
		if len(s.tables[0]) > 0 {
			holders++
		}
	}
	for i, s := range c.seqs {
		if s.c != c || int(s.slot) != i {
			k.fail(2, "sequence %d is misfiled", i)
		}
		one(s, fmt.Sprintf("sequence %d", s.order))
	}
	for i := range c.fences {
		if f := &c.fences[i]; f.live {
			one(&f.seq, fmt.Sprintf("fence %d", i))
		}
	}
	if holders != c.holders {
		k.fail(2, "%d holders, says %d", holders, c.holders)
	}
	for id := range c.blocks {
		if k.refs[id] != c.blocks[id].refs {
			k.fail(2, "block %d has %d holders, says %d", id, k.refs[id], c.blocks[id].refs)
		}
	}
}

// free walks the stack of free blocks.
func (k *checker) free() {
	c, n := k.c, 0
	for id := c.freeTop; id != NullBlock; id = c.blocks[id].next {
		if n++; n > len(c.blocks) {
			k.fail(1, "the free stack has a cycle")
			return
		}
		if b := &c.blocks[id]; b.state != blockFree || b.refs != 0 || b.at != 0 {
			k.fail(1, "block %d is on the free stack with state %x, %d holders, node %d", id, b.state, b.refs, b.at)
		}
	}
	if n != c.freeLen {
		k.fail(1, "%d blocks on the free stack, says %d", n, c.freeLen)
	}
}

// node checks a node and everything below it.
func (k *checker) node(i int32) {
	c := k.c
	nd, rest := c.t.at(i), c.t.rest(i)
	k.nodes++
	firsts := map[string]int32{}
	covers, kids := int32(0), int32(0)
	if nd.isRoot() {
		if nd.n != 0 || nd.depth != 0 {
			k.fail(3, "root %d has positions", i)
		}
	} else {
		k.positions += int(nd.n)
		k.units += int(nd.room)
		if nd.n == 0 || nd.n > nd.room || int(nd.n) > maxEdge || int(nd.run&unitMask)+int(nd.room) > maxEdge {
			k.fail(3, "node %d has %d positions in %d units from %d", i, nd.n, nd.room, nd.run)
		}
		k.copies(i, nd)
	}
	for _, slot := range c.leasesAt(i) {
		l := &c.leases[slot]
		if l.kind == isLease {
			covers++
		}
		if !l.live || l.node != i || c.leases[l.next].prev != slot {
			k.fail(7, "lease %d is misfiled at node %d", slot, i)
		}
		if l.next != rest.leases && c.leases[l.next].before(l) {
			k.fail(7, "leases of node %d are out of order", i)
		}
	}
	prev := int32(0)
	for j := nd.child; j != 0; j = c.t.at(j).next {
		ch := c.t.at(j)
		if ch.parent != i || ch.depth != nd.depth+int32(nd.n) || c.t.rest(j).space != rest.space || c.t.rest(j).prev != prev || ch.isRoot() {
			k.fail(3, "node %d is misfiled below %d", j, i)
		}
		first := string(tokenBytes(c.t.tokens(ch)[:c.bs]))
		if other, twice := firsts[first]; twice {
			k.fail(4, "siblings %d and %d begin with one block", other, j)
		}
		firsts[first] = j
		if c.t.find(i, c.t.firstBlock(ch)) != j {
			k.fail(3, "node %d is not found below %d", j, i)
		}
		if kids++; nd.flags&nodeHashed != 0 {
			k.entries++
		}
		if c.t.rest(j).covers > 0 {
			covers++
		}
		k.node(j)
		prev = j
	}
	if kids != rest.kids || kids >= hashFrom && nd.flags&nodeHashed == 0 || kids <= unhashFrom && nd.flags&nodeHashed != 0 {
		k.fail(3, "node %d has %d children, says %d, flags %x", i, kids, rest.kids, nd.flags)
	}
	if covers != rest.covers {
		k.fail(7, "node %d is covered %d times, says %d", i, covers, rest.covers)
	}
	if rest.covers > 0 {
		k.leasedPositions += int(nd.n)
	}
	if !nd.isRoot() && nd.child == 0 && c.full == 0 {
		empty := true
		for g := range c.groups {
			empty = empty && c.head(nd.tail(), g) == NullBlock
		}
		if empty {
			k.fail(5, "node %d ends in a position without a copy", i)
		}
	}
}

// copies checks the copies of a node's positions.
func (k *checker) copies(i int32, nd *node) {
	c := k.c
	for g := range c.groups {
		for off := range int(nd.n) {
			unit := nd.run + int32(off)
			first := c.head(unit, g)
			if c.owner(unit) != i {
				k.fail(3, "unit %d of node %d belongs to node %d", unit, i, c.owner(unit))
			}
			if first == NullBlock {
				if c.groups[g].spec.Kind == FullAttention {
					k.fail(5, "node %d has no copy of full-attention group %d at %d", i, g, off)
				}
				continue
			}
			for id := first; ; {
				b := &c.blocks[id]
				if k.seen[id] {
					k.fail(1, "block %d stands at two positions", id)
					break
				}
				k.seen[id] = true
				if b.at-1 != unit || int(b.group) != g || c.blocks[b.next].prev != id {
					k.fail(1, "block %d at node %d group %d offset %d says otherwise", id, i, g, off)
					break
				}
				if id = b.next; id == first {
					break
				}
			}
		}
	}
}

// blocks checks that each block is in exactly one state and counts them.
func (k *checker) blocks() {
	c := k.c
	held, cached, heldPos, free := 0, 0, 0, 0
	for id := 1; id < len(c.blocks); id++ {
		b := &c.blocks[id]
		if (b.at != 0) != k.seen[id] {
			k.fail(1, "block %d: node %d, reached from the tree: %v", id, b.at, k.seen[id])
		}
		isFree := b.state&blockFree != 0 || id >= c.unused
		if isFree && (b.refs != 0 || b.at != 0) || !isFree && b.refs == 0 && b.at == 0 {
			k.fail(1, "block %d is in no state or in two: %d holders, node %d, state %x", id, b.refs, b.at, b.state)
		}
		if b.state&(blockBad|blockOwned) != 0 {
			k.fail(1, "block %d still bears a mark", id)
		}
		if b.refs > 0 {
			held++
		}
		if b.at != 0 {
			cached++
			if b.refs > 0 {
				heldPos++
			}
		}
		if isFree {
			free++
		}
	}
	if held != c.held || cached != c.cached || heldPos != c.heldPos || free+held+cached-heldPos != c.usable() {
		k.fail(1, "%d held, %d cached, %d both, %d free of %d; says %d, %d, %d", held, cached, heldPos, free, c.usable(), c.held, c.cached, c.heldPos)
	}
	if c.blocks[NullBlock] != (block{}) {
		k.fail(1, "the null block is in use")
	}
	if k.units != c.t.slab.used {
		k.fail(3, "%d units in use, says %d", k.units, c.t.slab.used)
	}
	if k.nodes != c.t.liveNodes || k.positions != c.t.positions || k.entries != c.t.children.entries {
		k.fail(3, "%d nodes, %d positions, %d children; says %d, %d, %d", k.nodes, k.positions, k.entries, c.t.liveNodes, c.t.positions, c.t.children.entries)
	}
}

// order checks the eviction order against the states.
func (k *checker) order() {
	c := k.c
	unheld, evictable, plain, awaited, leased := 0, 0, 0, 0, 0
	for id := 1; id < len(c.blocks); id++ {
		b := &c.blocks[id]
		if b.at != 0 && b.refs == 0 {
			unheld++
		}
		want := uint8(0)
		if c.evictable(BlockID(id), b) {
			evictable++
			want = blockQueued
			if slot := c.guard(BlockID(id), b); slot != 0 {
				want = [...]uint8{isLease: blockLeased, isAwait: blockAwaited}[c.leases[slot].kind]
			}
		}
		switch got := b.state & blockOrdered; {
		case got != want:
			k.fail(6, "block %d is in order %x, should be in %x", id, got, want)
		case got == blockQueued:
			plain++
			if !c.plain.has(evictKey{b.stamp, BlockID(id)}) {
				k.fail(6, "block %d is not found in the eviction order", id)
			}
		case got == blockAwaited:
			awaited++
			if e, ok := c.awaitq.Get(c.awaitKeyOf(BlockID(id), b)); !ok || e.block != BlockID(id) {
				k.fail(6, "block %d is not found in the order of awaited blocks", id)
			}
		case got == blockLeased:
			leased++
			if e, ok := c.leasedq.Get(c.leaseKeyOf(BlockID(id), b)); !ok || e.block != BlockID(id) {
				k.fail(6, "block %d is not found in the leased order", id)
			}
		}
	}
	if plain != c.plain.len() || !c.plain.valid() || awaited != c.awaitq.Len() || leased != c.leasedq.Len() {
		k.fail(6, "%d plain, %d awaited and %d leased entries, should be %d, %d and %d", c.plain.len(), c.awaitq.Len(), c.leasedq.Len(), plain, awaited, leased)
	}
	if unheld > 0 && evictable == 0 {
		k.fail(6, "%d unheld cached blocks and none may be evicted", unheld)
	}
}

func (k *checker) leases() {
	c, live := k.c, [2]int{}
	for i := range c.leases {
		l := &c.leases[i]
		if !l.live {
			continue
		}
		live[l.kind]++
		if d, ok := c.due[l.kind].Get(dueLease{l.deadline, int32(i)}); !ok || d.slot != int32(i) {
			k.fail(7, "lease %d is not found by its deadline", i)
		}
		for _, id := range l.window {
			if c.blocks[id].state&blockPinned == 0 {
				k.fail(7, "window block %d of lease %d is not protected", id, i)
			}
		}
	}
	for kind, n := range live {
		if c.due[kind].Len() != n {
			k.fail(7, "%d live leases of kind %d, %d have a deadline", n, kind, c.due[kind].Len())
		}
	}
	if k.leasedPositions != c.leasedPositions || c.leasedPositions > c.leaseBudget {
		k.fail(7, "leases cover %d positions, says %d, budget %d", k.leasedPositions, c.leasedPositions, c.leaseBudget)
	}
}
