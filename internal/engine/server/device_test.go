package server

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/device"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// subject is a model with a storage on the device under test. Its answers are
// compared with those of an engine without cache, graphs and overlap of steps: of
// the host where operations are named, else of the device itself; token by token, or
// within a tolerance where fused operations sum in an order of their own.
type subject struct {
	device.Chosen
	model, storage string
	named, perRow  bool // which operations compute; the fastest ones if neither
	talks          []talk
}

// talk is the turns of a session, each with the answer of the uncached engine.
// Prompts are token ids.
type talk struct {
	prompts [][]int32
	want    []identity.Answer
	odds    [][]map[string]float64 // log probabilities of the 20 most likely tokens at each place, by name
}

// amounts are how much a subject is asked.
type amounts struct{ sessions, turns, first, next, answer, seqs int }

func (s *subject) amounts() amounts {
	switch {
	case s.Asked && !s.named:
		return amounts{7, 3, 100, 20, 24, 16}
	case s.Asked:
		return amounts{7, 3, 300, 40, 24, 16}
	}
	return amounts{2, 2, 40, 6, 8, 4}
}

// exact reports whether answers are equal token by token.
func (s *subject) exact() bool { return s.named || s.perRow }

// block is the number of tokens of a KV block.
func (s *subject) block() int {
	if strings.HasPrefix(s.Name, "ascend") {
		return 128
	}
	return 16
}

// on puts an engine onto the device.
func (s *subject) on(c engine.Config) engine.Config {
	c.Device, c.Model, c.DType, c.NamedOperations, c.BatchInvariant = s.Name, s.model, s.storage, s.named, s.perRow
	c.BlockSize = s.block()
	if c.MaxSeqs == 0 {
		c.MaxSeqs = s.amounts().seqs
	}
	return c
}

func (s *subject) body(prompt []int32, more ...m) m {
	return merged(append([]m{{"prompt": prompt, "temperature": 0, "max_tokens": s.amounts().answer, "ignore_eos": true, "return_token_ids": true}}, more...)...)
}

// words are n tokens of a prompt: text for the built-in model, any ids for others.
func (s *subject) words(rng *rand.Rand, n int) []int32 {
	if s.model == "builtin" {
		return tokens(text16(rng, n))
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = rng.Int32N(512)
	}
	return out
}

var plain = engine.Config{NoPrefix: true, Sync: true, Eager: true}

// uncached is the engine whose answers count.
func (s *subject) uncached(t *testing.T) *node {
	c := s.on(plain)
	if s.named {
		c.Device = "host"
	}
	return start(t, c, Options{})
}

// record asks the reference. with is what the requests of a session have beside.
func (s *subject) record(t *testing.T, turns int, with func(session int) m) []talk {
	t.Helper()
	n, a := s.uncached(t), s.amounts()
	rng := rand.New(rand.NewPCG(3, 5))
	var out []talk
	for i := range a.sessions {
		var k talk
		prompt := s.words(rng, a.first+3*i)
		for range turns {
			more := m{}
			if !s.exact() {
				more["logprobs"] = 20
			}
			c := n.complete(s.body(prompt, with(i), more)).Choices[0]
			k.prompts, k.want = append(k.prompts, slices.Clone(prompt)), append(k.want, c.TokenIDs)
			if !s.exact() {
				var p openai.CompletionLogprobs
				require.NoError(t, json.Unmarshal(c.Logprobs, &p))
				k.odds = append(k.odds, p.TopLogprobs)
			}
			prompt = append(append(prompt, c.TokenIDs...), s.words(rng, a.next)...)
		}
		out = append(out, k)
	}
	return out
}

// asker asks one turn of a session and gives the answer.
type asker func(session, turn int, body m) identity.Answer

// same asks all sessions side by side, their turns in order, and compares, without
// and with noise. from is the first turn in which wrong KV must show.
func (s *subject) same(t *testing.T, talks []talk, from int, with func(session int) m, ask asker) {
	t.Helper()
	round := func(more m) [][]identity.Answer {
		out := make([][]identity.Answer, len(talks))
		var wg sync.WaitGroup
		for i, k := range talks {
			wg.Go(func() {
				for turn, p := range k.prompts {
					out[i] = append(out[i], ask(i, turn, s.body(p, with(i), more)))
				}
			})
		}
		wg.Wait()
		return out
	}
	got := round(m{"cache_salt": "right"})
	equal := 0
	for i, k := range talks {
		for turn, want := range k.want {
			if slices.Equal(want, got[i][turn]) {
				equal++
				continue
			}
			require.False(t, s.exact(), "session %d, turn %d: %v instead of %v", i, turn, got[i][turn], want)
			k.near(t, turn, got[i][turn])
		}
	}
	require.GreaterOrEqual(t, 2*equal, len(talks)*len(talks[0].want), "answers that are the same token by token")
	t.Logf("%d of %d answers are the same", equal, len(talks)*len(talks[0].want))
	var wants, noisy []identity.Answer
	for i, answers := range round(m{"cache_salt": "wrong", "kv_noise": true}) {
		wants, noisy = append(wants, talks[i].want[from:]...), append(noisy, answers[from:]...)
	}
	identity.Control(t, wants, noisy)
}

