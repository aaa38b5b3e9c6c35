package model

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallMoE is a sparse shape whose checkpoints the tests write.
func smallMoE() Config {
	c := small(false)
	c.FFN, c.MoE = 12, MoE{Experts: 4, TopK: 2, Normalised: true}
	return c
}

func TestMoECheckpoints(t *testing.T) {
	c := smallMoE()
	w := Generate(c, BuiltinScales(), 3, everyToken)
	require.Len(t, w[ExpertName(1, 3, "down_proj")], c.Hidden*c.FFN)
	good := safetensors(t, w, c.Tensors(), "F32")
	for _, x := range []struct {
		name   string
		tensor []byte
		change func(map[string]any)
		text   string
	}{
		{name: "whole", tensor: good},
		{"an expert is missing", safetensors(t, w, c.Tensors()[:len(c.Tensors())-2], "F32"), nil, ExpertName(1, 3, "down_proj") + " is missing"},
		{"more experts than tensors", good, func(m map[string]any) { m["num_experts"] = 5 }, ExpertName(0, 4, "gate_proj") + " is missing"},
		{"no experts", good, func(m map[string]any) { m["num_experts"] = 0 }, "num_experts is 0, must be positive"},
		{"none taken", good, func(m map[string]any) { m["num_experts_per_tok"] = 0 }, "0 of 4 experts are taken"},
		{"too many taken", good, func(m map[string]any) { m["num_experts_per_tok"] = 5 }, "5 of 4 experts are taken"},
		{"some layers", good, func(m map[string]any) { m["decoder_sparse_step"] = 2 }, "decoder_sparse_step is 2"},
		{"dense layers", good, func(m map[string]any) { m["mlp_only_layers"] = []int{0} }, "mlp_only_layers [0]"},
	} {
		t.Run(x.name, func(t *testing.T) {
			dir := t.TempDir()
			m := configJSON(c)
			if x.change != nil {
				x.change(m)
			}
			write(t, dir, "config.json", m)
			write(t, dir, "model.safetensors", x.tensor)
			k, err := Open(dir)
			if x.text != "" {
				require.ErrorContains(t, err, x.text)
				return
			}
			require.NoError(t, err)
			want := c
			want.Name = filepath.Base(dir)
			require.Equal(t, want, k.Config)
			require.NoError(t, k.Close())
		})
	}
}

// A token takes the experts with the largest shares, of equal ones the lower, and
// what it takes of the others is nothing.
func TestShares(t *testing.T) {
	c := smallMoE()
	c.MoE.TopK = 3
	w := Generate(c, BuiltinScales(), 3, everyToken)
	router := w[LayerName(0, "mlp.gate")]
	clear(router)
	x := make([]float32, c.Hidden)
	x[0] = 1
	for e, v := range []float32{1, 2, 1, 1} { // the logits
		router[e*c.Hidden] = v
	}
	total := math.Exp(2) + 3*math.E
	of := func() []float64 { return NewReference(c, w).Shares(0, x) }
	require.InDeltaSlice(t, []float64{math.E / (math.Exp(2) + 2*math.E), math.Exp(2) / (math.Exp(2) + 2*math.E), math.E / (math.Exp(2) + 2*math.E), 0}, of(), 1e-12)
	c.MoE.Normalised = false
	require.InDeltaSlice(t, []float64{math.E / total, math.Exp(2) / total, math.E / total, 0}, of(), 1e-12)
}

// An answer depends on every expert that its tokens take.
func TestExpertsMatter(t *testing.T) {
	c, err := Shape("tiny-moe")
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	w := Generate(c, BuiltinScales(), 1, everyToken)
	prompt := []int{5, 9, 200, 31, 7, 404, 18, 66}
	want := NewReference(c, w).Greedy(prompt, 12)
	taken := 0
	for e := range c.MoE.Experts {
		down := w[ExpertName(1, e, "down_proj")]
		old := append([]float32(nil), down...)
		clear(down)
		if got := NewReference(c, w).Greedy(prompt, 12); !slices.Equal(got, want) {
			taken++
		}
		copy(down, old)
	}
	require.Greater(t, taken, c.MoE.TopK, "tokens take different experts")
}
