package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/sim"
)

// agents is a small trace: a session with a sub-agent, one whose history
// shrinks and is rewritten, and a plain one.
const agents = "testdata/agents.jsonl"

// simulated runs the command.
func simulated(t *testing.T, args ...string) (out, errs string, err error) {
	t.Helper()
	cmd := newSimCmd()
	var o, e bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err = cmd.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

func TestSimPlaysATrace(t *testing.T) {
	args := []string{"--trace", agents, "--profile", "pd,guarded", "--gap", "1"}
	out, _, err := simulated(t, args...)
	require.NoError(t, err)
	require.Contains(t, out, "agents.jsonl: 4 conversations, 10 requests")
	again, _, err := simulated(t, args...)
	require.NoError(t, err)
	require.Equal(t, out, again)

	page := filepath.Join(t.TempDir(), "report.html")
	faulty := append(args, "--fault", "decoder-restart@2+1", "--fault", "burst@0+1x5", "--json", "--html", page)
	out, _, err = simulated(t, faulty...)
	require.NoError(t, err)
	var rep struct {
		Profiles []struct {
			Requests int
			Faults   map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &rep))
	require.Len(t, rep.Profiles, 2)
	require.Equal(t, 10, rep.Profiles[1].Requests)
	require.Contains(t, rep.Profiles[1].Faults, "answers_cut")
	again, _, err = simulated(t, faulty...)
	require.NoError(t, err)
	require.Equal(t, out, again)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "answers cut")
}

// What a run took of the machine is told beside the report, not in it.
func TestSimTellsWhatItTook(t *testing.T) {
	out, errs, err := simulated(t, "--preset", "sessions", "--sessions", "200", "--json")
	require.NoError(t, err)
	require.Contains(t, errs, "simulate sessions\n  400 of 400 done, 0 failed")
	require.Contains(t, errs, "400 requests simulated with")
	require.Contains(t, errs, "each; peak memory")
	again, _, err := simulated(t, "--preset", "sessions", "--sessions", "200", "--json")
	require.NoError(t, err)
	require.Equal(t, out, again)
	var rep sim.ScaleReport
	require.NoError(t, json.Unmarshal([]byte(out), &rep))
	require.Equal(t, 400, rep.Requests)
}

func TestSimPlans(t *testing.T) {
	page := filepath.Join(t.TempDir(), "plan.html")
	out, _, err := simulated(t, "--trace", agents, "--gap", "1", "--plan", "--slo", "ttft=1s,tpot=20ms", "--max-instances", "3", "--blocks", "256", "--html", page)
	require.NoError(t, err)
	require.Contains(t, out, "Smallest that keeps the targets: 1 Prefillers, 1 Decoders")
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<svg")
	out, _, err = simulated(t, "--trace", agents, "--plan", "--slo", "ttft=1us,tpot=1us", "--max-instances", "2")
	require.NoError(t, err)
	require.Contains(t, out, "Nothing within the limits keeps the targets.")
}

func TestSimRefusesWhatItCannotDo(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.jsonl")
	whole, err := os.ReadFile(agents)
	require.NoError(t, err)
	lines := strings.SplitAfter(string(whole), "\n")
	lines[2] = strings.Replace(lines[2], `"nblocks":2,"hash_runs":[60,2]`, `"nblocks":2,"hash_runs":[60,1]`, 1)
	require.NoError(t, os.WriteFile(broken, []byte(strings.Join(lines, "")), 0o600))
	for want, args := range map[string][]string{
		"--preset is faults, which --trace does not read: it goes with --preset append-prefill, shared-prompt, ablations, pools, faults, scale, sessions, tails": {"--preset", "faults", "--trace", agents},
		`preset "other" is unknown`: {"--preset", "other"},
		"--fault is [decoder-restart@1+1], which --preset append-prefill does not read: it goes with --trace": {"--fault", "decoder-restart@1+1"},
		"the kind is unknown":                                    {"--trace", agents, "--fault", "flood@1+1"},
		"instance 4 is not one of 1":                             {"--trace", agents, "--fault", "prefiller-loss:4@1"},
		"fault prefiller-loss@9000: the run ended before it, at": {"--trace", agents, "--fault", "decoder-restart@1+1", "--fault", "prefiller-loss@9000"},
		"fault burst@9000+1x5: no session starts after 9000 s":   {"--trace", agents, "--fault", "burst@9000+1x5"},
		`profile "other" is unknown`:                             {"--trace", agents, "--profile", "other"},
		`ids "other"`:                                            {"--trace", agents, "--ids", "other"},
		"time scale is -1":                                       {"--trace", agents, "--scale-time", "-1"},
		"token scale is -1":                                      {"--trace", agents, "--scale-tokens", "-1"},
		"gap between sessions is 0 s":                            {"--trace", agents, "--gaps", "0"},
		"--sessions is -1":                                       {"--preset", "scale", "--sessions", "-1"},
		"prefillers is 0":                                        {"--trace", agents, "--prefillers", "0"},
		"no such file":                                           {"--trace", "/nonexistent"},
		"--plan needs --slo":                                     {"--trace", agents, "--plan"},
		"--slo is ttft=1s,tpot=1ms":                              {"--trace", agents, "--slo", "ttft=1s,tpot=1ms"},
		"--plan and --gaps need":                                 {"--gaps", "1"},
		"must be a positive duration":                            {"--trace", agents, "--plan", "--slo", "ttft=0s,tpot=1ms"},
		"--cost-model is " + agents + ", which --preset append-prefill does not read": {"--cost-model", agents},
		"line 3: has 1 blocks, 140 tokens in blocks of 64 make 2":                     {"--trace", broken},
	} {
		_, _, err := simulated(t, args...)
		require.ErrorContains(t, err, want, args)
	}
	out, errs, err := simulated(t, "--trace", broken, "--lenient", "--profile", "plain")
	require.NoError(t, err)
	require.Contains(t, errs, "broken.jsonl: left out: line 3: has 1 blocks")
	require.Contains(t, out, "4 conversations, 9 requests")
}
