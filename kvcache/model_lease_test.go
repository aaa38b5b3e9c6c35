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
	end := m.depthOf(key)
	for g, spec := range m.groups {
		if spec.Kind != SlidingWindow {
			continue
		}
		k := key
		for d := end; d > max(end-ceilDiv(spec.Window-1, m.bs), 0); d-- {
			if ids := m.get(k, g); len(ids) > 0 {
				m.blocks[ids[0]].leases = append(m.blocks[ids[0]].leases, l)
			}
			k = m.parentKey(k)
		}
	}
	return l, LeaseGranted
}

func (m *model) endLease(l *mlease) {
	m.leases = slices.DeleteFunc(m.leases, func(x *mlease) bool { return x == l })
	m.unpin(l)
}

func (m *model) settleLeases() {
	for _, l := range m.leases {
		for l.key != "" {
			if _, ok := m.copies[l.key]; ok || m.hasBelow(l.key) {
				break
			}
			if m.depthOf(l.key) == 1 {
				l.key = ""
				break
			}
			l.key = m.parentKey(l.key)
		}
	}
	m.leases = slices.DeleteFunc(m.leases, func(l *mlease) bool {
		if l.key == "" {
			m.unpin(l)
		}
		return l.key == ""
	})
}

func (m *model) unpin(l *mlease) {
	for i := range m.blocks {
		m.blocks[i].leases = slices.DeleteFunc(m.blocks[i].leases, func(x *mlease) bool { return x == l })
	}
}
