package kvcache

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// model is the cache written down as simply as possible: cached prefixes are
// whole strings in a map, the eviction order is found by looking at every
// block, nothing is kept that can be computed. It follows the package comment,
// not the code.
type model struct {
	cfg      Config
	bs       int
	groups   []GroupSpec
	blocks   []mblock
	free     []BlockID // a stack
	unused   int
	copies   map[string][][]BlockID // position → group → copies, the oldest first
	releases uint64
	awaits   []mawait
	seqs     []*mseq // open, in order of opening
	fences   []*mseq
	leases   []*mlease
	evicted  []Eviction // explained
}

type mblock struct {
	refs   int
	key    string
	group  int
	stamp  uint64
	class  int
	leases []*mlease // of a window copy
}

// mawait is a run of releases that are awaited.
type mawait struct {
	first, last uint64
	until       Time
}

const mclassAwaited = 1000

type mseq struct {
	real      *Seq
	fence     Fence
	ns        Namespace
	toks      []Token
	tables    [][]BlockID
	gone      []int
	published int
	class     int
	until     Time
	delayed   bool
}

type mlease struct {
	id       LeaseID
	key      string
	deadline Time
}

func newModel(cfg Config) *model {
	m := &model{cfg: cfg, bs: cfg.BlockSize, groups: cfg.Groups, blocks: make([]mblock, cfg.Blocks), unused: 1, copies: map[string][][]BlockID{}}
	if len(m.groups) == 0 {
		m.groups = []GroupSpec{{}}
	}
	return m
}

// key names the position after the first blocks blocks of toks.
func (m *model) key(ns Namespace, toks []Token, blocks int) string {
	b := []byte(ns.String() + "\x00")
	for _, t := range toks[:blocks*m.bs] {
		b = binary.BigEndian.AppendUint32(b, uint32(t))
	}
	return string(b)
}

func (m *model) depthOf(key string) int {
	return (len(key) - strings.IndexByte(key, 0) - 1) / (4 * m.bs)
}

func (m *model) parentKey(key string) string { return key[:len(key)-4*m.bs] }

func (m *model) get(key string, g int) []BlockID {
	if cs, ok := m.copies[key]; ok {
		return cs[g]
	}
	return nil
}

func (m *model) hasBelow(key string) bool {
	for k := range m.copies {
		if len(k) > len(key) && strings.HasPrefix(k, key) {
			return true
		}
	}
	return false
}

func (m *model) held() int {
	n := 0
	for _, b := range m.blocks {
		if b.refs > 0 {
			n++
		}
	}
	return n
}

func (m *model) available() int { return len(m.blocks) - 1 - m.held() }

// match returns the hit and the path in blocks.
func (m *model) match(ns Namespace, toks []Token, limit int) (hit, path int) {
	if m.cfg.Caching == CachingOff {
		return 0, 0
	}
	for d := 1; d <= limit/m.bs; d++ {
		k := m.key(ns, toks, d)
		if _, ok := m.copies[k]; ok || m.hasBelow(k) {
			path = d
		}
	}
	for hit = path; hit > 0; hit-- {
		good := true
		for g, spec := range m.groups {
			from := 0
			if spec.Kind == SlidingWindow {
				from = max(hit-ceilDiv(spec.Window-1, m.bs), 0)
			}
			for d := from + 1; d <= hit; d++ {
				good = good && len(m.get(m.key(ns, toks, d), g)) > 0
			}
		}
		if good {
			break
		}
	}
	return hit, path
}

func (m *model) goneBlocks(g, n int) int {
	if m.groups[g].Kind != SlidingWindow {
		return 0
	}
	// The block of positions [i*bs, (i+1)*bs) is out when the next token, at
	// position n, reads nothing of it: it reads the positions from n-w+1 on.
	k := 0
	for (k+1)*m.bs <= n-m.groups[g].Window+1 {
		k++
	}
	return k
}

func (m *model) capOf(g int) int {
	if m.groups[g].Kind != SlidingWindow || m.cfg.MaxInFlight == 0 {
		return math.MaxInt32
	}
	return ceilDiv(m.groups[g].Window-1+m.cfg.MaxInFlight, m.bs) + 1
}

