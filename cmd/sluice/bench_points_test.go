package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/points"
)

// Two short points on the host device, one a call: what the file has is passed
// over, a torn last line is measured again, and the table comes from the file.
func TestBenchMeasuresPointsAndResumes(t *testing.T) {
	dir := t.TempDir()
	results, page := filepath.Join(dir, "results.jsonl"), filepath.Join(dir, "tails.html")
	call := func(more ...string) (string, error) {
		out, _, err := benched(t, append([]string{"--preset", "tails", "--device", "host", "--model", "random:tiny", "--shapes", "40/6", "--rates", "16",
			"--arrivals", "0.5", "--repeat", "1", "--dir", dir, "--results", results, "--device-workers", "1", "--commit", "c0ffee",
			"--prefiller-kv-tokens", "4096", "--decoder-kv-tokens", "4096"}, more...)...)
		return out, err
	}
	out, err := call("--points", "1", "--time-limit", "5m")
	require.NoError(t, err, out)
	require.Contains(t, out, "0 of 2 points are measured already")
	require.Contains(t, out, "KV by tcp")
	require.Contains(t, out, "1 points measured, 0 not kept, 1 left\n  left: tails/tiny/40-6/16/one-new-token-hardened/0.5s/1\n")
	lines, err := points.Read(results)
	require.NoError(t, err)
	require.Len(t, lines, 1)

	text, err := os.ReadFile(results)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(results, append(text, text[:40]...), 0o644))
	out, err = call("--html", page)
	require.NoError(t, err, out)
	require.Contains(t, out, "1 of 2 points are measured already")
	require.Contains(t, out, "1 points measured, 0 not kept, 0 left\n")
	require.Equal(t, 1, strings.Count(out, "alone, a prompt of 40 tokens takes"), "once for a Decoder and a shape")
	lines, err = points.Read(results)
	require.NoError(t, err)
	require.Len(t, lines, 2)
	strict, ours := &lines[0], &lines[1]
	require.Equal(t, points.Strict, strict.Policy)
	require.Equal(t, points.Hardened, ours.Policy)
	for _, l := range lines {
		require.Equal(t, 8, l.Valid, l.Error)
		require.Equal(t, 48, l.Tokens)
		require.Zero(t, l.HeldAfter)
		require.Positive(t, l.KVBytes)
		require.Equal(t, 8.0*40, l.PrefillTokens)
		require.Equal(t, "c0ffee", l.Commit)
		require.Contains(t, l.Hardware, "host")
		require.True(t, l.Shared)
		require.NotNil(t, l.Alone)
		require.Equal(t, 6, l.Alone.Output)
		require.Positive(t, l.Alone.Prompt)
		require.Positive(t, l.Alone.TTFT)
		require.GreaterOrEqual(t, l.Alone.Gap, 0.0, "tokens that arrive together have none between them")
		require.GreaterOrEqual(t, l.Alone.GapP99, l.Alone.Gap)
		require.Positive(t, l.Alone.Beside, "Prefiller and Decoder share the device")
		require.Len(t, l.Alone.BesideGaps, 101)
		require.Zero(t, l.Alone.Hit)
		require.Zero(t, l.Preempted)
	}
	require.Positive(t, strict.Piecewise, "arrivals leave the graph")
	require.LessOrEqual(t, strict.Piecewise, 8)
	require.Zero(t, ours.Piecewise+ours.None)
	require.Equal(t, strict.Workload, ours.Workload)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<svg")

	out, err = call("--show")
	require.NoError(t, err)
	require.Contains(t, out, "commit c0ffee")
	require.NotContains(t, out, "ready after")
	_, err = call("--commit", "beef")
	require.ErrorContains(t, err, `line 1: measured at commit "c0ffee", this is "beef"`)
	out, err = call("--commit", "beef", "--accept-commits", "c0f")
	require.NoError(t, err)
	require.Contains(t, out, "2 of 2 points are measured already")
}

// The arms of append-prefill, small: hits and fallbacks are the follow-ups, and
// every answer is that of the ordinary arm.
func TestBenchMeasuresArms(t *testing.T) {
	dir := t.TempDir()
	results := filepath.Join(dir, "results.jsonl")
	out, _, err := benched(t, "--preset", "append-prefill-gpu", "--device", "host", "--model", "random:tiny", "--shapes", "96/5", "--sessions", "3", "--turns", "3", "--arrival", "5s", "--think", "500ms",
		"--repeat", "1", "--dir", dir, "--results", results, "--device-workers", "1", "--commit", "c0ffee", "--decoder-kv-tokens", "4096", "--engine-flags", "--model-runner 2")
	require.NoError(t, err, out)
	lines, err := points.Read(results)
	require.NoError(t, err)
	require.Len(t, lines, len(points.Arms))
	for i, l := range lines {
		require.Equal(t, points.Arms[i], l.Arm)
		require.Equal(t, 9, l.Valid, l.Error)
		require.Zero(t, l.Contradicts, l.Contradiction)
		require.Equal(t, 9, points.SameAnswers(&l, &lines[0]), l.Arm)
		require.Equal(t, lines[0].Factor, l.Factor)
		require.InDelta(t, 1085, l.PromptMs*l.Factor, 1e-6)
		require.Equal(t, l.PromptMs, l.Alone.Prompt)
		if l.Arm == points.ArmPD {
			require.Zero(t, l.Hits+l.Fallbacks)
			require.Zero(t, l.Alone.Hit)
		} else {
			require.Equal(t, 6, l.Hits+l.Fallbacks, l.Arm)
			require.Positive(t, l.Alone.Hit)
		}
	}
	require.Equal(t, 6, lines[1].Hits, "plain admits any prefix")
	require.Equal(t, 4, strings.Count(out, "a warm follow-up is a hit"), "every Decoder is probed once")
	require.Contains(t, out, "model runner 2, kv_consumer")
	require.Contains(t, out, "engines with --model-runner 2")
	require.Contains(t, out, "the times (5s of arrivals, 500ms to think) are divided by")
	require.Contains(t, out, "append-prefill/tiny/3x3/5s-500ms/96-5/guarded/1: 9/9 valid")
}

