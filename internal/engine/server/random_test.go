package server

import (
	"fmt"
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
	cases := []engine.Config{{Model: "random:tiny-moe", DataParallel: 2, ExpertParallel: true}, {Model: "random:tiny"}, {Model: "random:tiny-moe"}}
	for _, cfg := range cases[:min(few, len(cases))] {
		t.Run(fmt.Sprintf("%s on %d", cfg.Model, max(1, cfg.DataParallel)), func(t *testing.T) { readsItsContext(t, cfg) })
	}
}

func readsItsContext(t *testing.T, cfg engine.Config) {
	const vocabulary, blocks = 512, 5
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
			out = append(out, n.complete(body).Choices[0].TokenIDs)
		}
		return out
	}
	want := ask(m{"cache_salt": "right"})
	require.GreaterOrEqual(t, identity.Distinct(want), 8.0)
	identity.Check(t, want, ask(m{"cache_salt": "again"}), func() []identity.Answer { return ask(m{"cache_salt": "wrong", "kv_noise": true}) })
}
