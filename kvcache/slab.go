package kvcache

import "math/bits"

// A slab keeps the memory of tree edges. It consists of units: a unit has room
// for one position, that is one block's tokens, the oldest copy of it in each
// KV group, and the node that owns the unit. An edge is a run of consecutive
// units within one page, named by the number of its first unit.
//
// Runs are handed out by a buddy allocator and may be given back in parts, so an
// edge is split, cut shorter and trimmed to its length without copying, and the
// slab's size follows the largest number of units in use. Steady state
// allocates nothing, and there is no pointer in a page for the collector to trace.
type slab struct {
	bs, groups int
	pages      []page
	free       [edgeBits + 1]bitset // by order: which runs of 1<<order units are free
	used       int                  // units handed out
}

// page is maxEdge units. The slices are indexed by unit; a unit has bs tokens and one copy for each group.
type page struct {
	toks   []Token
	copies []BlockID
	owner  []int32
}

const (
	edgeBits = 9
	// maxEdge is the largest number of blocks on one edge of the tree.
	maxEdge  = 1 << edgeBits
	unitMask = maxEdge - 1
	// slabChunk is the largest number of pages got from the heap at once.
	slabChunk = 64
)

// orderFor returns the order of the smallest run with a power of two of units that holds n.
func orderFor(n int) int { return bits.Len(uint(n - 1)) }

// tokens returns the tokens of n units from unit on.
func (s *slab) tokens(unit int32, n int) []Token {
	at := int(unit&unitMask) * s.bs
	return s.pages[unit>>edgeBits].toks[at : at+n*s.bs]
}

// copies returns the copies of n units from unit on; those of one unit stand together, by group.
func (s *slab) copies(unit int32, n int) []BlockID {
	at := int(unit&unitMask) * s.groups
	return s.pages[unit>>edgeBits].copies[at : at+n*s.groups]
}

// owners returns the owners of n units from unit on.
func (s *slab) owners(unit int32, n int) []int32 {
	at := unit & unitMask
	return s.pages[unit>>edgeBits].owner[at : int(at)+n]
}

// get returns a run of n units, at the lowest address at which a power of two that holds it is free.
func (s *slab) get(n int) int32 {
	order := orderFor(n)
	for o := order; ; o++ {
		if o > edgeBits {
			s.grow()
			o = order
		}
		i := s.free[o].first()
		if i < 0 {
			continue
		}
		s.free[o].clear(i)
		for o > order {
			o--
			i *= 2
			s.free[o].set(i + 1)
		}
		run := int32(i << order)
		s.used += 1 << order
		s.put(run+int32(n), 1<<order-n)
		return run
	}
}

// put gives n units back, all or a part of what get returned.
func (s *slab) put(unit int32, n int) {
	s.used -= n
	for at, end := int(unit), int(unit)+n; at < end; {
		order := min(bits.TrailingZeros(uint(at)), bits.Len(uint(end-at))-1, edgeBits)
		i := at >> order
		at += 1 << order
		for order < edgeBits && s.free[order].has(i^1) {
			s.free[order].clear(i ^ 1)
			i >>= 1
			order++
		}
		s.free[order].set(i)
	}
}

func (s *slab) grow() {
	n := min(max(len(s.pages)/4, 1), slabChunk)
	toks := make([]Token, n*maxEdge*s.bs)
	copies := make([]BlockID, n*maxEdge*s.groups)
	owner := make([]int32, n*maxEdge)
	first := len(s.pages)
	for i := range n {
		a, b := i*maxEdge, (i+1)*maxEdge
		s.pages = append(s.pages, page{
			toks[a*s.bs : b*s.bs : b*s.bs], copies[a*s.groups : b*s.groups : b*s.groups], owner[a:b:b],
		})
	}
	for o := range s.free {
		s.free[o].grow(len(s.pages) << (edgeBits - o))
	}
	for p := first; p < len(s.pages); p++ {
		s.free[edgeBits].set(p)
	}
}

// bytes returns the memory of the pages.
func (s *slab) bytes() int { return len(s.pages) * maxEdge * 4 * (s.bs + s.groups + 1) }

// A bitset is a set of small integers that finds its least member quickly.
type bitset struct {
	l0, l1, l2 []uint64 // each bit of a level says that a word of the level below is not zero
}

// grow makes room for members below n.
func (b *bitset) grow(n int) {
	for len(b.l0) < (n+63)/64 {
		b.l0 = append(b.l0, 0)
	}
	for len(b.l1) < (len(b.l0)+63)/64 {
		b.l1 = append(b.l1, 0)
	}
	for len(b.l2) < (len(b.l1)+63)/64 {
		b.l2 = append(b.l2, 0)
	}
}

func (b *bitset) has(i int) bool { return b.l0[i>>6]>>(i&63)&1 != 0 }

func (b *bitset) set(i int) {
	b.l0[i>>6] |= 1 << (i & 63)
	b.l1[i>>12] |= 1 << (i >> 6 & 63)
	b.l2[i>>18] |= 1 << (i >> 12 & 63)
}

func (b *bitset) clear(i int) {
	if b.l0[i>>6] &^= 1 << (i & 63); b.l0[i>>6] != 0 {
		return
	}
	if b.l1[i>>12] &^= 1 << (i >> 6 & 63); b.l1[i>>12] != 0 {
		return
	}
	b.l2[i>>18] &^= 1 << (i >> 12 & 63)
}

// first returns the least member, or -1.
func (b *bitset) first() int {
	for k, w2 := range b.l2 {
		if w2 == 0 {
			continue
		}
		j := k<<6 + bits.TrailingZeros64(w2)
		i := j<<6 + bits.TrailingZeros64(b.l1[j])
		return i<<6 + bits.TrailingZeros64(b.l0[i])
	}
	return -1
}
