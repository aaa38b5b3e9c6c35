package pd

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// pushPair is what a router gives to P and to D.
func pushPair(t *testing.T, p *engine, id string) (toP, toD *Params) {
	t.Helper()
	ep := p.w.Endpoint()
	toP = &Params{DoRemoteDecode: true, Mode: "push", Transfer: id}
	toD = &Params{DoRemotePrefill: true, Mode: "push", Transfer: id, EngineID: ep.EngineID, Host: ep.Host, Port: ep.Port}
	return throughJSON(t, toP), throughJSON(t, toD)
}

func pRequest(slot uint32, n int, p *Params) *connector.Request {
	return &connector.Request{ID: connector.NewRequestID(slot, 1), Name: "p", Tokens: tokens(n + 1), Prompt: n, Params: p}
}

// computing announces the chunk [from, to) of a step.
func (e *engine) computing(step uint64, r *connector.Request, table connector.Tables, from, to int) {
	e.w.Computing(step, []connector.Computing{{Request: r.ID, Tables: table.Clone(), From: from, To: to}})
}

// offered waits for D's offer of transfer x.
func offered(t *testing.T, p *engine) {
	t.Helper()
	eventually(t, "the offer is there", func() bool {
		p.w.pushes.mu.Lock()
		defer p.w.pushes.mu.Unlock()
		o := p.w.pushes.byID["x"]
		return o != nil && o.offer != nil
	})
}

func (e *engine) fill(list []kvcache.BlockID, seed byte) {
	for k := range e.regions {
		for _, b := range list {
			data := e.block(k, b)
			for i := range data {
				data[i] = seed ^ byte(k) ^ byte(b) ^ byte(i)
			}
		}
	}
}

func sameBlocks(t *testing.T, p, d *engine, from, to []kvcache.BlockID) {
	t.Helper()
	for k := range d.regions {
		for i := range from {
			require.Equal(t, p.block(k, from[i]), d.block(k, to[i]), "region %d position %d", k, i)
		}
	}
}

func TestPushOverlapsTheComputation(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), newEngine(t, "d-1", Consumer, 2)
	toP, toD := pushPair(t, p, "x")
	// D first.
	r := remote(1, 18, toD)
	d.s.Added(r)
	require.Equal(t, 10, d.s.Lookup(r, 8).Tokens)
	to := connector.Tables{blockRange(30, 5)}
	before := append([]byte(nil), d.block(0, 31)...)
	d.s.Allocated(r, to, 8, 10)
	d.flush()
	offered(t, p)

	pr, from := pRequest(7, 18, toP), connector.Tables{blockRange(10, 5)}
	p.s.Added(pr)
	p.flush()
	require.True(t, p.w.Wants(pr.ID))
	require.False(t, p.w.Wants(connector.NewRequestID(7, 2)))
	p.computing(1, pr, from, 0, 16)
	p.w.LayerDone(1, 0)
	part := int64(2 * 2 * testBlockBytes) // blocks 2 and 3 of one layer, k and v
	eventually(t, "layer 0 went out while the step runs", func() bool { return p.w.Stats().BytesPushed == uint64(part) })
	require.Equal(t, p.block(0, 12), d.block(0, 32))
	require.NotEqual(t, p.block(2, 12), d.block(2, 32))
	p.w.StepDone(1)
	eventually(t, "all layers", func() bool { return p.w.Stats().BytesPushed == uint64(testLayers*part) })
	d.quiet(20 * time.Millisecond)
	p.computing(2, pr, from, 16, 18)
	p.w.StepDone(2)
	h := p.s.Finished(pr, from, connector.End{Reason: connector.EndLength, Computed: 18, Output: 1})
	require.True(t, h.Delay)
	require.Nil(t, h.Params)
	p.flush()
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, 3, ev.Payload.(Transfer).Blocks)
	sameBlocks(t, p, d, from[0][2:], to[0][2:])
	require.Equal(t, before, d.block(0, 31))
	require.Equal(t, connector.Sent, p.next().Kind)
	eventually(t, "it is over", func() bool { return p.w.Stats().PushesNow+p.w.Stats().LeasesNow == 0 })
	require.Zero(t, p.s.Live())
	d.s.Finished(r, to, connector.End{})
	require.Zero(t, d.s.Live())
}

func TestPushToADecoderThatComesLate(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), newEngine(t, "d-1", Consumer, 2)
	toP, toD := pushPair(t, p, "x")
	pr, from := pRequest(7, 18, toP), connector.Tables{blockRange(10, 5)}
	p.s.Added(pr)
	p.flush()
	require.True(t, p.s.Finished(pr, from, connector.End{Reason: connector.EndLength, Computed: 18}).Delay)
	p.flush()
	require.Equal(t, 1, p.w.Stats().LeasesNow)
	r := remote(1, 18, toD)
	d.load(r, 30)
	require.Equal(t, connector.Received, d.next().Kind)
	sameBlocks(t, p, d, from[0], blockRange(30, 5))
	require.Equal(t, connector.Sent, p.next().Kind)
}

