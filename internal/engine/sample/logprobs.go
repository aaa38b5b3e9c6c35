package sample

import (
	"cmp"
	"math"
	"slices"
)

// Logprob is the natural logarithm of a token's probability.
type Logprob struct {
	Token Token
	Value float64
}

// Logprobs are the log probabilities at one place of the output, of the logits
// before anything of Params is applied.
type Logprobs struct {
	Chosen Logprob
	Top    []Logprob // the most likely tokens, descending, of equal ones the smallest id first
}

// report computes the alternatives at position n and gives what files them with
// the token that was chosen.
func (s *Sampler) report(n int, logits []float32, top float32) func(Token) {
	at, norm := alternatives(logits, top, s.p.Top)
	raw := slices.Clone(logits)
	return func(t Token) {
		at.Chosen = Logprob{t, float64(raw[t]) - norm}
		if len(s.probs) == 0 {
			s.base = n
		}
		s.probs = append(s.probs, at)
	}
}

// alternatives are the k most likely tokens, and what is taken off a logit to get
// its log probability. top is the largest logit.
func alternatives(logits []float32, top float32, k int) (at Logprobs, norm float64) {
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - float64(top))
	}
	norm = float64(top) + math.Log(sum)
	at.Top = likeliest(logits, k)
	for i := range at.Top {
		at.Top[i].Value -= norm
	}
	return at, norm
}

// likeliest are the k largest logits.
func likeliest(logits []float32, k int) []Logprob {
	k = min(k, len(logits))
	if k == 0 {
		return nil
	}
	out := make([]Logprob, 0, k+1)
	for i, v := range logits {
		x := Logprob{Token(i), float64(v)}
		if len(out) == k && x.Value <= out[k-1].Value {
			continue
		}
		at, _ := slices.BinarySearchFunc(out, x, func(a, b Logprob) int {
			return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Token, b.Token))
		})
		out = slices.Insert(out, at, x)[:min(len(out)+1, k)]
	}
	return out
}

// Take gives the log probabilities of n output tokens from position from on and
// forgets them; nil without Params.Logprobs.
func (s *Sampler) Take(from, n int) []Logprobs {
	if !s.p.Logprobs {
		return nil
	}
	at := from - s.base
	out := slices.Clone(s.probs[at : at+n])
	s.probs, s.base = s.probs[at+n:], from+n
	return out
}
