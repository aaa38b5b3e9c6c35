package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/scheduler"
)

// stepTime is a device whose steps have no line as their law, ms.
func stepTime(decodes, context, chunk, prefix float64) float64 {
	return 1 + 0.01*decodes + 1e-6*decodes*context + 2e-3*chunk + 1e-7*chunk*chunk + 1e-6*chunk*prefix + 2e-5*prefix*min(chunk, 1)
}

var (
	gridBatches  = []int{1, 2, 4, 8, 16, 32}
	gridContexts = []int{256, 1152, 4608}
	gridDecodes  = []int{0, 8, 32}
	gridChunks   = []int{1, 64, 256, 1024}
	gridPrefixes = []int{0, 1024, 4096}
)

// gridLines is steptime's grid of that device.
func gridLines() string {
	var out strings.Builder
	fmt.Fprintln(&out, "# X, 2026-01-01, block size 64, median of 3\nmodel,what,decodes,graphs,value,unit,context,chunk,prefix")
	add := func(mode string, decodes, context, chunk, prefix int) {
		fmt.Fprintf(&out, "m,step,%d,%s,%.6f,ms,%d,%d,%d\n", decodes, mode, stepTime(float64(decodes), float64(context), float64(chunk), float64(prefix)), context, chunk, prefix)
	}
	for _, c := range gridContexts {
		for _, n := range gridBatches {
			if n*c <= 32*1152 { // memory ends
				add("FULL", n, c, 0, 0)
			}
			add("FULL", n-1, c*min(n-1, 1), 1, c-1) // a tail, which is a decode to the graph
		}
	}
	for _, d := range gridDecodes {
		for _, p := range gridPrefixes {
			for _, n := range gridChunks {
				mode := "PIECEWISE"
				if n+d > 512 {
					mode = "NONE"
				}
				add(mode, d, 1152*min(d, 1), n, p)
			}
		}
	}
	return out.String()
}

func workOf(decodes, context, chunk, prefix int, mode graphs.Mode) Work {
	n := float64(chunk)
	return Work{StepWork: scheduler.StepWork{Decodes: decodes, Prefill: chunk, Context: n * (float64(prefix) + (n+1)/2)}, Decoded: int64(decodes * context), Mode: mode}
}

func TestGridIsExactAtItsPoints(t *testing.T) {
	s, err := ReadSteps(strings.NewReader(gridLines()), "m")
	require.NoError(t, err)
	require.Equal(t, []float64{256, 1152, 4608}, s.Contexts)
	check := func(decodes, context, chunk, prefix int, mode graphs.Mode) {
		t.Helper()
		want := stepTime(float64(decodes), float64(context), float64(chunk), float64(prefix)) / 1e3
		require.InDelta(t, want, s.Step(workOf(decodes, context, chunk, prefix, mode), 0), 1e-8, "%d decodes over %d, %d behind %d", decodes, context, chunk, prefix)
	}
	for _, c := range gridContexts {
		for _, n := range gridBatches {
			check(n, c, 0, 0, graphs.Full)
		}
	}
	for _, d := range gridDecodes {
		for _, p := range gridPrefixes {
			for _, n := range gridChunks {
				check(d, 1152*min(d, 1), n, p, graphs.Piecewise)
			}
		}
	}
	check(8, 4608, 64, 1024, graphs.Piecewise) // decodes of another context than the grid's
	require.InDelta(t, stepTime(0, 0, 256, 0)/1e3, s.Prompt(256), 1e-8)
}

// Beside decodes a prompt's last token is a decode to a FULL graph, and a prompt row
// outside of one.
func TestTailsBesideDecodes(t *testing.T) {
	s, err := ReadSteps(strings.NewReader(gridLines()), "m")
	require.NoError(t, err)
	for _, decodes := range []int{0, 8, 32} {
		w := Work{StepWork: scheduler.StepWork{Decodes: decodes + 1}, Decoded: int64(decodes*1152 + 1025), Tails: 1, Tailed: 1025}
		d := float64(decodes)
		for _, mode := range []graphs.Mode{graphs.Piecewise, graphs.None} {
			w.Mode = mode
			require.InDelta(t, stepTime(d, 1152, 1, 1024)/1e3, s.Step(w, 0), 1e-8)
		}
		w.Mode = graphs.Full
		require.InDelta(t, stepTime(d+1, (d*1152+1025)/(d+1), 0, 0)/1e3, s.Step(w, 0), 1e-8)
	}

	w := WorkOf(&scheduler.Plan{
		Scheduled: []int32{1, 1, 1, 5}, Computed: []int32{40, 29, 30, 10}, Prefill: []int32{40, 30, 30, 15}, Drafts: make([]int32, 4),
	})
	require.Equal(t, []int{3, 1, 5}, []int{w.Decodes, w.Tails, w.Prefill})
	require.EqualValues(t, 30, w.Tailed)
	require.EqualValues(t, 41+30+31, w.Decoded)
}