// A preempted prompt is computed again in other blocks: what was sent of the
// first time is overwritten.
func TestPushOfAPromptThatIsComputedAgain(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), newEngine(t, "d-1", Consumer, 2)
	toP, toD := pushPair(t, p, "x")
	r := remote(1, 16, toD)
	d.load(r, 30)
	pr := pRequest(7, 16, toP)
	p.s.Added(pr)
	p.flush()
	first, second := connector.Tables{blockRange(10, 4)}, connector.Tables{blockRange(20, 4)}
	p.computing(1, pr, first, 0, 12)
	p.w.StepDone(1)
	sent := uint64(3 * 2 * testLayers * testBlockBytes)
	eventually(t, "the first time", func() bool { return p.w.Stats().BytesPushed == sent })
	p.computing(2, pr, first, 12, 16)
	p.fill(first[0], 1) // others use the blocks
	p.fill(second[0], 2)
	p.computing(3, pr, second, 0, 16)
	p.w.StepDone(2) // the step before it had run, and says nothing any more
	p.w.StepDone(3)
	p.s.Finished(pr, second, connector.End{Reason: connector.EndLength, Computed: 16})
	p.flush()
	require.Equal(t, connector.Received, d.next().Kind)
	sameBlocks(t, p, d, second[0], blockRange(30, 4))
}

func TestPushThatEndsEarly(t *testing.T) {
	pair := func(t *testing.T, opts ...option) (*engine, *engine, *connector.Request, *connector.Request) {
		p, d := newEngine(t, "p-1", Producer, 1, opts...), newEngine(t, "d-1", Consumer, 2, opts...)
		toP, toD := pushPair(t, p, "x")
		return p, d, pRequest(7, 16, toP), remote(1, 16, toD)
	}
	t.Run("P aborts", func(t *testing.T) {
		p, d, pr, r := pair(t)
		d.load(r, 30)
		p.s.Added(pr)
		p.flush()
		offered(t, p)
		require.False(t, p.s.Finished(pr, nil, connector.End{Reason: connector.EndAbort}).Delay)
		p.flush()
		require.ErrorContains(t, d.failedLoad(r.ID), "the prompt was not completed")
		eventually(t, "it is over", func() bool { return p.w.Stats().PushesNow == 0 })
	})
	t.Run("D aborts", func(t *testing.T) {
		p, d, pr, r := pair(t)
		d.load(r, 30)
		p.s.Added(pr)
		p.flush()
		offered(t, p)
		d.s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
		d.flush()
		d.failedLoad(r.ID)
		eventually(t, "P knows", func() bool { return p.w.Stats().PushesNow == 0 })
		require.True(t, p.s.Finished(pr, connector.Tables{blockRange(1, 4)}, connector.End{Reason: connector.EndLength, Computed: 16}).Delay)
		p.flush()
		require.Equal(t, connector.Sent, p.next().Kind, "nobody waits for it")
	})
	t.Run("D never offers, because all is local", func(t *testing.T) {
		p, d, pr, r := pair(t)
		d.s.Added(r)
		d.s.Allocated(r, connector.Tables{blockRange(1, 4)}, 12, 0)
		d.flush()
		time.Sleep(20 * time.Millisecond)
		p.s.Added(pr)
		p.s.Finished(pr, connector.Tables{blockRange(1, 4)}, connector.End{Reason: connector.EndLength, Computed: 16})
		p.flush()
		require.Equal(t, connector.Sent, p.next().Kind)
	})
	t.Run("no decoder comes", func(t *testing.T) {
		p, _, pr, _ := pair(t, lease(50*time.Millisecond))
		p.s.Added(pr)
		p.s.Finished(pr, connector.Tables{blockRange(1, 4)}, connector.End{Reason: connector.EndLength, Computed: 16})
		p.flush()
		require.Equal(t, connector.Sent, p.next().Kind)
		require.Zero(t, p.w.Stats().PushesNow)
	})
	t.Run("P restarts", func(t *testing.T) {
		p, d, _, r := pair(t, lease(60*time.Millisecond))
		d.load(r, 30)
		offered(t, p)
		ep := p.w.Endpoint()
		require.NoError(t, p.w.Close())
		newEngine(t, "p-2", Producer, 3, func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
			w.Listen = addr(ep)
		})
		require.ErrorIs(t, d.failedLoad(r.ID), ErrRestarted)
	})
	t.Run("deadline", func(t *testing.T) {
		_, d, _, r := pair(t, func(_ *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) { s.Load = 80 * time.Millisecond })
		d.load(r, 30)
		require.ErrorContains(t, d.failedLoad(r.ID), "load not finished within 80ms")
	})
	t.Run("P computes less than D wants", func(t *testing.T) {
		p, d, pr, r := pair(t)
		d.load(r, 30)
		p.s.Added(pr)
		p.s.Finished(pr, connector.Tables{blockRange(1, 3)}, connector.End{Reason: connector.EndLength, Computed: 12})
		p.flush()
		require.ErrorContains(t, d.failedLoad(r.ID), "push of 12 tokens, want 16")
	})
	t.Run("hole at P", func(t *testing.T) {
		p, d, pr, r := pair(t)
		d.load(r, 30)
		p.s.Added(pr)
		p.s.Finished(pr, connector.Tables{{1, 0, 3, 4}}, connector.End{Reason: connector.EndLength, Computed: 16})
		p.flush()
		ev := d.next()
		require.Equal(t, connector.Failed, ev.Kind)
		require.Equal(t, []kvcache.BlockID{31}, ev.Blocks)
		require.Equal(t, 3, d.next().Payload.(Transfer).Blocks)
	})
}

