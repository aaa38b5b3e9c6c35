package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// recording is a short history of a scheduler.
func recording(t *testing.T) []byte {
	t.Helper()
	cache, err := kvcache.New(kvcache.Config{Blocks: 9, BlockSize: 4})
	require.NoError(t, err)
	var out bytes.Buffer
	s, err := scheduler.New(scheduler.Config{MaxModelLen: 32}, cache, scheduler.WithRecorder(scheduler.NewRecorder(&out)))
	require.NoError(t, err)
	_, err = s.Add(scheduler.Request{ID: "first", Prompt: []scheduler.Token{1, 2, 3, 4, 5}, MaxTokens: 2})
	require.NoError(t, err)
	for range 2 {
		p := s.Plan(0)
		_, err := s.Apply(p, scheduler.Result{Tokens: []scheduler.Token{7}})
		require.NoError(t, err)
	}
	return out.Bytes()
}

func replayed(t *testing.T, raw []byte, flags ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "steps.jsonl")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	cmd := newReplayCmd()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(flags, file))
	err := cmd.Execute()
	return out.String(), err
}

func TestReplayCommand(t *testing.T) {
	raw := recording(t)
	out, err := replayed(t, raw)
	require.NoError(t, err)
	require.Contains(t, out, "2 plans and 2 outputs equal")
	out, err = replayed(t, raw, "--show")
	require.NoError(t, err)
	require.Contains(t, out, "first: 5 tokens, at most 2 more")
	require.Contains(t, out, "1 rows of 5 tokens")

	_, rest, _ := bytes.Cut(raw, []byte("\n"))
	cut := append([]byte(`{"op":"cut","value":3}`+"\n"), rest...)
	out, err = replayed(t, cut)
	require.NoError(t, err, "what cannot be made again is printed")
	require.Contains(t, out, "3 lines before are missing")
	_, err = replayed(t, rest)
	require.ErrorContains(t, err, "does not begin with a configuration")
	_, err = replayed(t, []byte("{"))
	require.Error(t, err)
	_, err = replayed(t, append(cut, '{'))
	require.ErrorContains(t, err, "line")
}
