package kvcache

import "math"

// Alloc asks for the blocks that one planned step of a sequence needs. Counts are tokens unless they say blocks.
type Alloc struct {
	// Tokens are all known token ids, prompt and output. They are read during
	// the call, to make full blocks matchable, and not kept.
	Tokens []Token
	// Hit is the cached prefix of a sequence that holds no block yet. A hit alone,
	// without tokens to load or to compute, only holds its blocks.
	Hit Match
	// Computed counts the tokens whose KV the sequence already has, the hit not included.
	Computed int
	// External counts the tokens after Computed and Hit that a connector loads. A
	// sequence without blocks has no more hit and external tokens than Tokens.
	External int
	// New counts the tokens that the step computes.
	New int
	// Lookahead counts the slots for drafts after them.
	Lookahead int
	// MaxTokens clips the slots: the longest sequence that the model takes. 0 means no clip.
	MaxTokens int
	// InFlight counts those tokens of Computed that belong to steps not applied yet.
	// Blocks leave a window on the basis of processed tokens only: Computed + hit + External - InFlight.
	InFlight int
	// Reserve is the number of available blocks that this allocation must leave to others.
	Reserve int
	// Watermark is the number of blocks that must stay available afterwards.
	Watermark int
	// WholeSequence is the length at which the sequence is known to end up at
	// least; the allocation is refused unless blocks for all of it are
	// available now. 0 switches the gate off.
	WholeSequence int
	// Publish says when the blocks become matchable.
	Publish Publication
}

// Need says what an allocation takes.
type Need struct {
	// Blocks is the number of available blocks that the allocation uses up: New + Hits.
	Blocks int
	// New is the number of blocks that are newly taken, over all groups.
	New int
	// Hits is the number of hit blocks that nobody holds now.
	Hits int
	// Freed is the number of the sequence's own blocks that leave a window and
	// become available in the same call.
	Freed int
	// Whole is what the whole-sequence gate asks for, 0 when the gate is off.
	Whole int
}

// Shortage says why an allocation was refused.
type Shortage uint8

const (
	// NoShortage: the allocation was made.
	NoShortage Shortage = iota
	// ShortOfBlocks: the step's blocks, the watermark and the reservation do not fit.
	ShortOfBlocks
	// ShortForWholeSequence: the step would fit, the whole sequence would not.
	ShortForWholeSequence
)

// String returns the reason in words.
func (s Shortage) String() string {
	switch s {
	case NoShortage:
		return "none"
	case ShortOfBlocks:
		return "blocks"
	case ShortForWholeSequence:
		return "whole sequence"
	}
	return "unknown"
}

// Grant is the result of Allocate.
type Grant struct {
	OK       bool
	New      int      // blocks newly taken, over all groups; they stand at the ends of the tables
	Shortage Shortage // why not OK
	Need     Need
}

// plan is the arithmetic of one allocation, in blocks.
type plan struct {
	total  int // tokens with KV before the step: computed, hit, external
	hit    int // hit blocks
	slots  int // blocks that the tables have afterwards
	basis  int // processed tokens
	empty  bool
	need   Need
	short  Shortage
	hitEnd int32
}

// Need returns what Allocate would take, and changes nothing. It returns the
// errors that Allocate returns.
func (c *Cache) Need(s *Seq, a *Alloc) (Need, error) {
	var p plan
	err := c.plan(s, a, &p)
	return p.need, err
}

// Allocate takes the blocks for one planned step, all or nothing: a refusal
// and an error leave everything as it was. In one commit it frees the
// sequence's blocks that have left a window, holds the blocks of the hit,
// appends new blocks to the tables and, unless told otherwise, makes every
// block matchable that the step will have filled with known tokens.
//
// Blocks are taken in this order: those freed without ever having been
// matchable, the last freed first; those never used; then cached ones by the
// eviction order. Sequences that hold blocks already may not bring a hit.
//
// Refusals follow the rules of vLLM's V1 scheduler, with one difference: there
// blocks outside the window are freed even when the allocation then fails.
func (c *Cache) Allocate(s *Seq, a *Alloc) (Grant, error) {
	var p plan
	if err := c.plan(s, a, &p); err != nil {
		return Grant{}, err
	}
	if p.short != NoShortage {
		c.stats.refusals[p.short]++
		return Grant{Shortage: p.short, Need: p.need}, nil
	}
	c.epoch++
	c.stats.allocations++
	if !c.single {
		c.leaveWindows(s, p.basis)
	}
	if p.hit > 0 {
		c.takeHit(s, &p)
	}
	taken := c.appendBlocks(s, &p)
	if p.empty && len(s.tables[0]) > 0 {
		c.holders++
	}
	s.settle()
	if c.on && a.Publish == PublishNow {
		c.publish(s, a.Tokens, min(p.total+a.New, len(a.Tokens)))
	}
	c.stats.taken += uint64(taken)
	if p.empty {
		c.stats.hitTokens += uint64(a.Hit.Tokens)
		c.stats.newTokens += uint64(p.total + a.New - a.Hit.Tokens)
	}
	c.check()
	return Grant{OK: true, New: taken, Need: p.need}, nil
}

