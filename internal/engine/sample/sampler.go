package sample

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampler chooses the tokens of one request. It belongs to one goroutine.
type Sampler struct {
	p      Params
	prompt int           // tokens of the prompt
	seen   []Token       // the different tokens of the prompt, ascending; with a repetition penalty alone
	out    []Token       // chosen so far; with penalties alone
	counts map[Token]int // of out

	probs   []Logprobs // of the output from position base on
	base    int
	scores  scores
	scratch []candidate
}

// New makes the sampler of a request. The prompt is read and not kept.
func New(p Params, prompt []Token) *Sampler {
	if p.TopP == 0 {
		p.TopP = 1
	}
	if p.Repetition == 0 {
		p.Repetition = 1
	}
	if p.TopK < 0 {
		p.TopK = 0
	}
	if p.random() {
		p.Temperature = max(p.Temperature, minTemperature)
	}
	s := &Sampler{p: p, prompt: len(prompt)}
	if p.penalises() {
		s.counts = map[Token]int{}
	}
	if p.Prompt {
		s.scores = newScores(prompt)
	}
	if p.Repetition != 1 {
		s.seen = slices.Compact(slices.Sorted(slices.Values(prompt)))
	}
	return s
}

// OnHost reports whether the output token at position n must be chosen by
// Choose. Otherwise it is the most likely one, which a device finds by itself.
func (s *Sampler) OnHost(n int) bool {
	return s.p.random() || s.p.penalises() || len(s.p.Bias) > 0 || s.p.Logprobs || s.masks(n)
}

// masks reports whether end tokens are out of question at position n.
func (s *Sampler) masks(n int) bool { return n < s.p.MinTokens && len(s.p.Ends) > 0 }

// Choose gives the output token at position n from its logits, which it
// changes. The tokens before n are those that Choose gave for their positions
// last. It is negative if a logit is NaN or no token is possible.
func (s *Sampler) Choose(n int, logits []float32) Token {
	s.rewind(n)
	top := float32(math.Inf(-1))
	for _, v := range logits {
		if v != v {
			return -1
		}
		top = max(top, v)
	}
	if math.IsInf(float64(top), 0) {
		return -1
	}
	var report func(Token)
	if s.p.Logprobs {
		report = s.report(n, logits, top)
	}
	s.adjust(n, logits)
	t := best(logits)
	if t >= 0 && s.p.random() {
		t = s.draw(n, logits, logits[t])
	}
	if t < 0 {
		return -1
	}
	if s.counts != nil {
		s.out = append(s.out, t)
		s.counts[t]++
	}
	if report != nil {
		report(t)
	}
	return t
}

// rewind forgets what was chosen at position n and behind it.
func (s *Sampler) rewind(n int) {
	for len(s.out) > n {
		last := len(s.out) - 1
		s.counts[s.out[last]]--
		s.out = s.out[:last]
	}
	if at := n - s.base; at >= 0 && at < len(s.probs) {
		s.probs = s.probs[:at]
	}
}

// adjust applies bias, mask and penalties.
func (s *Sampler) adjust(n int, logits []float32) {
	for _, b := range s.p.Bias {
		logits[b.Token] += float32(b.Value)
	}
	if s.masks(n) {
		for _, t := range s.p.Ends {
			logits[t] = float32(math.Inf(-1))
		}
	}
	if s.p.Repetition != 1 {
		for _, t := range s.seen {
			s.repeated(logits, t)
		}
		for t, n := range s.counts {
			if _, known := slices.BinarySearch(s.seen, t); n > 0 && !known {
				s.repeated(logits, t)
			}
		}
	}
	for t, n := range s.counts {
		if n > 0 {
			logits[t] -= float32(s.p.Frequency)*float32(n) + float32(s.p.Presence)
		}
	}
}

func (s *Sampler) repeated(logits []float32, t Token) {
	if r := float32(s.p.Repetition); logits[t] > 0 {
		logits[t] /= r
	} else {
		logits[t] *= r
	}
}

// best is the first of the most likely tokens; -1 if none is possible.
func best(logits []float32) Token {
	at, top := Token(-1), float32(math.Inf(-1))
	for i, v := range logits {
		if v > top {
			at, top = Token(i), v
		}
	}
	return at
}

// uniform is the number in [0, 1) that belongs to a seed and a place.
func uniform(seed uint64, place int) float64 {
	key := [32]byte{16: 't', 'o', 'k', 'e', 'n'}
	binary.LittleEndian.PutUint64(key[:], seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(place))
	return float64(rand.NewChaCha8(key).Uint64()>>11) / (1 << 53)
}
