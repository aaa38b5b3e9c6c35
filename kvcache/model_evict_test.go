package kvcache

import (
	"math"
	"slices"
	"strings"
)

func (m *model) take() BlockID {
	if n := len(m.free); n > 0 {
		id := m.free[n-1]
		m.free = m.free[:n-1]
		return id
	}
	if m.unused < len(m.blocks) {
		m.unused++
		return BlockID(m.unused - 1)
	}
	best := NullBlock
	for i := 1; i < len(m.blocks); i++ {
		id := BlockID(i)
		if m.evictable(id) && (best == NullBlock || m.before(id, best)) {
			best = id
		}
	}
	if best == NullBlock {
		panic("model: nothing to evict")
	}
	m.evicted = append(m.evicted, m.explain(best))
	m.dropCopy(best)
	return best
}

func (m *model) explain(id BlockID) Eviction {
	b := &m.blocks[id]
	e := Eviction{Block: id, Group: b.group, Depth: m.depthOf(b.key) - 1, Release: b.stamp, Reason: LastCopy}
	if d, ok := m.deadline(id); ok {
		e.Class, e.Deadline = Leased, d
	} else if until, ok := m.awaited(id); ok {
		e.Class, e.Deadline = Awaited, until
	} else if b.class > 0 {
		e.Class, e.Priority = Prioritised, b.class-1
	}
	if len(m.get(b.key, b.group)) > 1 {
		e.Reason = Surplus
	} else if m.groups[b.group].Kind == SlidingWindow {
		e.Reason = OutsideWindow
	}
	return e
}

func (m *model) evictable(id BlockID) bool {
	b := &m.blocks[id]
	if b.refs > 0 || b.key == "" {
		return false
	}
	return m.groups[b.group].Kind == SlidingWindow || len(m.get(b.key, b.group)) > 1 || !m.hasBelow(b.key)
}

// deadline returns the latest deadline of the leases that protect a copy.
func (m *model) deadline(id BlockID) (Time, bool) {
	d, ok := Time(math.MinInt64), false
	for _, l := range m.protecting(id, m.leases) {
		d, ok = max(d, l.deadline), true
	}
	return d, ok
}

// awaited returns the earliest instant of the awaits that protect a copy.
func (m *model) awaited(id BlockID) (Time, bool) {
	d, ok := Anytime, false
	for _, l := range m.protecting(id, m.awaits) {
		d, ok = min(d, l.deadline), true
	}
	return d, ok
}

// protecting returns those of the leases or awaits that protect a copy.
func (m *model) protecting(id BlockID, all []*mlease) []*mlease {
	b := &m.blocks[id]
	window := m.groups[b.group].Kind == SlidingWindow
	return slices.DeleteFunc(slices.Clone(all), func(l *mlease) bool {
		if window {
			return !slices.Contains(b.leases, l)
		}
		return l.key != b.key || len(m.get(b.key, b.group)) != 1
	})
}

func (m *model) before(x, y BlockID) bool {
	dx, lx := m.deadline(x)
	dy, ly := m.deadline(y)
	if lx != ly {
		return ly
	}
	if lx && dx != dy {
		return dx < dy
	}
	ax, wx := m.awaited(x)
	ay, wy := m.awaited(y)
	if !lx {
		switch {
		case wx != wy:
			return wy
		case wx && ax != ay:
			return ax > ay
		case wx && ax == Anytime:
			return m.blocks[x].stamp < m.blocks[y].stamp
		case wx:
			return m.blocks[x].stamp > m.blocks[y].stamp
		}
	}
	if cx, cy := m.blocks[x].class, m.blocks[y].class; cx != cy {
		return cx < cy
	}
	return m.blocks[x].stamp < m.blocks[y].stamp
}

// dropCopy takes a copy from its position, and the position when its time has come.
func (m *model) dropCopy(id BlockID) {
	b := &m.blocks[id]
	key, g := b.key, b.group
	cs := m.copies[key]
	cs[g] = slices.DeleteFunc(cs[g], func(x BlockID) bool { return x == id })
	b.key, b.leases = "", nil
	if len(cs[g]) > 0 {
		return
	}
	if m.groups[g].Kind == FullAttention {
		m.dropPosition(key)
		return
	}
	if !slices.ContainsFunc(cs, func(x []BlockID) bool { return len(x) > 0 }) {
		m.removeKey(key)
	}
}

// dropPosition takes all copies from a position and from everything below it.
func (m *model) dropPosition(key string) {
	var keys []string
	for k := range m.copies {
		if strings.HasPrefix(k, key) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return len(b) - len(a) })
	for _, k := range keys {
		for _, ids := range m.copies[k] {
			for _, id := range ids {
				m.blocks[id].key, m.blocks[id].leases = "", nil
				if m.blocks[id].refs == 0 {
					m.free = append(m.free, id)
				}
			}
		}
		m.removeKey(k)
	}
}

// removeKey removes a position without copies. Leases that end there go on with less: at the deepest position that is left above.
func (m *model) removeKey(key string) {
	delete(m.copies, key)
	m.settleLeases()
}
