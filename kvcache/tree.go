package kvcache

import "unsafe"

// node is an edge of a namespace's tree together with its lower end: a run of
// 1 to maxEdge positions, each one block of tokens. Node 0 means none. The
// root of a namespace is a node without positions.
//
// A node is one cache line, and what a walk reads of it comes first.
type node struct {
	key    uint32 // of the edge's first block: its tag, or its hash when the parent's children are in the table
	next   int32  // siblings, in a list of their own
	child  int32  // first child
	run    int32  // memory of the edge: tokens, then for each group the oldest copies
	start  uint16 // first position of the run that is in use
	n      uint16
	order  uint8 // the run has room for 1<<order positions
	flags  uint8
	depth  int32 // positions above the edge
	parent int32
	prev   int32
	kids   int32 // number of children
	space  int32 // index of the namespace
	leases int32 // leases that end here, latest deadline first: an index into Cache.leases
	covers int32 // leases that end here, and children that a lease covers
	_      [12]byte
}

const (
	nodeRoot   = 1 << iota // root of a namespace
	nodeHashed             // the children are in the child table
)

func (nd *node) isRoot() bool { return nd.flags&nodeRoot != 0 }

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
	children   childTable
}

func (t *tree) init(bs, groups, edge int, seed uint64) {
	*t = tree{bs: bs, groups: groups, edge: edge, slab: slab{unit: bs + groups}, nodes: 1, children: childTable{seed: seed}}
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
	if !nd.isRoot() {
		t.slab.put(nd.run, nd.order)
	}
	*nd = node{next: t.freeNode}
	t.freeNode = i
	t.liveNodes--
}

// tokens returns the tokens of the edge.
func (t *tree) tokens(nd *node) []Token {
	return t.slab.words(nd.run, nd.order)[int(nd.start)*t.bs : (int(nd.start)+int(nd.n))*t.bs]
}

// copies returns the oldest copies of the edge's positions in a group, as words of the slab.
func (t *tree) copies(nd *node, group int) []Token {
	w := t.slab.words(nd.run, nd.order)
	at := (t.bs+group)<<nd.order + int(nd.start)
	return w[at : at+int(nd.n)]
}

// resize moves the edge to the beginning of a run of another order.
func (t *tree) resize(nd *node, order uint8) {
	old := t.slab.words(nd.run, nd.order)
	run := t.slab.get(order)
	t.copyRun(t.slab.words(run, order), order, old, nd.order, int(nd.start), int(nd.n))
	t.slab.put(nd.run, nd.order)
	nd.run, nd.order, nd.start = run, order, 0
}

// copyRun copies n positions from a position of one run to the beginning of another.
func (t *tree) copyRun(to []Token, toOrder uint8, from []Token, fromOrder uint8, start, n int) {
	copy(to, from[start*t.bs:(start+n)*t.bs])
	for g := t.bs; g < t.bs+t.groups; g++ {
		at := g<<fromOrder + start
		copy(to[g<<toOrder:], from[at:at+n])
	}
}

// appendTokens adds positions at the end of the edge; their copies are empty.
func (t *tree) appendTokens(nd *node, toks []Token) {
	m := len(toks) / t.bs
	if int(nd.start)+int(nd.n)+m > 1<<nd.order {
		t.resize(nd, orderFor(int(nd.n)+m))
	}
	end := int(nd.start) + int(nd.n)
	w := t.slab.words(nd.run, nd.order)
	copy(w[end*t.bs:], toks)
	for g := t.bs; g < t.bs+t.groups; g++ {
		at := g<<nd.order + end
		clear(w[at : at+m])
	}
	nd.n += uint16(m)
	t.positions += m
}

// newChild adds a node below parent whose edge holds toks.
func (t *tree) newChild(parent int32, toks []Token) int32 {
	i, nd := t.newNode()
	p := t.at(parent)
	nd.depth = p.depth + int32(p.n)
	nd.space = p.space
	nd.order = orderFor(len(toks) / t.bs)
	nd.run = t.slab.get(nd.order)
	t.appendTokens(nd, toks)
	t.link(parent, i)
	return i
}

// split cuts the edge of node i behind its first k positions, 0 < k < n. The
// lower part keeps the node, its children and its leases; the upper part
// becomes a new node, whose index is returned. The caller moves the blocks.
func (t *tree) split(i int32, k int) int32 {
	u, up := t.newNode()
	nd := t.at(i)
	up.depth, up.space, up.n = nd.depth, nd.space, uint16(k)
	up.order = orderFor(k)
	up.run = t.slab.get(up.order)
	t.copyRun(t.slab.words(up.run, up.order), up.order, t.slab.words(nd.run, nd.order), nd.order, int(nd.start), k)
	t.replace(i, u)
	nd.start += uint16(k)
	nd.n -= uint16(k)
	nd.depth += int32(k)
	if order := orderFor(int(nd.n)); order < nd.order {
		t.resize(nd, order)
	}
	t.link(u, i)
	if nd.covers > 0 {
		up.covers = 1
	}
	return u
}

// walk follows toks from a root for at most limit positions and returns the
// node in which the path ends and the number of positions that agree.
func (t *tree) walk(root int32, toks []Token, limit int) (int32, int) {
	at, d, bs := root, 0, t.bs
	for d < limit {
		rest := toks[d*bs : limit*bs]
		i, r := t.follow(t.at(at), at, rest)
		if i == 0 {
			break
		}
		at = i
		d += r
		if r < int(t.at(i).n) {
			break
		}
	}
	return at, d
}

// follow returns the child of a node whose edge begins with the first block of toks, and how many blocks agree.
func (t *tree) follow(p *node, parent int32, toks []Token) (int32, int) {
	if p.flags&nodeHashed != 0 {
		i := t.lookup(parent, toks[:t.bs])
		if i == 0 {
			return 0, 0
		}
		return i, commonBlocks(t.tokens(t.at(i)), toks, t.bs)
	}
	tag := tagOf(toks[:t.bs])
	for i := p.child; i != 0; {
		nd := t.at(i)
		if nd.key == tag {
			if r := commonBlocks(t.tokens(nd), toks, t.bs); r > 0 {
				return i, r
			}
		}
		i = nd.next
	}
	return 0, 0
}

// commonBlocks returns how many leading blocks of a and b are equal; both are whole numbers of blocks.
func commonBlocks(a, b []Token, bs int) int {
	n := min(len(a), len(b))
	if equalTokens(a[:n], b[:n]) {
		return n / bs
	}
	const stride = 32
	for i := 0; ; i += stride {
		if k := min((i+stride)*bs, n); equalTokens(a[i*bs:k], b[i*bs:k]) {
			continue
		}
		for equalTokens(a[i*bs:(i+1)*bs], b[i*bs:(i+1)*bs]) {
			i++
		}
		return i
	}
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
