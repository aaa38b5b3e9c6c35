package main

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// refused is the error of a command line that must not start.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	root := newRootCmd()
	root.SetIn(strings.NewReader("[]"))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	require.Error(t, err, "%v", args)
	return err.Error()
}

// Every number flag has limits, and what lies beyond them is an error that names
// flag and value, before anything starts.
func TestNumbersBeyondLimits(t *testing.T) {
	needed := map[string][]string{"bench": {"--url", "http://127.0.0.1:1"}, "eval": {"--file", "x"}, "cache": {"--trace", "x"}}
	for _, cmd := range newRootCmd().Commands() {
		if cmd.DisableFlagParsing {
			continue // the proxy's are in its own test
		}
		rows := limits[cmd.Name()]
		names := numbers(cmd)
		require.Len(t, names, len(rows), "%s: flags and rows", cmd.Name())
		for _, name := range names {
			s, ok := rows[name]
			require.True(t, ok, "%s --%s has no limits", cmd.Name(), name)
			f := cmd.Flags().Lookup(name)
			require.NoError(t, within(cmd), "defaults of %s", cmd.Name())
			for _, v := range beyond(f, s) {
				given := append([]string{cmd.Name(), "--" + name + "=" + v}, needed[cmd.Name()]...)
				require.Contains(t, refused(t, given...), "--"+name+" is "+shown(t, f, v)+", must be ", "%s --%s=%s", cmd.Name(), name, v)
			}
		}
	}
}

// beyond are values on both sides of a span.
func beyond(f *pflag.Flag, s span) []string {
	low := s.least - 1
	if s.above {
		low = s.least
	}
	out := []string{strconv.FormatFloat(low, 'f', -1, 64)}
	if !math.IsInf(s.most, 1) {
		out = append(out, strconv.FormatFloat(s.most+1, 'f', -1, 64))
	}
	switch f.Value.Type() {
	case "float64":
		out = append(out, "nan", "-inf")
	case "duration":
		for i := range out {
			out[i] += "s"
		}
	}
	return out
}

// shown is a value as its flag writes it.
func shown(t *testing.T, f *pflag.Flag, v string) string {
	switch f.Value.Type() {
	case "duration":
		d, err := time.ParseDuration(v)
		require.NoError(t, err)
		return d.String()
	case "float64":
		x, err := strconv.ParseFloat(v, 64)
		require.NoError(t, err)
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	return v
}

// Text that is none of what a flag takes is named with its flag or member.
func TestTextBeyondChoice(t *testing.T) {
	dir := t.TempDir()
	questions := filepath.Join(dir, "q.jsonl")
	require.NoError(t, os.WriteFile(questions, []byte(`{"question":"a","answer":"#### 1"}`+"\n"), 0o600))
	for line, want := range map[string]string{
		"serve --port 0 --num-kv-blocks 1":                                 "num-kv-blocks is 1, must be at least 256",
		"serve --port 0 --dump-dir " + dir + "/none":                       "dump-dir is " + dir + "/none, must be a folder that exists",
		"serve --port 0 --watermark 1":                                     "watermark is 1, must be",
		`serve --port 0 --kv-events-config {"enable_kv_cache_evnts":true}`: `kv-events-config: there is no member "enable_kv_cache_evnts"; did you mean "enable_kv_cache_events"?`,
		`serve --port 0 --kv-events-config {"publisher":"kafka"}`:          `kv-events-config.publisher is "kafka", must be zmq or null`,
		`serve --port 0 --kv-events-config {"endpoint":"ipc:///x"}`:        `kv-events-config.endpoint is "ipc:///x", must be tcp://host:port`,
		"eval --file " + questions + " --shots 0 --url nosuch":             `--url "nosuch"`,
		"eval --file " + questions + " --shots 0 --url ftp://h":            `--url "ftp://h"`,
		"bench --url http://127.0.0.1:1 --watch nosuch":                    `--watch "nosuch"`,
		"bench --url http://127.0.0.1:1 --trace none --ids nosuch":         `--ids: ids "nosuch"`,
		"sim --hop 1 --ranks 3 --max-instances 2":                          "--hop is 1, which --preset append-prefill does not read: it goes with --measured\n--max-instances is 2, which --preset append-prefill does not read: it goes with --plan\n--ranks is 3, which --preset append-prefill does not read: it goes with --trace or --gaps or --plan",
	} {
		require.Contains(t, refused(t, strings.Fields(line)...), want, line)
	}
}

// What docs/scope.md says is not here is refused, not left out in silence. What
// requests ask for in vain stands in the engine's own tests.
func TestWhatIsNotBuiltIsRefused(t *testing.T) {
	for line, want := range map[string]string{
		"--tensor-parallel-size 2":              "unknown flag: --tensor-parallel-size",
		"--pipeline-parallel-size 2":            "unknown flag: --pipeline-parallel-size",
		"--quantization fp8":                    "unknown flag: --quantization",
		"--kv-cache-dtype fp8":                  "unknown flag: --kv-cache-dtype",
		"--enable-lora":                         "unknown flag: --enable-lora",
		"--dtype fp8":                           `unknown dtype "fp8"`,
		"--enable-expert-parallel":              "model builtin has no experts",
		"--model random:tiny-moe --device cuda": "has experts, whose operations only the host has",
		`--speculative-config {"method":"eagle","num_speculative_tokens":2}`:          `method is "eagle", must be ngram`,
		`--additional-config {"scheduler_config":{"enable_balance_scheduling":true}}`: "this engine has no such scheduler",
		`--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}`:   `unknown kv_connector "NixlConnector"`,
	} {
		require.Contains(t, refused(t, append([]string{"serve", "--port", "0"}, strings.Fields(line)...)...), want, line)
	}
}
