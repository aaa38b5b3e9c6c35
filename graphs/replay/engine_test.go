package replay

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
)

// arm is one way to run the same requests.
type arm struct {
	mode    graphs.ModeConfig
	policy  graphs.Policy
	lengths LengthSource
	padding Padding
	kinds   []layerKind
	kept    storage                          // default wide
	open    func(testing.TB) ascendrt.Device // default the host
	k       int
	poison  uint64 // seed of what padding and placeholders hold; 0 = nothing special
	wrap    func(ascendrt.Device) ascendrt.Device
	stale   bool // negative control: padding keeps what it held before
	config  func(*Config)
}

const (
	armSeqs   = 8
	armBudget = 40
)

// engine runs requests step by step on one arm.
type engine struct {
	t      testing.TB
	a      arm
	dev    ascendrt.Device
	stream ascendrt.Stream
	d      *graphs.Dispatcher
	m      *model
	set    *Set
	host   ascendrt.HostBuffer
	count  *graphs.Counters
	noise  *rand.Rand
	close  func()
	last   ascendrt.Point
}

func openHost(t testing.TB) ascendrt.Device {
	t.Helper()
	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
	require.NoError(t, err)
	return dev
}

func newEngine(t testing.TB, a arm) *engine {
	t.Helper()
	ctx := context.Background()
	if a.kept.typ == 0 {
		a.kept = wide
	}
	if a.open == nil {
		a.open = openHost
	}
	dev := a.open(t)
	inner := dev
	if a.wrap != nil {
		dev = a.wrap(dev)
	}
	stream, err := dev.NewStream(ascendrt.StreamOptions{Role: "steps"})
	require.NoError(t, err)
	d, err := graphs.New(graphs.Config{
		Mode: a.mode, Policy: a.policy, K: a.k, MaxNumSeqs: armSeqs, MaxNumBatchedTokens: armBudget,
		KV: graphs.KVTransfer{Role: graphs.RoleConsumer, Connector: "pd"},
	})
	require.NoError(t, err)
	e := &engine{t: t, a: a, dev: dev, stream: stream, d: d, noise: rand.New(rand.NewPCG(a.poison, 1))}
	tokens := armBudget
	for _, k := range d.Keys() {
		tokens = max(tokens, int(k.Tokens))
	}
	states := 1 + armSeqs*4*(a.k+1)
	e.m = newModel(t, dev, stream, a.kept, a.kinds, tokens, armSeqs, states, a.padding)
	cfg := Config{Dispatcher: d, Program: e.m, Stream: stream, ResultType: a.kept.typ, ResultWidth: vocab, Lengths: a.lengths, Workspace: e.m.workspace}
	if a.config != nil {
		a.config(&cfg)
	}
	e.set, err = New(dev, cfg)
	require.NoError(t, err)
	e.host, err = dev.AllocHost(a.kept.typ.Size() * tokens * vocab)
	require.NoError(t, err)
	if len(d.Keys()) > 0 {
		require.NoError(t, e.set.Capture(ctx))
	}
	e.count = graphs.NewCounters(d)
	e.close = func() {
		require.NoError(t, e.last.Wait(ctx))
		require.NoError(t, e.set.Close())
		require.NoError(t, inner.Close(ctx))
	}
	return e
}

// request is one sequence of tokens.
type request struct {
	prompt   []int32
	tokens   []int32 // prompt and output
	prefill  int     // tokens known at admission
	computed int
	blocks   []int32
	slot     int
	commit   int // state of the slot that the next step starts from
	drafts   []int32
}

func newRequest(slot int, prompt []int32) *request {
	r := &request{prompt: prompt, slot: slot, prefill: len(prompt)}
	r.tokens = append(r.tokens, prompt...)
	return r
}

// work is what one request does in a step.
type work struct {
	r      *request
	n      int     // new tokens
	drafts []int32 // to verify; placeholders where pad
	pad    bool
}

