package kvcache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// randomTokens returns n tokens of a vocabulary of 128 k, the same for the same seed.
func randomTokens(seed uint64, n int) []Token {
	r := rand.New(rand.NewPCG(seed, 1))
	toks := make([]Token, n)
	for i := range toks {
		toks[i] = Token(r.IntN(128 << 10))
	}
	return toks
}

// cpu starts a count of the process's user time; the returned function reports it
// for each operation. On a machine that is shared it says more than ns/op.
func cpu(b *testing.B) func() {
	user := func() time.Duration {
		var ru syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
			b.Fatal(err)
		}
		return time.Duration(ru.Utime.Nano())
	}
	start := user()
	return func() { b.ReportMetric(float64(user()-start)/float64(b.N), "cpu-ns/op") }
}

// store caches a prompt and lets it go.
func store(b testing.TB, c *Cache, s *Seq, ns Namespace, toks []Token) {
	if err := c.Attach(s, ns); err != nil {
		b.Fatal(err)
	}
	m := c.Match(ns, toks, len(toks)-1)
	g, err := c.Allocate(s, &Alloc{Tokens: toks, Hit: m, New: len(toks) - m.Tokens})
	if err != nil || !g.OK {
		b.Fatal(g, err)
	}
	if err := c.Free(s); err != nil {
		b.Fatal(err)
	}
}

// edged caches n prompts of the given length whose edges are all edge blocks
// long, and returns them. Edges longer than the bound of the tree need no help;
// shorter ones are made by side branches.
func edged(b testing.TB, c *Cache, n, tokens, edge int) [][]Token {
	var s Seq
	prompts := make([][]Token, n)
	side := randomTokens(1<<40, c.BlockSize())
	for i := range prompts {
		prompts[i] = randomTokens(uint64(i), tokens)
		store(b, c, &s, Namespace{}, prompts[i])
		if edge >= maxEdge {
			continue
		}
		for at := edge * c.BlockSize(); at < tokens; at += edge * c.BlockSize() {
			m := c.Match(Namespace{}, prompts[i], at)
			nd := c.t.at(m.node)
			id := c.take()
			c.addCopy(id, c.extend(0, nd.run+int32(at/c.BlockSize()-1)-nd.depth, side), 0)
			c.release(id, classPlain)
		}
	}
	return prompts
}

const longPrompt = 128 << 10

// Match of a fully cached prompt of 128 k tokens, against bytes.Equal over the
// same token ids in the same run. Warm: one prompt again and again. Cold: 200
// MiB of token ids on each side, 400 MiB together, in turn. The two are
// measured in alternating rounds; ns/op are medians over the calls.
func BenchmarkMatch(b *testing.B) {
	for _, edge := range []int{512, 8} {
		for _, set := range []struct {
			name    string
			prompts int
		}{{"warm", 1}, {"cold", 400}} {
			b.Run(fmt.Sprintf("%s/edge=%d", set.name, edge), func(b *testing.B) {
				c, err := New(Config{Blocks: set.prompts*(longPrompt/16+longPrompt/16/edge) + 16})
				if err != nil {
					b.Fatal(err)
				}
				prompts := edged(b, c, set.prompts, longPrompt, edge)
				copies := make([][]byte, len(prompts))
				for i, p := range prompts {
					copies[i] = bytes.Clone(tokenBytes(p))
				}
				var match, equal []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					for i := range max(len(prompts), 64) {
						p := prompts[i%len(prompts)]
						start := time.Now()
						m := c.Match(Namespace{}, p, len(p))
						match = append(match, time.Since(start))
						if m.Tokens != len(p) {
							b.Fatal(m.Tokens)
						}
					}
					for i := range max(len(prompts), 64) {
						k := i % len(prompts)
						start := time.Now()
						same := bytes.Equal(tokenBytes(prompts[k]), copies[k])
						equal = append(equal, time.Since(start))
						if !same {
							b.Fatal("differ")
						}
					}
				}
				b.ReportMetric(0, "ns/op")
				for _, p := range []int{10, 50} {
					m, e := percentile(match, p), percentile(equal, p)
					b.ReportMetric(m, fmt.Sprintf("match-p%d-ns", p))
					b.ReportMetric(e, fmt.Sprintf("equal-p%d-ns", p))
					b.ReportMetric(m/e, fmt.Sprintf("ratio-p%d", p))
				}
			})
		}
	}
}

func percentile(d []time.Duration, p int) float64 {
	slices.Sort(d)
	return float64(d[len(d)*p/100])
}

// Admission and release of a prompt of 8 k tokens of which all but the last
// 100 or so are cached: attach, match, allocate, publish, free.
func BenchmarkAdmitRelease(b *testing.B) {
	c, err := New(Config{Blocks: 1 << 16})
	if err != nil {
		b.Fatal(err)
	}
	const cached, total = 7904, 8192
	prompt := randomTokens(1, total)
	var s Seq
	store(b, c, &s, Namespace{}, prompt[:cached])
	tail := prompt[cached:]
	n := Token(0)
	b.ReportAllocs()
	done := cpu(b)
	for b.Loop() {
		n++
		tail[0] = n // the rest is new every time
		store(b, c, &s, Namespace{}, prompt)
	}
	done()
}