// nearGap is by how much the log probability of a token may be below the most
// likely one's that rounding has put in its place.
const nearGap = 0.25

// near requires that an answer leaves the reference where two tokens are about as
// likely. What follows are answers to different questions.
func (k *talk) near(t *testing.T, turn int, got identity.Answer) {
	t.Helper()
	want := k.want[turn]
	require.Len(t, got, len(want))
	at := 0
	for got[at] == want[at] {
		at++
	}
	odds := k.odds[turn][at]
	mine, among := odds[fmt.Sprintf("token_id:%d", got[at])]
	require.True(t, among, "turn %d, place %d: token %d is not among the 20 most likely ones", turn, at, got[at])
	best := odds[fmt.Sprintf("token_id:%d", want[at])]
	t.Logf("turn %d, place %d: a token %.2g less likely", turn, at, best-mine)
	require.LessOrEqual(t, best-mine, nearGap, "turn %d, place %d: token %d instead of %d", turn, at, got[at], want[at])
}

func nothing(int) m { return nil }

// greedy compares the answers of one engine.
func (s *subject) greedy(t *testing.T, c engine.Config, after func(n *node)) {
	t.Helper()
	n := start(t, s.on(c), Options{Noise: NoiseAllowed})
	s.same(t, s.talks, 0, nothing, func(_, turn int, body m) identity.Answer {
		out := n.complete(body)
		if turn > 0 && !c.NoPrefix && s.block() == 16 {
			require.Positive(t, out.Usage.Cached())
		}
		return out.Choices[0].TokenIDs
	})
	n.nothingHeld()
	if after != nil {
		after(n)
	}
}

func usesFull(t *testing.T) func(*node) {
	return func(n *node) { require.Positive(t, n.metric("sluice_graph_steps_total", "mode", "FULL")) }
}

// where says whether a claim is tried on emulated devices, which take their time.
type where uint8

const (
	never  where = iota
	once         // for the first subject
	always       // for all of them
)

// claims are the ways of serving that give the same answers.
var claims = []struct {
	name     string
	emulated where
	run      func(t *testing.T, s *subject)
}{
	{"no cache", never, func(t *testing.T, s *subject) { s.greedy(t, plain, nil) }},
	{"no cache, async, FULL", never, func(t *testing.T, s *subject) {
		s.greedy(t, engine.Config{NoPrefix: true, GraphMode: graphs.ModeFullDecodeOnly}, usesFull(t))
	}},
	{"prefix cache, eager", never, func(t *testing.T, s *subject) { s.greedy(t, engine.Config{Sync: true, Eager: true}, nil) }},
	{"prefix cache, PIECEWISE", never, func(t *testing.T, s *subject) { s.greedy(t, engine.Config{GraphMode: graphs.ModePiecewise}, nil) }},
	{"prefix cache, FULL and PIECEWISE, chunks", always, func(t *testing.T, s *subject) {
		s.greedy(t, engine.Config{MaxTokens: 48}, usesFull(t))
	}},
	{"prefix cache, FULL for all", never, func(t *testing.T, s *subject) {
		s.greedy(t, engine.Config{GraphMode: graphs.ModeFull, MaxTokens: 64, MaxSeqs: 8}, usesFull(t))
	}},
	{"one draft", once, func(t *testing.T, s *subject) { s.drafts(t, 1) }},
	{"three drafts", never, func(t *testing.T, s *subject) { s.drafts(t, 3) }},
	{"preempted, computed again", never, func(t *testing.T, s *subject) { s.preempt(t, engine.Config{}) }},
	{"preempted, saved on the host", once, func(t *testing.T, s *subject) {
		n := s.preempt(t, engine.Config{KVTransfer: transferConfig(t, offloadAlone)})
		require.Positive(t, n.metric("sluice_kv_offload_total", "event", "save"))
		require.Positive(t, n.metric("sluice_kv_offload_total", "event", "restore"))
		require.Zero(t, n.metric("sluice_kv_offload_total", "event", "failed"))
	}},
	{"P and D", never, func(t *testing.T, s *subject) { s.pd(t, false) }},
	{"P and D in two processes", once, func(t *testing.T, s *subject) { s.twoProcesses(t, false) }},
	{"P and D in two processes, pushed", once, func(t *testing.T, s *subject) { s.twoProcesses(t, true) }},
	{"append-prefill", always, func(t *testing.T, s *subject) { s.pd(t, true) }},
	{"logits on the host", once, func(t *testing.T, s *subject) { s.onHost(t) }},
}

func (s *subject) drafts(t *testing.T, k int) {
	s.greedy(t, engine.Config{Speculative: ngram(k)}, func(n *node) {
		usesFull(t)(n)
		require.Positive(t, n.metric("vllm:spec_decode_num_drafts_total"))
	})
}