// step runs one step and returns, per request, the logits of the rows that can
// be compared between arms: all but those of placeholders.
func (e *engine) step(ws []work) [][]byte {
	e.t.Helper()
	ctx := context.Background()
	k1 := e.a.k + 1
	var rows graphs.Rows
	for _, w := range ws {
		ph := 0
		if w.pad {
			ph = len(w.drafts)
		}
		rows.Append(graphs.Row{
			Scheduled: int32(w.n + len(w.drafts)), Drafts: int32(len(w.drafts)), Placeholders: int32(ph),
			Computed: int32(w.r.computed), Prefill: int32(w.r.prefill),
		})
	}
	verdicts := make([]graphs.RowVerdict, len(ws))
	dec := e.d.Dispatch(rows, graphs.Step{}, verdicts)
	e.count.Observe(dec)

	b := Batch{}
	base := func(w work) int { return 1 + w.r.slot*k1 }
	size := int32(e.a.kept.block)
	for i, w := range ws {
		if w.r.blocks == nil {
			w.r.blocks = e.a.kept.blocks(w.r.slot)
		}
		q := w.n + len(w.drafts)
		b.Query = append(b.Query, int32(q))
		b.Lens = append(b.Lens, int32(w.r.computed+q))
		b.Tables = append(b.Tables, w.r.blocks)
		from := int32(0)
		if w.r.computed > 0 || verdicts[i].RunsAsDecode() {
			from = int32(base(w) + w.r.commit)
		}
		b.StateIn = append(b.StateIn, from)
		for j := range q {
			pos := w.r.computed + j
			id := int32(0)
			switch {
			case j < w.n:
				id = w.r.tokens[pos]
			case w.pad:
				id = e.any(vocab) // what stands for a placeholder in the embedding
			default:
				id = w.drafts[j-w.n]
			}
			b.IDs = append(b.IDs, id)
			b.Positions = append(b.Positions, int32(pos))
			b.Slots = append(b.Slots, w.r.blocks[int32(pos)/size]*size+int32(pos)%size)
			out := PadState
			switch {
			case verdicts[i].DraftMark(int32(len(w.drafts)), int32(e.a.k)) >= 0:
				out = int32(base(w) + j) // the verify path: a state per position
			case j == q-1:
				out = int32(base(w)) // the prefill path: the state behind the last one
			}
			b.StateOut = append(b.StateOut, out)
		}
	}
	staged, err := e.m.static.Stage(b, dec)
	require.NoError(e.t, err)
	e.spoil(staged, dec)
	total := int(dec.Tokens)
	res, err := e.set.Launch(ctx, Step{
		Decision: dec, Verdicts: verdicts, Lengths: staged.Lengths, Starts: staged.Starts,
		Inputs: func(c *ascendrt.Commands) {
			if e.a.poison != 0 {
				e.m.poison(c)
			}
			staged.Upload(c)
		},
		After: func(c *ascendrt.Commands, result ascendrt.Tensor) {
			n := e.rowBytes() * total
			c.Copy(e.host.Slice(0, n), result.View.Slice(0, n))
		},
	})
	require.NoError(e.t, err)
	staged.Submitted(res.Point)
	e.last = res.Point
	require.NoError(e.t, res.Point.Wait(ctx))
	require.NoError(e.t, res.Release())

	var out [][]byte
	at := 0
	for i, w := range ws {
		q := w.n + len(w.drafts)
		keep := q
		if w.pad {
			keep = w.n
		}
		logits := append([]byte(nil), e.host.Bytes()[e.rowBytes()*at:e.rowBytes()*(at+keep)]...)
		out = append(out, logits)
		e.apply(w, verdicts[i], logits)
		at += q
	}
	return out
}

// any is a value below n that differs from arm to arm where poison is used.
func (e *engine) any(n int32) int32 {
	if e.a.poison == 0 {
		return 0
	}
	return e.noise.Int32N(n)
}

// spoil puts values into the padding that nothing may depend on: ids and
// positions in range. The negative control leaves stale slots and blocks there.
func (e *engine) spoil(g Staged, dec graphs.Decision) {
	s := e.m.static
	for i := dec.Tokens; i < dec.PaddedTokens; i++ {
		if e.a.poison != 0 {
			s.at(g.img, s.IDs)[i] = e.any(vocab)
			s.at(g.img, s.Positions)[i] = e.any(maxLen)
		}
		if e.a.stale {
			s.at(g.img, s.Slots)[i] = s.at(g.img, s.Slots)[0]
			s.at(g.img, s.IDs)[i] = 5
		}
	}
}

// rowBytes is the size of the logits of one token.
func (e *engine) rowBytes() int { return e.a.kept.typ.Size() * vocab }

func argmax(logits []byte) int32 {
	size := int32(len(logits) / vocab)
	best, at := float32(math.Inf(-1)), int32(0)
	for i := range int32(vocab) {
		var v float32
		if size == 2 {
			v = math.Float32frombits(uint32(binary.NativeEndian.Uint16(logits[2*i:])) << 16)
		} else {
			v = math.Float32frombits(binary.NativeEndian.Uint32(logits[4*i:]))
		}
		if v > best {
			best, at = v, i
		}
	}
	return at
}

// apply samples greedily and verifies drafts.
func (e *engine) apply(w work, v graphs.RowVerdict, logits []byte) {
	r := w.r
	row := func(i int) []byte { return logits[e.rowBytes()*i : e.rowBytes()*(i+1)] }
	r.drafts = nil
	if r.computed+w.n < r.prefill { // a chunk that ends before the prompt samples nothing
		r.computed += w.n
		r.commit = 0
		return
	}
	accepted := 0
	if !w.pad {
		for accepted < len(w.drafts) && argmax(row(w.n-1+accepted)) == w.drafts[accepted] {
			r.tokens = append(r.tokens, w.drafts[accepted])
			accepted++
		}
	}
	r.tokens = append(r.tokens, argmax(row(w.n-1+accepted)))
	r.computed += int(v.Advance(int32(w.n+len(w.drafts)), int32(len(w.drafts)), int32(accepted)))
	if r.commit = 0; v.DraftMark(int32(len(w.drafts)), int32(e.a.k)) >= 0 {
		r.commit = w.n - 1 + accepted
	}
}

