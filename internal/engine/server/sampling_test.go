package server

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// ways are different choices of a request's sampling, each with its seed.
func ways(i int) m {
	out := m{"temperature": 0.6 + 0.1*float64(i%4), "seed": 100 + i}
	for k, v := range []m{
		{"top_p": 0.9}, {"top_k": 12, "min_p": 0.02}, {"repetition_penalty": 1.2, "frequency_penalty": 0.4}, {"presence_penalty": 1.1, "logit_bias": m{"101": -3, "32": 2}, "logprobs": 2},
	}[i%4] {
		out[k] = v
	}
	return out
}

func merged(ms ...m) m {
	out := m{}
	for _, x := range ms {
		for k, v := range x {
			out[k] = v
		}
	}
	return out
}

// conversation is two turns each; the second one goes on with the answer to
// the first that the reference gave.
type conversation struct {
	first, second []int32
	want          [2]identity.Answer
}

var sampledWorkload = sync.OnceValue(func() *[]conversation { return new([]conversation) })

const sampledLen = 16

// sampled is the workload of seeded requests with the answers of an engine
// without cache, graphs and overlap, where each runs alone.
func sampled(t *testing.T) []conversation {
	t.Helper()
	w := sampledWorkload()
	if len(*w) > 0 {
		return *w
	}
	n := start(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, Options{})
	rng := rand.New(rand.NewPCG(2, 8))
	for i := range 4 {
		c := conversation{first: tokens(text16(rng, 180+20*i))}
		ask := func(prompt []int32) identity.Answer {
			return n.complete(merged(ways(i), m{"prompt": prompt, "max_tokens": sampledLen, "ignore_eos": true, "return_token_ids": true})).Choices[0].TokenIDs
		}
		c.want[0] = ask(c.first)
		c.second = append(append(slices.Clone(c.first), c.want[0]...), tokens(text16(rng, 40))...)
		c.want[1] = ask(c.second)
		*w = append(*w, c)
	}
	return *w
}

// sampledBoth asks all conversations side by side, without and with noise. Wrong
// KV shows in second turns alone: first ones read none.
func sampledBoth(t *testing.T, ask func(i, turn int, body m) identity.Answer) {
	t.Helper()
	w := sampled(t)
	round := func(more m) (out []identity.Answer) {
		out = make([]identity.Answer, 2*len(w))
		var wg sync.WaitGroup
		for i, c := range w {
			wg.Go(func() {
				for k, prompt := range [][]int32{c.first, c.second} {
					out[2*i+k] = ask(i, k, merged(ways(i), more, m{"prompt": prompt, "max_tokens": sampledLen, "ignore_eos": true, "return_token_ids": true}))
				}
			})
		}
		wg.Wait()
		return out
	}
	seconds := func(all []identity.Answer) (out []identity.Answer) {
		for i := 1; i < len(all); i += 2 {
			out = append(out, all[i])
		}
		return out
	}
	var want []identity.Answer
	for _, c := range w {
		want = append(want, c.want[0], c.want[1])
	}
	got := round(m{"cache_salt": "right"})
	require.Equal(t, want, got)
	identity.Check(t, seconds(want), seconds(got), func() []identity.Answer { return seconds(round(m{"cache_salt": "wrong", "kv_noise": true})) })
}

// Seeded answers do not depend on what else runs, on the prefix cache, on graphs
// or on the overlap of steps.
func TestIdentityOfSampling(t *testing.T) {
	for _, cfg := range []engine.Config{{DataParallel: 2}, {Sync: true, Eager: true, MaxTokens: 48}}[:min(2, few)] {
		t.Run(fmt.Sprintf("sync=%v", cfg.Sync), func(t *testing.T) {
			n := start(t, cfg, Options{Noise: NoiseAllowed})
			sampledBoth(t, func(i, _ int, body m) identity.Answer {
				var h []string
				if cfg.DataParallel > 1 {
					h = []string{"X-data-parallel-rank", fmt.Sprint(i % 2)}
				}
				return n.complete(body, h...).Choices[0].TokenIDs
			})
			n.nothingHeld()
		})
	}
}

// The first turn by P and D, the second an append attempt on D.
func TestIdentityOfSamplingWithAppendPrefill(t *testing.T) {
	appendBoth(t, startPair(t, prefiller(), decoder()))
}

