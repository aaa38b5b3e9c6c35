package pd

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/kvcache"
)

// gate lets a test act while a read is between its bytes and its end.
type gate struct {
	transport.Transport
	after atomic.Pointer[func()] // after the bytes of a Read, before its return
}

type gatePeer struct {
	transport.Peer
	g *gate
}

func (g *gate) Connect(ctx context.Context, addr string) (transport.Peer, error) {
	p, err := g.Transport.Connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	return gatePeer{p, g}, nil
}

func (p gatePeer) Read(ctx context.Context, c transport.Capability, segs []transport.Segment) error {
	err := p.Peer.Read(ctx, c, segs)
	if f := p.g.after.Load(); f != nil {
		(*f)()
	}
	return err
}

func gated(g *gate) option {
	return func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Transport = func(n transport.Notified) (transport.Transport, error) {
			t, err := tcp.New(tcp.Config{Notified: n})
			g.Transport = t
			return g, err
		}
	}
}

// failedLoad expects a load that fails as a whole, and returns the cause.
func (e *engine) failedLoad(id connector.RequestID) error {
	ev := e.next()
	require.Equal(e.t, connector.Failed, ev.Kind)
	require.Equal(e.t, id, ev.Request)
	require.Empty(e.t, ev.Blocks, "all of the load")
	rec := e.next()
	require.Equal(e.t, connector.Received, rec.Kind)
	require.Equal(e.t, id, rec.Request)
	require.Zero(e.t, rec.Payload.(Transfer).Blocks)
	return ev.Err
}

func (e *engine) load(r *connector.Request, first int) {
	e.s.Added(r)
	e.s.Allocated(r, connector.Tables{blockRange(first, ceilDiv(r.Prompt, testBlockSize))}, 0, r.Prompt)
	e.flush()
}

func TestLeaseThatExpiresInMidReadFailsTheLoad(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1, lease(time.Second))
	g := &gate{}
	d := newEngine(t, "d-1", Consumer, 2, gated(g), lease(time.Hour)) // D does not renew in time
	// All bytes have arrived when the lease runs out and P uses the blocks for
	// another request: only the confirmation can tell.
	overwrite := func() {
		require.Equal(t, connector.Sent, p.next().Kind)
		clear(p.block(0, 1))
	}
	g.after.Store(&overwrite)
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.load(r, 1)
	require.ErrorIs(t, d.failedLoad(r.ID), ErrLeaseBroken)
	require.EqualValues(t, 1, d.w.Stats().Broken)
	eventually(t, "the release was answered", func() bool { return d.w.Stats().TrackedNow == 0 })
	require.EqualValues(t, 1, p.w.Stats().ReleasesUnknown, "P had ended the lease itself")
}

func TestPrefillerKilledBeforeTheRead(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2, lease(100*time.Millisecond))
	r := remote(1, 9, p.prefill(1, 9, 1))
	require.NoError(t, p.w.Close())
	d.load(r, 1)
	require.Error(t, d.failedLoad(r.ID))
	eventually(t, "the release is given up", func() bool { return d.w.Stats().ReleasesGivenUp == 1 && d.w.Stats().TrackedNow == 0 })
}

func TestPrefillerKilledInMidRead(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	g := &gate{}
	d := newEngine(t, "d-1", Consumer, 2, gated(g))
	kill := func() { p.w.Close() }
	g.after.Store(&kill)
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.load(r, 1)
	require.ErrorIs(t, d.failedLoad(r.ID), ErrLeaseBroken, "nobody can confirm")
}

func TestPrefillerRestartIsDetected(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	first := remote(1, 9, p.prefill(1, 9, 1))
	d.load(first, 1)
	require.Equal(t, connector.Received, d.next().Kind)
	stale := p.prefill(2, 9, 4)
	port := p.w.Endpoint().Port
	require.NoError(t, p.w.Close())
	again := newEngine(t, "p-2", Producer, 3, func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	})
	r := remote(2, 9, stale)
	d.load(r, 4)
	require.ErrorIs(t, d.failedLoad(r.ID), ErrRestarted)
	eventually(t, "a restarted peer needs no release", func() bool { return d.w.Stats().TrackedNow == 0 })
	require.Zero(t, again.w.Stats().ReleasesUnknown)
	next := remote(3, 9, again.prefill(1, 9, 1))
	d.load(next, 10)
	require.Equal(t, connector.Received, d.next().Kind)
	require.Equal(t, again.block(0, 1), d.block(0, 10))
}