// allocate returns what the cache should do; when it is granted it has done it.
func (m *model) allocate(s *mseq, a *Alloc) (Need, Shortage, int) {
	limit := a.MaxTokens
	if limit == 0 {
		limit = math.MaxInt32
	}
	total := min(a.Computed+a.Hit.Tokens+a.External, limit)
	slots := ceilDiv(min(total+a.New+a.Lookahead, limit), m.bs)
	basis := max(total-min(a.InFlight, a.Computed), 0)
	hit := a.Hit.Tokens / m.bs
	empty := len(s.tables[0]) == 0
	var need Need
	hits := make([][]BlockID, len(m.groups))
	whole := 0
	for g := range m.groups {
		gone := m.goneBlocks(g, basis)
		start := max(len(s.tables[g]), hit)
		if empty {
			start = max(start, gone)
		}
		need.New += max(slots-start, 0)
		for d := 1; d <= hit; d++ {
			id := NullBlock
			if d > gone {
				id = m.get(m.key(s.ns, s.toks, d), g)[0]
				if m.blocks[id].refs == 0 {
					need.Hits++
				}
			}
			hits[g] = append(hits[g], id)
		}
		for i := 0; i < min(gone, len(s.tables[g])); i++ {
			if id := s.tables[g][i]; id != NullBlock && m.blocks[id].refs == 1 {
				need.Freed++
			}
		}
		more := max(ceilDiv(min(a.WholeSequence, limit), m.bs)-start, 0)
		if c := m.capOf(g); c < math.MaxInt32 {
			more = min(more, max(c-max(start-max(gone, s.gone[g]), 0), 0))
		}
		whole += more
	}
	need.Blocks = need.New + need.Hits
	have := m.available() + need.Freed
	if a.WholeSequence > 0 {
		need.Whole = whole + need.Hits
		if need.Whole+a.Watermark > have {
			return need, ShortForWholeSequence, 0
		}
	}
	if need.Blocks+a.Watermark > have-a.Reserve {
		return need, ShortOfBlocks, 0
	}
	for g := range m.groups {
		gone := min(m.goneBlocks(g, basis), len(s.tables[g]))
		if gone > s.gone[g] {
			m.letGo(s.tables[g][s.gone[g]:gone], s)
			s.gone[g] = gone
		}
	}
	for g := range m.groups {
		for i, id := range hits[g] {
			if id != NullBlock {
				m.blocks[id].refs++
			} else {
				s.gone[g] = i + 1
			}
			s.tables[g] = append(s.tables[g], id)
		}
	}
	s.published += hit
	taken := 0
	for _, upto := range []int{min(ceilDiv(total, m.bs), slots), slots} {
		for g := range m.groups {
			for empty && len(s.tables[g]) < min(upto, m.goneBlocks(g, basis)) {
				s.tables[g] = append(s.tables[g], NullBlock)
				s.gone[g]++
			}
			for len(s.tables[g]) < upto {
				id := m.take()
				m.blocks[id].refs = 1
				s.tables[g] = append(s.tables[g], id)
				taken++
			}
		}
	}
	if a.Publish == PublishNow {
		m.publish(s, min(total+a.New, len(a.Tokens)))
	}
	return need, NoShortage, taken
}

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
	} else if a := m.awaited(id); a != nil {
		e.Class, e.Deadline = Awaited, a.until
	} else if b.class > 0 && b.class < mclassAwaited {
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
	b := &m.blocks[id]
	d, ok := Time(math.MinInt64), false
	if m.groups[b.group].Kind == SlidingWindow {
		for _, l := range b.leases {
			d, ok = max(d, l.deadline), true
		}
		return d, ok
	}
	if len(m.get(b.key, b.group)) == 1 {
		for _, l := range m.leases {
			if l.key == b.key {
				d, ok = max(d, l.deadline), true
			}
		}
	}
	return d, ok
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
	ax, ay := m.awaited(x), m.awaited(y)
	if !lx && (ax != nil || ay != nil) {
		switch {
		case ax == nil || ay == nil:
			return ax == nil
		case ax.until != ay.until:
			return ax.until > ay.until
		}
		return m.blocks[x].stamp > m.blocks[y].stamp
	}
	if cx, cy := m.blocks[x].class%mclassAwaited, m.blocks[y].class%mclassAwaited; cx != cy {
		return cx < cy
	}
	return m.blocks[x].stamp < m.blocks[y].stamp
}

