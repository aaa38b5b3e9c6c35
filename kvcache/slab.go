package kvcache

import "math/bits"

// A slab hands out runs of 1, 2, 4, …, maxEdge units of memory for tree edges.
// One unit keeps one block's tokens and the ids of its copies. Runs are cut
// from pages of maxEdge units and joined again with their buddy when freed, so
// the slab's size follows the largest number of units in use, whatever the mix
// of lengths was, and steady state allocates nothing. A run is named by the
// number of its first unit, never by a pointer: the collector has nothing to trace.
type slab struct {
	unit  int       // words in a unit
	pages [][]Token // one slice a page
	free  [edgeBits + 1]bitset
	used  int // units handed out, runs counted whole
}

const (
	edgeBits = 9
	// maxEdge is the largest number of blocks on one edge of the tree. It
	// bounds the work of splitting an edge.
	maxEdge = 1 << edgeBits
	// slabChunk is the largest number of pages got from the heap at once.
	slabChunk = 64
)

// orderFor returns the order of the smallest run that holds n units.
func orderFor(n int) uint8 { return uint8(bits.Len(uint(n - 1))) }

// words returns the memory of a run.
func (s *slab) words(run int32, order uint8) []Token {
	page := s.pages[run>>edgeBits]
	at := int(run&(maxEdge-1)) * s.unit
	end := at + s.unit<<order
	return page[at:end:end]
}

// get returns a run of 1<<order units with the lowest address that is free. Its content is undefined.
func (s *slab) get(order uint8) int32 {
	s.used += 1 << order
	for {
		for o := int(order); o <= edgeBits; o++ {
			i := s.free[o].first()
			if i < 0 {
				continue
			}
			s.free[o].clear(i)
			for o > int(order) {
				o--
				i *= 2
				s.free[o].set(i + 1)
			}
			return int32(i << order)
		}
		s.grow()
	}
}

// put gives a run back.
func (s *slab) put(run int32, order uint8) {
	s.used -= 1 << order
	i := int(run) >> order
	for order < edgeBits && s.free[order].has(i^1) {
		s.free[order].clear(i ^ 1)
		i >>= 1
		order++
	}
	s.free[order].set(i)
}

func (s *slab) grow() {
	n := min(max(len(s.pages)/4, 1), slabChunk)
	words := s.unit * maxEdge
	chunk := make([]Token, n*words)
	first := len(s.pages)
	for i := range n {
		s.pages = append(s.pages, chunk[i*words:(i+1)*words:(i+1)*words])
	}
	for o := range s.free {
		s.free[o].grow(len(s.pages) << (edgeBits - o))
	}
	for p := first; p < len(s.pages); p++ {
		s.free[edgeBits].set(p)
	}
}

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