// One block taken from a full pool of 1 M cached blocks and given back: an
// eviction, an allocation, a publication and a release each time.
func BenchmarkEvict(b *testing.B) {
	for _, edge := range []int{1, 8, 512} {
		b.Run(fmt.Sprintf("edge=%d", edge), func(b *testing.B) {
			const blocks = 1 << 20
			c := filled(b, blocks, edge)
			var s Seq
			toks := make([]Token, c.BlockSize())
			n := Token(0)
			b.ReportAllocs()
			done := cpu(b)
			for b.Loop() {
				n++
				toks[1] = n
				toks[0] = -1
				store(b, c, &s, Namespace{}, toks)
			}
			done()
			if c.Stats().EvictedPlain < uint64(b.N) {
				b.Fatal(c.Stats())
			}
		})
	}
}

// filled returns a cache of which every block is cached, on edges of the given
// length; with edges of one block each node has four children.
func filled(b testing.TB, blocks, edge int) *Cache {
	c, err := New(Config{Blocks: blocks + 1})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, c, edge)
	return c
}

func fill(b testing.TB, c *Cache, edge int) {
	var s Seq
	bs := c.BlockSize()
	if edge == 1 {
		fanOut(b, c)
		return
	}
	toks := randomTokens(9, edge*bs)
	for i := Token(0); c.Stats().Free > 0; i++ {
		n := min(edge, c.Stats().Free)
		toks[0], toks[1] = i>>16, i&0xffff
		store(b, c, &s, Namespace{}, toks[:n*bs])
	}
}

// fanOut fills a pool with a tree in which every edge is one block and every
// inner node has four children.
func fanOut(b testing.TB, c *Cache) {
	depth := 0
	for n, width := 0, 1; n < c.Usable(); depth++ {
		width *= 4
		n += width
	}
	var s Seq
	bs := c.BlockSize()
	toks := make([]Token, depth*bs)
	digits := make([]int, depth)
	for c.Stats().Free > 0 {
		for d := range digits {
			for k := range bs {
				toks[d*bs+k] = Token(d*1000 + digits[d]*100 + k)
			}
		}
		n := min(depth, c.Stats().Free+c.Match(Namespace{}, toks, len(toks)).Tokens/bs)
		store(b, c, &s, Namespace{}, toks[:n*bs])
		for d := depth - 1; d >= 0; d-- {
			if digits[d]++; digits[d] < 4 {
				break
			}
			digits[d] = 0
		}
	}
}

// 100 k sessions in the tree, all behind one system prompt of 64 blocks, each
// with 8 blocks of its own: a turn of one of them, drawn at random.
func BenchmarkSessions(b *testing.B) {
	const sessions, system, own = 100_000, 64, 8
	c, err := New(Config{Blocks: sessions*own + system + 1024})
	if err != nil {
		b.Fatal(err)
	}
	var s Seq
	prompt := randomTokens(3, (system+own)*16)
	session := func(i int) []Token {
		prompt[system*16], prompt[system*16+1] = Token(i>>8), Token(i&0xff)
		return prompt
	}
	for i := range sessions {
		store(b, c, &s, Namespace{}, session(i))
	}
	r := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	done := cpu(b)
	for b.Loop() {
		store(b, c, &s, Namespace{}, session(r.IntN(sessions)))
	}
	done()
}

// One decode step of 1,024 running sequences: 64 of them fill a block and take
// the next in each step. ns/op is for all of them.
func BenchmarkDecodeStep(b *testing.B) {
	const seqs, longest = 1024, 4096
	c, err := New(Config{Blocks: seqs*longest/16 + 1024})
	if err != nil {
		b.Fatal(err)
	}
	ss := make([]Seq, seqs)
	toks := make([][]Token, seqs)
	for i := range ss {
		toks[i] = randomTokens(uint64(i), longest)
	}
	n := make([]int, seqs)
	admit := func(i int) {
		if err := c.Attach(&ss[i], Namespace{}); err != nil {
			b.Fatal(err)
		}
		toks[i][0] += 1 << 20 // a new sequence
		n[i] = 17 + i%16
		if g, err := c.Allocate(&ss[i], &Alloc{Tokens: toks[i][:n[i]], New: n[i]}); err != nil || !g.OK {
			b.Fatal(g, err)
		}
	}
	for i := range ss {
		admit(i)
	}
	var a Alloc
	b.ReportAllocs()
	done := cpu(b)
	for b.Loop() {
		for i := range ss {
			s := &ss[i]
			if n[i] == longest {
				if err := c.Free(s); err != nil {
					b.Fatal(err)
				}
				admit(i)
			}
			n[i]++
			if s.Covers(n[i], 0) {
				continue
			}
			a = Alloc{Tokens: toks[i][:n[i]], Computed: n[i] - 1, New: 1}
			if g, err := c.Allocate(s, &a); err != nil || !g.OK {
				b.Fatal(g, err)
			}
		}
	}
	done()
}

// Growth of the heap for each cached block at 1 M blocks of 16 tokens.
func BenchmarkHeap(b *testing.B) {
	for _, edge := range []int{512, 1} {
		b.Run(fmt.Sprintf("edge=%d", edge), func(b *testing.B) {
			const blocks = 1 << 20
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				c := filled(b, blocks, edge)
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(c)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/blocks, "B/block")
		})
	}
}
