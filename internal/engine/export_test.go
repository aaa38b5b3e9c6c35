package engine

import (
	"context"
	"net"
	"strings"
)

// DumpCache gives the cache of a rank that is idle as text, false of one that is not.
func (e *Engine) DumpCache(ctx context.Context, rank int) (text string, idle bool, err error) {
	r := e.ranks[rank]
	var b strings.Builder
	err = r.call(ctx, func() {
		if idle = r.idle(); idle {
			_ = r.cache.Dump(&b) // into memory
		}
	})
	return b.String(), idle, err
}

// HostBlocks is how many blocks of shared content a rank has in host memory.
func (e *Engine) HostBlocks(ctx context.Context, rank int) (n int, err error) {
	r := e.ranks[rank]
	err = r.call(ctx, func() { n = r.links.offload.Stats().Cached })
	return n, err
}

// EventsAddr is where a rank's KV events are, and their replays.
func (e *Engine) EventsAddr(rank int) (events, replay net.Addr) {
	p := e.ranks[rank].pub
	return p.Addr(), p.ReplayAddr()
}
