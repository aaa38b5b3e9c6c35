package compare

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

var (
	_ Cache = (*Sluice)(nil)
	_ Cache = (*MapLRU)(nil)
	_ Cache = (*Radix)(nil)
)

var kinds = []struct {
	name string
	make func(blocks int) Cache
}{
	{"sluice", func(n int) Cache { return NewSluice(n) }},
	{"map+list", func(n int) Cache { return NewMapLRU(n) }},
	{"immutable-radix", func(n int) Cache { return NewRadix(n) }},
}

func tokens(seed uint64, n int) []Token {
	r := rand.New(rand.NewPCG(seed, 1))
	toks := make([]Token, n)
	for i := range toks {
		toks[i] = Token(r.IntN(128 << 10))
	}
	return toks
}

// The three agree on every hit of a random history under pressure, so what is measured is the same work.
func TestSameWork(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const blocks = 300
	caches := make([]Cache, len(kinds))
	for i, k := range kinds {
		caches[i] = k.make(blocks)
	}
	var prompts [][]Token
	hits := 0
	for i := range 5000 {
		var p []Token
		if len(prompts) > 0 && r.IntN(3) > 0 {
			old := prompts[max(0, len(prompts)-1-r.IntN(20))]
			p = slices.Clone(old[:r.IntN(len(old)+1)])
		}
		p = append(p, tokens(uint64(i), 1+r.IntN(200))...)
		p = p[:min(len(p), 60*blockSize)]
		want := caches[0].Match(p)
		hits += want
		for k, c := range caches {
			if got := c.Match(p); got != want {
				t.Fatalf("turn %d: %s hits %d, %s %d", i, kinds[k].name, got, kinds[0].name, want)
			}
			c.Turn(p)
		}
		prompts = append(prompts, p)
	}
	if hits == 0 {
		t.Fatal("nothing was hit")
	}
}

// cpu counts the process's user time for each operation.
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

func each(b *testing.B, blocks int, run func(b *testing.B, c Cache)) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			runtime.GC()
			run(b, k.make(blocks))
		})
	}
}

// A fully cached prompt of 128 k tokens.
func BenchmarkMatch128k(b *testing.B) {
	each(b, 1<<14, func(b *testing.B, c Cache) {
		p := tokens(1, 128<<10)
		c.Turn(p)
		b.ReportAllocs()
		done := cpu(b)
		for b.Loop() {
			if c.Match(p) != len(p) {
				b.Fatal("missed")
			}
		}
		done()
	})
}

// A turn of 8 k tokens of which 7.9 k are cached.
func BenchmarkTurn8k(b *testing.B) {
	each(b, 1<<16, func(b *testing.B, c Cache) {
		p := tokens(1, 8192)
		c.Turn(p[:7904])
		n := Token(0)
		b.ReportAllocs()
		done := cpu(b)
		for b.Loop() {
			n++
			p[7904] = n
			c.Turn(p)
		}
		done()
	})
}

// One block out and one in, in a full cache of 1 M blocks.
func BenchmarkEvict1M(b *testing.B) {
	const blocks = 1 << 20
	each(b, blocks, func(b *testing.B, c Cache) {
		p := tokens(1, 8*blockSize)
		for i := range Token(blocks / 8) {
			p[0], p[1] = i>>16, i&0xffff
			c.Turn(p)
		}
		one := p[:blockSize]
		one[0] = -1
		n := Token(0)
		b.ReportAllocs()
		done := cpu(b)
		for b.Loop() {
			n++
			one[1] = n
			c.Turn(one)
		}
		done()
	})
}

// 100 k sessions of 8 blocks behind one system prompt of 64 blocks: a turn of one of them.
func BenchmarkSessions100k(b *testing.B) {
	const sessions, system, own = 100_000, 64, 8
	each(b, sessions*own+system+1024, func(b *testing.B, c Cache) {
		p := tokens(3, (system+own)*blockSize)
		session := func(i int) []Token {
			p[system*blockSize], p[system*blockSize+1] = Token(i>>8), Token(i&0xff)
			return p
		}
		for i := range sessions {
			c.Turn(session(i))
		}
		r := rand.New(rand.NewPCG(1, 2))
		b.ReportAllocs()
		done := cpu(b)
		for b.Loop() {
			c.Turn(session(r.IntN(sessions)))
		}
		done()
	})
}

// Heap growth for each block: 256 Ki blocks in prompts of 64 blocks.
func BenchmarkHeap(b *testing.B) {
	const blocks, edge = 1 << 18, 64
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				c := k.make(blocks)
				p := tokens(1, edge*blockSize)
				for i := range Token(blocks / edge) {
					p[0] = i
					c.Turn(p)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(c)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/blocks, "B/block")
		})
	}
}