// A graph that its rows fill in part may take as long as a full one: where that was
// measured it counts, and where it was not a padded row has no cache.
func TestGraphsFilledInPart(t *testing.T) {
	lines := gridLines()
	for _, c := range gridContexts {
		lines += fmt.Sprintf("m,step,9,FULL,%.6f,ms,%d,0,0\n", stepTime(15, float64(c), 0, 0), c)
	}
	s, err := ReadSteps(strings.NewReader(lines), "m")
	require.NoError(t, err)
	took := func(rows, padded int, mode graphs.Mode) float64 {
		w := workOf(rows, 1152, 0, 0, mode)
		w.Padded = padded
		return 1e3 * s.Step(w, 0)
	}
	at := func(rows float64) float64 { return stepTime(rows, 1152, 0, 0) }
	require.InDelta(t, at(15), took(9, 16, graphs.Full), 1e-6)
	require.InDelta(t, at(15)+2.0/7*(at(16)-at(15)), took(11, 16, graphs.Full), 1e-6)
	require.InDelta(t, at(16), took(16, 16, graphs.Full), 1e-6)
	require.InDelta(t, at(8), took(8, 8, graphs.Full), 1e-6)
	require.InDelta(t, stepTime(8, 5.0/8*1152, 0, 0), took(5, 8, graphs.Full), 1e-6, "4 fill another graph")
	require.InDelta(t, stepTime(24, 17.0/24*1152, 0, 0), took(17, 24, graphs.Full), 1e-6, "and so do 16")

	short := strings.Replace(lines, "m,step,9,FULL", "other,step,9,FULL", 1)
	s, err = ReadSteps(strings.NewReader(short), "m")
	require.NoError(t, err)
	require.InDelta(t, stepTime(16, 9.0/16*1152, 0, 0), took(9, 16, graphs.Full), 1e-6, "not measured over each context")
}

// A graph of more tokens than rows takes their time, but reads the rows' cache alone;
// a prompt that is larger than the grid's comes from the whole ones, with what its
// prefix costs the largest of the grid.
func TestPaddedAndLargeSteps(t *testing.T) {
	const whole = "m,prefill,4096,NONE,400,ktok/s\nm,prefill,8192,NONE,400,ktok/s\n"
	s, err := ReadSteps(strings.NewReader(gridLines()+whole), "m")
	require.NoError(t, err)
	near := func(want, got float64) { t.Helper(); require.InDelta(t, want/1e3, got, 1e-8) }
	near(stepTime(16, 648, 0, 0), s.Padded(graphs.Full, 16, 9, 1152))
	near(stepTime(16, 1152, 0, 0), s.Padded(graphs.Full, 8, 16, 1152))
	w := workOf(9, 1152, 0, 0, graphs.Full)
	w.Padded = 16
	near(stepTime(16, 648, 0, 0), s.Step(w, 0))
	w = workOf(8, 1152, 60, 1024, graphs.Piecewise)
	w.Padded = 72
	near(stepTime(8, 1152, 64, 1024), s.Step(w, 0))

	near(stepTime(0, 0, 1024, 0), s.Prompt(1024))
	between := (stepTime(0, 0, 1024, 0) + 4096/400.0) / 2
	near(between, s.Prompt(2560))
	near(between, s.Step(workOf(0, 0, 2560, 0, graphs.None), 0))
	near(between+stepTime(0, 0, 1024, 1024)-stepTime(0, 0, 1024, 0), s.Step(workOf(0, 0, 2560, 1024, graphs.None), 0))
	require.Empty(t, s.Beyond())
}

// More of anything never takes less time, within the grid and beyond it.
func TestGridIsMonotone(t *testing.T) {
	s, err := ReadSteps(strings.NewReader(gridLines()), "m")
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(3, 1))
	for range 3000 {
		d, c, n, p := rng.IntN(50), 1+rng.IntN(6000), 1+rng.IntN(1500), rng.IntN(6000)
		if rng.IntN(3) == 0 {
			d, n, p = d+1, 0, 0
		}
		took := func(d, c, n, p int) float64 { return s.Step(workOf(d, c, n, p, graphs.Piecewise), 0) }
		base := took(d, c, n, p)
		require.Positive(t, base)
		const slack = 1e-12
		require.GreaterOrEqual(t, took(d+1+rng.IntN(10), c, n, p), base-slack, "decodes, from %d %d %d %d", d, c, n, p)
		if n > 0 {
			require.GreaterOrEqual(t, took(d, c, n+1+rng.IntN(100), p), base-slack, "new tokens, from %d %d %d %d", d, c, n, p)
			require.GreaterOrEqual(t, took(d, c, n, p+1+rng.IntN(500)), base-slack, "prefix, from %d %d %d %d", d, c, n, p)
		}
		if d > 0 {
			require.GreaterOrEqual(t, took(d, c+1+rng.IntN(500), n, p), base-slack, "context, from %d %d %d %d", d, c, n, p)
		}
	}
}

