package kvcache

import (
	"slices"
	"testing"
)

// FuzzOperations runs a program of operations on the cache and on the model.
// The first four bytes choose the configuration; then each operation is a byte
// and its operands. A program that ends in the middle of an operation is cut there.
func FuzzOperations(f *testing.F) {
	f.Add([]byte{20, 2, 0, 1, 0, 0, 9, 0, 0, 0, 4, 4, 7, 0, 4, 0, 3, 7, 1, 10, 0, 2, 11, 0, 0})
	f.Add([]byte{12, 1, 1, 0, 0, 5, 0, 3, 0, 1, 8, 1, 8, 0, 9, 0, 13, 0, 40, 14, 3, 7, 0})
	f.Add([]byte{30, 3, 2, 2, 1, 0, 30, 1, 5, 0, 4, 4, 4, 11, 0, 1, 12, 0, 8, 15, 0, 50})
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) < 4 || len(program) > 400 {
			t.Skip()
		}
		p := newProgram(t, program)
		for p.step() {
			if err := p.c.Check(); err != nil {
				t.Fatal(err)
			}
			if err := p.m.compare(p.c); err != nil {
				t.Fatal(err)
			}
		}
	})
}

type program struct {
	t    *testing.T
	code []byte
	c    *Cache
	m    *model
	now  Time
	over bool
}

func newProgram(t *testing.T, code []byte) *program {
	cfg := Config{Blocks: 2 + int(code[0])%60, BlockSize: 1 + int(code[1])%4, MaxInFlight: int(code[3]) % 16}
	window := GroupSpec{Kind: SlidingWindow, Window: 1 + int(code[3])%11}
	switch code[2] % 6 {
	case 1:
		cfg.Groups = []GroupSpec{{}, window}
	case 2:
		cfg.Groups = []GroupSpec{window}
	case 3:
		cfg.Groups = []GroupSpec{{}, {}}
	}
	c, err := newWithEdges(cfg, 1+int(code[1]>>4))
	if err != nil {
		t.Fatal(err)
	}
	return &program{t: t, code: code[4:], c: c, m: newModel(cfg)}
}

func (p *program) next() int {
	if len(p.code) == 0 {
		p.over = true
		return 0
	}
	b := p.code[0]
	p.code = p.code[1:]
	return int(b)
}

func (p *program) must(err error) {
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) seq() *mseq {
	if len(p.m.seqs) == 0 {
		return nil
	}
	return p.m.seqs[p.next()%len(p.m.seqs)]
}

// step runs one operation; it is false at the end of the program.
func (p *program) step() bool {
	op := p.next()
	if p.over {
		return false
	}
	if op%16 < 4 {
		p.admit()
		return true
	}
	s := p.seq()
	if s == nil && op%16 != 9 {
		return !p.over
	}
	switch op % 16 {
	case 4, 5, 6:
		p.grow(s)
	case 7:
		p.must(p.c.Free(s.real))
		p.m.freeTables(s)
		p.drop(s)
	case 8:
		fence, err := p.c.FreeFenced(s.real)
		p.must(err)
		p.drop(s)
		s.real, s.fence = nil, fence
		p.m.fences = append(p.m.fences, s)
	case 9:
		if n := len(p.m.fences); n > 0 {
			i := p.next() % n
			p.must(p.c.Lift(p.m.fences[i].fence))
			p.m.freeTables(p.m.fences[i])
			p.m.fences = slices.Delete(p.m.fences, i, i+1)
		}
	case 10:
		n := p.next() % (min(len(s.toks), s.real.Capacity()) + 1)
		kept, err := p.c.Truncate(s.real, n)
		p.must(err)
		if want := p.m.truncate(s, n); kept != want {
			p.t.Fatalf("kept %d, model %d", kept, want)
		}
		s.toks = slices.Clone(s.toks[:kept])
	case 11:
		p.uncache(s)
	case 12:
		n := p.next() % (min(len(s.toks), s.real.Capacity()) + 1)
		p.must(p.c.Publish(s.real, s.toks, n))
		p.m.publish(s, n)
	case 13:
		deadline := p.now + Time(p.next())
		id, r, err := p.c.Lease(s.real, deadline)
		if err != nil {
			return true
		}
		l, want := p.m.lease(p.m.key(s.ns, s.toks, s.published), deadline)
		if r != want {
			p.t.Fatalf("lease %s, model %s", r, want)
		}
		if l != nil {
			l.id = id
		}
	case 14:
		p.now += Time(p.next())
		p.c.ExpireLeases(p.now)
		p.m.expire(false, p.now)
		p.m.expire(true, p.now)
	case 15:
		switch n := p.next(); {
		case n > 220:
			if len(p.m.awaits) > 0 {
				l := p.m.awaits[n%len(p.m.awaits)]
				p.must(p.c.EndLease(l.id))
				p.m.endLease(l)
			}
		case n > 101:
			until := p.now + Time(n)
			if n > 200 {
				until = Anytime
			}
			id, err := p.c.Await(s.real, until)
			if err != nil {
				return true
			}
			p.m.await(p.m.key(s.ns, s.toks, s.published), until).id = id
		default:
			s.class = 1 + n%101
			p.must(p.c.SetRetention(s.real, Retention{Prioritised: true, Priority: n % 101}))
		}
	}
	return true
}

