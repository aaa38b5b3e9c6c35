package server

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// turn is one request of a frozen workload.
type turn struct {
	session  int
	turn     int
	messages []m
}

const (
	turns     = 3
	answerLen = 16
)

// text makes n characters of words from a small vocabulary, so that prompts
// differ and still look alike.
func text16(rng *rand.Rand, n int) string {
	vocabulary := strings.Fields("the a report engine cache block token prefix reads writes of and not 42 turn session graph decodes step")
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(vocabulary[rng.IntN(len(vocabulary))])
		b.WriteByte(' ')
	}
	return b.String()[:n]
}

// workload is what the sessions ask, with the replies that the uncached engine
// gave; want are its answers in the same order.
type workload struct {
	turns []turn
	want  []identity.Answer
}

var frozen = sync.OnceValue(func() *workload { return &workload{} })

// reference runs the workload on an engine without prefix caching, graphs or
// overlap of steps, once for all tests.
func reference(t *testing.T) *workload {
	t.Helper()
	w := frozen()
	if len(w.turns) == 0 {
		*w = *record(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, sessions)
	}
	return w
}

// record asks n sessions, one after the other.
func record(t *testing.T, cfg engine.Config, sessions int) *workload {
	t.Helper()
	w := &workload{}
	n := start(t, cfg, Options{})
	rng := rand.New(rand.NewPCG(3, 5))
	for s := range sessions {
		history := []m{{"role": "system", "content": "You answer in few words."}}
		for k := range turns {
			size := 380 + rng.IntN(40)
			if k > 0 {
				size = 20 + rng.IntN(60)
			}
			history = append(history, m{"role": "user", "content": text16(rng, size)})
			asked := append([]m(nil), history...)
			out := n.chat(asked, nil)
			require.Zero(t, out.Usage.Cached())
			w.turns = append(w.turns, turn{s, k, asked})
			w.want = append(w.want, out.Choices[0].TokenIDs)
			history = append(history, m{"role": "assistant", "content": out.Choices[0].Message.Content})
		}
	}
	return w
}

// chat asks one turn and gives the answer with its token ids.
func (n *node) chat(messages []m, more m, headers ...string) openai.ChatResponse {
	n.t.Helper()
	res, raw := n.post("/v1/chat/completions", chatBody(messages, more), headers...)
	require.Equal(n.t, http.StatusOK, res.StatusCode, "%s", raw)
	var out openai.ChatResponse
	require.NoError(n.t, json.Unmarshal(raw, &out))
	return out
}

func chatBody(messages []m, more m) m {
	body := m{"messages": messages, "max_tokens": answerLen, "return_token_ids": true}
	for k, v := range more {
		body[k] = v
	}
	return body
}

// replay asks every turn of the workload, the sessions side by side and the
// turns of each in order, and gives the answers in the workload's order.
func (w *workload) replay(ask func(turn) identity.Answer) []identity.Answer {
	out := make([]identity.Answer, len(w.turns))
	var wg sync.WaitGroup
	for s := range sessions {
		wg.Go(func() {
			for i, t := range w.turns {
				if t.session == s {
					out[i] = ask(t)
				}
			}
		})
	}
	wg.Wait()
	return out
}

// both replays the workload without and with noise, in caches of their own.
func (w *workload) both(t *testing.T, ask func(turn, m) identity.Answer) {
	t.Helper()
	got := w.replay(func(x turn) identity.Answer { return ask(x, m{"cache_salt": "right"}) })
	identity.Check(t, w.want, got, func() []identity.Answer {
		return w.replay(func(x turn) identity.Answer { return ask(x, m{"cache_salt": "wrong", "kv_noise": true}) })
	})
}

func TestAnswersAreVaried(t *testing.T) {
	w := reference(t)
	require.GreaterOrEqual(t, identity.Distinct(w.want), 8.0)
}