// preempt asks for more than the pool holds.
func (s *subject) preempt(t *testing.T, c engine.Config) *node {
	t.Helper()
	a, b := s.amounts(), s.block()
	c.KVBlocks = 2*((a.first+b-1)/b) + max(1, 32/b)
	c.MaxModelLen = a.first*7/4 + 3*a.sessions
	long := func(int) m { return m{"max_tokens": a.first * 3 / 4} }
	talks := s.record(t, 1, long)
	n := start(t, s.on(c), Options{Noise: NoiseAllowed})
	s.same(t, talks, 0, long, func(_, _ int, body m) identity.Answer { return n.complete(body).Choices[0].TokenIDs })
	require.Positive(t, n.metric("vllm:num_preemptions_total"))
	n.nothingHeld()
	return n
}

// pd serves by two engines on the device: every turn, or the first ones, and the
// others by append attempts on the decoder.
func (s *subject) pd(t *testing.T, attempts bool) {
	t.Helper()
	x := startPair(t, s.on(prefiller()), s.on(decoder()))
	s.same(t, s.talks, 0, nothing, func(_, turn int, body m) identity.Answer {
		if attempts && turn > 0 {
			out := x.d.complete(merged(body, m{"kv_transfer_params": m{"decoder_append_prefill": true}}))
			require.Positive(t, out.Usage.Cached())
			return out.Choices[0].TokenIDs
		}
		leg := merged(body, m{"max_tokens": 1, "min_tokens": 1, "kv_transfer_params": m{"do_remote_decode": true}})
		delete(leg, "kv_noise")
		var params m
		require.NoError(t, json.Unmarshal(x.p.complete(leg).KVTransferParams, &params))
		return x.d.complete(merged(body, m{"kv_transfer_params": params})).Choices[0].TokenIDs
	})
	require.Positive(t, x.d.metric("sluice_kv_transfer_blocks_total", "direction", "received"))
	require.Zero(t, x.d.metric("sluice_kv_transfer_failures_total"))
	if attempts {
		require.Equal(t, float64(2*len(s.talks)*(len(s.talks[0].prompts)-1)), x.d.metric("sluice_append_prefill_total", "result", "hit"))
	}
	x.nothingHeld()
}

// onHost lets the host choose: by seeds where the logits are the same to the bit,
// else the most likely tokens, with their log probabilities.
func (s *subject) onHost(t *testing.T) {
	t.Helper()
	with, from, talks := func(int) m { return m{"logprobs": 5} }, 0, s.talks
	if s.exact() {
		with, from = ways, 1 // a first turn reads no other KV than it has just written
		talks = s.record(t, 2, with)
	}
	n := start(t, s.on(engine.Config{}), Options{Noise: NoiseAllowed})
	s.same(t, talks, from, with, func(_, _ int, body m) identity.Answer {
		c := n.complete(body).Choices[0]
		if _, asked := body["logprobs"]; asked {
			var p openai.CompletionLogprobs
			require.NoError(t, json.Unmarshal(c.Logprobs, &p))
			require.Len(t, p.Tokens, len(c.TokenIDs))
		}
		return c.TokenIDs
	})
	usesFull(t)(n)
	n.nothingHeld()
}

// On the device that SLUICE_DEVICE names, or the emulated one, every way of serving
// gives the answers of an engine without cache, graphs and overlap: token by token
// those of the host where the device has its bits (binary32, and bfloat16 with named
// operations), token by token the device's own with fused operations per row, and
// with the fastest ones but for tokens that are about as likely.
// Each comparison is made once more over wrong KV, which must show.
func TestSameAnswersOnDevice(t *testing.T) {
	d := device.Choose(t)
	var subjects []*subject
	whole := "builtin" // in binary32, which Ascend does not store
	if d.Asked {
		whole = "random:tiny"
	}
	if d.Same && !strings.HasPrefix(d.Name, "ascend") {
		subjects = append(subjects, &subject{Chosen: d, model: whole, storage: "float32", named: true})
	}
	if d.Same {
		subjects = append(subjects, &subject{Chosen: d, model: "builtin", storage: "bfloat16", named: true})
	}
	if d.Asked {
		dir := t.TempDir()
		c, w := device.Wide()
		saveModel(t, dir, c, w, m{"architectures": []string{"Qwen3ForCausalLM"}, "eos_token_id": 0})
		subjects = append(subjects, &subject{Chosen: d, model: dir, storage: "bfloat16"}, &subject{Chosen: d, model: dir, storage: "bfloat16", perRow: true})
	}
	for _, s := range subjects {
		name := s.model
		switch {
		case s.perRow:
			name = "wide per row"
		case !s.named:
			name = "wide"
		}
		t.Run(fmt.Sprintf("%s/%s", name, s.storage), func(t *testing.T) {
			s.talks = s.record(t, s.amounts().turns, nothing)
			for _, c := range claims {
				switch {
				case s.Asked:
				case c.emulated == never, c.emulated == once && s != subjects[0], few == 1 && c.name != "append-prefill":
					continue
				}
				t.Run(c.name, func(t *testing.T) { c.run(t, s) })
			}
		})
	}
}
