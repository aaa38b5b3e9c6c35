package kvcache

import "unsafe"

// node is an edge of a namespace's tree together with its lower end: a run of
// 1 to maxEdge positions, each one block of tokens. Node 0 means none. The
// root of a namespace is a node without positions.
//
// The first half is what a walk reads: two nodes in a cache line.
type node struct {
	key    uint32 // of the edge's first block: its tag, or its hash when the parent's children are in the table
	next   int32  // siblings, in a list of their own
	child  int32  // first child
	run    int32  // first unit of the edge
	n      uint16 // positions
	room   uint16 // units, n or more
	flags  uint8
	depth  int32 // positions above the edge
	parent int32
}

// nodeRest is the rest of a node.
type nodeRest struct {
	prev   int32
	kids   int32 // number of children
	space  int32 // index of the namespace
	leases int32 // leases and awaits that end here, the best first: an index into Cache.leases
	covers int32 // leases that end here, awaits aside, and children that a lease covers
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
	rests      [][]nodeRest
	nodes      int // ids handed out, the unused node 0 included
	freeNode   int32
	liveNodes  int
	positions  int
	children   childTable
}

func (t *tree) init(bs, groups, edge int, seed uint64) {
	*t = tree{bs: bs, groups: groups, edge: edge, slab: slab{bs: bs, groups: groups}, nodes: 1, children: childTable{seed: seed}}
}

func (t *tree) at(i int32) *node { return &t.chunks[i>>nodeChunkBits][i&(nodeChunk-1)] }

func (t *tree) rest(i int32) *nodeRest { return &t.rests[i>>nodeChunkBits][i&(nodeChunk-1)] }

func (t *tree) newNode() (int32, *node) {
	t.liveNodes++
	if i := t.freeNode; i != 0 {
		nd := t.at(i)
		t.freeNode = nd.next
		*nd = node{}
		*t.rest(i) = nodeRest{}
		return i, nd
	}
	if t.nodes>>nodeChunkBits >= len(t.chunks) {
		t.chunks = append(t.chunks, make([]node, nodeChunk))
		t.rests = append(t.rests, make([]nodeRest, nodeChunk))
	}
	i := int32(t.nodes)
	t.nodes++
	return i, t.at(i)
}

func (t *tree) dropNode(i int32) {
	nd := t.at(i)
	if !nd.isRoot() {
		t.slab.put(nd.run, int(nd.room))
	}
	*nd = node{next: t.freeNode}
	t.freeNode = i
	t.liveNodes--
}

// tokens returns the tokens of the edge.
func (t *tree) tokens(nd *node) []Token { return t.slab.tokens(nd.run, int(nd.n)) }

// newEdge gives a node an edge of its own that holds toks and has no copies. The edge has no room for more.
func (t *tree) newEdge(i int32, nd *node, toks []Token) {
	m := len(toks) / t.bs
	nd.run, nd.n, nd.room = t.slab.get(m), uint16(m), uint16(m)
	t.fill(i, nd, toks, 0)
}

// fill writes the tokens of the edge's last positions.
func (t *tree) fill(i int32, nd *node, toks []Token, from int) {
	m := len(toks) / t.bs
	at := nd.run + int32(from)
	copy(t.slab.tokens(at, m), toks)
	clear(t.slab.copies(at, m))
	for k, owners := 0, t.slab.owners(at, m); k < m; k++ {
		owners[k] = i
	}
	t.positions += m
}

// newChild adds a node below parent whose edge holds toks.
func (t *tree) newChild(parent int32, toks []Token) int32 {
	i, nd := t.newNode()
	p := t.at(parent)
	nd.depth = p.depth + int32(p.n)
	t.rest(i).space = t.rest(parent).space
	t.newEdge(i, nd, toks)
	t.link(parent, i)
	return i
}

// split cuts the edge of node i behind its first k positions, 0 < k < n. The
// lower part keeps the node, its children and its leases; the upper part
// becomes a new node, whose index is returned. Both keep their units.
func (t *tree) split(i int32, k int) int32 {
	u, up := t.newNode()
	nd := t.at(i)
	up.depth = nd.depth
	t.rest(u).space = t.rest(i).space
	up.run, up.n, up.room = nd.run, uint16(k), uint16(k)
	t.replace(i, u)
	nd.run += int32(k)
	nd.n -= uint16(k)
	nd.room -= uint16(k)
	nd.depth += int32(k)
	for j, owners := 0, t.slab.owners(up.run, k); j < k; j++ {
		owners[j] = u
	}
	t.link(u, i)
	if t.rest(i).covers > 0 {
		t.rest(u).covers = 1
	}
	return u
}

// trim gives back the units behind the edge's end.
func (t *tree) trim(nd *node) {
	if nd.room > nd.n {
		t.slab.put(nd.run+int32(nd.n), int(nd.room-nd.n))
		nd.room = nd.n
	}
}

// walk follows toks from a root for at most limit positions and returns the
// node in which the path ends and the number of positions that agree.
//
// It guesses edges by their tags as long as their units follow one another, and
// then compares all of them at once: what was once a single edge is compared as
// one, however many branches have split it since.
func (t *tree) walk(root int32, toks []Token, limit int) (int32, int) {
	at, d, bs := root, 0, t.bs
	toks = toks[:limit*bs]
	next := t.guess(t.at(root), root, toks)
	for next != 0 {
		i := next
		nd := t.at(i)
		run, n := nd.run, int(nd.n)
		for {
			next = 0
			if d+n >= limit {
				break
			}
			if next = t.guess(nd, i, toks[(d+n)*bs:]); next == 0 {
				break
			}
			nd = t.at(next)
			if nd.run != run+int32(n) || nd.run&unitMask == 0 || n*bs >= gatherTokens {
				break
			}
			i = next
			n += int(nd.n)
		}
		n = min(n, limit-d)
		if !equalTokens(t.slab.tokens(run, n), toks[d*bs:(d+n)*bs]) {
			return t.walkEdges(at, d, toks)
		}
		at = i
		d += n
	}
	return at, d
}

// gatherTokens is how many tokens walk guesses ahead at most before it compares: a page of memory.
const gatherTokens = 1024

// guess returns the child of a node whose edge may begin with the first block
// of toks: the tags agree, or the tokens when the children are in the table.
func (t *tree) guess(p *node, parent int32, toks []Token) int32 {
	if len(toks) == 0 {
		return 0
	}
	if p.flags&nodeHashed != 0 {
		return t.lookup(parent, toks[:t.bs])
	}
	tag := tagOf(toks[:t.bs])
	for i := p.child; i != 0; {
		nd := t.at(i)
		if nd.key == tag {
			return i
		}
		i = nd.next
	}
	return 0
}

// walkEdges is walk edge by edge, from d positions down, where the path is in node at.
func (t *tree) walkEdges(at int32, d int, toks []Token) (int32, int) {
	bs := t.bs
	for toks = toks[d*bs:]; len(toks) > 0; {
		i := t.find(at, toks[:bs])
		if i == 0 {
			break
		}
		nd := t.at(i)
		r := commonBlocks(t.tokens(nd), toks, bs)
		at = i
		d += r
		if r < int(nd.n) {
			break
		}
		toks = toks[r*bs:]
	}
	return at, d
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