func (p *program) drop(s *mseq) {
	p.m.seqs = slices.DeleteFunc(p.m.seqs, func(x *mseq) bool { return x == s })
}

// tokens cuts the tokens of s and adds n more of few kinds.
func (p *program) tokens(s *mseq, keep, n int) []Token {
	var toks []Token
	if s != nil {
		toks = slices.Clone(s.toks[:keep%(len(s.toks)+1)])
	}
	bits := p.next()
	for i := range n {
		toks = append(toks, Token(bits>>(i%8)&1))
	}
	return toks
}

func (p *program) admit() {
	keep, n, flags := p.next(), 1+p.next()%24, p.next()
	toks := p.tokens(p.seq(), keep, n)
	s := &mseq{ns: testSpaces[flags&1], toks: toks, tables: make([][]BlockID, len(p.m.groups)), gone: make([]int, len(p.m.groups))}
	var err error
	s.real, err = p.c.Open(s.ns)
	p.must(err)
	p.m.seqs = append(p.m.seqs, s)
	a := Alloc{Tokens: toks}
	hit := p.c.Match(s.ns, toks, len(toks)-1)
	if want, path := p.m.match(s.ns, toks, len(toks)-1); hit.Tokens != want*p.m.bs || hit.Path != path*p.m.bs {
		p.t.Fatalf("hit %+v, model %d of %d", hit, want, path)
	}
	if flags&2 == 0 {
		a.Hit = hit
	}
	rest := len(toks) - a.Hit.Tokens
	if flags&4 != 0 && rest > 1 {
		a.External = 1 + flags>>4%(rest-1)
	}
	a.New = rest - a.External
	if flags&8 != 0 {
		a.Publish = PublishLater
	}
	p.allocate(s, &a)
}

func (p *program) grow(s *mseq) {
	n := 1 + p.next()%5
	computed := min(len(s.toks), s.real.Capacity())
	toks := p.tokens(s, len(s.toks), max(computed+n-len(s.toks), 0))
	s.toks = toks
	p.allocate(s, &Alloc{Tokens: toks, Computed: computed, New: n, Lookahead: n >> 1, InFlight: n & 1})
}

func (p *program) allocate(s *mseq, a *Alloc) {
	got, err := p.c.Allocate(s.real, a)
	p.must(err)
	need, short, taken := p.m.allocate(s, a)
	if want := (Grant{OK: short == NoShortage, New: taken, Shortage: short, Need: need}); got != want {
		p.t.Fatalf("grant %+v, model %+v", got, want)
	}
}

func (p *program) uncache(s *mseq) {
	if s.published == 0 {
		return
	}
	failed := s.tables[0][p.next()%s.published]
	if failed == NullBlock {
		return
	}
	got, err := p.c.Uncache([]BlockID{failed}, nil)
	p.must(err)
	want := p.m.uncache([]BlockID{failed})
	if len(got) != len(want) {
		p.t.Fatalf("%d holders, model %d", len(got), len(want))
	}
	for _, h := range got {
		if n, ok := want[h.Seq]; !ok || n*p.m.bs != h.Tokens {
			p.t.Fatalf("holder back to %d tokens, model %d blocks", h.Tokens, n)
		}
	}
	var order []BlockID // of a vanished subtree it is not specified
	for id := p.c.freeTop; id != NullBlock; id = p.c.blocks[id].next {
		order = append(order, id)
	}
	slices.Reverse(order)
	p.m.free = order
}
