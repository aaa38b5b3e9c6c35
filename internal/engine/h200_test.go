package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakes are programs in the place of those that need a GPU.
var fakes = map[string]string{
	"steptime": `echo "$*" >> "$CALLS"
case "$*" in
*--grid*) while [ $# -gt 0 ]; do [ "$1" = --append ] && f=$2; shift; done; echo "qwen3-0.6b,step,1,FULL,0.5,ms,1,0,0" >> "$f"; echo "steptime: the time limit is over, 3 of 9 steps are left" ;;
*"--prefill 4096"*) [ -z "$BAD" ] || exec sleep 600; echo "# X, context 1024"; echo "llama3-8b,prefill,4096,NONE,40,ktok/s" ;;
*"--prefill 1"*) echo "# X, context 1024"; echo "llama3-8b,prefill,1,NONE,41,ktok/s" ;;
*) echo "# X, context 1024"; echo "llama3-8b,decode,1,FULL,4.4,ms"; echo "noise" ;;
esac`,
	"sluice": `echo "$*" >> "$CALLS"
while [ $# -gt 0 ]; do [ "$1" = --results ] && f=$2; [ "$1" = --show ] && show=1; shift; done
[ -n "$show" ] && { echo "the table of $f"; exit; }
echo "{\"share\":\"$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\"}" >> "$f"; echo "1 points measured, 0 not kept, 2 left"`,
	"nvidia-cuda-mps-control": `[ "$1" = -d ] && echo begun >> "$CALLS-mps" || cat >> "$CALLS-mps"`,
	"cuda.test":               `echo "--- PASS: TestA (0.00s)"; echo "    --- SKIP: TestA/b (0.00s)"`,
	"executor.test":           `echo "no tests to run"`,
	"server.test":             `echo "--- FAIL: TestC (0.00s)"; exit 1`,
	"parity.test":             `[ -e "$SLUICE_PARITY/made" ] && echo "--- PASS: TestAgainstTransformers (0.00s)" || echo "--- FAIL: TestAgainstTransformers (0.00s)"`,
	"python3": `case "$*" in
*make.py*) echo "$*" >> "$CALLS-made"; while [ $# -gt 0 ]; do [ "$1" = --out ] && o=$2; [ "$1" = --only ] && m=$2; shift; done; [ "$m" = "$BAD" ] && { echo "no memory"; exit 3; }; mkdir -p "$o"; touch "$o/made" ;;
*) echo /nowhere ;;
esac`,
}

// The script of the GPU proof runs the parts it is asked for, tells a failure, a time
// out and a part in which nothing ran from each other, and goes on where it was cut short.
func TestScriptOfTheGPUProof(t *testing.T) {
	for _, tool := range []string{"bash", "timeout", "ldconfig", "awk", "realpath"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	for name, body := range fakes {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/bash\n"+body+"\n"), 0o755))
	}
	calls := filepath.Join(dir, "calls")
	run := func(out string, env []string, parts ...string) (table string, code int) {
		cmd := exec.Command("bash", append([]string{"h200.sh", bin, filepath.Join(dir, out)}, parts...)...)
		cmd.Env = append(os.Environ(), append(env, "PATH="+bin+":"+os.Getenv("PATH"), "CALLS="+calls, "SLUICE_DEVICE=cuda")...)
		raw, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil {
			require.ErrorAs(t, err, &exit, "%s", raw)
			code = exit.ExitCode()
		}
		return string(raw), code
	}
	read := func(parts ...string) string {
		raw, err := os.ReadFile(filepath.Join(append([]string{dir}, parts...)...))
		require.NoError(t, err)
		return string(raw)
	}

	table, code := run("none", nil, "cuda", "nothing")
	require.Equal(t, 2, code)
	require.Contains(t, table, "no part nothing")
	_, err := os.Stat(calls)
	require.Error(t, err, "it ran nothing")

	table, code = run("tests", nil, "cuda", "executor", "server")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^cuda +ok .* 1 passed, 0 failed, 1 skipped$`, table)
	require.Regexp(t, `(?m)^executor +FAILED: nothing ran`, table)
	require.Regexp(t, `(?m)^server +FAILED 1 .* 0 passed, 1 failed`, table)
	require.Contains(t, read("tests", "log.txt"), "==== server: ")

	table, code = run("first", []string{"BAD=llama-1b", "steps8b_4096_SECONDS=1", "grid_SECONDS=7"}, "big", "steps8b", "grid")
	require.Equal(t, 1, code)
	require.Contains(t, table, "grid: at most 37 s")
	require.Contains(t, read("calls"), "--time-limit 7s")
	require.Regexp(t, `(?m)^big-qwen3-0.6b +ok `, table)
	require.Regexp(t, `(?m)^big-llama-1b +FAILED 3 .*make.py: no memory$`, table)
	require.Regexp(t, `(?m)^steps8b-4096 +time out`, table)
	require.Regexp(t, `(?m)^grid +ok .* 1 steps in grid.csv, 3 of 9 steps are left$`, table)
	require.NotContains(t, read("first", "steps.csv"), "noise")
	require.NoError(t, os.Remove(calls))

	table, code = run("types", []string{"TYPES=bf16", "FROM=" + filepath.Join(dir, "first")}, "big")
	require.Equal(t, 0, code, "%s", table)
	require.Regexp(t, `(?m)^big-qwen3-0.6b-bf16 +ok .*1 passed`, table, "it was not made alone before")
	require.Equal(t, 2, strings.Count(read("calls-made"), " --types bf16"), "%s", read("calls-made"))

	table, code = run("second", []string{"FROM=" + filepath.Join(dir, "first")}, "big", "steps8b", "grid")
	require.Equal(t, 0, code, "%s", table)
	require.Regexp(t, `(?m)^big-qwen3-0.6b +ok before`, table)
	require.Regexp(t, `(?m)^big-llama-1b +ok .*1 passed`, table)
	require.Equal(t, 2, strings.Count(read("calls"), "\n"), "the prompt that was cut short and the grid: %s", read("calls"))
	require.Equal(t, strings.Count(read("second", "steps.csv"), "llama3-8b,"), 4, "what was measured before stands in it too")
	require.Equal(t, 2, strings.Count(read("second", "grid.csv"), ",step,"))

	table, code = run("arms", []string{"SHARE=50", "ARMS=--only 3072-9/ --repeat 1", "COMMIT=c0ffee", "arms_SECONDS=9"}, "arms")
	require.Equal(t, 0, code, "%s", table)
	require.Regexp(t, `(?m)^arms +ok .* 1 points in arms.jsonl, 2 left$`, table)
	require.Contains(t, table, "the table of "+filepath.Join(dir, "arms", "arms.jsonl"))
	require.Regexp(t, `bench --preset append-prefill-gpu --device cuda .* --time-limit 9s --commit c0ffee --only 3072-9/ --repeat 1\n`, read("calls"))
	require.Equal(t, "begun\nquit\n", read("calls-mps"), "the daemon runs as long as the parts do")
	table, code = run("more", []string{"FROM=" + filepath.Join(dir, "arms")}, "arms")
	require.Equal(t, 0, code, "%s", table)
	require.Equal(t, "{\"share\":\"50\"}\n{\"share\":\"\"}\n", read("more", "arms.jsonl"))
}
