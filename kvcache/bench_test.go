package kvcache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
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
