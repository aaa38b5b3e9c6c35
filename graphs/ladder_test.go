package graphs

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func mustLadder(t *testing.T, c Config) Ladder {
	t.Helper()
	if c.MaxNumBatchedTokens == 0 {
		c.MaxNumBatchedTokens = 8192
	}
	l, err := newLadder(c)
	require.NoError(t, err)
	return l
}

func TestLadderCUDA(t *testing.T) {
	l := mustLadder(t, Config{MaxNumSeqs: 256})
	require.Len(t, l.Sizes, 51, "M=512")
	require.Equal(t, int32(512), l.Max)
	require.Equal(t, []int32{1, 2, 4, 8, 16}, mustLadder(t, Config{MaxNumSeqs: 8}).Sizes, "M=16")
	require.Len(t, mustLadder(t, Config{MaxNumSeqs: 20}).Sizes, 8, "M=40")

	l = mustLadder(t, Config{MaxNumSeqs: 20, Ladder: LadderConfig{Grid: GridInteractive}})
	require.Equal(t, 33, len(l.Sizes), "every size to 32, then 40")

	l = mustLadder(t, Config{MaxNumSeqs: 512, Ladder: LadderConfig{Cap: 1024}})
	require.Equal(t, int32(1024), l.Max)

	l = mustLadder(t, Config{MaxNumSeqs: 256, K: 7})
	require.Len(t, l.Sizes, 51, "the cap bounds other steps")
	require.Equal(t, int32(2048), l.Max, "but not the widest decode step")
	l = mustLadder(t, Config{MaxNumSeqs: 32, K: 16, MaxNumBatchedTokens: 500})
	require.Equal(t, int32(29), l.Requests[len(l.Requests)-1], "rows that the budget allows")
	l = mustLadder(t, Config{MaxNumSeqs: 256, K: 7, Ladder: LadderConfig{Runner: RunnerV1}})
	require.Equal(t, int32(2048), l.Sizes[len(l.Sizes)-1], "one set of sizes for all steps")

	l = mustLadder(t, Config{MaxNumSeqs: 256, MaxNumBatchedTokens: 100})
	require.Equal(t, int32(100), l.Max, "the budget is a size")
	require.Equal(t, int32(96), l.Sizes[len(l.Sizes)-2])
}

func TestLadderExplicit(t *testing.T) {
	c := Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 64}
	c.Ladder.Sizes = []int{16, 2, 2, 100, 1}
	require.Equal(t, []int32{1, 2, 16, 64}, mustLadder(t, c).Sizes, "ascending, no doubles, none above the budget, the budget itself")
	require.Empty(t, mustLadder(t, c).Requests)

	for _, m := range []int{42, 257, 300} {
		l := mustLadder(t, Config{MaxNumSeqs: 256, Ladder: LadderConfig{MaxSize: m}})
		require.Equal(t, int32(m), l.Max, "an explicit maximum off the grid stays")
		require.True(t, slices.IsSorted(l.Sizes))
	}
	l := mustLadder(t, Config{MaxNumSeqs: 256, Ladder: LadderConfig{Sizes: []int{1, 8, 64}, MaxSize: 20}})
	require.Equal(t, []int32{1, 8, 20}, l.Sizes, "no size above the maximum")
}

func TestLadderMultiple(t *testing.T) {
	c := Config{MaxNumSeqs: 16, Ladder: LadderConfig{Multiple: 4}}
	require.Equal(t, []int32{4, 8, 16, 24, 32}, mustLadder(t, c).Sizes)
	c.Ladder = LadderConfig{Sizes: []int{1, 2, 3}, Multiple: 4}
	c.MaxNumBatchedTokens = 8192
	_, err := newLadder(c)
	require.ErrorContains(t, err, "multiples of 4")

	c.K, c.Ladder = 2, LadderConfig{Multiple: 4, Runner: RunnerV1} // a multiple common to width 3 and degree 4
	for _, s := range mustLadder(t, c).Sizes {
		require.Zero(t, s%12)
	}
	c.Ladder.MaxSize = 8
	_, err = newLadder(c)
	require.Error(t, err, "12 does not fit a maximum of 8")
}

