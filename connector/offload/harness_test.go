package offload

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	bs         = 4
	blocks     = 32
	blockBytes = 128 // of one region
)

type hostRegion []byte

func (h hostRegion) ReadAt(p []byte, off int64) (int, error)  { return copy(p, h[off:]), nil }
func (h hostRegion) WriteAt(p []byte, off int64) (int, error) { return copy(h[off:], p), nil }

// engine is both sides with memory, without a scheduler.
type engine struct {
	t       *testing.T
	s       *Scheduler
	w       *Worker
	layout  connector.Layout
	regions []connector.Region
}

func testLayout() connector.Layout {
	return connector.Layout{
		Model: "m1", DType: "fp32", BlockSize: bs, Blocks: blocks,
		Groups: []connector.LayoutGroup{{Kind: "full_attention", Layers: 2, BlockBytes: 4 * blockBytes}},
	}
}

func newEngine(t *testing.T, slots int, change func(*Config, *WorkerConfig)) *engine {
	t.Helper()
	e := &engine{t: t, layout: testLayout()}
	c, wc := Config{BlockSize: bs, Slots: slots}, WorkerConfig{Slots: slots}
	if change != nil {
		change(&c, &wc)
	}
	for layer := range 2 {
		for _, name := range []string{"k", "v"} {
			e.regions = append(e.regions, connector.Region{Layer: layer, Name: name, BlockBytes: blockBytes, Memory: make(hostRegion, blocks*blockBytes)})
		}
	}
	var err error
	e.w, err = NewWorker(wc)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.w.Close()) })
	require.NoError(t, e.w.Register(e.layout, e.regions))
	c.Files = e.w.Files()
	e.s, err = NewScheduler(c)
	require.NoError(t, err)
	return e
}

func (e *engine) block(region int, b kvcache.BlockID) []byte {
	r := e.regions[region]
	return r.Memory.(hostRegion)[r.Offset(b) : r.Offset(b)+blockBytes]
}

// compute fills a block as if a model had computed it: from the tokens up to
// its end.
func (e *engine) compute(r *connector.Request, i int, b kvcache.BlockID) {
	for k := range e.regions {
		copy(e.block(k, b), e.want(r, i, k))
	}
}

func (e *engine) want(r *connector.Request, i, region int) []byte {
	seed := [32]byte{byte(region), byte(i)}
	for _, tok := range r.Tokens[:min((i+1)*bs, len(r.Tokens))] {
		seed[2+int(tok)%30] += byte(tok) + 1
	}
	out := make([]byte, blockBytes)
	rand.NewChaCha8(seed).Read(out)
	return out
}

func (e *engine) has(r *connector.Request, i int, b kvcache.BlockID) {
	e.t.Helper()
	for k := range e.regions {
		require.Equal(e.t, e.want(r, i, k), e.block(k, b), "block %d of the request in region %d", i, k)
	}
}

// scramble is another request's KV.
func (e *engine) scramble(list []kvcache.BlockID) {
	for _, b := range list {
		for k := range e.regions {
			clear(e.block(k, b))
		}
	}
}

func (e *engine) flush() {
	e.t.Helper()
	require.NoError(e.t, e.w.Submit(e.s.Ops(1, nil)...))
}

func (e *engine) next() connector.Event {
	e.t.Helper()
	select {
	case ev := <-e.w.Events():
		e.s.Completed(ev)
		e.s.pool.check()
		return ev
	case <-time.After(20 * time.Second):
		require.FailNow(e.t, "no event")
		return connector.Event{}
	}
}

func request(slot uint32, tokens []kvcache.Token, prompt int) *connector.Request {
	return &connector.Request{ID: connector.NewRequestID(slot, 1), Name: "r", Tokens: tokens, Prompt: prompt}
}

func tokens(from, n int) []kvcache.Token {
	out := make([]kvcache.Token, n)
	for i := range out {
		out[i] = kvcache.Token(from + i)
	}
	return out
}

func table(from, n int) connector.Tables {
	out := make([]kvcache.BlockID, n)
	for i := range out {
		out[i] = kvcache.BlockID(from + i)
	}
	return connector.Tables{out}
}

func turns(c *Config, _ *WorkerConfig) { c.Sharing = Turns }