// After D has given up, P can no longer write.
func TestPushIsFenced(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2, func(_ *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) { s.Load = 100 * time.Millisecond })
	toP, toD := pushPair(t, p, "x")
	r := remote(1, 16, toD)
	d.load(r, 30)
	pr, from := pRequest(7, 16, toP), connector.Tables{blockRange(10, 4)}
	p.s.Added(pr)
	p.flush()
	p.computing(1, pr, from, 0, 8)
	p.w.StepDone(1)
	d.failedLoad(r.ID)
	d.fill(blockRange(30, 4), 9) // another request's KV
	p.computing(2, pr, from, 8, 16)
	p.w.StepDone(2)
	p.s.Finished(pr, from, connector.End{Reason: connector.EndLength, Computed: 16})
	p.flush()
	require.Equal(t, connector.Sent, p.next().Kind)
	want := newEngine(t, "x", Both, 9)
	want.fill(blockRange(30, 4), 9)
	sameBlocks(t, want, d, blockRange(30, 4), blockRange(30, 4))
}

// muffled passes a control channel on until it is stuck; from then on it swallows what is sent.
func muffled(t *testing.T, to Endpoint) (at Endpoint, stuck *atomic.Bool, swallowed <-chan struct{}) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	stuck = new(atomic.Bool)
	some := make(chan struct{})
	first := sync.OnceFunc(func() { close(some) })
	var wg sync.WaitGroup
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			here, err := ln.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", addr(to))
			if err != nil {
				here.Close()
				continue
			}
			wg.Go(func() { defer here.Close(); _, _ = io.Copy(here, there) })
			wg.Go(func() {
				defer there.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := here.Read(b)
					if err != nil {
						return
					}
					if stuck.Load() {
						first()
					} else if _, err := there.Write(b[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	return Endpoint{EngineID: to.EngineID, Host: "127.0.0.1", Port: ln.Addr().(*net.TCPAddr).Port}, stuck, some
}

// When D gives up P can no longer write from then on, also while it does not answer that it
// has taken notice: the blocks may be another request's before it does.
func TestPushIsFencedAheadOfTheAnswer(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	at, stuck, swallowed := muffled(t, p.w.Endpoint())
	d := newEngine(t, "d-1", Consumer, 2, lease(5*time.Minute), func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) { w.Call = time.Minute })
	toP, toD := pushPair(t, p, "x")
	toD.Port = at.Port
	r := remote(1, 16, toD)
	d.load(r, 30)
	offered(t, p)
	stuck.Store(true)
	d.s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
	d.flush()
	<-swallowed                  // D says so, and waits
	d.fill(blockRange(30, 4), 9) // another request's KV
	pr, from := pRequest(7, 16, toP), connector.Tables{blockRange(10, 4)}
	p.s.Added(pr)
	p.flush()
	p.s.Finished(pr, from, connector.End{Reason: connector.EndLength, Computed: 16})
	p.flush()
	require.Equal(t, connector.Sent, p.next().Kind)
	want := newEngine(t, "x", Both, 9)
	want.fill(blockRange(30, 4), 9)
	sameBlocks(t, want, d, blockRange(30, 4), blockRange(30, 4))
	require.EqualValues(t, 1, p.w.Stats().PushesFailed)
	d.quiet(0) // it still waits
}

func TestManyPushesAtOnce(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), newEngine(t, "d-1", Consumer, 2)
	var ended atomic.Int32
	const n = 10
	for i := range uint32(n) {
		toP, toD := pushPair(t, p, string(rune('a'+i)))
		d.s.Added(remote(i, 16, toD))
		d.s.Allocated(remote(i, 16, toD), connector.Tables{blockRange(1+4*int(i), 4)}, 0, 16)
		d.flush()
		pr := pRequest(i, 16, toP)
		p.s.Added(pr)
		p.s.Finished(pr, connector.Tables{blockRange(20+4*int(i), 4)}, connector.End{Reason: connector.EndLength, Computed: 16})
		p.flush()
	}
	for range n {
		require.Equal(t, connector.Received, d.next().Kind)
		require.Equal(t, connector.Sent, p.next().Kind)
		ended.Add(1)
	}
	sameBlocks(t, p, d, blockRange(20, 4*n), blockRange(1, 4*n))
	require.Equal(t, 1, p.w.pushes.ways.len())
}
