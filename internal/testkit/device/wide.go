package device

import "github.com/sluice-serving/sluice/internal/engine/model"

// Wide is a small model of Qwen3's kind, wide enough that every fused kernel runs,
// and with weights that do not amplify rounding as the built-in model's do: two
// ways to compute it in bfloat16 stay near each other. Its output projection is its
// own: the embedding would make every token its own successor.
func Wide() (model.Config, model.Weights) {
	c := model.Config{
		Name: "wide", Vocab: 512, Hidden: 512, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 128, FFN: 1024,
		RopeTheta: 1e4, NormEps: 1e-6, MaxPositions: 4096, HeadNorm: true,
	}
	s := model.Scales{Embed: 0.5, Mute: 1, HeadNorm: 1, Value: 1, Out: 2, Up: 1, Down: 1}
	return c, model.Generate(c, s, 1, func(int) bool { return true })
}
