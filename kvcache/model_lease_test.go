package kvcache

import (
	"slices"
)

// covered returns the number of positions that the given leases cover together.
func (m *model) covered(leases []*mlease) int {
	set := map[string]bool{}
	for _, l := range leases {
		for k := l.key; m.depthOf(k) > 0; k = m.parentKey(k) {
			set[k] = true
		}
	}
	return len(set)
}

func (m *model) lease(key string, deadline Time) (*mlease, LeaseResult) {
	share := m.cfg.LeaseShare
	if share == 0 {
		share = DefaultLeaseShare
	}
	budget := int(share * float64(len(m.blocks)-1))
	if m.depthOf(key) > budget {
		return nil, LeaseTooLong
	}
	l := &mlease{key: key, deadline: deadline}
	left := slices.Clone(m.leases)
	slices.SortStableFunc(left, func(a, b *mlease) int {
		if a.deadline != b.deadline {
			return int(a.deadline - b.deadline)
		}
		return int(a.id.slot - b.id.slot)
	})
	for m.covered(append(slices.Clone(left), l)) > budget {
		if len(left) == 0 || left[0].deadline > deadline {
			return nil, LeaseOverBudget
		}
		left = left[1:]
	}
	for _, old := range m.leases {
		if !slices.Contains(left, old) {
			m.unpin(old)
		}
	}
	m.leases = append(left, l)
	m.pin(l)
	return l, LeaseGranted
}

func (m *model) await(key string, until Time) *mlease {
	l := &mlease{key: key, deadline: until, await: true}
	m.awaits = append(m.awaits, l)
	m.pin(l)
	return l
}

// pin protects the window copies that a hit at the end needs.
func (m *model) pin(l *mlease) {
	end := m.depthOf(l.key)
	for g, spec := range m.groups {
		if spec.Kind != SlidingWindow {
			continue
		}
		k := l.key
		for d := end; d > max(end-ceilDiv(spec.Window-1, m.bs), 0); d-- {
			if ids := m.get(k, g); len(ids) > 0 {
				m.blocks[ids[0]].leases = append(m.blocks[ids[0]].leases, l)
			}
			k = m.parentKey(k)
		}
	}
}

// all returns the leases or the awaits.
func (m *model) all(await bool) *[]*mlease {
	if await {
		return &m.awaits
	}
	return &m.leases
}

func (m *model) endLease(l *mlease) {
	all := m.all(l.await)
	*all = slices.DeleteFunc(*all, func(x *mlease) bool { return x == l })
	m.unpin(l)
}

// expire ends the leases or awaits whose time has passed and returns their number.
func (m *model) expire(await bool, now Time) int {
	n := 0
	for _, l := range slices.Clone(*m.all(await)) {
		if l.deadline <= now {
			m.endLease(l)
			n++
		}
	}
	return n
}

func (m *model) settleLeases() {
	for _, l := range append(slices.Clone(m.leases), m.awaits...) {
		for !m.hasCopies(l.key) {
			if m.depthOf(l.key) == 1 {
				m.endLease(l)
				break
			}
			l.key = m.parentKey(l.key)
		}
	}
}

// hasCopies reports whether something is cached at a position or below it.
func (m *model) hasCopies(key string) bool {
	_, ok := m.copies[key]
	return ok || m.hasBelow(key)
}

func (m *model) unpin(l *mlease) {
	for i := range m.blocks {
		m.blocks[i].leases = slices.DeleteFunc(m.blocks[i].leases, func(x *mlease) bool { return x == l })
	}
}
