package pd

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// listenAt has the transport listen there.
func listenAt(address string) option {
	return func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Transport = func(n transport.Notified) (transport.Transport, error) {
			return tcp.New(tcp.Config{Listen: address, Notified: n})
		}
	}
}

// pushOnce pushes a prompt of four blocks and compares them.
func pushOnce(t *testing.T, p, d *engine, slot uint32, id string) {
	t.Helper()
	toP, toD := pushPair(t, p, id)
	d.load(remote(slot, 16, toD), 1)
	r := pRequest(slot, 16, toP)
	p.s.Added(r)
	p.s.Finished(r, connector.Tables{blockRange(20, 4)}, connector.End{Reason: connector.EndLength, Computed: 16})
	p.flush()
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, connector.Sent, p.next().Kind)
	sameBlocks(t, p, d, blockRange(20, 4), blockRange(1, 4))
}

// A way is kept from push to push, closed once it has been idle, and another start of the
// decoder at the same place has a way of its own.
func TestWayIsKept(t *testing.T) {
	const idle = 100 * time.Millisecond
	p := newEngine(t, "p-1", Producer, 1, func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) { w.PeerIdle = idle })
	d := startEngine(t, "d-1", Consumer, 2, listenAt("127.0.0.1:0"))
	for i := range uint32(3) {
		pushOnce(t, p, d, i+1, string(rune('a'+i)))
	}
	address := d.w.Transport().Address()
	require.NoError(t, d.w.Close())
	d = newEngine(t, "d-2", Consumer, 3, listenAt(address))
	pushOnce(t, p, d, 4, "z")
	require.LessOrEqual(t, p.transportStats().Dials, uint64(8), "of two ways")
	eventually(t, "nothing is kept but the decoder's own connection", func() bool {
		return p.w.pushes.ways.len() == 0 && d.transportStats().OpenConns == 1
	})
	pushOnce(t, p, d, 5, "y")
}

// A decoder that is not who it says is has no way, and one that is gone leaves none.
func TestWayToAnother(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), startEngine(t, "d-1", Consumer, 2)
	x := &p.w.pushes.ways
	to := transportInfo{Name: "tcp", Address: d.w.Transport().Address(), Instance: transport.Instance{1}}
	_, err := x.use(t.Context(), to)
	require.ErrorIs(t, err, ErrRestarted)
	require.Zero(t, x.len())
	to.Instance = d.w.Transport().Instance()
	w, err := x.use(t.Context(), to)
	require.NoError(t, err)
	require.NoError(t, d.w.Close())
	require.Error(t, w.tp.Notify(t.Context(), []byte("{}")))
	x.leave(w, true)
	require.Zero(t, x.len())
	eventually(t, "it is closed", func() bool { return errors.Is(w.tp.Notify(t.Context(), nil), transport.ErrClosed) })
	_, err = x.use(t.Context(), to)
	require.Error(t, err)
	require.Zero(t, x.len())
}

// Many that want a way at once make one; a failed one is left to those who use it; and one
// whose maker gives up is made by another.
func TestWayOfMany(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), newEngine(t, "d-1", Consumer, 2)
	x := &p.w.pushes.ways
	to := transportInfo{Name: "tcp", Address: d.w.Transport().Address(), Instance: d.w.Transport().Instance()}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[*way]int{}
	for i := range 16 {
		wg.Go(func() {
			ctx := t.Context()
			if i%4 == 0 {
				ctx = gone
			}
			w, err := x.use(ctx, to)
			if i%4 == 0 {
				if err == nil { // another had made it
					x.leave(w, false)
				}
				return
			}
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[w]++
		})
	}
	wg.Wait()
	require.Len(t, seen, 1)
	require.Equal(t, 1, x.len())
	for w, users := range seen {
		x.leave(w, true)
		require.Zero(t, x.len())
		require.NoError(t, w.tp.Notify(t.Context(), []byte("{}")), "others use it")
		for range users - 1 {
			x.leave(w, false)
		}
		eventually(t, "it is closed", func() bool { return errors.Is(w.tp.Notify(t.Context(), nil), transport.ErrClosed) })
	}
}
