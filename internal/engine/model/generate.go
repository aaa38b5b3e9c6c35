package model

import "math"

// Scales are the standard deviations that the generator gives the parts of a
// model, each relative to the one that keeps the variance of its input.
type Scales struct {
	Embed    float64 // rows of speakable tokens
	Mute     float64 // factor on the rows of tokens that no answer contains
	HeadNorm float64 // gain of the query and key norms: scores have about its square as standard deviation
	Value    float64
	Out      float64
	Up       float64
	Down     float64
}

// BuiltinScales make context matter: attention contributes more to the residual
// stream than the current token does, scores are sharp enough to single out
// positions and soft enough to read every block, so a change anywhere in the
// cached context changes the answer.
func BuiltinScales() Scales {
	return Scales{Embed: 0.5, Mute: 0.02, HeadNorm: 2.5, Value: 1, Out: 2, Up: 2, Down: 2}
}

// Generate makes the weights of c. They depend on c, s, seed and speakable
// only: each element is a function of the tensor's name and its index, computed
// in integers and one rounding, so every platform makes the same bits.
//
// Tokens outside speakable get embeddings of a small norm. As inputs they are
// as good as the others, since every block normalises what it reads; as outputs
// their logits are near zero, far below the largest, so greedy answers consist
// of speakable tokens.
func Generate(c Config, s Scales, seed uint64, speakable func(token int) bool) Weights {
	w := make(Weights)
	for _, t := range c.Tensors() {
		data := make([]float32, t.Len())
		g := gaussian{state: nameSeed(t.Name) ^ seed}
		scale, gain := s.of(t)
		if gain {
			for i := range data {
				data[i] = float32(scale)
			}
			w[t.Name] = data
			continue
		}
		full := float32(scale / laneSigma)
		if t.kind != kindEmbed {
			g.fill(data, full)
		} else {
			mute := float32(scale * s.Mute / laneSigma)
			for v := range c.Vocab {
				f := mute
				if speakable(v) {
					f = full
				}
				g.fill(data[v*c.Hidden:(v+1)*c.Hidden], f)
			}
		}
		w[t.Name] = data
	}
	return w
}

// of is the standard deviation of a tensor's elements, or the gain that they all are.
func (s Scales) of(t Tensor) (scale float64, gain bool) {
	norm := 1 / math.Sqrt(float64(t.Shape[len(t.Shape)-1]))
	switch t.kind {
	case kindNorm:
		return 1, true
	case kindHeadNorm:
		return s.HeadNorm, true
	case kindEmbed:
		return s.Embed, false
	case kindV:
		return s.Value * norm, false
	case kindO:
		return s.Out * norm, false
	case kindUp:
		return s.Up * norm, false
	case kindDown:
		return s.Down * norm, false
	}
	return norm, false
}

// gaussian is a counter-based source: the SplitMix64 sequence of a seed, of
// which each word gives one element, the sum of its four 16-bit lanes.
type gaussian struct{ state uint64 }

// laneSigma is the standard deviation of the sum of four 16-bit lanes:
// sqrt(4 * (2^32 - 1) / 12).
const laneSigma = 37837.22

func (g *gaussian) fill(dst []float32, factor float32) {
	for i := range dst {
		g.state += 0x9e3779b97f4a7c15
		z := g.state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		sum := int32(z&0xffff) + int32(z>>16&0xffff) + int32(z>>32&0xffff) + int32(z>>48)
		dst[i] = float32(sum-2*65535) * factor
	}
}

// nameSeed is the 64-bit FNV-1a hash of a tensor's name.
func nameSeed(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}
