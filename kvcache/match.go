package kvcache

// A Match is the cached prefix of a prompt. It holds nothing: it is valid until
// the next call that changes the cache, and Allocate refuses an older one.
// The zero value is the empty match.
type Match struct {
	// Tokens is the length of the hit in tokens, a multiple of the block size.
	Tokens int
	// Path is the length in tokens of the longest prefix that the tree knows,
	// within the limit. It is larger than Tokens where a sliding-window group
	// has lost the blocks that a longer hit needs.
	Path int

	space int32
	node  int32 // node that holds the last position of the hit
	epoch uint64
}

// Match returns the longest prefix of tokens, at most limit tokens long, that
// every KV group can serve in namespace ns. Tokens are compared themselves; a
// hash only finds the place to compare. It changes nothing and allocates
// nothing. A limit below 0 or above len(tokens) means len(tokens); that the last
// token of a prompt is always computed is the caller's rule, stated by the limit.
func (c *Cache) Match(ns Namespace, tokens []Token, limit int) Match {
	sp, ok := c.byName[ns]
	if !ok || !c.on {
		return Match{}
	}
	if limit < 0 || limit > len(tokens) {
		limit = len(tokens)
	}
	node, d := c.t.walk(c.spaces[sp].root, tokens, limit/c.bs)
	m := Match{Path: d * c.bs, space: sp, epoch: c.epoch}
	if len(c.groups) > c.full {
		node, d = c.windowHit(node, d)
	}
	m.node, m.Tokens = node, d*c.bs
	return m
}

// windowHit shortens a path of d positions that ends in node i until every
// sliding-window group has its blocks: the run of positions before the end
// that the window still reads, or all of them when there are fewer.
func (c *Cache) windowHit(i int32, d int) (int32, int) {
	for again := true; again && d > 0; {
		again = false
		for g := range c.groups {
			need := min(c.groups[g].run, d)
			if c.groups[g].spec.Kind == FullAttention {
				continue
			}
			if hole := c.lastHole(i, g, d-need, d); hole >= 0 {
				d, again = hole, true
				for d <= int(c.t.at(i).depth) && !c.t.at(i).isRoot() {
					i = c.t.at(i).parent
				}
			}
		}
	}
	return i, d
}

// lastHole returns the greatest position in [from, to) on the path to node i
// at which a group has no copy, or -1. Node i holds position to-1.
func (c *Cache) lastHole(i int32, g, from, to int) int {
	for p := to - 1; p >= from; {
		nd := c.t.at(i)
		for ; p >= max(from, int(nd.depth)); p-- {
			if c.head(nd.run+int32(p)-nd.depth, g) == NullBlock {
				return p
			}
		}
		i = nd.parent
	}
	return -1
}
