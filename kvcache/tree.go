package kvcache

import (
	"unsafe"

	"github.com/zeebo/xxh3"
)

// node is an edge of a namespace's tree together with its lower end: a run of
// 1 to maxEdge positions, each one block of tokens. Node 0 means none. The
// root of a namespace is a node without positions.
type node struct {
	key    uint32 // hash of parent and first block, its place in the child table
	parent int32
	child  int32 // first child
	next   int32 // siblings, in a list of their own
	prev   int32
	run    int32 // memory of the edge: tokens, then for each group the oldest copies
	depth  int32 // positions above the edge
	space  int32 // index of the namespace
	leases int32 // leases that end here, latest deadline first: an index into Cache.leases
	covers int32 // leases that end here, and children that a lease covers
	n      uint16
	order  uint8 // the run has room for 1<<order positions
	isRoot bool
}

const (
	nodeChunkBits = 9
	nodeChunk     = 1 << nodeChunkBits
)

// tree keeps the nodes of all namespaces.
type tree struct {
	bs, groups int
	edge       int // longest edge, maxEdge but for tests that want short ones
	slab       slab
	chunks     [][]node
	nodes      int // ids handed out, the unused node 0 included
	freeNode   int32
	liveNodes  int
	positions  int
	table      []slot // open addressing, a power of two long
	entries    int
	seed       uint64
}

// slot is an entry of the child table; node 0 is an empty slot.
type slot struct {
	node int32
	key  uint32
}

func (t *tree) init(bs, groups, edge int, seed uint64) {
	t.bs, t.groups, t.edge, t.seed = bs, groups, edge, seed
	t.slab = slab{unit: bs + groups}
	t.chunks = nil
	t.nodes, t.freeNode, t.liveNodes, t.positions = 1, 0, 0, 0
	t.table = make([]slot, 16)
	t.entries = 0
}

func (t *tree) at(i int32) *node { return &t.chunks[i>>nodeChunkBits][i&(nodeChunk-1)] }

func (t *tree) newNode() (int32, *node) {
	t.liveNodes++
	if i := t.freeNode; i != 0 {
		nd := t.at(i)
		t.freeNode = nd.next
		*nd = node{}
		return i, nd
	}
	if t.nodes>>nodeChunkBits >= len(t.chunks) {
		t.chunks = append(t.chunks, make([]node, nodeChunk))
	}
	i := int32(t.nodes)
	t.nodes++
	return i, t.at(i)
}

func (t *tree) dropNode(i int32) {
	nd := t.at(i)
	if !nd.isRoot {
		t.slab.put(nd.run, nd.order)
	}
	*nd = node{next: t.freeNode}
	t.freeNode = i
	t.liveNodes--
}

// tokens returns the tokens of the edge.
func (t *tree) tokens(nd *node) []Token {
	return t.slab.words(nd.run, nd.order)[:int(nd.n)*t.bs]
}

// copies returns the oldest copies of the edge's positions in a group, as words of the slab.
func (t *tree) copies(nd *node, group int) []Token {
	w := t.slab.words(nd.run, nd.order)
	at := t.bs<<nd.order + group<<nd.order
	return w[at : at+int(nd.n)]
}

// resize moves the edge to a run of another order.
func (t *tree) resize(nd *node, order uint8) {
	old := t.slab.words(nd.run, nd.order)
	run := t.slab.get(order)
	w := t.slab.words(run, order)
	n := int(nd.n)
	copy(w, old[:n*t.bs])
	for g := range t.groups {
		from, to := (t.bs+g)<<nd.order, (t.bs+g)<<order
		copy(w[to:to+n], old[from:from+n])
	}
	t.slab.put(nd.run, nd.order)
	nd.run, nd.order = run, order
}

// appendTokens adds positions at the end of the edge; their copies are empty.
func (t *tree) appendTokens(nd *node, toks []Token) {
	n := int(nd.n)
	m := n + len(toks)/t.bs
	if order := orderFor(m); order > nd.order {
		t.resize(nd, order)
	}
	w := t.slab.words(nd.run, nd.order)
	copy(w[n*t.bs:], toks)
	for g := range t.groups {
		at := (t.bs + g) << nd.order
		clear(w[at+n : at+m])
	}
	nd.n = uint16(m)
	t.positions += m - n
}

// newChild adds a node below parent whose edge holds toks.
func (t *tree) newChild(parent int32, toks []Token, key uint32) int32 {
	i, nd := t.newNode()
	p := t.at(parent)
	nd.depth = p.depth + int32(p.n)
	nd.space = p.space
	nd.order = orderFor(len(toks) / t.bs)
	nd.run = t.slab.get(nd.order)
	t.appendTokens(nd, toks)
	nd.key = key
	t.link(parent, i)
	t.insert(i, key)
	return i
}

// link enters a node in its parent's list of children.
func (t *tree) link(parent, i int32) {
	p, nd := t.at(parent), t.at(i)
	nd.parent, nd.prev, nd.next = parent, 0, p.child
	if p.child != 0 {
		t.at(p.child).prev = i
	}
	p.child = i
}

