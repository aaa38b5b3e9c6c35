package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/sim/trace"
	"github.com/sluice-serving/sluice/internal/up"
)

// benched runs sluice bench.
func benched(t *testing.T, args ...string) (out, errs string, err error) {
	t.Helper()
	root := newRootCmd()
	var o, e bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetArgs(append([]string{"bench"}, args...))
	err = root.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

// A recorded trace through a cluster: each follow-up finds on its Decoder the
// whole blocks that it shares with the prompt before it, no more and no less.
func TestBenchReplaysATraceThroughACluster(t *testing.T) {
	const block = 16
	r := cluster(t, up.AppendPrefill, up.Cluster{Prefiller: up.Engine{BlockSize: block}, Decoder: up.Engine{BlockSize: block, Ranks: 2}})
	dir := t.TempDir()
	result, frozen := filepath.Join(dir, "result.json"), filepath.Join(dir, "workload.json")
	out, _, err := benched(t, "--url", r.Proxy.URL(), "--trace", agents, "--ids", "file", "--gap", "1", "--scale-time", "0.05", "--save-workload", frozen, "--json", result, "--records")
	require.NoError(t, err, out)
	text, err := os.ReadFile(result)
	require.NoError(t, err)
	var res bench.Result
	require.NoError(t, json.Unmarshal(text, &res))
	require.Equal(t, "agents.jsonl", res.Workload)
	file, err := os.Open(frozen)
	require.NoError(t, err)
	w, err := workload.Read(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.Equal(t, w.Hash(), res.WorkloadHash)

	records := res.Runs[0].Records
	require.Len(t, records, 10)
	followUps := 0
	for i := range w.Sessions {
		for turn := range w.Sessions[i].Turns {
			x, rec := &w.Sessions[i].Turns[turn], &records[0]
			records = records[1:]
			require.True(t, rec.Valid(), rec.Error)
			require.Equal(t, *x.Keep+len(x.Tokens), rec.PromptTokens)
			require.Equal(t, x.MaxTokens, rec.OutputTokens, "answers have their recorded lengths")
			if turn > 0 {
				followUps++
				require.Equal(t, *x.Keep/block*block, rec.CachedTokens, "%s turn %d", rec.Session, turn)
			}
		}
	}
	require.Equal(t, 6, followUps)
	require.Zero(t, held(t, r.Prefiller, r.Decoder))
	http.DefaultClient.CloseIdleConnections()
}

// Any two prompts of a replayed trace have the blocks in common that the trace
// says, also where a history shrinks or is rewritten, and however it is scaled.
func TestATraceSharesWhatItSays(t *testing.T) {
	rec, err := trace.Open(agents, trace.Strict)
	require.NoError(t, err)
	for _, scale := range []float64{1, 0.25} {
		f := traceFlags{file: agents, ids: "file", gap: 1, scaleTime: 1, tokens: scale}
		w, err := f.workload(0, workload.Range{}, io.Discard)
		require.NoError(t, err)
		prompts := map[string][][]int32{}
		for i := range w.Sessions {
			s := &w.Sessions[i]
			var last []int32
			for k := range s.Turns {
				last = append(append([]int32(nil), last[:*s.Turns[k].Keep]...), s.Turns[k].Tokens...)
				_, name, _ := strings.Cut(s.ID, "-")
				prompts[name] = append(prompts[name], last)
			}
		}
		of := func(r *trace.Request) []int32 {
			name := r.Session
			if r.Agent != "" {
				name += "." + r.Agent
			}
			return prompts[name][r.Turn]
		}
		block := int(64 * scale)
		for i := range rec.Requests {
			for k := range i {
				a, b := of(&rec.Requests[i]), of(&rec.Requests[k])
				n := 0
				for n < len(a) && n < len(b) && a[n] == b[n] {
					n++
				}
				require.Equal(t, trace.Common(rec.Requests[i].Blocks, rec.Requests[k].Blocks), n/block, "lines %d and %d at scale %g", i+1, k+1, scale)
			}
		}
	}
}

func TestBenchRefusesTracesThatItCannotReplay(t *testing.T) {
	whole, err := os.ReadFile(agents)
	require.NoError(t, err)
	broken := filepath.Join(t.TempDir(), "broken.jsonl")
	lines := strings.SplitAfter(string(whole), "\n")
	lines[1] = `{"session":"s1",` + "\n"
	lines[6] = strings.Replace(lines[6], `"input_length":130`, `"input_length":-5`, 1)
	require.NoError(t, os.WriteFile(broken, []byte(strings.Join(lines, "")), 0o600))
	server := "http://127.0.0.1:1"
	for want, args := range map[string][]string{
		"line 2: unexpected end of JSON input": {"--trace", broken},
		"no such file":                         {"--trace", "/nonexistent"},
		`ids "other"`:                          {"--trace", agents, "--ids", "other"},
		"--scale-tokens is -1":                 {"--trace", agents, "--scale-tokens", "-1"},
		"--scale-time is -2":                   {"--trace", agents, "--scale-time", "-2"},
		"--gap is -3":                          {"--trace", agents, "--gap", "-3"},
		"--sessions is -4":                     {"--trace", agents, "--sessions", "-4"},
		"cannot be told apart":                 {"--trace", agents, "--scale-tokens", "0.05"},
		"chat endpoint does not take":          {"--trace", agents, "--endpoint", "chat", "--model", "m"},
		"which --workload does not read":       {"--trace", agents, "--workload", "x"},
	} {
		_, _, err := benched(t, append(args, "--url", server)...)
		require.ErrorContains(t, err, want, args)
	}
	// What is left of a broken trace is replayed, as far as a server goes along.
	_, errs, err := benched(t, "--trace", broken, "--lenient", "--sessions", "2", "--scale-time", "0.001", "--url", server, "--model", "m")
	require.ErrorContains(t, err, "6 requests had no valid answer")
	require.NotContains(t, errs, "line 1:")
	require.Contains(t, errs, "broken.jsonl: left out: line 2: unexpected end of JSON input")
	require.Contains(t, errs, "line 7: input length is -5, must be at least 1")
}
