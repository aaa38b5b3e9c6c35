package kvcache

import (
	"fmt"

	"github.com/sluice-serving/sluice/internal/invariants"
)

// A Cache is a fixed pool of KV blocks with one radix tree for each namespace.
// It belongs to one goroutine. Every call either succeeds or changes nothing.
type Cache struct {
	pool
	t      tree
	cfg    Config
	bs     int // tokens in a block
	groups []group
	full   int  // number of full-attention groups
	single bool // exactly one group, of full attention
	on     bool // prefix caching
	edge   int  // longest edge of a tree

	byName    map[Namespace]int32
	spaces    []space
	freeSpace int32

	seqs    []*Seq // open sequences, in no particular order
	opened  uint64
	holders int    // sequences and fences that hold blocks
	epoch   uint64 // counts changes, so that a stale match is found out

	fences    []fence
	freeFence int32

	leaseBook
	journal
	stats counters
	residency

	worklist []BlockID // scratch of Uncache
}

// group is a KV group with its derived numbers.
type group struct {
	spec GroupSpec
	run  int // SlidingWindow: blocks that a hit needs before its end
	cap  int // SlidingWindow: most blocks that one sequence holds at a time, 0 unlimited
}

// space is one namespace in use: it has positions or open sequences.
type space struct {
	ns   Namespace
	root int32
	seqs int
	next int32 // free list
}

// New returns an empty cache, or every fault of the configuration joined.
func New(cfg Config) (*Cache, error) { return newWithEdges(cfg, maxEdge) }

func newWithEdges(cfg Config, edge int) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, bs: cfg.BlockSize, on: cfg.Caching == CachingOn, edge: edge}
	if c.bs == 0 {
		c.bs = DefaultBlockSize
	}
	specs := cfg.Groups
	if len(specs) == 0 {
		specs = []GroupSpec{{}}
	}
	for _, s := range specs {
		g := group{spec: s}
		if s.Kind == FullAttention {
			c.full++
		} else {
			g.run = ceilDiv(s.Window-1, c.bs)
			if cfg.MaxInFlight > 0 {
				g.cap = ceilDiv(s.Window-1+cfg.MaxInFlight, c.bs) + 1
			}
		}
		c.groups = append(c.groups, g)
	}
	c.single = len(c.groups) == 1 && c.full == 1
	c.pool.init(cfg.Blocks)
	c.leaseBook.init(cfg, c.pool.usable())
	c.journal.init(cfg)
	c.clearTree()
	return c, nil
}

func (c *Cache) clearTree() {
	c.t.init(c.bs, len(c.groups), c.edge, c.cfg.Seed)
	c.byName = map[Namespace]int32{}
	c.spaces = make([]space, 1)
	c.freeSpace = 0
}

// BlockSize returns the number of tokens in a block.
func (c *Cache) BlockSize() int { return c.bs }

// Groups returns the number of KV groups: the number of block tables of a sequence.
func (c *Cache) Groups() int { return len(c.groups) }

// Usable returns the number of blocks without the null block.
func (c *Cache) Usable() int { return c.usable() }

// Available returns the number of blocks that an allocation could take: those
// that are free and those that are cached and held by nobody.
func (c *Cache) Available() int { return c.available() }

// Config returns the configuration that the cache was made with.
func (c *Cache) Config() Config { return c.cfg }

// Caching reports whether prefix caching is on.
func (c *Cache) Caching() Caching { return c.cfg.Caching }

// Reset forgets every cached block and, when events are on, records that all
// blocks were cleared. Leases and awaits end. It returns ErrInUse, and changes nothing,
// while a sequence or a fence holds a block.
func (c *Cache) Reset() error {
	if c.held > 0 {
		return ErrInUse
	}
	c.epoch++
	c.pool.init(len(c.blocks))
	c.residency.log = c.residency.log[:0]
	c.leaseBook.init(c.cfg, c.usable())
	c.clearTree()
	for _, s := range c.seqs {
		s.space = c.intern(s.ns)
		c.spaces[s.space].seqs++
		s.published = 0
		s.settle()
	}
	c.recordCleared()
	c.check()
	return nil
}

// intern returns the index of a namespace, which it creates when it is new.
func (c *Cache) intern(ns Namespace) int32 {
	if i, ok := c.byName[ns]; ok {
		return i
	}
	root, nd := c.t.newNode()
	nd.flags = nodeRoot
	i := c.freeSpace
	if i != 0 {
		c.freeSpace = c.spaces[i].next
	} else {
		i = int32(len(c.spaces))
		c.spaces = append(c.spaces, space{})
	}
	c.spaces[i] = space{ns: ns, root: root}
	c.t.rest(root).space = i
	c.byName[ns] = i
	return i
}

// forget drops a namespace that nobody uses.
func (c *Cache) forget(i int32) {
	sp := &c.spaces[i]
	if sp.seqs > 0 || c.t.at(sp.root).child != 0 {
		return
	}
	c.t.dropNode(sp.root)
	delete(c.byName, sp.ns)
	*sp = space{next: c.freeSpace}
	c.freeSpace = i
}

func (c *Cache) check() {
	if invariants.Enabled {
		if err := c.Check(); err != nil {
			panic(fmt.Sprintf("kvcache: broken invariant: %v", err))
		}
	}
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