func (t *tree) unlink(i int32) {
	nd := t.at(i)
	if nd.next != 0 {
		t.at(nd.next).prev = nd.prev
	}
	if nd.prev != 0 {
		t.at(nd.prev).next = nd.next
	} else {
		t.at(nd.parent).child = nd.next
	}
}

// split cuts the edge of node i behind its first k positions, 0 < k < n. The
// lower part keeps the node, its children and its leases; the upper part
// becomes a new node, whose index is returned. The caller moves the blocks.
func (t *tree) split(i int32, k int) int32 {
	u, up := t.newNode()
	nd := t.at(i)
	n := int(nd.n)
	up.depth, up.space, up.n = nd.depth, nd.space, uint16(k)
	up.order = orderFor(k)
	up.run = t.slab.get(up.order)
	low := orderFor(n - k)
	run := t.slab.get(low)
	old, a, b := t.slab.words(nd.run, nd.order), t.slab.words(up.run, up.order), t.slab.words(run, low)
	copy(a, old[:k*t.bs])
	copy(b, old[k*t.bs:n*t.bs])
	for g := range t.groups {
		at := (t.bs + g) << nd.order
		copy(a[(t.bs+g)<<up.order:], old[at:at+k])
		copy(b[(t.bs+g)<<low:], old[at+k:at+n])
	}
	t.slab.put(nd.run, nd.order)
	nd.run, nd.order = run, low

	t.remove(i)
	parent := nd.parent
	t.unlink(i)
	up.key = nd.key
	t.link(parent, u)
	t.insert(u, up.key)
	nd.n = uint16(n - k)
	nd.depth += int32(k)
	nd.key = t.hash(u, b[:t.bs])
	t.link(u, i)
	t.insert(i, nd.key)
	if nd.covers > 0 {
		up.covers = 1
	}
	return u
}

// hash returns the place of a child in the table: it depends on the parent and on the edge's first block.
func (t *tree) hash(parent int32, first []Token) uint32 {
	h := xxh3.HashSeed(tokenBytes(first), t.seed)
	h = (h ^ uint64(uint32(parent))*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	return uint32(h >> 32)
}

// lookup returns the child of parent whose edge begins with the block first, or 0.
func (t *tree) lookup(parent int32, first []Token, key uint32) int32 {
	mask := uint32(len(t.table) - 1)
	for at := key & mask; ; at = (at + 1) & mask {
		s := t.table[at]
		if s.node == 0 {
			return 0
		}
		if s.key != key {
			continue
		}
		nd := t.at(s.node)
		if nd.parent == parent && equalTokens(t.slab.words(nd.run, nd.order)[:t.bs], first) {
			return s.node
		}
	}
}

func (t *tree) insert(i int32, key uint32) {
	if (t.entries+1)*4 > len(t.table)*3 {
		old := t.table
		t.table = make([]slot, 2*len(old))
		for _, s := range old {
			if s.node != 0 {
				t.place(s)
			}
		}
	}
	t.place(slot{i, key})
	t.entries++
}

func (t *tree) place(s slot) {
	mask := uint32(len(t.table) - 1)
	at := s.key & mask
	for t.table[at].node != 0 {
		at = (at + 1) & mask
	}
	t.table[at] = s
}

// remove takes node i out of the table and closes the gap.
func (t *tree) remove(i int32) {
	mask := uint32(len(t.table) - 1)
	at := t.at(i).key & mask
	for t.table[at].node != i {
		at = (at + 1) & mask
	}
	for hole, j := at, (at+1)&mask; ; j = (j + 1) & mask {
		s := t.table[j]
		if s.node == 0 {
			t.table[hole] = slot{}
			break
		}
		if home := s.key & mask; (j-home)&mask >= (j-hole)&mask {
			t.table[hole] = s
			hole = j
		}
	}
	t.entries--
}

// walk follows toks from a root for at most limit positions and returns the
// node in which the path ends and the number of positions that agree.
func (t *tree) walk(root int32, toks []Token, limit int) (int32, int) {
	at, d, bs := root, 0, t.bs
	for d < limit {
		first := toks[d*bs : (d+1)*bs]
		i := t.lookup(at, first, t.hash(at, first))
		if i == 0 {
			break
		}
		at = i
		nd := t.at(i)
		n := min(int(nd.n), limit-d)
		r := commonBlocks(t.tokens(nd), toks[d*bs:(d+n)*bs], bs)
		d += r
		if r < int(nd.n) {
			break
		}
	}
	return at, d
}

// commonBlocks returns how many leading blocks of a and b are equal; b is a whole number of blocks and not longer than a.
func commonBlocks(a, b []Token, bs int) int {
	n := len(b) / bs
	const stride = 32
	i := 0
	for i < n {
		k := min(stride, n-i)
		if equalTokens(a[i*bs:(i+k)*bs], b[i*bs:(i+k)*bs]) {
			i += k
			continue
		}
		for equalTokens(a[i*bs:(i+1)*bs], b[i*bs:(i+1)*bs]) {
			i++
		}
		break
	}
	return i
}

// equalTokens compares two runs of tokens of one length at the speed of memory.
func equalTokens(a, b []Token) bool {
	return unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(a))), 4*len(a)) ==
		unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(b))), 4*len(b))
}

// tokenBytes returns the memory of toks.
func tokenBytes(toks []Token) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(toks))), 4*len(toks))
}