// states is what the recurrent layers keep for a request.
func (e *engine) states(r *request) []byte {
	var out []byte
	n := 4 * heads * e.a.kept.headDim * e.a.kept.headDim
	for _, l := range e.m.layers {
		if l.kind == deltaLayer {
			at := 1 + r.slot*(e.a.k+1) + r.commit
			out = append(out, e.m.download(ascendrt.NewTensor(l.states.View.Slice(at*n, n), ascendrt.Float32, n/4))...)
		}
	}
	return out
}

// solo gives the continuation of a prompt, computed alone, eagerly, with the
// whole prompt in one chunk.
func solo(t testing.TB, kinds []layerKind, prompt []int32, n int) []int32 {
	e := newEngine(t, arm{mode: graphs.ModeNone, kinds: kinds})
	defer e.close()
	r := newRequest(0, prompt)
	e.step([]work{{r: r, n: len(prompt)}})
	for len(r.tokens) < len(prompt)+n {
		e.step([]work{{r: r, n: 1}})
	}
	return r.tokens[len(prompt):]
}

// history is what an arm computed, step by step.
type history struct {
	logits [][][]byte
	states [][]byte
	count  *graphs.Counters
	reqs   []*request
	keys   []graphs.Key
}

// play runs a random but reproducible sequence of batches: chunked prompts,
// tails padded for speculation, decodes with drafts of which some are right,
// fresh one-token prompts, preemptions.
func play(t testing.TB, a arm, seed uint64, steps int) history {
	t.Helper()
	e := newEngine(t, a)
	defer e.close()
	rng := rand.New(rand.NewPCG(seed, 99))
	var h history
	live := map[int]*request{}
	admit := func(slot int) *request {
		n := 1 + rng.IntN(20)
		if rng.IntN(5) == 0 {
			n = []int{1, a.k + 1, 1 + blockSize*2}[rng.IntN(3)]
		}
		prompt := make([]int32, n)
		for i := range prompt {
			prompt[i] = rng.Int32N(vocab)
		}
		r := newRequest(slot, prompt)
		h.reqs = append(h.reqs, r)
		return r
	}
	for range steps {
		var ws []work
		budget := armBudget
		onlyDecode := rng.IntN(3) > 0
		for slot := range armSeqs {
			r := live[slot]
			if r == nil {
				if rng.IntN(4) != 0 {
					continue
				}
				r = admit(slot)
				live[slot] = r
			}
			if len(r.tokens)+a.k+2 >= maxLen-blockSize || rng.IntN(60) == 0 {
				delete(live, slot)
				continue
			}
			if rng.IntN(50) == 0 && r.computed >= r.prefill { // preempted: all tokens are to be computed again
				r.prefill, r.computed, r.commit = len(r.tokens), 0, 0
			}
			left := r.prefill - r.computed
			switch {
			case left == 1 && r.computed > 0:
				w := work{r: r, n: 1}
				in := graphs.PadInput{Known: int32(r.prefill), Computed: int32(r.computed), K: int32(a.k), Budget: int32(budget), MaxModelLen: maxLen}
				if graphs.Pad(in) == graphs.PadFull && rng.IntN(8) > 0 {
					w.drafts, w.pad = make([]int32, a.k), true
				}
				ws = append(ws, w)
			case left > 0:
				n := left
				if rng.IntN(2) == 0 {
					n = 1 + rng.IntN(left)
				}
				if left > 1 && rng.IntN(2) == 0 {
					n = left - 1 // leaves a tail, as imported KV does
				}
				if onlyDecode && r.computed == 0 && n > 1 || n > budget {
					continue
				}
				ws = append(ws, work{r: r, n: n})
			default:
				w := work{r: r, n: 1}
				if rng.IntN(12) > 0 {
					for range a.k {
						w.drafts = append(w.drafts, rng.Int32N(vocab))
					}
					if a.k > 0 && rng.IntN(2) == 0 {
						copy(w.drafts, e.guess(r, a.k))
					}
				}
				ws = append(ws, w)
			}
			budget -= ws[len(ws)-1].n + len(ws[len(ws)-1].drafts)
		}
		if len(ws) == 0 || budget < 0 {
			continue
		}
		h.logits = append(h.logits, e.step(ws))
		var states []byte
		for _, w := range ws {
			states = append(states, e.states(w.r)...)
		}
		h.states = append(h.states, states)
	}
	h.count, h.keys = e.count, e.d.Keys()
	return h
}

// guess proposes drafts from what the request has seen, so that some are right.
func (e *engine) guess(r *request, k int) []int32 {
	last := r.tokens[len(r.tokens)-1]
	for i := len(r.tokens) - 2; i > 0; i-- {
		if r.tokens[i] == last && i+1 < len(r.tokens) {
			return r.tokens[i+1 : min(i+1+k, len(r.tokens))]
		}
	}
	return nil
}
