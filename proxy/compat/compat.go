// Package compat drives the proxy with the official OpenAI clients for Go and
// Node, in front of fake backends: chat, completions, streams, tool calls that
// pass through, errors and cancellation. It is a module of its own, so that no
// client library reaches the project's.
package compat

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy"
	"github.com/sluice-serving/sluice/proxy/backendtest"
)

const toolAnswer = `{"id":"x","object":"chat.completion","created":1,"model":"tools","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bern\"}"}}]},"finish_reason":"tool_calls","logprobs":null}],"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}}`

// misbehave answers the models that ask for trouble.
func misbehave(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
	if rec.Leg == "p" {
		return false
	}
	send := func(status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	event := func(text string) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", text)
		_ = http.NewResponseController(w).Flush()
	}
	switch rec.JSON()["model"] {
	case "tools":
		send(200, toolAnswer)
	case "status400":
		send(400, `{"error":{"message":"the prompt is too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`)
	case "status500":
		send(500, `{"error":{"message":"boom","type":"server_error","param":null,"code":null}}`)
	case "status503":
		send(503, `{"error":{"message":"later","type":"server_error","param":null,"code":null}}`)
	case "cut":
		event("a")
		panic(http.ErrAbortHandler)
	case "slow":
		for range 1000 {
			event("tick ")
			select {
			case <-r.Context().Done():
				return true
			case <-time.After(5 * time.Millisecond):
			}
		}
	default:
		return false
	}
	return true
}

// Stack is a proxy in front of a fake Prefiller and a fake Decoder with two ranks.
type Stack struct {
	URL string // of the API, with /v1
	P   *backendtest.Backend
	D   *backendtest.Backend
}

// Start starts a stack that ends with the test.
func Start(t *testing.T) Stack {
	t.Helper()
	s := Stack{P: backendtest.New(), D: backendtest.New()}
	s.D.Hook = misbehave
	for _, b := range []*backendtest.Backend{s.P, s.D} {
		require.NoError(t, b.Start(""))
		t.Cleanup(b.Stop)
	}
	p, err := proxy.New(proxy.Config{Prefillers: []string{s.P.Addr}, Decoders: []proxy.Decoder{{Addr: s.D.Addr, Ranks: 2}}, Append: true})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, 5*time.Second) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	s.URL = "http://" + l.Addr().String() + "/v1"
	return s
}

// Legs counts the legs that the fakes received.
func (s Stack) Legs() (p, local, d int) {
	for _, b := range []*backendtest.Backend{s.P, s.D} {
		for _, r := range b.Records() {
			switch r.Leg {
			case "p":
				p++
			case "local":
				local++
			default:
				d++
			}
		}
	}
	return p, local, d
}

// Idle asserts that a cancelled request has ended at the Decoder as well.
func Idle(t *testing.T, s Stack) {
	t.Helper()
	require.Eventually(t, func() bool { n, _ := s.D.Active(); return n == 0 }, 5*time.Second, 5*time.Millisecond)
	require.True(t, func() bool {
		records := s.D.Records()
		return records[len(records)-1].Cancelled
	}())
}
