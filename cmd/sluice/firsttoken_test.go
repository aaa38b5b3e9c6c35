package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy"
)

// paced is a Decoder that hands out a token of each answer every step, whatever it still
// writes, and writes them as the engine does.
type paced struct {
	tokens int
	step   time.Duration
	span   time.Duration // from the first token of the last answer to its last one, as handed out
}

// hand gives the tokens when they are ready.
func (p *paced) hand() <-chan int32 {
	out := make(chan int32, p.tokens)
	go func() {
		defer close(out)
		var first, now time.Time
		for i := range p.tokens {
			time.Sleep(p.step)
			now = time.Now()
			if i == 0 {
				first = now
			}
			if i == p.tokens-1 {
				p.span = now.Sub(first) // before the last token is out, and so before the answer ends
			}
			out <- int32(1000 + i)
		}
	}()
	return out
}

func (p *paced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q openai.CompletionRequest
	if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &q) != nil || len(q.Prompt.Tokens) != 1 {
		openai.BadRequest("prompt", "no token ids").Write(w)
		return
	}
	prompt := q.Prompt.Tokens[0]
	stream := openai.NewStream(w)
	list := openai.AppendIDs(nil, prompt)
	ready, seen := p.hand(), 0
	for id := range ready {
		choice := openai.CompletionChoice{TokenIDs: []int32{id}}
		for range len(ready) { // what came meanwhile goes with it
			choice.TokenIDs = append(choice.TokenIDs, <-ready)
		}
		if seen == 0 {
			choice.PromptTokenIDs = openai.PromptToCome
		}
		if seen += len(choice.TokenIDs); seen == p.tokens {
			length := openai.FinishLength
			choice.FinishReason = &length
		}
		_ = stream.SendPrompt(openai.CompletionResponse{ID: "cmpl-d", Object: openai.ObjectCompletion, Model: "m", Choices: []openai.CompletionChoice{choice}}, list)
	}
	_ = stream.Send(openai.CompletionResponse{ID: "cmpl-d", Object: openai.ObjectCompletion, Model: "m", Choices: []openai.CompletionChoice{}, Usage: openai.NewUsage(len(prompt), seen, 0)})
	_ = stream.Done()
}

// BenchmarkFirstToken is P/D requests through the proxy whose answers of 9 tokens return
// token ids: how much later than its last token the client notes the first one of an
// answer, by when the Decoder had each, in ms (median). TPOT is too short by an eighth of it.
func BenchmarkFirstToken(b *testing.B) {
	decoder := &paced{tokens: 9, step: 1270 * time.Microsecond}
	d := httptest.NewServer(decoder)
	defer d.Close()
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		openai.WriteJSON(w, http.StatusOK, openai.CompletionResponse{
			Choices: []openai.CompletionChoice{{TokenIDs: []int32{1}}}, Usage: openai.NewUsage(1, 1, 0), KVTransferParams: json.RawMessage(`{"do_remote_prefill":true,"remote_block_ids":[[1]]}`),
		})
	}))
	defer p.Close()
	px, err := proxy.New(proxy.Config{ScrapeEvery: -1, Prefillers: []string{p.Listener.Addr().String()}, Decoders: []proxy.Decoder{{Addr: d.Listener.Addr().String()}}})
	require.NoError(b, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	serving.Go(func() { _ = px.Serve(ctx, l, 0) })
	client := load.NewHTTPClient()
	defer client.CloseIdleConnections()
	server := load.Server{URL: "http://" + l.Addr().String(), Model: "m", Client: client}
	begun := time.Now()
	for _, n := range []int{16, 12_288} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			ids := make([]int32, n)
			for i := range ids {
				ids[i] = 100_000 + int32(i)
			}
			most := 9
			body := &openai.CompletionRequest{Model: "m", Prompt: openai.TokenPrompt(ids), Stream: true, StreamOptions: &openai.StreamOptions{IncludeUsage: true}, Sampling: openai.Sampling{MaxTokens: &most, ReturnTokenIDs: true}}
			var late []float64
			for b.Loop() {
				var rec measure.Record
				server.Do(b.Context(), &load.Call{Endpoint: load.Completions, Body: body}, begun, &rec)
				if !rec.Valid() {
					b.Fatal(rec.Error)
				}
				late = append(late, 1e3*(decoder.span-(rec.Last-rec.First)).Seconds())
			}
			b.ReportMetric(measure.Percentile(late, 50), "ms-first-late")
		})
	}
}
