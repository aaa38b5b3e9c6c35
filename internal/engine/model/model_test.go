package model

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func speakable(v int) bool { return v >= 32 && v < 127 || v == 258 }

func TestBuiltinShape(t *testing.T) {
	c := Builtin()
	require.NoError(t, c.Validate())
	require.GreaterOrEqual(t, c.Layers, 4)
	require.GreaterOrEqual(t, c.BlockParameters(), 1_000_000)
	require.LessOrEqual(t, c.BlockParameters(), 2_000_000)
	require.Greater(t, c.Heads, c.KVHeads, "grouped queries")
	require.Equal(t, 2048, c.KVBytesPerToken())
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := Config{Vocab: -1, Heads: 3, KVHeads: 2, HeadDim: 3}.Validate()
	for _, what := range []string{"vocabulary", "hidden width", "no multiple", "odd", "theta"} {
		require.ErrorContains(t, err, what)
	}
}

// The weights are a function of names and indices alone: the same bits on every
// platform. The digest also fails when the generator or a scale is changed,
// which changes every answer.
func TestWeightsAreFixed(t *testing.T) {
	c := Builtin()
	w := Generate(c, BuiltinScales(), 1, speakable)
	h := sha256.New()
	for _, x := range c.Tensors() {
		require.Len(t, w[x.Name], x.Len(), x.Name)
		h.Write(Bytes(w[x.Name]))
	}
	require.Equal(t, builtinDigest, hex.EncodeToString(h.Sum(nil)[:8]))
	require.NotEqual(t, w[LayerName(0, "mlp.up_proj")][:8], w[LayerName(1, "mlp.up_proj")][:8])
}

func TestScalesHold(t *testing.T) {
	c, s := Builtin(), BuiltinScales()
	w := Generate(c, s, 1, speakable)
	deviation := func(x []float32) float64 {
		var sum, square float64
		for _, v := range x {
			sum += float64(v)
			square += float64(v) * float64(v)
		}
		mean := sum / float64(len(x))
		return math.Sqrt(square/float64(len(x)) - mean*mean)
	}
	row := func(v int) []float32 { return w[EmbedName][v*c.Hidden : (v+1)*c.Hidden] }
	require.InEpsilon(t, s.Embed, deviation(row('a')), 0.25)
	require.Less(t, deviation(row(0)), s.Embed*s.Mute*1.5, "tokens that are never said have small rows")
	require.InEpsilon(t, s.Down/math.Sqrt(float64(c.FFN)), deviation(w[LayerName(2, "mlp.down_proj")]), 0.02)
}

// The reference reads token by token; what it says depends on what it has read.
func TestReferenceReadsItsContext(t *testing.T) {
	c := Builtin()
	w := Generate(c, BuiltinScales(), 1, speakable)
	prompt := func(first byte) []int {
		out := []int{int(first)}
		for _, b := range []byte("the same words follow in both prompts") {
			out = append(out, int(b))
		}
		return out
	}
	a, b := NewReference(c, w).Greedy(prompt('A'), 16), NewReference(c, w).Greedy(prompt('B'), 16)
	require.NotEqual(t, a, b)
	for _, tok := range append(a, b...) {
		require.True(t, speakable(tok))
	}
	again := NewReference(c, w).Greedy(prompt('A'), 16)
	require.Equal(t, a, again)
}

func TestArgmaxTakesTheLowestOfEquals(t *testing.T) {
	require.Equal(t, 1, Argmax([]float32{0, 3, 3, 2}))
}

const builtinDigest = "18b8515fcfd54ff9"
