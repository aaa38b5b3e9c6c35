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
	awaits   []*mlease
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
	leases []*mlease // of a window copy, awaits too
}

type mseq struct {
	real      *Seq
	fence     Fence
	ns        Namespace
	toks      []Token
	tables    [][]BlockID
	gone      []int
	published int
	class     int
	delayed   bool
}

type mlease struct {
	id       LeaseID
	key      string
	deadline Time
	await    bool
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
	if st.Awaits != len(m.awaits) {
		return fmt.Errorf("%d awaits, model %d", st.Awaits, len(m.awaits))
	}
	for _, l := range append(slices.Clone(m.leases), m.awaits...) {
		if got, want := c.LeaseTokens(l.id), m.depthOf(l.key)*m.bs; got != want {
			return fmt.Errorf("lease of %d tokens, model %d", got, want)
		}
	}
	return nil
}
