package pd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
)

// load is one read of a request's blocks.
type load struct {
	w    *Worker
	op   connector.Op
	what *loadPayload
}

// startLoad gives a load its goroutine.
func (w *Worker) startLoad(op *connector.Op, what *loadPayload) {
	ctx, cancel := context.WithCancel(w.ctx)
	if op.Timeout > 0 {
		cancel()
		ctx, cancel = context.WithTimeoutCause(w.ctx, op.Timeout, fmt.Errorf("load not finished within %v", op.Timeout))
	}
	l := &load{w: w, op: *op, what: what}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		cancel()
		return
	}
	w.loads[op.Request] = cancel
	w.wg.Go(func() {
		defer cancel()
		l.run(ctx)
	})
}

// run reads, confirms, reports, and releases, whatever happens in between.
func (l *load) run(ctx context.Context) {
	begin := time.Now()
	move := l.transfer
	if l.what.transfer != "" {
		move = l.await
	}
	failed, all, err := move(ctx)
	l.w.mu.Lock()
	delete(l.w.loads, l.op.Request)
	l.w.mu.Unlock()
	t := Transfer{Peer: l.what.ref.peer.EngineID, Request: l.what.ref.name, Tokens: l.op.Tokens.Len(), Took: time.Since(begin)}
	c := &l.w.counters
	c.loads.Add(1)
	if err != nil {
		c.loadsFailed.Add(1)
		l.w.cfg.Log.Warn("pd: load failed", "peer", t.Peer, "request", t.Request, "blocks", len(failed), "all", all, "error", err)
		if all {
			failed = nil
		}
		l.w.emit(connector.Event{Kind: connector.Failed, Request: l.op.Request, Blocks: failed, Err: err})
	}
	if !all {
		t.Blocks, t.Bytes = l.amount(failed)
		c.blocks.Add(uint64(t.Blocks))
		c.bytes.Add(uint64(t.Bytes))
	}
	l.w.emit(connector.Event{Kind: connector.Received, Request: l.op.Request, Payload: t})
	if l.what.transfer == "" {
		l.w.release(l.what.ref)
	}
}

// amount counts the blocks that arrived.
func (l *load) amount(failed []kvcache.BlockID) (blocks int, bytes int64) {
	bad := make(map[kvcache.BlockID]bool, len(failed))
	for _, b := range failed {
		bad[b] = true
	}
	for g, list := range l.op.Blocks {
		n := len(list)
		if len(bad) > 0 {
			n = 0
			for _, b := range list {
				if !bad[b] {
					n++
				}
			}
		}
		blocks += n
		bytes += int64(n) * int64(l.w.blockBytes(g))
	}
	return blocks, bytes
}

// blockBytes is what one block of a group occupies over all its regions.
func (w *Worker) blockBytes(group int) int {
	n := 0
	for _, r := range w.id.Regions {
		if r.Group == group {
			n += r.BlockBytes
		}
	}
	return n
}

// transfer returns the blocks that did not arrive, with the first cause. all
// is true when none may be used.
func (l *load) transfer(ctx context.Context) (failed []kvcache.BlockID, all bool, err error) {
	if ours, theirs := len(l.w.id.Groups), l.what.groups; ours != theirs {
		return nil, true, &MismatchError{"number of KV groups", fmt.Sprint(ours), fmt.Sprint(theirs), l.what.ref.peer.EngineID}
	}
	p, err := l.w.peer(l.what.ref.peer)
	if err != nil {
		return nil, true, err
	}
	defer p.leave()
	p.track(l.what.ref)
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, true, context.Cause(ctx)
	}
	d, err := p.data(ctx)
	if err != nil {
		return nil, true, err
	}
	failed, confirmed, err := l.readTickets(ctx, d)
	if errors.Is(err, transport.ErrNoTickets) {
		if failed, all, err = l.readClaimed(ctx, p); all {
			return nil, true, err
		}
	}
	if errors.Is(err, transport.ErrPeerRestarted) {
		p.drop(ctx)
	}
	if ctx.Err() != nil {
		return nil, true, errors.Join(context.Cause(ctx), err)
	}
	if confirmed {
		return failed, false, err
	}
	if broken := p.confirm(ctx, l.what.ref); broken != nil {
		l.w.counters.broken.Add(1)
		return nil, true, errors.Join(broken, err)
	}
	return failed, false, err
}

