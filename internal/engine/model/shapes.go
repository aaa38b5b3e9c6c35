package model

import (
	"fmt"
	"sort"
	"strings"
)

// shapes are the published sizes that Shape knows.
var shapes = map[string]Config{
	"qwen3-0.6b": {
		Name: "qwen3-0.6b", Vocab: 151936, Hidden: 1024, Layers: 28, Heads: 16, KVHeads: 8, HeadDim: 128, FFN: 3072,
		RopeTheta: 1e6, NormEps: 1e-6, MaxPositions: 40960, HeadNorm: true, Tied: true,
	},
	"llama3-8b": {
		Name: "llama3-8b", Vocab: 128256, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 14336,
		RopeTheta: 500000, NormEps: 1e-5, MaxPositions: 131072,
		RopeScaling: Scaling{Kind: ScalingLlama3, Factor: 8, Low: 1, High: 4, Original: 8192},
	},
	"tiny": {
		Name: "tiny", Vocab: 512, Hidden: 256, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 64, FFN: 512,
		RopeTheta: 1e4, NormEps: 1e-6, MaxPositions: 4096, HeadNorm: true, Tied: true,
	},
	"tiny-moe": {
		Name: "tiny-moe", Vocab: 512, Hidden: 128, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 32, FFN: 96, MoE: MoE{Experts: 8, TopK: 2, Normalised: true},
		RopeTheta: 1e4, NormEps: 1e-6, MaxPositions: 4096, HeadNorm: true, Tied: true,
	},
}

// Shape gives the configuration of a known size: qwen3-0.6b, llama3-8b, tiny or tiny-moe.
func Shape(name string) (Config, error) {
	if c, ok := shapes[name]; ok {
		return c, nil
	}
	var names []string
	for n := range shapes {
		names = append(names, n)
	}
	sort.Strings(names)
	return Config{}, fmt.Errorf("unknown model shape %q (known: %s)", name, strings.Join(names, ", "))
}