func appendBoth(t *testing.T, x *pair) {
	t.Helper()
	complete := func(n *node, body m) openai.CompletionResponse { return n.complete(body) }
	sampledBoth(t, func(_, turn int, body m) identity.Answer {
		with := m{"decoder_append_prefill": true}
		if turn == 0 {
			leg := merged(body, m{"max_tokens": 1, "min_tokens": 1, "kv_transfer_params": m{"do_remote_decode": true}})
			delete(leg, "kv_noise")
			raw := complete(x.p, leg).KVTransferParams
			with = nil
			require.NoError(t, json.Unmarshal(raw, &with))
		}
		out := complete(x.d, merged(body, m{"kv_transfer_params": with}))
		if turn == 1 {
			require.Positive(t, out.Usage.Cached())
		}
		return out.Choices[0].TokenIDs
	})
	require.Positive(t, x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"))
	require.Positive(t, x.d.metric("sluice_append_prefill_total", "result", "hit"))
	x.nothingHeld()
}

// Requests that are preempted and computed again draw the same numbers at the
// same places, with what they had gained.
func TestIdentityOfSamplingWithPreemption(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var prompts [3]string
	for i := range prompts {
		prompts[i] = text16(rng, 120)
	}
	ask := func(n *node, more m) []identity.Answer {
		out := make([]identity.Answer, len(prompts))
		var wg sync.WaitGroup
		for i, p := range prompts {
			wg.Go(func() {
				out[i] = n.complete(merged(ways(i), more, m{"prompt": p, "max_tokens": 80, "ignore_eos": true, "return_token_ids": true})).Choices[0].TokenIDs
			})
		}
		wg.Wait()
		return out
	}
	want := ask(start(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, Options{}), nil)
	n := start(t, engine.Config{BlockSize: 8, KVBlocks: 35, MaxModelLen: 280}, Options{Noise: NoiseAllowed})
	got := ask(n, m{"cache_salt": "right"})
	require.Positive(t, n.metric("vllm:num_preemptions_total"))
	identity.Check(t, want, got, func() []identity.Answer { return ask(n, m{"cache_salt": "wrong", "kv_noise": true}) })
	n.nothingHeld()
}

func TestSeedsAndChoices(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	ask := func(more m) (out [][]int32) {
		for _, c := range n.complete(merged(m{"prompt": words(70), "max_tokens": 12, "temperature": 1.5, "ignore_eos": true, "return_token_ids": true}, more)).Choices {
			out = append(out, c.TokenIDs)
		}
		return out
	}
	three := ask(m{"seed": 5, "n": 3})
	require.Len(t, three, 3)
	for i := range three {
		require.Equal(t, three[i], ask(m{"seed": 5 + i})[0], "the answers have the seeds from the request's on")
	}
	require.NotEqual(t, three[0], three[1])
	require.NotEqual(t, three[1], three[2])
	require.NotEqual(t, ask(nil), ask(nil), "without a seed each request has its own")
	require.Equal(t, ask(m{"temperature": 0}), ask(m{"temperature": 0, "seed": 3, "top_p": 0.5, "top_k": 3}))
	require.Equal(t, ask(m{"temperature": 0}), ask(m{"top_k": 1}), "the most likely token alone")
}

// Greedy requests beside sampled ones answer as if alone, and steps without
// requests that the host chooses for have no need of logits.
func TestGreedyBesideSampled(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	greedy := m{"prompt": words(90), "max_tokens": 40, "ignore_eos": true, "return_token_ids": true}
	want := n.complete(greedy).Choices[0].TokenIDs
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() { n.complete(merged(greedy, ways(i), m{"prompt": words(60 + i)})) })
		wg.Go(func() {
			if got := n.complete(greedy).Choices[0].TokenIDs; !slices.Equal(want, got) {
				t.Errorf("%v instead of %v", got, want)
			}
		})
	}
	wg.Wait()
	withProbs := n.complete(merged(greedy, m{"logprobs": 0}))
	require.Equal(t, want, withProbs.Choices[0].TokenIDs)
}

func TestLogprobsOfCompletions(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	body := m{"prompt": words(50), "max_tokens": 6, "ignore_eos": true, "return_token_ids": true, "logprobs": 3}
	out := n.complete(body).Choices[0]
	var p openai.CompletionLogprobs
	require.NoError(t, json.Unmarshal(out.Logprobs, &p))
	require.Equal(t, out.Text, strings.Join(p.Tokens, ""))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5}, p.TextOffset)
	for i, tok := range p.Tokens {
		require.Len(t, p.TopLogprobs[i], 3)
		require.Equal(t, *p.TokenLogprobs[i], p.TopLogprobs[i][tok], "greedy takes the most likely")
		for _, v := range p.TopLogprobs[i] {
			require.LessOrEqual(t, v, *p.TokenLogprobs[i])
		}
	}
	_, events := n.events("/v1/completions", merged(body))
	var streamed openai.CompletionLogprobs
	for _, ev := range events[:len(events)-1] {
		var c openai.CompletionResponse
		require.NoError(t, json.Unmarshal([]byte(ev), &c))
		if raw := c.Choices[0].Logprobs; len(raw) > 0 && string(raw) != "null" {
			var part openai.CompletionLogprobs
			require.NoError(t, json.Unmarshal(raw, &part))
			streamed.Tokens = append(streamed.Tokens, part.Tokens...)
			streamed.TokenLogprobs = append(streamed.TokenLogprobs, part.TokenLogprobs...)
			streamed.TopLogprobs = append(streamed.TopLogprobs, part.TopLogprobs...)
			streamed.TextOffset = append(streamed.TextOffset, part.TextOffset...)
		}
	}
	require.Equal(t, p, streamed)
	none := n.complete(m{"prompt": words(50), "max_tokens": 2}).Choices[0]
	require.Equal(t, "null", string(none.Logprobs))

	stop := out.Text[2:4]
	cut := n.complete(merged(body, m{"stop": stop})).Choices[0]
	require.NoError(t, json.Unmarshal(cut.Logprobs, &p))
	require.Len(t, p.Tokens, len(cut.TokenIDs), "one per token, those of the stop string included")
}

