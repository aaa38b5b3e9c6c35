package kvcache

import "github.com/google/btree"

// block is what the cache knows of one physical block.
type block struct {
	// stamp orders evictions: the retention class in the top byte, below it
	// the sequence number of the block's last release.
	stamp uint64
	// next and prev link the copies of one position in a ring, oldest first
	// behind the head. next also links the stack of free blocks.
	next, prev BlockID
	at         int32 // the unit of the block's position plus one, 0 when it has none
	refs       int32 // holders
	group      uint8
	state      uint8 // bits below
}

const (
	blockFree    = 1 << iota // on the free stack
	blockQueued              // in the plain eviction order
	blockLeased              // in the leased eviction order
	blockPinned              // a window copy that a lease or an await protects
	blockBad                 // marked during Uncache
	blockOwned               // a holder of this bad block was found during Uncache
	blockAwaited             // in the order of awaited blocks

	blockOrdered = blockQueued | blockLeased | blockAwaited
)

const stampBits = 56

// leaseKey is an entry of the leased eviction order: the earliest deadline first.
type leaseKey struct {
	deadline Time
	stamp    uint64
	block    BlockID
}

// awaitKey is an entry of the order of awaited blocks: whoever is expected last
// gives way first, and of those the one let go last; of those that are awaited
// at Anytime the one let go first.
type awaitKey struct {
	until   Time
	release uint64
	block   BlockID
}

func (k awaitKey) less(o awaitKey) bool {
	switch {
	case k.until != o.until:
		return k.until > o.until
	case k.until == Anytime:
		return k.release < o.release
	}
	return k.release > o.release
}

// pool is the fixed set of blocks.
type pool struct {
	blocks   []block
	freeTop  BlockID // stack of freed blocks without a position, NullBlock when empty
	freeLen  int
	unused   int // first block that was never handed out
	held     int // blocks with refs > 0
	cached   int // blocks with a position
	heldPos  int // blocks with a position and refs > 0
	releases uint64
	plain    evictOrder
	leasedq  *btree.BTreeG[leaseKey]
	awaitq   *btree.BTreeG[awaitKey]
}

func (p *pool) init(blocks int) {
	*p = pool{blocks: make([]block, blocks), unused: 1}
	p.plain = newEvictOrder()
	p.leasedq = btree.NewWithFreeListG(32, func(a, b leaseKey) bool {
		if a.deadline != b.deadline {
			return a.deadline < b.deadline
		}
		return a.stamp < b.stamp
	}, btree.NewFreeListG[leaseKey](1<<10))
	p.awaitq = btree.NewWithFreeListG(32, awaitKey.less, btree.NewFreeListG[awaitKey](1<<10))
}

// usable is the number of blocks without the null block.
func (p *pool) usable() int { return len(p.blocks) - 1 }

// available is the number of blocks that an allocation could take: free ones and those that may be evicted.
func (p *pool) available() int { return p.usable() - p.held }

// push puts a block without position and holder on the free stack.
func (p *pool) push(id BlockID) {
	b := &p.blocks[id]
	b.state = blockFree
	b.next = p.freeTop
	p.freeTop = id
	p.freeLen++
}

// pop takes a block that needs no eviction: the one freed last, then the ones never used.
func (p *pool) pop() (BlockID, bool) {
	if id := p.freeTop; id != NullBlock {
		b := &p.blocks[id]
		p.freeTop = b.next
		p.freeLen--
		b.state = 0
		return id, true
	}
	if p.unused < len(p.blocks) {
		id := BlockID(p.unused)
		p.unused++
		return id, true
	}
	return NullBlock, false
}