func TestIdentityOfGraphsAndScheduling(t *testing.T) {
	w := reference(t)
	cases := []struct {
		name string
		cfg  engine.Config
		hits bool
		full bool
	}{
		{"two ranks", engine.Config{DataParallel: 2}, true, true},
		{"prefix cache, async, FULL and PIECEWISE", engine.Config{GraphMode: graphs.ModeFullAndPiecewise}, true, true},
		{"no cache, async", engine.Config{NoPrefix: true, GraphMode: graphs.ModeFullDecodeOnly}, false, true},
		{"prefix cache, sync, eager", engine.Config{Sync: true, Eager: true}, true, false},
		{"prefix cache, async, eager", engine.Config{Eager: true}, true, false},
		{"prefix cache, sync, FULL decode", engine.Config{Sync: true, GraphMode: graphs.ModeFullDecodeOnly}, true, true},
		{"prefix cache, async, PIECEWISE", engine.Config{GraphMode: graphs.ModePiecewise}, true, false},
		{"prefix cache, async, FULL for all", engine.Config{GraphMode: graphs.ModeFull, MaxTokens: 64, MaxSeqs: 8}, true, true},
		{"small steps, small blocks", engine.Config{MaxTokens: 48, MaxSeqs: 4, BlockSize: 4, KVBlocks: 4096}, true, true},
	}
	for _, c := range cases[:min(2*few, len(cases))] {
		t.Run(c.name, func(t *testing.T) {
			n := start(t, c.cfg, Options{Noise: NoiseAllowed})
			w.both(t, func(x turn, more m) identity.Answer {
				var h []string
				if c.cfg.DataParallel > 1 {
					h = []string{"X-data-parallel-rank", fmt.Sprint(x.session % 2)}
				}
				out := n.chat(x.messages, more, h...)
				if c.hits && x.turn > 0 {
					require.Positive(t, out.Usage.Cached())
				}
				return out.Choices[0].TokenIDs
			})
			if c.full {
				require.Positive(t, n.metric("sluice_graph_steps_total", "mode", "FULL"))
			} else {
				require.Zero(t, n.metric("sluice_graph_steps_total", "mode", "FULL"))
			}
			n.nothingHeld()
		})
	}
}

// A pool that holds the prompts of two requests but not their answers preempts
// one of them; it computes again what is no longer cached and answers as if
// nothing had happened.
func TestIdentityOfPreemption(t *testing.T) {
	const promptLen, outputLen = 200, 150
	n := min(6, sessions+1)
	rng := rand.New(rand.NewPCG(1, 9))
	prompts := make([]string, n)
	for i := range prompts {
		prompts[i] = text16(rng, promptLen)
	}
	ask := func(to *node, more m) []identity.Answer {
		out := make([]identity.Answer, n)
		var wg sync.WaitGroup
		for i := range prompts {
			wg.Go(func() {
				body := m{"prompt": prompts[i], "max_tokens": outputLen, "ignore_eos": true, "return_token_ids": true}
				for k, v := range more {
					body[k] = v
				}
				out[i] = to.complete(body).Choices[0].TokenIDs
			})
		}
		wg.Wait()
		return out
	}
	want := ask(start(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, Options{}), nil)
	cases := []struct {
		name string
		cfg  engine.Config
	}{
		{"decoder, async", decoder()},
		{"sync", engine.Config{Sync: true}},
		{"async", engine.Config{}},
		{"no cache, async", engine.Config{NoPrefix: true}},
	}
	for _, c := range cases[:min(few, len(cases))] {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.BlockSize, c.cfg.KVBlocks, c.cfg.MaxModelLen = 8, 55, 440 // two prompts are 50 blocks, one whole request 44
			x := start(t, c.cfg, Options{Noise: NoiseAllowed})
			got := ask(x, m{"cache_salt": "right"})
			require.Positive(t, x.metric("vllm:num_preemptions_total"))
			identity.Check(t, want, got, func() []identity.Answer { return ask(x, m{"cache_salt": "wrong", "kv_noise": true}) })
			x.nothingHeld()
		})
	}
}
