package kvcache

import "unsafe"

// counters accumulate since New; Reset keeps them.
type counters struct {
	allocations     uint64
	refusals        [3]uint64
	taken           uint64
	evictions       [4]uint64
	uncached        uint64
	hitTokens       uint64
	newTokens       uint64
	leasesDisplaced uint64
	leasesEvicted   uint64
}

// Stats is a snapshot of the cache. Block counts add up: Free + Cached + Held = Usable.
type Stats struct {
	Usable int // blocks without the null block
	Free   int // without a position and without a holder
	Cached int // matchable, held by nobody
	Held   int // by a sequence or a fence

	Matchable  int // blocks with a position, held or not
	Positions  int // distinct cached blocks of tokens
	Nodes      int // tree nodes, the roots of namespaces included
	Namespaces int
	Sequences  int // open ones

	Leases          int
	Awaits          int
	LeasedPositions int // positions that leases cover, each once
	LeaseBudget     int // the most that they may cover

	// Since New:
	Allocations        uint64
	RefusedBlocks      uint64 // refusals for want of blocks
	RefusedWhole       uint64 // refusals by the whole-sequence gate
	BlocksTaken        uint64
	EvictedPlain       uint64
	EvictedPrioritised uint64
	EvictedAwaited     uint64
	EvictedLeased      uint64
	Uncached           uint64 // matchable blocks taken back because they were never computed
	HitTokens          uint64 // tokens of first allocations that a hit covered
	NewTokens          uint64 // tokens of first allocations that it did not
	LeasesDisplaced    uint64 // leases ended by the budget
	LeasesEvicted      uint64 // leases of which nothing was left
	EventsPending      int
	TreeBytes          int // memory of edges and nodes, without the per-block state
}

// Stats returns a snapshot.
func (c *Cache) Stats() Stats {
	n := &c.stats
	return Stats{
		Usable: c.usable(), Free: c.usable() - c.held - (c.cached - c.heldPos), Cached: c.cached - c.heldPos, Held: c.held,
		Matchable: c.cached, Positions: c.t.positions, Nodes: c.t.liveNodes, Namespaces: len(c.byName), Sequences: len(c.seqs),
		Leases: c.count(isLease), Awaits: c.count(isAwait), LeasedPositions: c.leasedPositions, LeaseBudget: c.leaseBudget,
		Allocations: n.allocations, RefusedBlocks: n.refusals[ShortOfBlocks], RefusedWhole: n.refusals[ShortForWholeSequence],
		BlocksTaken: n.taken, EvictedPlain: n.evictions[Plain], EvictedPrioritised: n.evictions[Prioritised], EvictedAwaited: n.evictions[Awaited], EvictedLeased: n.evictions[Leased],
		Uncached: n.uncached, HitTokens: n.hitTokens, NewTokens: n.newTokens,
		LeasesDisplaced: n.leasesDisplaced, LeasesEvicted: n.leasesEvicted,
		EventsPending: len(c.queue), TreeBytes: c.t.bytes(),
	}
}

// bytes returns the memory of the tree.
func (t *tree) bytes() int {
	return t.slab.bytes() + int(unsafe.Sizeof(node{})+unsafe.Sizeof(nodeRest{}))*nodeChunk*len(t.chunks) + int(unsafe.Sizeof(slot{}))*len(t.children.slots)
}