func TestCancelEndsALoad(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	g := &gate{}
	d := newEngine(t, "d-1", Consumer, 2, gated(g))
	reading, goOn := make(chan struct{}), make(chan struct{})
	hold := func() { close(reading); <-goOn }
	g.after.Store(&hold)
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.load(r, 1)
	<-reading
	d.s.Finished(r, connector.Tables{blockRange(1, 3)}, connector.End{Reason: connector.EndAbort})
	d.flush()
	d.quiet(20 * time.Millisecond) // the read has not returned: the blocks are still its own
	require.Equal(t, 1, d.s.Live())
	close(goOn)
	d.failedLoad(r.ID)
	require.Zero(t, d.s.Live())
	require.Equal(t, connector.Sent, p.next().Kind, "released")
}

func TestLoadDeadline(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	require.NoError(t, err)
	defer ln.Close()
	d := newEngine(t, "d-1", Consumer, 2, func(w *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) {
		s.Load, w.Lease, w.Call = 80*time.Millisecond, 50*time.Millisecond, time.Minute
	})
	r := remote(1, 9, &Params{
		DoRemotePrefill: true, EngineID: "p", RequestID: "x", Host: "127.0.0.1", Port: ln.Addr().(*net.TCPAddr).Port,
		Blocks: [][]kvcache.BlockID{{1, 2, 3}}, Lease: Lease{Slot: 1, Generation: 1},
	})
	begin := time.Now()
	d.load(r, 1)
	d.failedLoad(r.ID)
	require.Less(t, time.Since(begin), 10*time.Second)
}

func TestWrongSecretOpensNothing(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	params := p.prefill(1, 9, 1)
	thief := params.Clone()
	thief.Lease.Secret[0] ^= 1
	r := remote(1, 9, thief)
	d.load(r, 1)
	require.ErrorIs(t, d.failedLoad(r.ID), ErrLeaseBroken)
	eventually(t, "the thief's release has no effect", func() bool { return p.w.Stats().ReleasesUnknown == 1 })
	require.Equal(t, 1, p.w.Stats().LeasesNow)
	other := params.Clone()
	other.RequestID = "p-other"
	d.w.Discard(other)
	eventually(t, "nor has one for another request", func() bool { return p.w.Stats().ReleasesUnknown == 2 })
	require.Equal(t, 1, p.w.Stats().LeasesNow)
}

func TestMismatchNamesBothValues(t *testing.T) {
	for _, c := range []struct {
		name, what, ours, theirs string
		change                   func(*connector.Layout)
	}{
		{"model", "model fingerprint", "m1", "m2", func(l *connector.Layout) { l.Model = "m2" }},
		{"dtype", "KV dtype", "fp32", "bf16", func(l *connector.Layout) { l.DType = "bf16" }},
		{"block size", "block size", "4", "8", func(l *connector.Layout) { l.BlockSize = 8 }},
		{
			"group kind", "layout of KV group 0", "full_attention, 3 layers, 3072 bytes a block", "sliding_window, 3 layers, 3072 bytes a block",
			func(l *connector.Layout) { l.Groups[0].Kind = "sliding_window" },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newEngine(t, "p-1", Producer, 1, func(_ *WorkerConfig, _ *SchedulerConfig, l *connector.Layout) { c.change(l) })
			d := newEngine(t, "d-1", Consumer, 2)
			r := remote(1, 9, p.prefill(1, 9, 1))
			d.load(r, 1)
			var m *MismatchError
			require.ErrorAs(t, d.failedLoad(r.ID), &m)
			require.Equal(t, &MismatchError{What: c.what, Ours: c.ours, Theirs: c.theirs, Peer: "p-1"}, m)
		})
	}
	t.Run("number of groups", func(t *testing.T) {
		d := newEngine(t, "d-1", Consumer, 2)
		p := newEngine(t, "p-1", Producer, 1)
		params := p.prefill(1, 9, 1)
		params.Blocks = append(params.Blocks, params.Blocks[0])
		r := remote(1, 9, params)
		d.load(r, 1)
		require.ErrorContains(t, d.failedLoad(r.ID), "number of KV groups: ours 1, theirs 2")
	})
}