func TestLadderRunnerV1(t *testing.T) {
	c := Config{K: 3, MaxNumSeqs: 1, Ladder: LadderConfig{Runner: RunnerV1}}
	require.Equal(t, []int32{4, 8}, mustLadder(t, c).Sizes)
	c.Ladder.Sizes, c.Ladder.MaxSize = []int{6}, 7
	require.Equal(t, []int32{4}, mustLadder(t, c).Sizes, "none remains after rounding, but the width fits")
	c.Ladder = LadderConfig{Runner: RunnerV1, Sizes: []int{3}}
	c.MaxNumBatchedTokens = 8192
	_, err := newLadder(c)
	require.Error(t, err, "not even one row fits")
}

func TestLadderAscend(t *testing.T) {
	rules := LadderConfig{Rules: RulesAscend}
	require.Equal(t, int32(8), mustLadder(t, Config{MaxNumSeqs: 8, Ladder: rules}).Max, "no factor of two")
	require.Equal(t, int32(6), mustLadder(t, Config{MaxNumSeqs: 6, Ladder: rules}).Max, "the maximum is a size")
	require.Equal(t, int32(512), mustLadder(t, Config{MaxNumSeqs: 1024, Ladder: rules}).Max)

	rules.MaxSizes = 4 // a device generation with pieces
	l := mustLadder(t, Config{MaxNumSeqs: 256, Ladder: rules})
	require.Len(t, l.Sizes, 4)
	require.Equal(t, int32(1), l.Sizes[0])
	require.Equal(t, int32(256), l.Sizes[3])
	rules.Sizes = []int{1, 2, 4}
	require.Equal(t, []int32{1, 2, 4}, mustLadder(t, Config{MaxNumSeqs: 256, Ladder: rules}).Sizes, "explicit sizes are respected")
}

func TestSample(t *testing.T) {
	sizes := []int32{1, 2, 4, 8, 16, 24, 32}
	require.Equal(t, sizes, sample(sizes, 9))
	require.Equal(t, []int32{32}, sample(sizes, 1))
	require.Equal(t, []int32{32}, sample(sizes, 0))
	require.Equal(t, []int32{1, 32}, sample(sizes, 2))
	require.Equal(t, []int32{1, 4, 16, 32}, sample(sizes, 4))
}

func TestStreamBudget(t *testing.T) {
	require.Equal(t, 62, StreamBudget{Layers: 28}.MaxSizes())
	require.Equal(t, 11, StreamBudget{Layers: 48, TP: 4}.MaxSizes())
	require.Equal(t, 17, StreamBudget{Layers: 48, TP: 4, AIV: true}.MaxSizes())
	require.Equal(t, 9, StreamBudget{Layers: 64, TP: 8}.MaxSizes())
	require.Equal(t, 6, StreamBudget{Layers: 94, TP: 8}.MaxSizes())
	require.Less(t, StreamBudget{Layers: 28, Mode: ModeFullAndPiecewise, Sizes: 51}.MaxSizes(), 62)
	require.Less(t, StreamBudget{Layers: 28, DraftLayers: 1}.MaxSizes(), 62)
	require.Less(t, StreamBudget{Layers: 28, PCP: 2, DCP: 2}.MaxSizes(), 62)
	require.Zero(t, StreamBudget{Layers: 5000}.MaxSizes())
}

func TestCompileSizes(t *testing.T) {
	l := mustLadder(t, Config{MaxNumSeqs: 8})
	require.NoError(t, l.CheckCompileSizes([]int{1, 8, 2048}))
	require.ErrorContains(t, l.CheckCompileSizes([]int{3}), "padded to 4")
}

