package sim

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/scheduler"
)

// made is steptime's output for a model whose steps take 1 ms, 10 µs a row and
// 1 ns for each token of context; PIECEWISE half a millisecond more, eager one.
const made = `# X, 2026-01-01, block size 64, context 1000, 200 steps, median of 3
model,what,size,graphs,value,unit
m,start,4,FULL,0.59,s
m,decode,1,FULL,1.011,ms
m,host,1,FULL,19.8,us
m,decode,101,FULL,2.111,ms
m,decode,1,PIECEWISE,1.511,ms
m,decode,101,PIECEWISE,2.611,ms
m,decode,101,NONE,3.111,ms
m,decode,1,NONE,2.011,ms
m,prefill,2000,NONE,200,ktok/s
m,prefill,1000,NONE,200,ktok/s
other,decode,1,FULL,9,ms
# another tool
m,torch-graph,1,graph,3.5,ms
`

func TestMeasuredSteps(t *testing.T) {
	s, err := ReadSteps(strings.NewReader(made), "m")
	require.NoError(t, err)
	require.Equal(t, []float64{1000}, s.Contexts)
	near := func(want, got float64) { t.Helper(); require.InDelta(t, want, got, 1e-9) }
	near(1.011e-3, s.Decode(graphs.Full, 1, 1000))
	near(1.561e-3, s.Decode(graphs.Full, 51, 1000))
	near(2.661e-3, s.Decode(graphs.Full, 151, 1000))
	// What a row costs between the two largest steps is 11 µs, taken for its
	// thousand tokens of context: twice as many cost twice that.
	near(1.561e-3+51*11e-6, s.Decode(graphs.Full, 51, 2000))
	near(1.561e-3, s.Step(Work{StepWork: scheduler.StepWork{Decodes: 51}, Decoded: 51000, Mode: graphs.Full}, 0))
	require.Zero(t, s.Step(Work{}, 0))
	near(5e-3, s.Prompt(1000))
	near(15e-3, s.Prompt(3000))
	near(2.011e-3, s.Prompt(1))
	near(15e-3, s.Step(Work{StepWork: scheduler.StepWork{Prefill: 3000}}, 0))
	// Ten decodes over 1,000 tokens and one prompt row of 20 over 3,000.
	near(1.511e-3+29*11e-6-30*11e-6+13*11e-6, s.Step(Work{StepWork: scheduler.StepWork{Decodes: 10, Prefill: 20, Context: 60000}, Decoded: 10000, Mode: graphs.Piecewise}, 0))
	near(2.611e-3-101*11e-6+13*11e-6+109*5e-6, s.Step(Work{StepWork: scheduler.StepWork{Decodes: 10, Prefill: 200, Context: 600000}, Decoded: 10000, Mode: graphs.Piecewise}, 0))

	for old, bad := range map[string][2]string{
		"m,decode,1,FULL,1.011,ms":       {"m,decode,0,FULL,1.011,ms", "line 4"},
		"m,decode,1,PIECEWISE,1.511,ms":  {"m,decode,1,PIECEWISE,1.511,s", "line 7"},
		"m,decode,1,NONE,2.011,ms":       {"m,decode,1,NONE,x,ms", "line 10"},
		"m,prefill,1000,NONE,200,ktok/s": {"m,prefill,1000,NONE,200,tok/s", `"tok/s", not ktok/s`},
		"context 1000":                   {"a line", "no comment says the context"},
		"m,decode,101,PIECEWISE":         {"m,x,101,PIECEWISE", "1 decode steps of PIECEWISE"},
		"m,prefill,2000":                 {"m,x,2000", "1 prompts"},
		"m,decode,1,NONE,2":              {"# X, context 9\nm,decode,1,NONE,2", "0 decode steps of FULL over 9 tokens"},
	} {
		require.Contains(t, made, old)
		_, err := ReadSteps(strings.NewReader(strings.Replace(made, old, bad[0], 1)), "m")
		require.ErrorContains(t, err, bad[1])
	}
	_, err = ReadSteps(strings.NewReader(made), "none")
	require.ErrorContains(t, err, "there are none")
}

// Prompts that are computed together attend to themselves alone: they take what each
// takes by itself, or less where that is mostly what any step takes.
func TestSeveralPromptsInAStep(t *testing.T) {
	s, err := ReadSteps(strings.NewReader(strings.Replace(made, "2000,NONE,200", "2000,NONE,100", 1)), "m")
	require.NoError(t, err)
	of := func(prompts, tokens int) float64 {
		n := float64(tokens)
		return s.Step(Work{StepWork: scheduler.StepWork{Prefill: prompts * tokens, Context: float64(prompts) * n * (n + 1) / 2}}, 0)
	}
	require.InDelta(t, 20e-3, of(1, 2000), 1e-9)
	require.InDelta(t, 10e-3, of(2, 1000), 1e-9)
	require.InDelta(t, 15e-3, of(3, 1000), 1e-9)
	require.InDelta(t, s.Prompt(100), of(100, 1), 1e-9)
}

// Steps over two contexts say themselves what context costs.
func TestMeasuredStepsOverContexts(t *testing.T) {
	longer := strings.NewReplacer("context 1000", "context 3000", "101,FULL,2.111", "101,FULL,2.515", "101,PIECEWISE,2.611", "101,PIECEWISE,3.015", "1,FULL,1.011", "1,FULL,1.015",
		"m,prefill", "m,x").Replace(made)
	s, err := ReadSteps(strings.NewReader(longer+made), "m")
	require.NoError(t, err)
	require.Equal(t, []float64{1000, 3000}, s.Contexts)
	near := func(want, got float64) { t.Helper(); require.InDelta(t, want, got, 1e-9) }
	near(2.111e-3, s.Decode(graphs.Full, 101, 1000))
	near(2.313e-3, s.Decode(graphs.Full, 101, 2000))
	near(2.717e-3, s.Decode(graphs.Full, 101, 4000))
	// 404 µs more for 101 sequences with 2,000 tokens more: 2 ns a token.
	near(1.511e-3+29*11e-6-30*2e-6+13*2e-6, s.Step(Work{StepWork: scheduler.StepWork{Decodes: 10, Prefill: 20, Context: 60000}, Decoded: 10000, Mode: graphs.Piecewise}, 0))
}