func TestTwoGroupsWithHoles(t *testing.T) {
	groups := func(_ *WorkerConfig, _ *SchedulerConfig, l *connector.Layout) { *l = testLayout(2) }
	p := newEngine(t, "p-1", Producer, 1, groups)
	d := newEngine(t, "d-1", Consumer, 2, groups)
	pr := &connector.Request{ID: connector.NewRequestID(1, 1), Name: "p-1", Tokens: tokens(17), Prompt: 16, Params: &Params{DoRemoteDecode: true}}
	pt := connector.Tables{{10, 11, 12, 13}, {0, 0, 22, 23}} // the second group has a window
	hold := p.s.Finished(pr, pt, connector.End{Reason: connector.EndLength, Computed: 16})
	p.flush()
	r := remote(1, 16, hold.Params.(*Params))
	d.s.Added(r)
	dt := connector.Tables{{30, 31, 32, 33}, {0, 0, 42, 43}}
	d.s.Allocated(r, dt, 4, 12)
	d.flush()
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, 5, ev.Payload.(Transfer).Blocks)
	for k, reg := range d.regions {
		for i, b := range dt[reg.Group] {
			if b != 0 && i > 0 {
				require.Equal(t, p.block(k, pt[reg.Group][i]), d.block(k, b))
			}
		}
	}
	require.Equal(t, connector.Sent, p.next().Kind)
	// A hole at P where D has none is a failed block, named.
	r2 := &connector.Request{ID: connector.NewRequestID(2, 1), Name: "p-2", Tokens: tokens(17), Prompt: 16, Params: &Params{DoRemoteDecode: true}}
	hold = p.s.Finished(r2, pt, connector.End{Reason: connector.EndLength, Computed: 16})
	p.flush()
	r = remote(2, 16, hold.Params.(*Params))
	d.s.Added(r)
	d.s.Allocated(r, connector.Tables{{30, 31, 32, 33}, {40, 41, 42, 43}}, 4, 12)
	d.flush()
	ev = d.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.Equal(t, []kvcache.BlockID{41}, ev.Blocks)
	require.Equal(t, 5, d.next().Payload.(Transfer).Blocks)
}

func TestCloseReleasesWhatTheQueueHolds(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.s.Added(r)
	d.flush()
	require.NoError(t, d.w.Close())
	require.Equal(t, connector.Sent, p.next().Kind)
	_, open := <-d.w.Events()
	require.False(t, open, "closed after Close")
	require.Error(t, d.w.Submit())
}

func TestPeersThatAreNotAllowed(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2, func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Allow = func(ep Endpoint) error {
			if ep.EngineID != "p-0" {
				return errors.New("not one of ours")
			}
			return nil
		}
	})
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.load(r, 1)
	require.ErrorContains(t, d.failedLoad(r.ID), "is not allowed: not one of ours")
	_, push := pushPair(t, p, "x")
	r = remote(2, 9, push)
	d.load(r, 1)
	require.ErrorContains(t, d.failedLoad(r.ID), "is not allowed")
	require.Zero(t, d.w.Stats().PeersNow)
	require.Zero(t, p.w.Transport().(*tcp.Transport).Stats().Accepts)
}

// relay passes connections on, or swallows what the far end answers.
type relay struct {
	ln   net.Listener
	to   string
	mute atomic.Bool
	wg   sync.WaitGroup
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{ln: ln, to: to}
	r.wg.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			r.wg.Go(func() { io.Copy(b, a); b.Close(); a.Close() })
			r.wg.Go(func() { r.back(a, b) })
		}
	})
	t.Cleanup(func() { ln.Close(); r.wg.Wait() })
	return r
}

func (r *relay) back(a, b net.Conn) {
	defer a.Close()
	defer b.Close()
	buf := make([]byte, 4096)
	for {
		n, err := b.Read(buf)
		if err != nil {
			return
		}
		if r.mute.Load() {
			continue
		}
		if _, err := a.Write(buf[:n]); err != nil {
			return
		}
	}
}

// One lost reply fails one load, once; the next one succeeds.
func TestLostRepliesDoNotStickToThePeer(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	via := newRelay(t, addr(p.w.Endpoint()))
	d := newEngine(t, "d-1", Consumer, 2, func(w *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) {
		w.Call, s.Load = 100*time.Millisecond, 400*time.Millisecond
	})
	through := func(slot uint32, first int) *connector.Request {
		params := p.prefill(slot, 9, first)
		params.Port = via.ln.Addr().(*net.TCPAddr).Port
		return remote(slot, 9, params)
	}
	via.mute.Store(true)
	r := through(1, 1)
	d.load(r, 1)
	require.Error(t, d.failedLoad(r.ID))
	via.mute.Store(false)
	for i := range uint32(3) {
		if i == 1 { // also on a connection that was in use
			via.mute.Store(true)
			r := through(9, 20)
			d.load(r, 20)
			require.Error(t, d.failedLoad(r.ID))
			via.mute.Store(false)
		}
		r := through(2+i, 10)
		d.load(r, 10)
		ev := d.next()
		require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	}
	d.quiet(20 * time.Millisecond)
	for range 5 {
		require.Equal(t, connector.Sent, p.next().Kind)
	}
	eventually(t, "every release arrived", func() bool { return d.w.Stats().TrackedNow == 0 })
	require.EqualValues(t, 5, p.w.Stats().LeasesReleased)
}
