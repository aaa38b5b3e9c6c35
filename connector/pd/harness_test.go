package pd

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	noDevices = useDevices()
	goleak.VerifyTestMain(m)
}

// hostRegion is KV on the heap.
type hostRegion []byte

func (h hostRegion) Bytes() []byte { return h }
func (h hostRegion) ReadAt(p []byte, off int64) (int, error) {
	return copy(p, h[off:]), nil
}
func (h hostRegion) WriteAt(p []byte, off int64) (int, error) { return copy(h[off:], p), nil }

const (
	testBlocks     = 64
	testBlockSize  = 4
	testBlockBytes = 512
	testLayers     = 3
)

func testLayout(groups int) connector.Layout {
	l := connector.Layout{Model: "m1", DType: "fp32", BlockSize: testBlockSize, Blocks: testBlocks}
	for range groups {
		l.Groups = append(l.Groups, connector.LayoutGroup{Kind: "full_attention", Layers: testLayers, BlockBytes: 2 * testLayers * testBlockBytes})
	}
	return l
}

// engine is both sides of one connector with memory, without a scheduler.
type engine struct {
	t       require.TestingT
	w       *Worker
	s       *Scheduler
	regions []connector.Region
	step    uint64
	dev     ascendrt.Device // nil: its KV is on the heap
}

type option func(*WorkerConfig, *SchedulerConfig, *connector.Layout)

func newEngine(t *testing.T, id string, role Role, seed uint64, opts ...option) *engine {
	t.Helper()
	e := startEngine(t, id, role, seed, opts...)
	t.Cleanup(func() { require.NoError(t, e.w.Close()) })
	return e
}

func startEngine(t require.TestingT, id string, role Role, seed uint64, opts ...option) *engine {
	return startEngineIn(t, func(b []byte) connector.Memory { return hostRegion(b) }, id, role, seed, opts...)
}

// startEngineIn has its KV where place puts it.
func startEngineIn(t require.TestingT, place func([]byte) connector.Memory, id string, role Role, seed uint64, opts ...option) *engine {
	wc := WorkerConfig{EngineID: id, Lease: 5 * time.Second, Call: 2 * time.Second}
	sc := SchedulerConfig{Role: role, BlockSize: testBlockSize, Lease: 5 * time.Second, Load: 20 * time.Second}
	layout := testLayout(1)
	for _, o := range opts {
		o(&wc, &sc, &layout)
	}
	e := &engine{t: t}
	var err error
	e.w, err = NewWorker(wc)
	require.NoError(t, err)
	sc.Self = e.w.Endpoint()
	sc.Key[0] = byte(seed)
	e.s, err = NewScheduler(sc)
	require.NoError(t, err)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	for g := range layout.Groups {
		for layer := range testLayers {
			for _, name := range []string{"k", "v"} {
				mem := make([]byte, layout.Blocks*testBlockBytes)
				r.Read(mem)
				e.regions = append(e.regions, connector.Region{Group: g, Layer: layer, Name: name, BlockBytes: testBlockBytes, Memory: place(mem)})
			}
		}
	}
	require.NoError(t, e.w.Register(layout, e.regions))
	return e
}

// block is the bytes of one block in one region.
func (e *engine) block(region int, b kvcache.BlockID) []byte {
	r := e.regions[region]
	if h, ok := r.Memory.(hostRegion); ok {
		return h[r.Offset(b) : r.Offset(b)+int64(r.BlockBytes)]
	}
	p := make([]byte, r.BlockBytes)
	_, err := r.Memory.ReadAt(p, r.Offset(b))
	require.NoError(e.t, err)
	return p
}

// flush hands the scheduler's ops to the worker, as an engine does after Plan.
func (e *engine) flush() {
	e.step++
	require.NoError(e.t, e.w.Submit(e.s.Ops(e.step, nil)...))
}

// next waits for the next event and tells the scheduler's side.
func (e *engine) next() connector.Event {
	select {
	case ev := <-e.w.Events():
		e.s.Completed(ev)
		return ev
	case <-time.After(30 * time.Second):
		require.FailNow(e.t, "no event")
		return connector.Event{}
	}
}

// quiet asserts that no event comes for a while.
func (e *engine) quiet(d time.Duration) {
	select {
	case ev := <-e.w.Events():
		require.FailNow(e.t, "unexpected event", "%+v", ev)
	case <-time.After(d):
	}
}

func tokens(n int) []kvcache.Token {
	out := make([]kvcache.Token, n)
	for i := range out {
		out[i] = kvcache.Token(i)
	}
	return out
}

func blockRange(from, n int) []kvcache.BlockID {
	out := make([]kvcache.BlockID, n)
	for i := range out {
		out[i] = kvcache.BlockID(from + i)
	}
	return out
}

// prefill ends a prompt of n tokens on P, whose KV is in blocks from first on,
// and returns what P tells D, once through JSON.
func (e *engine) prefill(slot uint32, n, first int) *Params {
	r := &connector.Request{
		ID: connector.NewRequestID(slot, 1), Name: fmt.Sprintf("p-%d", slot), Tokens: tokens(n + 1), Prompt: n,
		Params: &Params{DoRemoteDecode: true},
	}
	e.s.Added(r)
	require.Equal(e.t, connector.Answer{}, e.s.Lookup(r, 0))
	table := connector.Tables{blockRange(first, ceilDiv(n, testBlockSize))}
	e.s.Allocated(r, table, 0, 0)
	hold := e.s.Finished(r, table, connector.End{Reason: connector.EndLength, Computed: n, Output: 1})
	require.True(e.t, hold.Delay)
	e.flush()
	raw, err := hold.Params.(*Params).MarshalJSON()
	require.NoError(e.t, err)
	p, err := ParseParams(raw)
	require.NoError(e.t, err, "%s", raw)
	return p
}

// request is D's view of a request with P's parameters.
func remote(slot uint32, n int, p *Params) *connector.Request {
	return &connector.Request{
		ID: connector.NewRequestID(slot, 1), Name: fmt.Sprintf("d-%d", slot), Tokens: tokens(n), Prompt: n, Params: p, Route: connector.RemotePrefill,
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, time.Millisecond, what)
}

func addr(ep Endpoint) string { return net.JoinHostPort(ep.Host, strconv.Itoa(ep.Port)) }