// Keys of width 3 from sizes that are not multiples of it.
func TestKeysRoundedToWidth(t *testing.T) {
	d := newDispatcher(t, width3)
	var full, pieces []int32
	for _, k := range slices.Backward(d.Keys()) {
		if k.Mode == Full {
			full = append(full, k.Tokens)
			require.Equal(t, k.Tokens, k.Reqs*k.Uniform)
		} else {
			pieces = append(pieces, k.Tokens)
			require.Zero(t, k.Reqs)
		}
	}
	require.Equal(t, []int32{3, 6, 9, 18, 24}, full)
	require.Equal(t, []int32{1, 2, 4, 8, 16, 24}, pieces)
}

func TestLoRAKeys(t *testing.T) {
	c := Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 64, Mode: ModePiecewise, LoRA: LoRAConfig{Max: 4}, Ladder: LadderConfig{Sizes: []int{1, 8}}}
	require.Equal(t, []int32{0, 1, 2, 4, 5}, c.loraCases())
	d := newDispatcher(t, c)
	require.Len(t, d.Keys(), 10)
	for n, want := range map[int32]int32{0: 0, 1: 1, 2: 2, 3: 4, 4: 4, 5: 5, 9: 5} {
		require.Equal(t, want, d.loraCase(n), "%d adapters", n)
	}
	c.LoRA.Cases = LoRAOneCase
	require.Equal(t, []int32{5}, c.loraCases())
	require.Equal(t, int32(5), newDispatcher(t, c).loraCase(0), "kernels run over a row without an adapter")
}

func TestValidate(t *testing.T) {
	err := Config{
		MaxNumSeqs: -1, MaxNumBatchedTokens: 0, K: -2, Policy: 99, Mode: 77, PCP: -1, Widths: []int{0},
		LoRA: LoRAConfig{Max: -1}, Ladder: LadderConfig{Sizes: []int{0, 4, -3}, MaxSize: -1},
	}.Validate()
	for _, field := range []string{"MaxNumSeqs", "MaxNumBatchedTokens", "K:", "Policy", "Mode", "PCP", "Widths[0]", "LoRA.Max", "Ladder.Sizes[0]", "Ladder.Sizes[2]", "Ladder.MaxSize"} {
		require.ErrorContains(t, err, field)
	}
	var ce *ConfigError
	require.ErrorAs(t, err, &ce)
	require.ErrorContains(t, Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 8, Ladder: LadderConfig{Sizes: []int{0}}}.Validate(), "Sizes[0]")
	require.NoError(t, Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 16}.Validate())
	require.ErrorContains(t, Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 16, PCP: 2, Mode: ModeFull}.Validate(), "context parallelism")
	for _, m := range []ModeConfig{ModeNone, ModePiecewise, ModeFullDecodeOnly, ModeFullAndPiecewise} {
		require.NoError(t, Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 16, PCP: 2, Mode: m}.Validate())
	}
	require.Error(t, Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 16, Bonus: NoBonus}.Validate())
	for name, c := range map[string]Config{
		"many sizes":    {MaxNumSeqs: 8, MaxNumBatchedTokens: 1 << 20, Ladder: LadderConfig{MaxSize: 1 << 20}},
		"many cases":    {MaxNumSeqs: 1 << 16, MaxNumBatchedTokens: 1 << 20, K: 1 << 10, LoRA: LoRAConfig{Max: 1 << 12}, Ladder: LadderConfig{Cap: 1 << 20}},
		"huge":          {MaxNumSeqs: 1 << 40, MaxNumBatchedTokens: 1 << 40, K: 1 << 40},
		"many requests": {MaxNumSeqs: 1 << 16, MaxNumBatchedTokens: 1 << 20, Ladder: LadderConfig{Cap: 1 << 20}},
	} {
		require.Error(t, c.Validate(), name)
	}
	_, err = New(Config{MaxNumSeqs: 1 << 16, MaxNumBatchedTokens: 1 << 20, K: 1 << 10})
	require.NoError(t, err)
	_, err = New(Config{})
	require.Error(t, err)
}
