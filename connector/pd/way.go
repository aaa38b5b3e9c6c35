package pd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// ways are P's connections to decoders. Each is kept from one push to the next, for the
// time after which idle peers are forgotten: a decoder's device holds what it has imported
// of P's memory for as long as P is connected. A way that fails a push is not taken by those
// that come after it.
type ways struct {
	w *Worker

	mu sync.Mutex
	m  map[transportInfo]*way
}

// way leads to one start of a decoder. Its fields are guarded by ways.mu, but tp and err,
// which are constant once ready is closed.
type way struct {
	to    transportInfo
	ready chan struct{}
	tp    transport.Peer
	err   error
	users int
	idle  time.Time     // closed then, unless it is used
	wake  chan struct{} // 1: it is out of the table, and nobody uses it
}

// use gives the way to a decoder, made if there is none, until leave is called.
func (x *ways) use(ctx context.Context, to transportInfo) (*way, error) {
	for {
		w, first := x.find(to)
		if first {
			x.open(ctx, w)
		} else {
			select {
			case <-w.ready:
			case <-ctx.Done():
				x.leave(w, false)
				return nil, context.Cause(ctx)
			}
		}
		if w.err == nil {
			return w, nil
		}
		x.leave(w, true)
		if first {
			return nil, w.err
		} // else it may have been the other's time that was over
	}
}

// open connects a way that was found first.
func (x *ways) open(ctx context.Context, w *way) {
	defer close(w.ready)
	w.tp, w.err = x.connect(ctx, w.to)
	if w.err == nil && !x.w.spawn(func() { x.keep(w) }) {
		w.tp.Close() // the worker closes
	}
}

// find counts a user of the way in the table; first says that it is to be made.
func (x *ways) find(to transportInfo) (w *way, first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w = x.m[to]; w == nil {
		w, first = &way{to: to, ready: make(chan struct{}), wake: make(chan struct{}, 1)}, true
		x.m[to] = w
	}
	w.users++
	return w, first
}

func (x *ways) connect(ctx context.Context, to transportInfo) (transport.Peer, error) {
	tp, err := x.w.transport.Connect(ctx, to.Address)
	if err == nil && tp.Instance() != to.Instance {
		tp.Close()
		err = fmt.Errorf("%w: another process answers at %s", ErrRestarted, to.Address)
	}
	if err != nil {
		return nil, err
	}
	return tp, nil
}

// leave ends a use; nobody begins to use a failed way.
func (x *ways) leave(w *way, failed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.users--; failed && x.m[w.to] == w {
		delete(x.m, w.to)
	}
	w.idle = time.Now().Add(x.w.cfg.PeerIdle)
	if w.users == 0 && x.m[w.to] != w {
		poke(w.wake)
	}
}

// keep closes a way that is not used any more. With the worker the transport closes it.
func (x *ways) keep(w *way) {
	timer := time.NewTimer(x.w.cfg.PeerIdle)
	defer timer.Stop()
	for {
		select {
		case <-x.w.ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		wait, over := x.over(w)
		if over {
			w.tp.Close()
			return
		}
		timer.Reset(wait)
	}
}

// over says that a way may be closed, and takes it out of the table; if not, when to ask
// again.
func (x *ways) over(w *way) (time.Duration, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	wait := max(time.Until(w.idle), 10*time.Millisecond)
	if w.users > 0 {
		return max(wait, x.w.cfg.PeerIdle), false
	}
	if x.m[w.to] != w {
		return 0, true
	}
	if time.Now().Before(w.idle) {
		return wait, false
	}
	delete(x.m, w.to)
	return 0, true
}

// len is how many there are.
func (x *ways) len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.m)
}
