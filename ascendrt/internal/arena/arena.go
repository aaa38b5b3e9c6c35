// Package arena cuts large blocks of memory into aligned pieces.
package arena

import (
	"slices"
	"sync"
)

// Arena hands out pieces of chunks that Grow takes from the system. It is safe
// for concurrent use. Fields are set before the first call.
type Arena struct {
	Chunk int // bytes of a chunk; larger pieces get a chunk of their own
	Align int // power of two; every piece starts at and is rounded up to it
	// Grow takes n bytes; Shrink gives a whole chunk back.
	Grow   func(n int) (base uint64, err error)
	Shrink func(base uint64)

	mu     sync.Mutex
	chunks []*chunk
}

type chunk struct {
	base  uint64
	size  int
	used  int
	spans []span // free, by offset, never adjacent
}

type span struct{ off, n int }

// Piece is a piece of a chunk.
type Piece struct {
	Addr  uint64
	Base  uint64 // of its chunk
	Len   int    // rounded up
	chunk *chunk
}

// Get gives a piece of at least n bytes (at least one unit of alignment).
func (a *Arena) Get(n int) (Piece, error) {
	n = max(a.Align, (n+a.Align-1)&^(a.Align-1))
	a.mu.Lock()
	defer a.mu.Unlock()
	var best *chunk
	at := 0
	for _, c := range a.chunks {
		for i, s := range c.spans {
			if s.n >= n && (best == nil || s.n < best.spans[at].n) {
				best, at = c, i
			}
		}
	}
	if best == nil {
		size := a.Chunk
		if n > a.Chunk/2 {
			size = n
		}
		base, err := a.Grow(size)
		if err != nil && size > n {
			size = n
			base, err = a.Grow(size)
		}
		if err != nil {
			return Piece{}, err
		}
		best, at = &chunk{base: base, size: size, spans: []span{{0, size}}}, 0
		a.chunks = append(a.chunks, best)
	}
	s := &best.spans[at]
	p := Piece{Addr: best.base + uint64(s.off), Base: best.base, Len: n, chunk: best}
	s.off += n
	s.n -= n
	if s.n == 0 {
		best.spans = slices.Delete(best.spans, at, at+1)
	}
	best.used += n
	return p, nil
}

// Put gives a piece back. A chunk that becomes empty is given back too, unless
// it is the only one.
func (a *Arena) Put(p Piece) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := p.chunk
	off := int(p.Addr - c.base)
	i, _ := slices.BinarySearchFunc(c.spans, off, func(s span, off int) int { return s.off - off })
	c.spans = slices.Insert(c.spans, i, span{off, p.Len})
	if i+1 < len(c.spans) && c.spans[i].off+c.spans[i].n == c.spans[i+1].off {
		c.spans[i].n += c.spans[i+1].n
		c.spans = slices.Delete(c.spans, i+1, i+2)
	}
	if i > 0 && c.spans[i-1].off+c.spans[i-1].n == c.spans[i].off {
		c.spans[i-1].n += c.spans[i].n
		c.spans = slices.Delete(c.spans, i, i+1)
	}
	c.used -= p.Len
	if c.used == 0 && len(a.chunks) > 1 {
		a.chunks = slices.DeleteFunc(a.chunks, func(x *chunk) bool { return x == c })
		a.Shrink(c.base)
	}
}

// Reserve takes n bytes from the system ahead of use.
func (a *Arena) Reserve(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n = max(a.Align, (n+a.Align-1)&^(a.Align-1))
	base, err := a.Grow(n)
	if err == nil {
		a.chunks = append(a.chunks, &chunk{base: base, size: n, spans: []span{{0, n}}})
	}
	return err
}

// Close gives all chunks back, whatever is in use.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.chunks {
		a.Shrink(c.base)
	}
	a.chunks = nil
}
