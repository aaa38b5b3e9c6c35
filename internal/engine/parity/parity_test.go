package parity

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// expected is one prompt with what transformers computed.
type expected struct {
	Prompt []int     `json:"prompt"`
	Logits []float64 `json:"logits"`
	Tokens []int     `json:"tokens"`
	Own    float64   `json:"own"` // how far transformers' logits in the storage type are from Logits
}

// The tolerances: relative distance of a prompt's logits from what transformers
// computes in fp32 from the same weights. How far transformers in the storage type
// is from that is logged and widens nothing.
const (
	fp32Apart = 1e-4
	bf16Apart = 2e-2
)

func TestAgainstTransformers(t *testing.T) {
	root := os.Getenv("SLUICE_PARITY")
	if root == "" {
		t.Skip("SLUICE_PARITY names no folder that make.py wrote")
	}
	folders, err := filepath.Glob(filepath.Join(root, "*", "expected.json"))
	require.NoError(t, err)
	require.NotEmpty(t, folders, "nothing in %s", root)
	for _, f := range folders {
		dir := filepath.Dir(f)
		raw, err := os.ReadFile(f)
		require.NoError(t, err)
		var cases []expected
		require.NoError(t, json.Unmarshal(raw, &cases))
		for _, b := range []ascendrt.Backend{host.Backend{}, cuda.Backend{}} {
			t.Run(filepath.Base(dir)+"/"+b.Name(), func(t *testing.T) { compare(t, dir, b, cases) })
		}
	}
}

func compare(t *testing.T, dir string, b ascendrt.Backend, cases []expected) {
	k, err := model.Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	if b.Name() == "host" && k.Config.Vocab > 10000 {
		t.Skip("too large for the CPU")
	}
	dev, err := b.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		t.Skip("no device: ", err)
	}
	defer func() { require.NoError(t, dev.Close(context.Background())) }()
	typ, apart := ascendrt.Float32, fp32Apart
	if k.Type == model.BF16 {
		typ, apart = ascendrt.BFloat16, bf16Apart
	}
	for _, mode := range []graphs.ModeConfig{graphs.ModeNone, graphs.ModeFullDecodeOnly} {
		c := executor.Config{
			Model: k.Config, Type: typ, Blocks: 400, BlockSize: 16, MaxSeqs: 4, MaxTokens: 128, MaxLen: 600, InFlight: 1,
			Graphs: graphs.Config{Mode: mode, MaxNumSeqs: 4, MaxNumBatchedTokens: 128},
		}
		exec, err := executor.New(t.Context(), dev, c, k)
		require.NoError(t, err)
		same, total, worst, own := 0, 0, 0.0, 0.0
		begun := time.Now()
		for i, x := range cases {
			got, logits := answer(t, exec, c, x.Prompt, len(x.Tokens))
			d := distance(logits, x.Logits)
			worst, own = max(worst, d), max(own, x.Own)
			require.LessOrEqual(t, d, apart, "prompt %d of %d tokens: logits", i, len(x.Prompt))
			if typ == ascendrt.Float32 {
				require.Equal(t, x.Tokens, got, "prompt %d of %d tokens: greedy continuation", i, len(x.Prompt))
			}
			n := 0
			for n < len(got) && got[n] == x.Tokens[n] {
				n++
			}
			same, total = same+n, total+len(got)
		}
		t.Logf("%s %v on %s: logits at most %.2g apart (transformers in the storage type %.2g), %d of %d greedy tokens before the first difference, %v",
			filepath.Base(dir), mode, dev.Info().Name, worst, own, same, total, time.Since(begun).Round(time.Millisecond))
		require.NoError(t, exec.Close())
	}
}

// answer runs one prompt in chunks and continues it; logits are those behind the prompt.
func answer(t *testing.T, exec *executor.Executor, c executor.Config, prompt []int, n int) (tokens []int, logits []float32) {
	t.Helper()
	cache, err := kvcache.New(kvcache.Config{Blocks: c.Blocks, BlockSize: c.BlockSize})
	require.NoError(t, err)
	sched, err := scheduler.New(scheduler.Config{MaxNumSeqs: c.MaxSeqs, MaxBatchedTokens: c.MaxTokens, MaxModelLen: c.MaxLen}, cache, scheduler.WithGraphs(exec.Dispatcher()))
	require.NoError(t, err)
	p := make([]scheduler.Token, len(prompt))
	for i, v := range prompt {
		p[i] = scheduler.Token(v)
	}
	_, err = sched.Add(scheduler.Request{ID: "a", Prompt: p, MaxTokens: n})
	require.NoError(t, err)
	for sched.HasWork() {
		plan := sched.Plan(0)
		step, err := exec.Submit(t.Context(), plan)
		require.NoError(t, err)
		sampled, err := step.Wait(t.Context(), nil)
		require.NoError(t, err)
		if logits == nil && len(sampled) > 0 {
			logits, err = exec.Logits(t.Context(), 0)
			require.NoError(t, err)
		}
		outs, err := sched.Apply(plan, scheduler.Result{Tokens: sampled})
		require.NoError(t, err)
		for _, o := range outs {
			for _, tok := range o.Tokens {
				tokens = append(tokens, int(tok))
			}
		}
	}
	return tokens, logits
}

func distance(got []float32, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var d, n float64
	for i, w := range want {
		e := float64(got[i]) - w
		d += e * e
		n += w * w
	}
	return math.Sqrt(d / n)
}
