package kvcache

import "math"

// A Seq is one request's hold on the cache: a block table for each KV group.
// The zero value is closed. Its memory belongs to the caller, who may embed it
// in a record of its own and attach it again after Free; it must not be copied
// or moved while it is open.
type Seq struct {
	c         *Cache
	ns        Namespace
	space     int32
	slot      int32
	order     uint64 // counts Attach calls; holders are reported in this order
	tables    [][]BlockID
	gone      []int // for each group: leading blocks that have left its window
	published int   // leading blocks that are matchable
	held      int   // blocks in all tables
	class     uint8 // retention class given to its blocks on release

	// Covers needs nothing but these.
	capacity int // tokens that the table has room for
	quiet    int // a step up to fewer tokens than this needs nothing from the cache
}

// Open returns a new sequence without blocks.
func (c *Cache) Open(ns Namespace) (*Seq, error) {
	s := new(Seq)
	return s, c.Attach(s, ns)
}

// Attach opens a sequence in memory of the caller's. Memory used before is
// used again, so that a recycled sequence costs no allocation. It returns
// ErrOpenSeq when s is open.
func (c *Cache) Attach(s *Seq, ns Namespace) error {
	if s.c != nil {
		return ErrOpenSeq
	}
	sp := c.intern(ns)
	c.spaces[sp].seqs++
	c.opened++
	s.c, s.ns, s.space, s.order = c, ns, sp, c.opened
	s.slot = int32(len(c.seqs))
	c.seqs = append(c.seqs, s)
	if cap(s.tables) < len(c.groups) {
		s.tables = make([][]BlockID, len(c.groups))
		s.gone = make([]int, len(c.groups))
	}
	s.tables, s.gone = s.tables[:len(c.groups)], s.gone[:len(c.groups)]
	for g := range s.tables {
		s.tables[g] = s.tables[g][:0]
		s.gone[g] = 0
	}
	s.published, s.held, s.class = 0, 0, classPlain
	s.settle()
	c.check()
	return nil
}

// close takes s out of the list of open sequences. The tables are empty by now.
func (c *Cache) close(s *Seq) {
	last := c.seqs[len(c.seqs)-1]
	c.seqs[s.slot] = last
	last.slot = s.slot
	c.seqs[len(c.seqs)-1] = nil
	c.seqs = c.seqs[:len(c.seqs)-1]
	sp := s.space
	c.spaces[sp].seqs--
	c.forget(sp)
	s.c, s.ns = nil, Namespace{}
	s.capacity, s.quiet = 0, 0
}

// own returns the error of a call on a sequence that is not open in this cache.
func (c *Cache) own(s *Seq) error {
	if s == nil || s.c == nil {
		return ErrClosedSeq
	}
	if s.c != c {
		return ErrForeignSeq
	}
	return nil
}

// settle recomputes the numbers behind Covers after a change of the tables.
func (s *Seq) settle() {
	bs := s.c.bs
	s.capacity = len(s.tables[0]) * bs
	s.quiet = math.MaxInt
	if s.c.on {
		s.quiet = (s.published + 1) * bs
	}
	if s.c.single {
		return
	}
	for g := range s.c.groups {
		if w := s.c.groups[g].spec.Window; w > 0 {
			s.quiet = min(s.quiet, (s.gone[g]+1)*bs+w-1)
		}
	}
}

// Covers reports whether a step that brings the sequence to tokens tokens,
// with slots for lookahead more, needs nothing from the cache: no block, no
// publication, no block that leaves a window. Allocate may then be skipped.
// It costs two comparisons; a decode step in the middle of a block is covered.
func (s *Seq) Covers(tokens, lookahead int) bool {
	return tokens+lookahead <= s.capacity && tokens < s.quiet
}

// Open reports whether the sequence is open.
func (s *Seq) Open() bool { return s.c != nil }

// Table returns the block table of a KV group. The sequence owns the memory;
// it stays valid until the next call on the sequence.
func (s *Seq) Table(group int) []BlockID { return s.tables[group] }

// Blocks returns the number of physical blocks in all tables.
func (s *Seq) Blocks() int { return s.held }

// Capacity returns the number of tokens that the tables have room for.
func (s *Seq) Capacity() int { return s.capacity }

// Published returns the number of leading blocks of the tables that are matchable.
func (s *Seq) Published() int { return s.published }
