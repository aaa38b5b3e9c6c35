package kvcache

import (
	"slices"
)

// letGo lets a run of a table go, the last block first.
func (m *model) letGo(ids []BlockID, s *mseq) {
	for i := len(ids) - 1; i >= 0; i-- {
		if id := ids[i]; id != NullBlock {
			b := &m.blocks[id]
			b.refs--
			if b.refs == 0 && b.key != "" {
				m.releases++
				b.stamp, b.class = m.releases, s.class
			}
		}
	}
	for i, id := range ids {
		if id != NullBlock && m.blocks[id].refs == 0 && m.blocks[id].key == "" {
			m.free = append(m.free, id)
		}
		ids[i] = NullBlock
	}
}

func (m *model) publish(s *mseq, n int) {
	if m.cfg.Caching == CachingOff {
		return
	}
	for s.published < min(n/m.bs, len(s.tables[0])) {
		s.published++
		k := m.key(s.ns, s.toks, s.published)
		for g := range m.groups {
			id := s.tables[g][s.published-1]
			if id == NullBlock {
				continue
			}
			if m.copies[k] == nil {
				m.copies[k] = make([][]BlockID, len(m.groups))
			}
			m.copies[k][g] = append(m.copies[k][g], id)
			m.blocks[id].key, m.blocks[id].group = k, g
		}
	}
}

func (m *model) freeTables(s *mseq) {
	for g := range s.tables {
		m.letGo(s.tables[g], s)
		s.tables[g] = nil
	}
}

func (m *model) truncate(s *mseq, n int) int {
	keep := ceilDiv(n, m.bs)
	if n/m.bs < s.published {
		keep = n / m.bs
		n = keep * m.bs
	}
	m.cut(s, keep)
	return n
}

func (m *model) cut(s *mseq, keep int) {
	if keep >= len(s.tables[0]) {
		return
	}
	for g := range s.tables {
		m.letGo(s.tables[g][keep:], s)
		s.tables[g] = s.tables[g][:keep]
		s.gone[g] = min(s.gone[g], keep)
	}
	s.published = min(s.published, keep)
}

// uncache returns the blocks up to which each holder is good, by its order.
func (m *model) uncache(failed []BlockID) map[*Seq]int {
	bad := map[BlockID]bool{}
	for _, id := range failed {
		bad[id] = true
	}
	first := func(s *mseq) int {
		at := -1
		for g := range s.tables {
			for i, id := range s.tables[g] {
				if bad[id] && (at < 0 || i < at) {
					at = i
				}
			}
		}
		return at
	}
	holders := append(slices.Clone(m.seqs), m.fences...)
	for n := -1; n != len(bad); {
		n = len(bad)
		for _, s := range holders {
			at := first(s)
			if at < 0 {
				continue
			}
			for g := range s.tables {
				for _, id := range s.tables[g][at:max(at, s.published)] {
					if id != NullBlock {
						bad[id] = true
					}
				}
			}
		}
	}
	var all []BlockID
	for id := range bad {
		all = append(all, id)
	}
	depth := func(id BlockID) int {
		if k := m.blocks[id].key; k != "" {
			return m.depthOf(k)
		}
		return 0
	}
	slices.SortFunc(all, func(a, b BlockID) int {
		if d := depth(b) - depth(a); d != 0 {
			return d
		}
		return int(a - b)
	})
	for _, id := range all {
		if m.blocks[id].key != "" {
			m.dropCopy(id)
			if m.blocks[id].refs == 0 {
				m.free = append(m.free, id)
			}
		}
	}
	out := map[*Seq]int{}
	owned := map[BlockID]bool{}
	for _, s := range append(slices.Clone(m.fences), m.seqs...) {
		at := first(s)
		if at < 0 {
			continue
		}
		s.published = min(s.published, at)
		if s.real == nil { // a fence keeps what it holds
			for g := range s.tables {
				for _, id := range s.tables[g][at:] {
					owned[id] = owned[id] || bad[id]
				}
			}
			continue
		}
		out[s.real] = at
		keep := len(s.tables[0])
		for i := keep - 1; i >= at; i-- {
			for g := range s.tables {
				if id := s.tables[g][i]; bad[id] && owned[id] {
					keep = i
				}
			}
		}
		for g := range s.tables {
			for _, id := range s.tables[g][at:keep] {
				if bad[id] {
					owned[id] = true
				}
			}
		}
		m.cut(s, keep)
	}
	return out
}
