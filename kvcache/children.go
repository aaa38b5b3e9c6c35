package kvcache

import "github.com/zeebo/xxh3"

// The children of a node stand in a list. A few are found by walking it and
// comparing tags, which touches nothing but the nodes themselves; many are in a
// table as well, one for all nodes. Either way the tokens decide.

const (
	hashFrom   = 9 // a node with this many children enters them in the table
	unhashFrom = 4 // and takes them out again at this many
)

// childTable finds a child by its parent and the first block of its edge: open
// addressing with linear probing, a power of two long.
type childTable struct {
	slots   []slot
	entries int
	seed    uint64
}

// slot is an entry of the child table; node 0 is an empty slot.
type slot struct {
	node int32
	key  uint32
}

// tagOf is a cheap digest of a block, made from its first, middle and last token. It only saves comparisons.
func tagOf(first []Token) uint32 {
	n := len(first) - 1
	h := uint32(first[0])*0x9e3779b1 ^ uint32(first[n])*0x85ebca77 ^ uint32(first[n>>1])*0xc2b2ae3d
	return h ^ h>>15
}

// hash returns the key of a child in the table.
func (t *tree) hash(parent int32, first []Token) uint32 {
	h := xxh3.HashSeed(tokenBytes(first), t.children.seed)
	h = (h ^ uint64(uint32(parent))*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	return uint32(h >> 32)
}

// firstBlock returns the first block of an edge.
func (t *tree) firstBlock(nd *node) []Token { return t.slab.tokens(nd.run, 1) }

// find returns the child of parent whose edge begins with the block first, or 0.
func (t *tree) find(parent int32, first []Token) int32 {
	p := t.at(parent)
	if p.flags&nodeHashed != 0 {
		return t.lookup(parent, first)
	}
	tag := tagOf(first)
	for i := p.child; i != 0; {
		nd := t.at(i)
		if nd.key == tag && equalTokens(t.firstBlock(nd), first) {
			return i
		}
		i = nd.next
	}
	return 0
}

// lookup is find for a parent whose children are in the table.
func (t *tree) lookup(parent int32, first []Token) int32 {
	key := t.hash(parent, first)
	slots := t.children.slots
	mask := uint32(len(slots) - 1)
	for at := key & mask; ; at = (at + 1) & mask {
		s := slots[at]
		if s.node == 0 {
			return 0
		}
		if s.key != key {
			continue
		}
		nd := t.at(s.node)
		if nd.parent == parent && equalTokens(t.firstBlock(nd), first) {
			return s.node
		}
	}
}

// link makes node i, whose edge is written, a child of parent.
func (t *tree) link(parent, i int32) {
	p, nd := t.at(parent), t.at(i)
	nd.parent, nd.next = parent, 0
	t.rest(i).prev = p.child
	if p.child == 0 {
		p.child = i
	} else { // behind the oldest: a walk meets the long continuation first
		oldest := t.at(p.child)
		if nd.next = oldest.next; nd.next != 0 {
			t.rest(nd.next).prev = i
		}
		oldest.next = i
	}
	kids := &t.rest(parent).kids
	*kids++
	switch {
	case p.flags&nodeHashed != 0:
		nd.key = t.hash(parent, t.firstBlock(nd))
		t.children.insert(slot{i, nd.key})
	case *kids >= hashFrom:
		p.flags |= nodeHashed
		for j := p.child; j != 0; {
			ch := t.at(j)
			ch.key = t.hash(parent, t.firstBlock(ch))
			t.children.insert(slot{j, ch.key})
			j = ch.next
		}
	default:
		nd.key = tagOf(t.firstBlock(nd))
	}
}

// unlink takes node i from its parent's children.
func (t *tree) unlink(i int32) {
	nd := t.at(i)
	p := t.at(nd.parent)
	t.relink(i, nd.next)
	kids := &t.rest(nd.parent).kids
	*kids--
	if p.flags&nodeHashed == 0 {
		return
	}
	t.children.remove(slot{i, nd.key})
	if *kids > unhashFrom {
		return
	}
	p.flags &^= nodeHashed
	for j := p.child; j != 0; {
		ch := t.at(j)
		t.children.remove(slot{j, ch.key})
		ch.key = tagOf(t.firstBlock(ch))
		j = ch.next
	}
}

// relink makes the sibling before node i, or the parent, point to another node.
func (t *tree) relink(i, to int32) {
	prev := t.rest(i).prev
	if to != 0 {
		t.rest(to).prev = prev
	}
	if prev != 0 {
		t.at(prev).next = to
	} else {
		t.at(t.at(i).parent).child = to
	}
}

// replace puts node u, whose edge begins with the same block, in the place of node i among its siblings.
func (t *tree) replace(i, u int32) {
	nd, up := t.at(i), t.at(u)
	up.parent, up.next, up.key = nd.parent, nd.next, nd.key
	t.relink(i, u)
	if nd.next != 0 {
		t.rest(nd.next).prev = u
	}
	if t.at(nd.parent).flags&nodeHashed != 0 {
		t.children.remove(slot{i, nd.key})
		t.children.insert(slot{u, up.key})
	}
}

func (c *childTable) insert(s slot) {
	if (c.entries+1)*4 > len(c.slots)*3 {
		old := c.slots
		c.slots = make([]slot, max(2*len(old), 16))
		for _, o := range old {
			if o.node != 0 {
				c.place(o)
			}
		}
	}
	c.place(s)
	c.entries++
}

func (c *childTable) place(s slot) {
	mask := uint32(len(c.slots) - 1)
	at := s.key & mask
	for c.slots[at].node != 0 {
		at = (at + 1) & mask
	}
	c.slots[at] = s
}

// remove takes an entry out and closes the gap.
func (c *childTable) remove(s slot) {
	mask := uint32(len(c.slots) - 1)
	at := s.key & mask
	for c.slots[at].node != s.node {
		at = (at + 1) & mask
	}
	for hole, j := at, (at+1)&mask; ; j = (j + 1) & mask {
		o := c.slots[j]
		if o.node == 0 {
			c.slots[hole] = slot{}
			break
		}
		if home := o.key & mask; (j-home)&mask >= (j-hole)&mask {
			c.slots[hole] = o
			hole = j
		}
	}
	c.entries--
}