// Decoders that do not come up beside each other are started one at a time: what
// can be measured is, and the kind that never comes up ends the run.
func TestBenchStartsDecodersOneAtATime(t *testing.T) {
	dir := t.TempDir()
	out, _, err := benched(t, "--preset", "tails", "--device", "host", "--model", "random:tiny", "--shapes", "24/4", "--rates", "8", "--arrivals", "0.2",
		"--policies", "strict,lenient", "--repeat", "1", "--alone=false", "--dir", dir, "--device-workers", "1", "--commit", "c0ffee", "--decoder-kv-tokens", "2048")
	require.ErrorContains(t, err, `unknown graph policy "lenient"`)
	require.Contains(t, out, "2 Decoders did not come up beside each other")
	require.Contains(t, out, "1 points measured, 0 not kept, 1 left")
	require.NotContains(t, out, "alone, a prompt")
}

func TestBenchRefusesPointsThatItCannotMeasure(t *testing.T) {
	for want, args := range map[string]string{
		`no point matches --only "opt"`:                               "--only opt",
		`"x/y" is not of the form`:                                    "--shapes x/y --model random:tiny",
		"--shapes needs --model":                                      "--shapes 8/8",
		`"-1" is no positive number`:                                  "--shapes 8/8 --model random:tiny --rates -1",
		"--rates is 4: needs --shapes":                                "--rates 4",
		"--policies is strict: needs":                                 "--policies strict",
		`device "nvidia:0"`:                                           "--device nvidia:0 --commit x",
		"the build recorded no commit":                                "--device host",
		`"{" is not JSON`:                                             "--device host --commit x --kv-extra {",
		`unknown graph policy "lenient"`:                              "--device host --commit x --shapes 8/8 --model random:tiny --policies lenient --arrivals 0.1",
		"--decoder-kv-tokens is -1":                                   "--device host --commit x --decoder-kv-tokens -1",
		"--decoder-kv-tokens is 63, must be 0 or at least 64":         "--decoder-kv-tokens 63",
		`--kv-extra "[]" is not JSON of an object`:                    "--kv-extra []",
		`--device: device "host:1": the last one of host is number 0`: "--device host:1 --commit x",
		`--prefiller-device: device "tpu"`:                            "--device host --prefiller-device tpu --commit x",
		`--decoder-device: device "host:2"`:                           "--device host --decoder-device host:2 --commit x",
		`"slow" is no arm: there are pd,`:                             "--preset append-prefill-gpu --shapes 96/8 --model random:tiny --policies pd,slow",
		`"63/8": a prompt of 63 tokens fills no block of 64`:          "--preset append-prefill-gpu --shapes 63/8 --model random:tiny",
	} {
		dir := t.TempDir()
		_, _, err := benched(t, append([]string{"--preset", "tails", "--dir", dir}, strings.Fields(args)...)...)
		require.ErrorContains(t, err, want, args)
	}
}

// The simulator plays what was measured, with steps that were measured.
func TestSimPredictsMeasuredPoints(t *testing.T) {
	dir := t.TempDir()
	results := filepath.Join(dir, "results.jsonl")
	f, err := points.Open(results, "c0ffee", nil)
	require.NoError(t, err)
	l := points.Line{Origin: points.Origin{Commit: "c0ffee", Sizes: points.Sizes{PrefillerTokens: 160_000, PrefillerStep: 8192, DecoderTokens: 160_000, DecoderStep: 2048, Seqs: 128}}, Point: points.Point{
		Table: points.Tails, Model: points.Qwen, Repeat: 1, Input: 1024, Output: 256, Rate: 8, Policy: points.Strict, Seconds: 20,
	}}
	l.TPOT.Mean, l.Full = 1, 20000
	require.NoError(t, f.Add(l))
	require.NoError(t, f.Close())
	steps := "../../docs/measurements/engine-raw.csv"
	out, _, err := simulated(t, "--measured", results, "--cost-model", steps)
	require.NoError(t, err)
	require.Contains(t, out, "tails: simulated with the steps of "+steps)
	require.Contains(t, out, "qwen3-0.6b/1024-256/8/strict/20s")
	require.NotContains(t, out, "append-prefill:")
	for want, args := range map[string][]string{
		"--measured needs --cost-model":                          {"--measured", results},
		"--preset is tails, which --measured":                    {"--measured", results, "--cost-model", steps, "--preset", "tails"},
		"has no measured point":                                  {"--measured", filepath.Join(dir, "none"), "--cost-model", steps},
		"no such file":                                           {"--measured", results, "--cost-model", filepath.Join(dir, "none.csv")},
		"there are none":                                         {"--measured", results, "--cost-model", "../../go.mod"},
		"it goes with --trace or --gaps or --plan or --measured": {"--cost-model", steps},
	} {
		_, _, err := simulated(t, args...)
		require.ErrorContains(t, err, want)
	}
}