func (c *Cache) plan(s *Seq, a *Alloc, p *plan) error {
	if err := c.own(s); err != nil {
		return err
	}
	if err := c.validate(s, a); err != nil {
		return err
	}
	p.empty = s.held == 0 && len(s.tables[0]) == 0
	p.hit = a.Hit.Tokens / c.bs
	p.hitEnd = a.Hit.node
	p.total = a.Computed + a.Hit.Tokens + a.External
	limit := a.MaxTokens
	if limit == 0 {
		limit = math.MaxInt
	}
	p.total = min(p.total, limit)
	p.slots = ceilDiv(min(p.total+a.New+a.Lookahead, limit), c.bs)
	p.basis = max(p.total-min(a.InFlight, a.Computed), 0) // what an empty sequence hits is processed
	have := c.available()
	if c.single {
		own := len(s.tables[0])
		p.need.New = max(p.slots-max(own, p.hit), 0)
	} else {
		for g := range c.groups {
			own, gone := len(s.tables[g]), c.goneBlocks(g, p.basis)
			p.need.New += max(p.slots-max(own, p.hit, c.skipNew(p, g)), 0)
			for i := s.gone[g]; i < min(gone, own); i++ {
				if id := s.tables[g][i]; id != NullBlock && c.blocks[id].refs == 1 {
					p.need.Freed++
				}
			}
		}
	}
	if p.hit > 0 {
		p.need.Hits = c.unheldHits(p)
	}
	p.need.Blocks = p.need.New + p.need.Hits
	have += p.need.Freed
	if a.WholeSequence > 0 {
		p.need.Whole = c.wholeNeed(s, p, min(a.WholeSequence, limit))
		if p.need.Whole+a.Watermark > have {
			p.short = ShortForWholeSequence
			return nil
		}
	}
	if p.need.Blocks+a.Watermark > have-a.Reserve {
		p.short = ShortOfBlocks
	}
	return nil
}

func (c *Cache) validate(s *Seq, a *Alloc) error {
	if all := a.Computed | a.External | a.New | a.Lookahead | a.MaxTokens | a.InFlight | a.Reserve | a.Watermark | a.WholeSequence | a.Hit.Tokens; uint(all) > math.MaxInt32 {
		return a.outOfRange()
	}
	if a.New == 0 && a.External == 0 && a.Hit.Tokens == 0 {
		return &RangeError{"Alloc.New + Alloc.External + Alloc.Hit.Tokens", 0, 1, math.MaxInt32}
	}
	if len(s.tables[0]) == 0 && a.Hit.Tokens+a.External > len(a.Tokens) {
		return &RangeError{"Alloc.Hit.Tokens + Alloc.External", a.Hit.Tokens + a.External, 0, len(a.Tokens)}
	}
	if a.Computed > s.capacity {
		return &RangeError{"Alloc.Computed", a.Computed, 0, s.capacity}
	}
	if a.Hit.Tokens > 0 {
		if len(s.tables[0]) > 0 {
			return ErrHitOnHolder
		}
		if a.Hit.epoch != c.epoch || a.Hit.space != s.space {
			return ErrStaleMatch
		}
	}
	return nil
}

// outOfRange names the first count that is negative or too large.
func (a *Alloc) outOfRange() error {
	for _, v := range [...]struct {
		name  string
		value int
	}{
		{"Alloc.Computed", a.Computed}, {"Alloc.External", a.External}, {"Alloc.New", a.New}, {"Alloc.Lookahead", a.Lookahead},
		{"Alloc.MaxTokens", a.MaxTokens}, {"Alloc.InFlight", a.InFlight}, {"Alloc.Reserve", a.Reserve}, {"Alloc.Watermark", a.Watermark},
		{"Alloc.WholeSequence", a.WholeSequence},
	} {
		if uint(v.value) > math.MaxInt32 {
			return &RangeError{v.name, v.value, 0, math.MaxInt32}
		}
	}
	return &RangeError{"Alloc.Hit.Tokens", a.Hit.Tokens, 0, math.MaxInt32}
}