// What was asked beyond the measured steps is told, and nothing else.
func TestBeyondTheGrid(t *testing.T) {
	s, err := ReadSteps(strings.NewReader(gridLines()), "m")
	require.NoError(t, err)
	s.Step(workOf(32, 4608, 0, 0, graphs.Full), 0)
	s.Step(workOf(32, 1152, 1024, 4096, graphs.None), 0)
	require.Empty(t, s.Beyond())
	s.Step(workOf(40, 5000, 0, 0, graphs.Full), 0)
	s.Step(workOf(8, 1152, 2000, 5000, graphs.None), 0)
	s.Step(workOf(8, 1152, 0, 0, graphs.Piecewise), 0)
	require.Equal(t, []string{
		"m: 1 times cached tokens before new ones beyond the measured 4096, at most 5000",
		"m: 1 times context of a decode step beyond the measured 4608, at most 5000",
		"m: 1 times decode steps of PIECEWISE, of which none were measured",
		"m: 1 times new tokens of a step beyond the measured 1024, at most 2000",
		"m: 1 times sequences of a decode step beyond the measured 32, at most 40",
	}, s.Beyond())
}

// A grid that was cut short serves with the decodes that it has whole.
func TestGridThatWasCutShort(t *testing.T) {
	text := gridLines()
	s, err := ReadSteps(strings.NewReader(text[:strings.Index(text, "m,step,32,NONE")]), "m")
	require.NoError(t, err)
	require.InDelta(t, stepTime(8, 1152, 64, 1024)/1e3, s.Step(workOf(8, 1152, 64, 1024, graphs.Piecewise), 0), 1e-8)
	s.Step(workOf(32, 1152, 64, 1024, graphs.Piecewise), 0)
	require.Contains(t, strings.Join(s.Beyond(), "\n"), "decodes beside a prompt row beyond the measured 8, at most 32")
}

func TestGridSaysWhatIsWrong(t *testing.T) {
	text := gridLines()
	line := "m,step,8,PIECEWISE,1.091216,ms,1152,1,0\n"
	require.Contains(t, text, line)
	for bad, want := range map[string]string{
		"m,step,8,PIECEWISE,1.1,ms,1152,1\n":      "has 8 fields, not 9",
		"m,step,8,PIECEWISE,1.1,ms,1152,1,0,5\n":  "has 10 fields, not 9",
		"m,step,-8,PIECEWISE,1.1,ms,1152,1,0\n":   "is no size and no value",
		"m,step,8,PIECEWISE,0,ms,1152,1,0\n":      "is no size and no value",
		"m,step,8,PIECEWISE,NaN,ms,1152,1,0\n":    "is no size and no value",
		"m,step,8,SOME,1.1,ms,1152,1,0\n":         "is no decode step in ms",
		"m,step,8,PIECEWISE,1.1,us,1152,1,0\n":    "is no decode step in ms",
		"m,step,8,PIECEWISE,1.1,ms,1152,1,x\n":    `the prefix "x"`,
		"m,step,8,PIECEWISE,1.1,ms,1152,-1,0\n":   `the chunk "-1"`,
		"m,step,8,PIECEWISE,1.1,ms,0,1,0\n":       "decodes without context",
		"m,step,8,PIECEWISE,1.1,ms,1152,0,1024\n": "a prefix without new tokens",
		"m,step,0,PIECEWISE,1.1,ms,0,0,0\n":       "a step without rows",
		"m,step,8,PIECEWISE,1.1,ms,1000,1,0\n":    "attend to 1000 and to 1152 tokens",
	} {
		_, err := ReadSteps(strings.NewReader(strings.Replace(text, line, bad, 1)), "m")
		require.ErrorContains(t, err, want, bad)
		if !strings.Contains(want, "attend") {
			require.ErrorContains(t, err, strings.TrimSpace(bad))
		}
	}
	only := func(keep func(f []string) bool) string {
		var out strings.Builder
		for line := range strings.Lines(text) {
			if f := strings.Split(strings.TrimSpace(line), ","); len(f) != 9 || keep(f) {
				out.WriteString(line)
			}
		}
		return out.String()
	}
	_, err := ReadSteps(strings.NewReader(only(func(f []string) bool { return f[3] != "FULL" })), "m")
	require.ErrorContains(t, err, "there are no decode steps of FULL")
	_, err = ReadSteps(strings.NewReader(only(func(f []string) bool { return f[3] == "FULL" || f[7] == "64" })), "m")
	require.ErrorContains(t, err, "of 64 new tokens alone")
	_, err = ReadSteps(strings.NewReader(only(func(f []string) bool { return f[3] == "FULL" || f[7] != "64" || f[8] != "1024" })), "m")
	require.ErrorContains(t, err, "no step of 64 new tokens behind 1024 beside 0 decodes")
}
