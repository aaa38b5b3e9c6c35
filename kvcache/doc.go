// Package kvcache keeps the KV blocks of an LLM serving engine: which blocks
// exist, who holds them, and which prefix of which prompt each of them is.
//
// A Cache is a fixed pool of physical blocks and, for each Namespace, a radix
// tree over whole blocks of tokens. A request holds blocks through a Seq, which
// has one block table for each KV group. The life of a request:
//
//	m := c.Match(ns, prompt, len(prompt)-1)            // what is cached already?
//	c.Attach(&seq, ns)
//	g, err := c.Allocate(&seq, &kvcache.Alloc{Tokens: prompt, Hit: m, New: n})
//	for … {
//		if !seq.Covers(tokens, lookahead) {            // most decode steps are covered
//			g, err = c.Allocate(&seq, &kvcache.Alloc{…}) // all or nothing
//		}
//	}
//	c.Free(&seq)                                       // matchable blocks stay cached
//
// # Positions, copies, states
//
// A position is a place in a tree: a block of tokens after all the blocks above
// it. It holds one or more physical copies in each KV group, oldest first; a hit
// takes the oldest. Requests that compute the same block at the same time give
// a position several copies; they are not merged. A block is in exactly one
// state: free (no position, no holder), cached (a position, no holder) or held
// (by sequences and fences; with a position or, as a private block, without).
//
// A block becomes matchable when the step that computes it is planned, so equal
// prompts in one step share it. An executor therefore writes all KV of a layer
// before any attention of that layer reads it. When such a step fails, Retract
// and Uncache take the blocks back and name everyone who hit them.
//
// # Order of reuse
//
// An allocation takes free blocks first and then evicts. Evictable are, of the
// blocks that nobody holds: any surplus copy; the last copy of a position below
// which nothing is cached; any block of a sliding-window group. They give way in
// the order (retention class, sequence number of the block's last release); awaited
// blocks, whose owner is expected back (Await), the one that is expected last first,
// and leased ones (Lease) last. Leases and awaits protect a path of positions, not
// blocks: where several share one, each protects it until its own end. A request lets its table go from the last block to the first, so within a class
// this is the order of least recent use with children before their parents. Time
// never orders evictions.
//
// # Differences from vLLM's V1 cache
//
//   - Matching compares tokens; a hash collision cannot hand out foreign KV.
//   - The fields of a namespace are typed; a salt and an adapter's name never collide.
//   - A refused allocation changes nothing: blocks outside a window are freed in the same commit as the allocation.
//   - "Removed" is announced when the last copy of a position is gone, and "stored" when the first one came.
//   - A block taken back by Uncache is free at once; it does not keep its place in the eviction order.
//   - All KV groups have one block size.
//
// # Invariants
//
// Checked by Check, after every operation in builds with the tag "invariants":
//
//	I1  Every block but the null block is in exactly one state, at most at one
//	    position, and the counts of the states add up to the pool.
//	I2  A block's reference count is the number of tables of open sequences and
//	    live fences that contain it.
//	I3  Every node is filed once: below its parent, in the child table under the
//	    hash of its first block, with a depth that continues its parent's.
//	I4  Siblings differ in their first block.
//	I5  A position has a copy in every full-attention group; without such a
//	    group, a path ends in a position with a copy.
//	I6  A block is in one eviction order exactly if it is evictable, and while
//	    unheld cached blocks exist at least one of them is: Available never promises what eviction cannot give.
//	I7  Leases cover what their nodes say, within the budget; each lease and await is found by its deadline.
//	I8  A sequence's published blocks have the positions of their place in the
//	    table; the others have none, so no block is matchable whose step failed.
//	I9  The tables of a sequence have one length; only leading positions outside
//	    a window lack a block.
package kvcache