// awaited is the run that a block was released in, nil if it has ended.
func (m *model) awaited(id BlockID) *mawait {
	b := &m.blocks[id]
	if b.class == mclassAwaited {
		for i := range m.awaits {
			if a := &m.awaits[i]; a.first <= b.stamp && b.stamp <= a.last {
				return a
			}
		}
	}
	return nil
}

// expireAwaits ends the runs whose instant has passed.
func (m *model) expireAwaits(now Time) {
	m.awaits = slices.DeleteFunc(m.awaits, func(a mawait) bool { return a.until <= now })
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

// letGo lets a run of a table go, the last block first.
func (m *model) letGo(ids []BlockID, s *mseq) {
	first := m.releases + 1
	if s.class == mclassAwaited && len(m.awaits) == len(m.blocks)-1 { // no more than blocks
		due := 0
		for i, a := range m.awaits {
			if a.until < m.awaits[due].until {
				due = i
			}
		}
		m.awaits = slices.Delete(m.awaits, due, due+1)
	}
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
	if s.class == mclassAwaited && m.releases >= first {
		m.awaits = append(m.awaits, mawait{first, m.releases, s.until})
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

func (m *model) commonPrefix(s *mseq) int {
	g := slices.IndexFunc(m.groups, func(g GroupSpec) bool { return g.Kind == FullAttention })
	if g < 0 || m.cfg.Caching == CachingOff {
		return 0
	}
	holders := 0
	for _, h := range append(slices.Clone(m.seqs), m.fences...) {
		if len(h.tables[0]) > 0 {
			holders++
		}
	}
	n := 0
	for n < len(s.tables[g]) && m.blocks[s.tables[g][n]].refs == holders {
		n++
	}
	return n
}

// compare returns the first difference between the cache and the model.
func (m *model) compare(c *Cache) error {
	if got, want := c.Available(), m.available(); got != want {
		return fmt.Errorf("available %d, model %d", got, want)
	}
	st := c.Stats()
	cached, matchable, free := 0, 0, len(m.free)+len(m.blocks)-m.unused
	for _, b := range m.blocks {
		if b.key != "" {
			matchable++
			if b.refs == 0 {
				cached++
			}
		}
	}
	if st.Cached != cached || st.Matchable != matchable || st.Free != free || st.Held != m.held() || st.Free+st.Cached+st.Held != st.Usable {
		return fmt.Errorf("stats %+v, model: cached %d matchable %d free %d held %d", st, cached, matchable, free, m.held())
	}
	for _, s := range append(slices.Clone(m.seqs), m.fences...) {
		real := s.real
		if real == nil {
			real = &c.fences[s.fence.slot].seq
		}
		if real.published != s.published {
			return fmt.Errorf("published %d, model %d", real.published, s.published)
		}
		for g := range s.tables {
			if !slices.Equal(real.tables[g], s.tables[g]) {
				return fmt.Errorf("group %d table %v, model %v", g, real.tables[g], s.tables[g])
			}
		}
	}
	for id := range m.blocks {
		if got, want := c.blocks[id].at != 0, m.blocks[id].key != ""; got != want {
			return fmt.Errorf("block %d matchable %v, model %v", id, got, want)
		}
	}
	if st.Leases != len(m.leases) || st.LeasedPositions != m.covered(m.leases) {
		return fmt.Errorf("%d leases over %d positions, model %d over %d", st.Leases, st.LeasedPositions, len(m.leases), m.covered(m.leases))
	}
	for _, l := range m.leases {
		if got, want := c.LeaseTokens(l.id), m.depthOf(l.key)*m.bs; got != want {
			return fmt.Errorf("lease of %d tokens, model %d", got, want)
		}
	}
	return nil
}