func TestLogprobsOfChats(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	messages := []m{{"role": "user", "content": words(40)}}
	out := n.chat(messages, m{"logprobs": true, "top_logprobs": 2, "temperature": 1.2, "seed": 4, "max_tokens": 8}).Choices[0]
	var p openai.ChatLogprobs
	require.NoError(t, json.Unmarshal(out.Logprobs, &p))
	require.Len(t, p.Content, len(out.TokenIDs))
	for i, x := range p.Content {
		require.Len(t, x.TopLogprobs, 2)
		require.GreaterOrEqual(t, x.TopLogprobs[0].Logprob, x.TopLogprobs[1].Logprob)
		require.LessOrEqual(t, x.Logprob, x.TopLogprobs[0].Logprob)
		require.LessOrEqual(t, math.Exp(x.TopLogprobs[0].Logprob)+math.Exp(x.TopLogprobs[1].Logprob), 1+1e-9)
		if id := out.TokenIDs[i]; id < 128 {
			require.Equal(t, []int{int(id)}, x.Bytes)
			require.Equal(t, string(rune(id)), x.Token)
		}
	}
	bare := n.chat(messages, m{"logprobs": true, "max_tokens": 3}).Choices[0]
	require.NoError(t, json.Unmarshal(bare.Logprobs, &p))
	require.Empty(t, p.Content[0].TopLogprobs)
	require.Equal(t, "null", string(n.chat(messages, m{"max_tokens": 2}).Choices[0].Logprobs))
}

func TestBiasPenaltiesAndLeastLength(t *testing.T) {
	n := start(t, engine.Config{}, Options{})
	ask := func(more m) openai.CompletionChoice {
		return n.complete(merged(m{"prompt": words(64), "max_tokens": 10, "return_token_ids": true}, more)).Choices[0]
	}
	require.Equal(t, "zzzzzzzzzz", ask(m{"logit_bias": m{"122": 100}}).Text)
	apart := ask(m{"logit_bias": m{"122": 60, "121": 60}, "frequency_penalty": 2, "presence_penalty": 2}).TokenIDs
	require.Contains(t, apart, int32(121))
	require.Contains(t, apart, int32(122))
	const eos = 258
	short := ask(m{"logit_bias": m{"258": 100}})
	require.Equal(t, []int32{eos}, short.TokenIDs)
	require.Equal(t, "stop", *short.FinishReason)
	later := ask(m{"logit_bias": m{"258": 100}, "min_tokens": 4})
	require.Len(t, later.TokenIDs, 5)
	require.NotContains(t, later.TokenIDs[:4], int32(eos), "no end of sequence before the least length")
	require.Equal(t, []int32{eos, eos, eos}, ask(m{"logit_bias": m{"258": 100}, "ignore_eos": true, "max_tokens": 3}).TokenIDs)
}

// What a request does not name is what the model, and then the operator, says.
func TestDefaultsOfSampling(t *testing.T) {
	hot := 1.5
	n := start(t, engine.Config{Generation: sample.Defaults{Temperature: &hot}}, Options{})
	ask := func(more m) string {
		return n.complete(merged(m{"prompt": words(64), "max_tokens": 12, "ignore_eos": true, "seed": 1}, more)).Choices[0].Text
	}
	require.Equal(t, ask(nil), ask(m{"temperature": 1.5}))
	require.NotEqual(t, ask(nil), ask(m{"temperature": 0}))
	_, err := engine.New(t.Context(), engine.Config{Generation: sample.Defaults{MinP: &hot}}, engine.Options{})
	require.ErrorContains(t, err, "min_p is 1.5")
	res, raw := n.post("/v1/completions", m{"prompt": "a", "temperature": 9})
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	require.Contains(t, string(raw), "temperature is 9, must be within 0 to 2")
}
