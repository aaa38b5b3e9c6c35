package sample

import (
	"cmp"
	"math"
	"slices"
)

// candidate is a token that may be drawn.
type candidate struct {
	token  Token
	logit  float32
	weight float64 // its probability times a factor that all have in common
}

// draw chooses one token by its probability. top is the largest logit.
func (s *Sampler) draw(n int, logits []float32, top float32) Token {
	scaled := func(v float32) float64 { return (float64(v) - float64(top)) / s.p.Temperature }
	least := -math.MaxFloat64
	if s.p.MinP > 0 {
		least = math.Log(s.p.MinP)
	}
	kept := s.scratch[:0]
	for i, v := range logits {
		if scaled(v) >= least {
			kept = append(kept, candidate{token: Token(i), logit: v})
		}
	}
	s.scratch = kept
	if s.p.TopK > 0 && s.p.TopK < len(kept) {
		kept = topK(kept, s.p.TopK)
	}
	for i := range kept {
		kept[i].weight = math.Exp(scaled(kept[i].logit))
	}
	if s.p.TopP < 1 {
		kept = topP(kept, s.p.TopP)
	}
	if len(kept) < len(s.scratch) { // the filters have moved them
		slices.SortFunc(kept, func(a, b candidate) int { return cmp.Compare(a.token, b.token) })
	}
	mark := uniform(s.p.Seed, s.prompt+n) * mass(kept)
	last := Token(-1)
	for _, c := range kept {
		if c.weight == 0 {
			continue
		}
		last = c.token
		if mark -= c.weight; mark < 0 {
			break
		}
	}
	return last
}

func mass(c []candidate) float64 {
	sum := 0.0
	for i := range c {
		sum += c[i].weight
	}
	return sum
}

// topK is the k most likely of c, and those as likely as the last of them.
func topK(c []candidate, k int) []candidate {
	h := heap(c)
	for len(c)-len(h) < k || len(h) > 0 && h[0].logit == c[len(h)].logit {
		h = h.pop()
	}
	return c[len(h):]
}

// topP is the most likely of c until they have the share p of its mass: the first
// one always, and each before which there is less.
func topP(c []candidate, p float64) []candidate {
	limit := p * mass(c)
	h := heap(c)
	for sum := 0.0; len(h) > 0 && (len(h) == len(c) || sum < limit); {
		h = h.pop()
		sum += c[len(h)].weight
	}
	return c[len(h):]
}

// descending is a heap whose root is the most likely candidate, of equal ones
// that of the smallest id.
type descending []candidate

func (h descending) before(i, j int) bool {
	return h[i].logit > h[j].logit || h[i].logit == h[j].logit && h[i].token < h[j].token
}

func heap(c []candidate) descending {
	h := descending(c)
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.sink(i)
	}
	return h
}

// pop moves the root behind the end of the heap that it returns.
func (h descending) pop() descending {
	last := len(h) - 1
	h[0], h[last] = h[last], h[0]
	h = h[:last]
	h.sink(0)
	return h
}

func (h descending) sink(i int) {
	for {
		j := 2*i + 1
		if j >= len(h) {
			return
		}
		if j+1 < len(h) && h.before(j+1, j) {
			j++
		}
		if !h.before(j, i) {
			return
		}
		h[i], h[j] = h[j], h[i]
		i = j
	}
}
