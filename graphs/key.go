package graphs

import (
	"cmp"
	"fmt"
	"slices"
)

// Key identifies one captured graph. It is comparable.
type Key struct {
	Mode    Mode  `json:"mode"`
	Tokens  int32 `json:"tokens"`            // t, padded tokens
	Reqs    int32 `json:"reqs,omitempty"`    // r, padded rows; 0 for PIECEWISE, which pads none
	Uniform int32 `json:"uniform,omitempty"` // width of every row of a decode graph; 0 for others
	Bound   int32 `json:"bound,omitempty"`   // largest width of a decode graph for rows of any width; 0 for others
	LoRA    int32 `json:"lora,omitempty"`    // case of active adapters
}

// String writes the key as errors and logs show it.
func (k Key) String() string {
	s := fmt.Sprintf("%s t=%d", k.Mode, k.Tokens)
	if k.Reqs > 0 {
		s += fmt.Sprintf(" r=%d", k.Reqs)
	}
	if k.Uniform > 0 {
		s += fmt.Sprintf(" uniform=%d", k.Uniform)
	}
	if k.Bound > 0 {
		s += fmt.Sprintf(" bound=%d", k.Bound)
	}
	if k.LoRA > 0 {
		s += fmt.Sprintf(" lora=%d", k.LoRA)
	}
	return s
}

// Decode reports whether the graph records decode kernels, so that every row
// must run as a decode.
func (k Key) Decode() bool { return k.Mode == Full && (k.Uniform > 0 || k.Bound > 0) }

// KeyID numbers the keys of one dispatcher.
type KeyID int32

// NoKey is the KeyID of a step that replays nothing.
const NoKey KeyID = -1

// keys lists the graphs of a deployment in the order of capture: PIECEWISE
// first, since its activations are larger and FULL graphs reuse the pool, and
// inside a mode the largest first.
func (c Config) keys(l Ladder) []Key {
	var (
		keys []Key
		have = make(map[Key]bool)
		r    = int32(c.MaxNumSeqs)
		d    = int32(c.DecodeWidth())
	)
	add := func(k Key) {
		if !have[k] {
			have[k] = true
			keys = append(keys, k)
		}
	}
	for _, lora := range c.loraCases() {
		for _, t := range l.Sizes {
			if c.Mode.Has(Piecewise) {
				add(Key{Mode: Piecewise, Tokens: t, LoRA: lora})
			}
			if c.Mode.Mixed() == Full {
				add(Key{Mode: Full, Tokens: t, Reqs: min(t, r), LoRA: lora})
			}
			if c.Mode.SeparateDecode() && c.Trim == AdaptiveDrafts && t <= r*d {
				add(Key{Mode: Full, Tokens: t, Reqs: min(t, r), Bound: d, LoRA: lora})
			}
		}
		if !c.Mode.SeparateDecode() {
			continue
		}
		if c.Trim == AdaptiveDrafts {
			for _, n := range l.Requests {
				add(Key{Mode: Full, Tokens: n * d, Reqs: min(n*d, r), Bound: d, LoRA: lora})
			}
			continue
		}
		for _, q := range c.widths() {
			for _, t := range l.Sizes {
				if t = (t + q - 1) / q * q; t <= r*q && t <= l.Max {
					add(Key{Mode: Full, Tokens: t, Reqs: t / q, Uniform: q, LoRA: lora})
				}
			}
			for _, n := range l.Requests {
				if n <= r && n*q <= l.Max {
					add(Key{Mode: Full, Tokens: n * q, Reqs: n, Uniform: q, LoRA: lora})
				}
			}
		}
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(
			cmp.Compare(a.Mode, b.Mode),
			cmp.Compare(b.Tokens, a.Tokens),
			cmp.Compare(b.LoRA, a.LoRA),
			cmp.Compare(b.Uniform, a.Uniform),
			cmp.Compare(b.Reqs, a.Reqs),
		)
	})
	return keys
}