// goneBlocks returns how many leading blocks lie outside a group's window when n tokens are processed.
func (c *Cache) goneBlocks(g, n int) int {
	w := c.groups[g].spec.Window
	if w == 0 {
		return 0
	}
	return max(n-w+1, 0) / c.bs
}

// skipNew returns how many leading positions an empty table fills with the null block.
func (c *Cache) skipNew(p *plan, g int) int {
	if !p.empty {
		return 0
	}
	return c.goneBlocks(g, p.basis)
}

// unheldHits counts the hit's blocks that leave the set of available ones.
func (c *Cache) unheldHits(p *plan) int {
	count := 0
	for g := range c.groups {
		skip := c.goneBlocks(g, p.basis)
		for i, end := p.hitEnd, p.hit; end > skip; {
			nd := c.t.at(i)
			from := max(int(nd.depth), skip)
			heads := c.t.slab.copies(nd.run+int32(from)-nd.depth, end-from)
			for k := g; k < len(heads); k += len(c.groups) {
				if c.blocks[heads[k]].refs == 0 {
					count++
				}
			}
			i, end = nd.parent, int(nd.depth)
		}
	}
	return count
}

// wholeNeed returns what the whole-sequence gate asks for: blocks for n tokens,
// where a sliding-window group never holds more than its cap at a time.
func (c *Cache) wholeNeed(s *Seq, p *plan, n int) int {
	need := p.need.Hits
	for g := range c.groups {
		own := max(len(s.tables[g]), p.hit, c.skipNew(p, g))
		more := max(ceilDiv(n, c.bs)-own, 0)
		if limit := c.groups[g].cap; limit > 0 {
			kept := max(own-max(c.goneBlocks(g, p.basis), s.gone[g]), 0) // blocks of the group held before new ones are taken
			more = min(more, max(limit-kept, 0))
		}
		need += more
	}
	return need
}

// leaveWindows frees the blocks of s that are out of their group's window when
// basis tokens are processed, the deepest first.
func (c *Cache) leaveWindows(s *Seq, basis int) {
	for g := range c.groups {
		gone := min(c.goneBlocks(g, basis), len(s.tables[g]))
		if gone <= s.gone[g] {
			continue
		}
		c.releaseRun(s.tables[g][s.gone[g]:gone], s)
		s.gone[g] = gone
	}
}

// releaseRun lets a run of a table go, the last block first, and puts the null
// block in its place. Blocks without a position go to the free stack as one
// group, so that the deepest is taken first.
func (c *Cache) releaseRun(ids []BlockID, s *Seq) {
	loose := len(ids)
	for i := len(ids) - 1; i >= 0; i-- {
		if id := ids[i]; id != NullBlock {
			s.held--
			if c.release(id, s.class) {
				loose = i
				continue
			}
			ids[i] = NullBlock
		}
	}
	for i := loose; i < len(ids); i++ {
		if id := ids[i]; id != NullBlock {
			c.push(id)
			ids[i] = NullBlock
		}
	}
}

// takeHit holds the hit's blocks and enters them in the tables.
func (c *Cache) takeHit(s *Seq, p *plan) {
	for g := range c.groups {
		skip := min(c.goneBlocks(g, p.basis), p.hit)
		table := grow(s.tables[g], p.hit)
		clear(table[:skip])
		for i, end := p.hitEnd, p.hit; end > skip; {
			nd := c.t.at(i)
			from := max(int(nd.depth), skip)
			heads := c.t.slab.copies(nd.run+int32(from)-nd.depth, end-from)
			for k, j := g, from; k < len(heads); k += len(c.groups) {
				table[j] = heads[k]
				c.hold(heads[k])
				j++
			}
			i, end = nd.parent, int(nd.depth)
		}
		s.tables[g] = table
		s.gone[g] = skip
		s.held += p.hit - skip
	}
	s.published = p.hit
}

// appendBlocks takes blocks for the external tokens and then for the step.
func (c *Cache) appendBlocks(s *Seq, p *plan) int {
	taken := 0
	external := min(ceilDiv(p.total, c.bs), p.slots)
	for _, upto := range [2]int{external, p.slots} {
		for g := range c.groups {
			table := s.tables[g]
			if p.empty {
				for skip := c.skipNew(p, g); len(table) < min(skip, upto); {
					table = append(table, NullBlock)
					s.gone[g]++
				}
			}
			for len(table) < upto {
				table = append(table, c.take())
				taken++
			}
			s.tables[g] = table
		}
	}
	s.held += taken
	return taken
}

// grow returns t with length n; the content is undefined.
func grow(t []BlockID, n int) []BlockID {
	if cap(t) < n {
		return make([]BlockID, n)
	}
	return t[:n]
}
