package tokenizer

import "github.com/sluice-serving/sluice/kvcache"

// merger makes the tokens of one word after another: it begins with the bytes
// and replaces the pair of the lowest rank, the first of them if there are
// several, until no pair has one. A word of n bytes costs O(n log n).
type merger struct {
	b       *byteLevel
	symbols []symbol
	queue   []candidate // a heap
}

type symbol struct {
	id         kvcache.Token // -1: merged into the one before
	prev, next int32         // -1: none
}

// candidate is a pair that had a merge when it was queued.
type candidate struct {
	merge
	at int32 // the left symbol
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// word adds the tokens of a word to dst. Words are shorter than 2 GiB.
func (m *merger) word(dst []kvcache.Token, w string) []kvcache.Token {
	if m.b.whole {
		if id, ok := m.b.ids[w]; ok {
			return append(dst, id)
		}
	}
	m.symbols, m.queue = m.symbols[:0], m.queue[:0]
	for i := range len(w) {
		m.symbols = append(m.symbols, symbol{id: m.b.base[w[i]], prev: int32(i) - 1, next: int32(i) + 1})
	}
	m.symbols[len(w)-1].next = -1
	for i := range len(w) - 1 {
		m.offer(int32(i))
	}
	for len(m.queue) > 0 {
		c := m.pop()
		left := &m.symbols[c.at]
		if left.id < 0 || left.next < 0 {
			continue
		}
		right := &m.symbols[left.next]
		if now, ok := m.b.merges[pair(left.id, right.id)]; !ok || now.id != c.id {
			continue // the pair is another one by now
		}
		left.id, right.id = c.id, -1
		left.next = right.next
		if left.next >= 0 {
			m.symbols[left.next].prev = c.at
			m.offer(c.at)
		}
		if left.prev >= 0 {
			m.offer(left.prev)
		}
	}
	for i := int32(0); i >= 0; i = m.symbols[i].next {
		dst = append(dst, m.symbols[i].id)
	}
	return dst
}

// offer queues the pair that begins at a symbol, if it has a merge.
func (m *merger) offer(at int32) {
	s := m.symbols[at]
	found, ok := m.b.merges[pair(s.id, m.symbols[s.next].id)]
	if !ok {
		return
	}
	q := append(m.queue, candidate{found, at})
	i := len(q) - 1
	for up := (i - 1) / 2; i > 0 && q[i].before(q[up]); up = (i - 1) / 2 {
		q[i], q[up] = q[up], q[i]
		i = up
	}
	m.queue = q
}

// pop takes the first candidate.
func (m *merger) pop() candidate {
	q := m.queue
	first, last := q[0], len(q)-1
	q[0] = q[last]
	q = q[:last]
	for i := 0; ; {
		least := i
		for _, down := range [2]int{2*i + 1, 2*i + 2} {
			if down < len(q) && q[down].before(q[least]) {
				least = down
			}
		}
		if least == i {
			break
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
	m.queue = q
	return first
}
