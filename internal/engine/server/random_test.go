package server

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// Answers of a published shape with generated weights depend on the whole context,
// as those of the built-in model do: a comparison of two ways of serving one would
// otherwise prove nothing.
func TestRandomWeightsReadTheirContext(t *testing.T) {
	for name, cfg := range map[string]engine.Config{
		"tiny": {Model: "random:tiny"}, "experts": {Model: "random:tiny-moe"}, "shared experts": {Model: "random:tiny-moe", DataParallel: 2, ExpertParallel: true},
	} {
		t.Run(name, func(t *testing.T) { readsItsContext(t, cfg) })
	}
}

func readsItsContext(t *testing.T, cfg engine.Config) {
	const vocabulary, blocks = 512, 10
	cfg.BlockSize, cfg.MaxModelLen = 16, 16*blocks+answerLen
	n := start(t, cfg, Options{Noise: NoiseAllowed})
	rng := rand.New(rand.NewPCG(7, 1))
	prompts := make([][]int, 20)
	for i := range prompts {
		prompts[i] = make([]int, 16*blocks)
		for j := range prompts[i] {
			prompts[i][j] = rng.IntN(vocabulary)
		}
	}
	ask := func(more m) (out []identity.Answer) {
		for _, p := range prompts {
			body := merged(m{"prompt": p, "max_tokens": answerLen, "ignore_eos": true, "return_token_ids": true}, more)
			n.complete(body) // so that the prompt is in the cache
			out = append(out, n.complete(body).Choices[0].TokenIDs)
		}
		return out
	}
	want := ask(m{"cache_salt": "right"})
	require.GreaterOrEqual(t, identity.Distinct(want), 8.0)
	identity.Check(t, want, ask(m{"cache_salt": "again"}), func() []identity.Answer { return ask(m{"cache_salt": "wrong", "kv_noise": true}) })
}
