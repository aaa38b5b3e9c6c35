package server

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
	"github.com/sluice-serving/sluice/scheduler"
)

func ngram(k int) engine.Speculative {
	return engine.Speculative{Method: "ngram", Tokens: k, Max: 3, Min: 1}
}

// credulous accepts every draft.
type credulous struct{ *scheduler.Scheduler }

func (c credulous) Apply(p *scheduler.Plan, res scheduler.Result) ([]scheduler.Output, error) {
	var tokens []scheduler.Token
	counts := append([]int32(nil), res.Counts...)
	at := 0
	for i, n := range counts {
		got := res.Tokens[at:][:n]
		at += int(n)
		if d := p.Drafts[i]; d > 0 && p.Placeholders[i] == 0 {
			in := p.Input(i)
			tokens = append(tokens, in[len(in)-int(d):]...)
			got = got[len(got)-1:]
			counts[i] = d + 1
		}
		tokens = append(tokens, got...)
	}
	res.Tokens, res.Counts = tokens, counts
	return c.Scheduler.Apply(p, res)
}

// Drafts change no answer: neither a greedy nor a seeded one, nor through cache,
// chunks and preemption.
func TestIdentityOfSpeculation(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    engine.Config
		seeded bool
	}{
		{"one draft, eager, small steps", engine.Config{Speculative: ngram(1), Eager: true, MaxTokens: 48}, true},
		{"three drafts", engine.Config{Speculative: ngram(3), DataParallel: 2}, false},
	}[:min(2, few)] {
		t.Run(c.name, func(t *testing.T) {
			n := start(t, c.cfg, Options{Noise: NoiseAllowed})
			if c.seeded {
				sampledBoth(t, func(_, _ int, body m) identity.Answer { return n.complete(body).Choices[0].TokenIDs })
			} else {
				reference(t).both(t, func(x turn, more m) identity.Answer {
					return n.chat(x.messages, more, "X-data-parallel-rank", fmt.Sprint(x.session%2)).Choices[0].TokenIDs
				})
			}
			require.Positive(t, n.metric("vllm:spec_decode_num_drafts_total"))
			require.Positive(t, n.metric("vllm:spec_decode_num_accepted_tokens_total"))
			n.nothingHeld()
		})
	}
}

func TestAWrongVerificationShows(t *testing.T) {
	w := reference(t)
	cfg := engine.Config{Speculative: ngram(3), MaxSeqs: 16, KVBlocks: 1024, DeviceWorkers: 1}
	n := startWith(t, cfg, Options{}, engine.Options{Scheduler: func(_ int, s *scheduler.Scheduler) engine.Scheduler { return credulous{s} }})
	identity.Control(t, w.want, w.replay(func(x turn) identity.Answer { return n.chat(x.messages, nil).Choices[0].TokenIDs }))
}

// A decoder verifies drafts behind KV that it has pulled, and behind attempts.
func TestIdentityOfSpeculationWithAppendPrefill(t *testing.T) {
	d := decoder()
	d.Speculative = ngram(2)
	appendBoth(t, startPair(t, prefiller(), d))
}

func TestIdentityOfSpeculationWithPreemption(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 4))
	var prompts [3]string
	for i := range prompts {
		prompts[i] = text16(rng, 120)
	}
	ask := func(n *node, more m) []identity.Answer {
		out := make([]identity.Answer, len(prompts))
		var wg sync.WaitGroup
		for i, p := range prompts {
			wg.Go(func() {
				body := merged(m{"prompt": p, "max_tokens": 80, "ignore_eos": true, "return_token_ids": true}, more)
				if i > 0 {
					body = merged(body, ways(i))
				}
				out[i] = n.complete(body).Choices[0].TokenIDs
			})
		}
		wg.Wait()
		return out
	}
	want := ask(start(t, engine.Config{NoPrefix: true, Sync: true, Eager: true}, Options{}), nil)
	n := start(t, engine.Config{Speculative: ngram(3), BlockSize: 8, KVBlocks: 35, MaxModelLen: 280}, Options{Noise: NoiseAllowed})
	got := ask(n, m{"cache_salt": "right"})
	require.Positive(t, n.metric("vllm:num_preemptions_total"))
	identity.Check(t, want, got, func() []identity.Answer { return ask(n, m{"cache_salt": "wrong", "kv_noise": true}) })
	n.nothingHeld()
}

// Every step of decodes and of one-token tails replays a FULL graph of width K+1,
// whether there is something to guess or not; the metrics count drafts.
func TestDraftsKeepFullGraphs(t *testing.T) {
	n := start(t, engine.Config{Speculative: ngram(3)}, Options{})
	other := func() float64 {
		return n.metric("sluice_graph_steps_total") - n.metric("sluice_graph_steps_total", "mode", "FULL")
	}
	prompt := words(16*5 + 1) // its tail is one token once it is cached
	body := m{"prompt": prompt, "max_tokens": 40, "ignore_eos": true, "return_token_ids": true}
	want := n.complete(body).Choices[0].TokenIDs
	require.Equal(t, 1.0, other(), "the prompt")
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			if got := n.complete(body).Choices[0].TokenIDs; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("answer %d: %v", i, got)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1.0, other(), "tails and decodes")
	full, before := n.metric("sluice_graph_steps_total", "mode", "FULL"), n.metric("vllm:spec_decode_num_accepted_tokens_total")
	out := n.complete(merged(body, m{"logit_bias": m{"122": 100}}))
	require.Len(t, out.Choices[0].TokenIDs, 40)
	require.Equal(t, 1.0, other())
	// A tail, one step with the last token of the prompt as its only guess, and
	// then four tokens a step.
	require.LessOrEqual(t, n.metric("sluice_graph_steps_total", "mode", "FULL")-full, 12.0)
	require.GreaterOrEqual(t, n.metric("vllm:spec_decode_num_accepted_tokens_total")-before, 27.0)
	require.Equal(t, 3*n.metric("vllm:spec_decode_num_drafts_total"), n.metric("vllm:spec_decode_num_draft_tokens_total"))
	sum := 0.0
	for i := range 3 {
		sum += n.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", fmt.Sprint(i))
	}
	require.Equal(t, n.metric("vllm:spec_decode_num_accepted_tokens_total"), sum)
	n.nothingHeld()
}

func TestSpeculationThatCannotBe(t *testing.T) {
	for want, s := range map[string]engine.Speculative{
		`method is "eagle"`: {Method: "eagle", Tokens: 2}, `method is ""`: {Tokens: 2}, "num_speculative_tokens is 0": {Method: "ngram"},
		"prompt_lookup_min is 4": {Method: "ngram", Tokens: 2, Max: 3, Min: 4}, "max-num-batched-tokens is 512": {Method: "ngram", Tokens: 8},
	} {
		require.ErrorContains(t, engine.Config{Speculative: s}.Validate(), want)
	}
	_, err := engine.ParseSpeculative(`{"method":"ngram","num_speculative_tokens":3,"draft_model":"x"}`)
	require.ErrorContains(t, err, "draft_model")
	s, err := engine.ParseSpeculative(`{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":2}`)
	require.NoError(t, err)
	require.NoError(t, engine.Config{Speculative: s}.Validate())
}
