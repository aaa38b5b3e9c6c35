package proxy

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/socket"
	"github.com/sluice-serving/sluice/proxy/wire"
)

// watch ends a leg when nothing happens for too long, or when its connection
// has ended unnoticed. A read of the answer only counts; a timer looks at the
// count now and then.
type watch struct {
	body   io.Reader
	cancel context.CancelCauseFunc
	reads  atomic.Uint32

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	idle  time.Duration // 0 while the answer's header is awaited
	tick  time.Duration
	ended func() bool
	seen  uint32        // reads at the last look
	quiet time.Duration // looks since a read
}

// maxTick is the longest time between two looks.
const maxTick = time.Second

// newWatch gives the answer's header the time first. The watch must be stopped.
func newWatch(cancel context.CancelCauseFunc, first time.Duration) *watch {
	w := &watch{cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(first, w.look)
	return w
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.cancel = nil
}

// follow reads an answer's body; between two reads may pass the time idle, or
// up to an eighth more.
func (w *watch) follow(resp *wire.Response, idle time.Duration) io.Reader {
	w.body = resp
	w.begin(idle, resp.Ended())
	return w
}

func (w *watch) begin(idle time.Duration, ended func() bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle, w.tick, w.ended = idle, min(idle/8, maxTick), ended
	w.timer.Reset(w.tick)
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancel == nil { // stopped
		return
	}
	if reads := w.reads.Load(); reads != w.seen {
		w.seen, w.quiet = reads, 0
	} else {
		w.quiet += w.tick
		switch {
		case w.quiet >= w.idle:
			w.cancel(errTimeout)
			return
		case w.ended():
			w.cancel(io.ErrUnexpectedEOF)
			return
		}
	}
	w.timer.Reset(w.tick)
}

// Read gives openai.ErrWait where the answer gives socket.ErrWait.
func (w *watch) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if n > 0 {
		w.reads.Add(1)
	}
	if err == socket.ErrWait {
		err = openai.ErrWait
	}
	return n, err
}
