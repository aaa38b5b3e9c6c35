package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/up"
)

// A Decoder that is told to stop under load drains: turns of its sessions go
// elsewhere, what runs ends, every request is answered whole, and the process
// ends with status 0.
func TestADecoderDrainsUnderLoad(t *testing.T) {
	const sessions, turns, before, output = 6, 5, 2, 40
	log := new(lockedBuffer)
	s, err := up.New(up.Config{Log: up.NewLog(log), Grace: 2 * time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.StopAll(), log.String())
		if t.Failed() {
			t.Log(log.String())
		}
	})
	shape := up.Cluster{Prefiller: up.Engine{Workers: 1}, Decoder: up.Engine{Workers: 1, Extra: []string{"--drain-timeout", "60s"}}, TraceDir: t.TempDir()}
	start := func(c up.Command) *up.Child {
		child, err := s.Start(t.Context(), c)
		require.NoError(t, err, log.String())
		return child
	}
	p, leaves, stays := start(shape.PrefillerCommand("p0")), start(shape.DecoderCommand("d0")), start(shape.DecoderCommand("d1"))
	command, err := shape.ProxyCommand("proxy", up.AppendPrefill, p, leaves)
	require.NoError(t, err)
	other, err := url.Parse(stays.URL())
	require.NoError(t, err)
	for i, a := range command.Args {
		switch a {
		case "--decoder-hosts":
			command.Args[i+1] += "," + other.Hostname()
		case "--decoder-ports":
			command.Args[i+1] += "," + other.Port()
		}
	}
	front := start(command)

	turn := func(session int, history string) (string, error) {
		body, err := json.Marshal(members{"model": "builtin", "prompt": history, "max_tokens": output, "ignore_eos": true, "conversation_id": fmt.Sprint("s", session)})
		if err != nil {
			return "", err
		}
		resp, err := http.Post(front.URL()+"/v1/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			return "", err
		}
		var out openai.CompletionResponse
		if err := json.Unmarshal(answer, &out); resp.StatusCode != 200 || err != nil || len(out.Choices) != 1 || out.Usage.CompletionTokens != output {
			return "", fmt.Errorf("status %d: %s", resp.StatusCode, answer)
		}
		return out.Choices[0].Text, nil
	}
	var warm, all sync.WaitGroup // of sessions before the stop, and to their end
	warm.Add(sessions)
	for i := range sessions {
		all.Go(func() {
			warmed := sync.OnceFunc(warm.Done)
			defer warmed()
			history := ""
			for n := range turns {
				if n == before {
					warmed()
				}
				history += fmt.Sprintf("In turn %d of session %d a user asks for something that takes a while to say. ", n, i)
				reply, err := turn(i, history)
				if err != nil {
					t.Errorf("session %d, turn %d: %v", i, n, err)
					return
				}
				history += reply
			}
		})
	}
	warm.Wait()
	require.NoError(t, s.Stop(leaves), "it ends in time, with status 0")
	all.Wait()
	require.Zero(t, held(t, p, stays))
	raw, err := os.ReadFile(filepath.Join(shape.TraceDir, "d0.jsonl"))
	require.NoError(t, err)
	count := func(what string) int { return strings.Count(string(raw), what) }
	require.Positive(t, count(`"event":"admit"`))
	require.Equal(t, count(`"event":"admit"`), count(`"event":"finish"`)-count(`"event":"refuse"`), "all that ran there has ended")
	require.Zero(t, count(`"finish_reason":"abort"`))
	http.DefaultClient.CloseIdleConnections()
}
