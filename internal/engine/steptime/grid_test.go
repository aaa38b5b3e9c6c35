package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/scheduler"
)

func tinyGrid(file string) options {
	return options{
		device: "host", models: "tiny", batches: "1,2", between: "3", contexts: "40,20", decodes: "2,0", chunks: "1,8,24", prefixes: "0,33", repeat: 1, block: 16, file: file,
	}
}

// steps are the measured ones of an output, without their values.
func measured(text string) (out []string) {
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSpace(line), ","); len(f) == 9 && f[1] == "step" {
			out = append(out, strings.Join(append(f[2:4:4], f[6:]...), ","))
		}
	}
	return out
}

// Every combination is measured once; a file that has some is gone on with, in the
// form that the simulator reads.
func TestGridOnHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "steps.csv")
	var out bytes.Buffer
	require.NoError(t, runGrid(t.Context(), tinyGrid(file), &out))
	all := measured(out.String())
	require.Equal(t, []string{
		"1,FULL,40,0,0", "2,FULL,40,0,0", "1,FULL,20,0,0", "2,FULL,20,0,0", "3,FULL,40,0,0", "3,FULL,20,0,0",
		"2,PIECEWISE,40,1,0", "2,NONE,40,8,0", "2,NONE,40,24,0", "2,PIECEWISE,40,1,33", "2,NONE,40,8,33", "2,NONE,40,24,33",
		"0,PIECEWISE,0,1,0", "0,NONE,0,8,0", "0,NONE,0,24,0", "0,PIECEWISE,0,1,33", "0,NONE,0,8,33", "0,NONE,0,24,33",
		"1,PIECEWISE,40,0,0", "2,PIECEWISE,40,0,0", "1,PIECEWISE,20,0,0", "2,PIECEWISE,20,0,0",
		"0,FULL,0,1,39", "1,FULL,40,1,39", "0,FULL,0,1,19", "1,FULL,20,1,19",
	}, all)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, out.String(), string(raw))

	lines := strings.SplitAfter(string(raw), "\n")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines[:9], "")), 0o600))
	out.Reset()
	require.NoError(t, runGrid(t.Context(), tinyGrid(file), &out))
	require.Equal(t, all[7:], measured(out.String()), "what was left")
	raw, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, all, measured(string(raw)))
	require.Regexp(t, `(?m)^tiny,step,2,PIECEWISE,\d+\.\d{4},ms,40,1,33$`, string(raw), "as the simulator reads it")

	o := tinyGrid("")
	o.full = true
	out.Reset()
	require.NoError(t, runGrid(t.Context(), o, &out))
	full := measured(out.String())
	require.Contains(t, full, "2,FULL,40,1,33")
	require.NotContains(t, strings.Join(full, " "), "PIECEWISE")

	o = tinyGrid(filepath.Join(t.TempDir(), "none.csv"))
	o.limit, o.between = time.Nanosecond, ""
	out.Reset()
	require.NoError(t, runGrid(t.Context(), o, &out))
	require.Empty(t, measured(out.String()), "no step begins behind the limit")
}

// A step is what its line says: the rows' tokens and cache, blocks that no other row
// has, and the graph that a server would take.
func TestPlansOfTheGrid(t *testing.T) {
	d, err := graphs.New(graphs.Config{Mode: graphs.ModeFullAndPiecewise, MaxNumSeqs: 8, MaxNumBatchedTokens: 64})
	require.NoError(t, err)
	d.SetCaptureState(graphs.AllCaptured)
	for _, x := range []struct {
		p       point
		mode    graphs.Mode
		decodes int
		prefill int
	}{
		{point{decodes: 3, context: 40}, graphs.Full, 3, 0},
		{point{decodes: 3, context: 40, plain: true}, graphs.Piecewise, 3, 0},
		{point{decodes: 3, context: 40, chunk: 1, prefix: 39}, graphs.Full, 4, 0},
		{point{decodes: 3, context: 40, chunk: 8, prefix: 100, plain: true}, graphs.Piecewise, 3, 8},
		{point{chunk: 600, plain: true}, graphs.None, 0, 600},
	} {
		p := x.p.plan(d, 16)
		w := scheduler.WorkOf(p)
		require.Equal(t, x.mode, p.Graph.Mode, "%+v", x.p)
		require.Equal(t, x.decodes, w.Decodes)
		require.Equal(t, x.prefill, w.Prefill)
		if x.prefill > 0 {
			require.Equal(t, float64(x.p.prefix)+float64(x.p.chunk+1)/2, w.Context/float64(w.Prefill))
		}
		for i := range p.Requests {
			if p.IsDecode(i) {
				require.EqualValues(t, 40, p.Computed[i]+p.Scheduled[i], "it attends to 40 tokens, its own included")
			}
		}
		require.Len(t, p.Blocks, x.p.blocks(16))
		seen := map[any]bool{}
		for _, b := range p.Blocks {
			require.False(t, seen[b])
			seen[b] = true
		}
	}
}

func TestGridSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "steps.csv")
	require.NoError(t, os.WriteFile(file, []byte("# X\ntiny,step,1,FULL,0.5,ms,40\n"), 0o600))
	for want, change := range map[string]func(*options){
		`--batch: "x" is no number of at least 1`:                             func(o *options) { o.batches = "x" },
		`--between: "0" is no number of at least 1`:                           func(o *options) { o.between = "0" },
		`--contexts: "1" is no number of at least 2`:                          func(o *options) { o.contexts = "64,1" },
		`--chunks: "0" is no number of at least 1`:                            func(o *options) { o.chunks = "0" },
		`--prefixes: "-1" is no number of at least 0`:                         func(o *options) { o.prefixes = "-1" },
		"--decodes is empty":                                                  func(o *options) { o.decodes = "" },
		"--repeat is 0":                                                       func(o *options) { o.repeat = 0 },
		`unknown device "tpu"`:                                                func(o *options) { o.device = "tpu" },
		`steps.csv: line 2: "tiny,step,1,FULL,0.5,ms,40" is no measured step`: func(o *options) { o.file = file },
	} {
		o := tinyGrid("")
		change(&o)
		require.ErrorContains(t, runGrid(t.Context(), o, &bytes.Buffer{}), want)
	}
}
