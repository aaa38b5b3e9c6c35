package tcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// peer is the dialing side of up to Conns connections.
type peer struct {
	t        *Transport
	addr     string
	instance transport.Instance // set at Connect, then constant
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	slots    []*slot
	near     atomic.Bool // device memory need not travel on the connections
	units    atomic.Bool // and the peer lends units of many regions at once
	tickets  atomic.Bool // by tickets too
	puts     atomic.Bool // and fetches such units

	mu     sync.Mutex
	cond   *sync.Cond
	ops    []*op // with queued chunks
	turn   int
	closed bool
	places map[transport.RegionPair]place // of regions that were read by tickets
}

var _ transport.Peer = (*peer)(nil)

// Connect makes the first connection and learns the peer's instance; the
// others are made when there is work for them.
func (t *Transport) Connect(ctx context.Context, address string) (transport.Peer, error) {
	p := &peer{t: t, addr: address}
	p.cond = sync.NewCond(&p.mu)
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	stop := context.AfterFunc(ctx, p.cancel)
	w, theirs, err := p.dial(p.ctx)
	if !stop() && err == nil { // ctx ended and took p.ctx with it
		p.hangUp(w)
		err = context.Cause(ctx)
	}
	if err != nil {
		p.cancel()
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("connect %s: %w", address, err)
	}
	p.instance = theirs.instance
	for i := range t.cfg.Conns {
		s := &slot{p: p}
		if i == 0 {
			s.w = w
		}
		p.slots = append(p.slots, s)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		p.cancel()
		p.hangUp(w)
		return nil, transport.ErrClosed
	}
	t.peers[p] = struct{}{}
	for _, s := range p.slots {
		p.wg.Go(s.run)
	}
	return p, nil
}

// Instance is the identity at Connect.
func (p *peer) Instance() transport.Instance { return p.instance }

// Close fails what is queued or in flight and waits for the slots.
func (p *peer) Close() error {
	p.mu.Lock()
	ops := slices.Clone(p.ops)
	first := !p.closed
	p.closed = true
	p.wake(len(p.slots) + 1) // all of them
	p.mu.Unlock()
	if first {
		for _, o := range ops {
			p.stop(o, transport.ErrClosed)
		}
		p.cancel()
		for _, s := range p.slots {
			s.cut()
		}
	}
	p.wg.Wait()
	p.t.mu.Lock()
	delete(p.t.peers, p)
	p.t.mu.Unlock()
	return nil
}

// Read copies remote segments into local memory.
func (p *peer) Read(ctx context.Context, c transport.Capability, segs []transport.Segment) error {
	n, err := p.transfer(ctx, kindRead, c, segs)
	if err != nil {
		return fmt.Errorf("read from %s: %w", p.addr, err)
	}
	p.t.counters.read.Add(uint64(n))
	return nil
}

// Write copies local segments into remote memory.
func (p *peer) Write(ctx context.Context, c transport.Capability, segs []transport.Segment) error {
	n, err := p.transfer(ctx, kindWrite, c, segs)
	if err != nil {
		return fmt.Errorf("write to %s: %w", p.addr, err)
	}
	p.t.counters.written.Add(uint64(n))
	return nil
}

// Notify sends one message and waits until the handler has taken it. A
// message whose answer was lost is repeated, so the handler may see it twice.
func (p *peer) Notify(ctx context.Context, msg []byte) error {
	if len(msg) > transport.MaxNotify {
		return fmt.Errorf("notify: %d bytes, limit %d", len(msg), transport.MaxNotify)
	}
	o := &op{kind: kindNotify, open: 1, done: make(chan struct{})}
	o.chunks = []*chunk{{op: o, msg: append([]byte(nil), msg...)}}
	o.all = o.chunks
	if err := p.wait(ctx, o); err != nil {
		return fmt.Errorf("notify %s: %w", p.addr, err)
	}
	return nil
}

func (p *peer) transfer(ctx context.Context, k kind, c transport.Capability, segs []transport.Segment) (int64, error) {
	regions := map[transport.RegionID]*transport.Region{}
	defer func() {
		for _, r := range regions {
			r.Release()
		}
	}()
	var total int64
	var r *transport.Region // of the segment before, mostly the one of this
	for i, s := range segs {
		if r == nil || r.ID != s.Local {
			r = regions[s.Local]
		}
		if r == nil {
			var err error
			if r, err = p.t.regions.Acquire(s.Local); err != nil {
				return 0, fmt.Errorf("segment %d: %w", i, err)
			}
			regions[s.Local] = r
		}
		if !r.Holds(s.LocalOffset, s.Length) || s.RemoteOffset < 0 || s.RemoteOffset > maxOffset {
			return 0, fmt.Errorf("segment %d: %w: %d bytes at local %d, remote %d", i, transport.ErrRegion, s.Length, s.LocalOffset, s.RemoteOffset)
		}
		total += s.Length
	}
	if total == 0 {
		return 0, nil
	}
	o := &op{kind: k, key: c, failed: make([]bool, len(segs)), done: make(chan struct{})}
	o.cut(segs, regions, min(p.chunkBytes(regions), max(total/int64(p.t.cfg.Conns), frameBytes)))
	if err := p.wait(ctx, o); err != nil {
		return 0, o.transferError(err)
	}
	return total, nil
}

func (o *op) transferError(err error) error {
	te := &transport.TransferError{Err: err}
	for i, f := range o.failed {
		if f {
			te.Failed = append(te.Failed, i)
		}
	}
	return te
}

// wait queues an op and returns when no part of it is queued or in flight.
func (p *peer) wait(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		for i := range o.failed {
			o.failed[i] = true
		}
		return err
	}
	p.t.counters.openTransfers.Add(1)
	defer p.t.counters.openTransfers.Add(-1)
	if err := p.submit(o); err != nil {
		for i := range o.failed {
			o.failed[i] = true
		}
		return err
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	}
	p.stop(o, context.Cause(ctx))
	t := time.NewTimer(p.t.cfg.Grace)
	defer t.Stop()
	select {
	case <-o.done:
	case <-t.C:
		p.cut(o)
		<-o.done
	}
	if o.err == nil || errors.Is(o.err, context.Cause(ctx)) {
		return o.err // nil: every part arrived after all
	}
	return errors.Join(context.Cause(ctx), o.err)
}