// readTickets reads without a word on the control channel, all groups at once: P's
// transport looks after the lease. confirmed says that it stood when all had been read.
// ErrNoTickets says that P, the transport or the memory is not for that.
func (l *load) readTickets(ctx context.Context, d *data) (failed []kvcache.BlockID, confirmed bool, err error) {
	tp, ok := d.tp.(transport.TicketReader)
	if !ok {
		return nil, false, transport.ErrNoTickets
	}
	type part struct {
		failed    []kvcache.BlockID
		confirmed bool
		err       error
	}
	parts := make([]part, len(l.op.Blocks))
	read := func(g int) {
		x := &parts[g]
		x.failed, x.err = l.read(d.regions, g, func(b transport.Blocks) error {
			if len(b.Local) == 0 {
				return nil
			}
			err := tp.ReadTicket(ctx, ticketOf(l.what.ref, g).encode(), b)
			x.confirmed = err == nil
			return err
		})
	}
	var wg sync.WaitGroup
	for g := 1; g < len(parts); g++ {
		wg.Go(func() { read(g) })
	}
	if len(parts) > 0 {
		read(0)
	}
	wg.Wait()
	for _, x := range parts {
		if errors.Is(x.err, transport.ErrNoTickets) {
			return nil, false, x.err
		}
		failed = append(failed, x.failed...)
		confirmed = confirmed || x.confirmed
		if x.err != nil && err == nil {
			err = x.err
		}
	}
	return failed, confirmed && err == nil, err
}

// readClaimed claims the lease and reads by what it opens. all is true when nothing was
// read.
func (l *load) readClaimed(ctx context.Context, p *peer) (failed []kvcache.BlockID, all bool, err error) {
	open, err := p.claim(ctx, l.what.ref)
	if err != nil {
		return nil, true, err
	}
	if len(open) != len(l.op.Blocks) {
		return nil, true, fmt.Errorf("lease opens %d KV groups of %d", len(open), len(l.op.Blocks))
	}
	d, err := p.data(ctx) // the claim may have made the session anew
	if err != nil {
		return nil, true, err
	}
	for g := range l.op.Blocks {
		missing, readErr := l.read(d.regions, g, func(b transport.Blocks) error { return transport.ReadBlocks(ctx, d.tp, open[g], b) })
		failed = append(failed, missing...)
		if readErr != nil && err == nil {
			err = readErr
		}
	}
	return failed, false, err
}

// read copies one group's blocks, all its tensors, by get.
func (l *load) read(remote []transport.RegionID, g int, get func(transport.Blocks) error) ([]kvcache.BlockID, error) {
	blocks := l.op.Blocks[g]
	var failed []kvcache.BlockID
	var err error
	for i, b := range blocks {
		if l.what.remote[g][i] == kvcache.NullBlock {
			failed = append(failed, b)
			err = fmt.Errorf("peer holds no block for position %d of KV group %d", i, g)
		}
	}
	b := unitsOf(blocks, l.what.remote[g])
	for k, r := range l.w.id.Regions {
		if r.Group == g {
			b.Regions = append(b.Regions, transport.RegionPair{Local: r.Memory.Region, Remote: remote[k], Bytes: int64(r.BlockBytes)})
		}
	}
	readErr := get(b)
	for _, i := range transport.FailedSegments(readErr, len(b.Local)) {
		failed = append(failed, kvcache.BlockID(b.Local[i]))
	}
	if readErr != nil {
		err = readErr
	}
	return failed, err
}

// unitsOf pairs blocks, without those that the peer does not hold.
func unitsOf(ours, theirs []kvcache.BlockID) transport.Blocks {
	b := transport.Blocks{Local: make([]int32, 0, len(ours)), Remote: make([]int32, 0, len(ours))}
	for i, from := range theirs[:len(ours)] {
		if from != kvcache.NullBlock {
			b.Local, b.Remote = append(b.Local, int32(ours[i])), append(b.Remote, int32(from))
		}
	}
	return b
}

// claim renews a lease and returns what it opens, per KV group.
func (p *peer) claim(ctx context.Context, r ref) ([]transport.Capability, error) {
	rep, err := p.call(ctx, &request{Verb: verbRenew, Leases: []leaseRef{{r.name, r.lease}}})
	if err != nil {
		return nil, err
	}
	if !rep.Leases[0].Held {
		return nil, fmt.Errorf("%w: %s no longer holds the blocks of %s", ErrLeaseBroken, p.ep.EngineID, r.name)
	}
	return rep.Leases[0].Open, nil
}

// confirm asks whether a lease was unbroken until now.
func (p *peer) confirm(ctx context.Context, r ref) error {
	rep, err := p.call(ctx, &request{Verb: verbConfirm, Leases: []leaseRef{{r.name, r.lease}}})
	if err != nil {
		return fmt.Errorf("%w: %s cannot confirm it: %w", ErrLeaseBroken, p.ep.EngineID, err)
	}
	if !rep.Leases[0].Held {
		return fmt.Errorf("%w: it ended while the blocks of %s were read", ErrLeaseBroken, r.name)
	}
	return nil
}

// data returns the transport of the session, which is made if there is none.
func (p *peer) data(ctx context.Context) (*data, error) {
	if d := p.session.data.Load(); d != nil {
		return d, nil
	}
	if err := p.acquire(ctx); err != nil {
		return nil, err
	}
	defer p.yield()
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	return p.session.data.Load(), nil
}

// drop forgets the session, so that the next use shakes hands again. If ctx ends before, that
// one does.
func (p *peer) drop(ctx context.Context) {
	if p.acquire(ctx) != nil {
		return
	}
	defer p.yield()
	p.session.close()
}
