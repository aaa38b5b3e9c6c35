package pd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
)

// arrivals are D's loads that wait for a push, by their nonce.
type arrivals struct {
	mu sync.Mutex
	m  map[Secret]chan pushed
}

func (a *arrivals) expect() (Secret, chan pushed) {
	var n Secret
	rand.Read(n[:]) // never fails
	c := make(chan pushed, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m == nil {
		a.m = map[Secret]chan pushed{}
	}
	a.m[n] = c
	return n, c
}

func (a *arrivals) forget(n Secret) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.m, n)
}

// notified takes the transport's notifications: ends of pushes. One that
// nobody waits for, or that comes twice, is dropped.
func (w *Worker) notified(_ transport.Instance, msg []byte) {
	var end pushed
	if json.Unmarshal(msg, &end) != nil {
		return
	}
	w.arrivals.mu.Lock()
	defer w.arrivals.mu.Unlock()
	if c := w.arrivals.m[end.Nonce]; c != nil {
		select {
		case c <- end:
		default:
		}
	}
}

// await opens a load's blocks to P and waits until P has filled them. It
// returns as transfer does: the blocks that did not arrive, or all, and why.
func (l *load) await(ctx context.Context) ([]kvcache.BlockID, bool, error) {
	if l.what.metaserver != "" {
		asking, cancel := context.WithCancel(ctx)
		defer cancel()
		var err error
		if l.what.ref.peer, err = l.meet(asking); err != nil {
			return nil, true, err
		}
	}
	p, err := l.w.peer(l.what.ref.peer)
	if err != nil {
		return nil, true, err
	}
	defer p.leave()
	nonce, ended := l.w.arrivals.expect()
	defer l.w.arrivals.forget(nonce)
	of := &offer{Transfer: l.what.transfer, Nonce: nonce, From: l.op.Tokens.From / l.w.id.BlockSize, WaitMS: l.op.Timeout.Milliseconds()}
	fence := sync.OnceFunc(func() { // nothing writes to the blocks after this
		for _, c := range of.Open {
			l.w.transport.Revoke(c)
		}
	})
	defer fence()
	if of.Open, err = l.open(); err != nil {
		return nil, true, err
	}
	of.Blocks = l.what.positions
	if held, err := p.standing(ctx, verbOffer, of); err != nil || !held {
		if err != nil { // the offer may be there all the same
			fence() // ahead of P's answer, which may take longer than the blocks are waited for
			p.giveUp(of)
		}
		return nil, true, errors.Join(fmt.Errorf("%s does not push transfer %s", p.ep.EngineID, of.Transfer), err)
	}
	end, err := l.wait(ctx, p, of, ended)
	if err != nil {
		fence()
		p.giveUp(of)
		return nil, true, err
	}
	return l.settle(end)
}

// open grants the blocks, per KV group.
func (l *load) open() ([]transport.Capability, error) {
	var out []transport.Capability
	for g, blocks := range l.op.Blocks {
		var regions []transport.RegionID
		for _, r := range l.w.id.Regions {
			if r.Group == g {
				regions = append(regions, r.Memory.Region)
			}
		}
		units := make([]int32, len(blocks))
		for i, b := range blocks {
			units[i] = int32(b)
		}
		c, err := l.w.transport.Grant(transport.PeerWrites, regions, units)
		if err != nil {
			return out, err
		}
		out = append(out, c)
	}
	return out, nil
}

// wait returns P's word that the push has ended. It asks now and then whether
// P still knows of it, so that a restarted P is noticed.
func (l *load) wait(ctx context.Context, p *peer, of *offer, ended <-chan pushed) (pushed, error) {
	tick := time.NewTicker(max(l.w.cfg.Lease/6, 10*time.Millisecond))
	defer tick.Stop()
	ask := &offer{Transfer: of.Transfer, Nonce: of.Nonce}
	for {
		select {
		case end := <-ended:
			if end.Error != "" {
				return end, fmt.Errorf("push from %s: %s", p.ep.EngineID, end.Error)
			}
			return end, nil
		case <-ctx.Done():
			return pushed{}, context.Cause(ctx)
		case <-tick.C:
		}
		held, err := p.standing(ctx, verbStanding, ask)
		if err == nil && held {
			continue
		}
		select { // it may have ended in the meantime
		case end := <-ended:
			if end.Error == "" {
				return end, nil
			}
			return end, fmt.Errorf("push from %s: %s", p.ep.EngineID, end.Error)
		default:
		}
		if err == nil || errors.Is(err, ErrRestarted) {
			return pushed{}, errors.Join(fmt.Errorf("%s no longer knows transfer %s", p.ep.EngineID, of.Transfer), err)
		}
		// Out of reach: the deadline decides.
	}
}

// settle turns P's word into blocks.
func (l *load) settle(end pushed) ([]kvcache.BlockID, bool, error) {
	if end.Tokens < l.op.Tokens.To {
		return nil, true, fmt.Errorf("push of %d tokens, want %d", end.Tokens, l.op.Tokens.To)
	}
	from := l.op.Tokens.From / l.w.id.BlockSize
	var failed []kvcache.BlockID
	for _, pos := range end.Missing {
		for _, list := range l.what.positions {
			if i := pos - from; i >= 0 && i < len(list) && list[i] != kvcache.NullBlock {
				failed = append(failed, list[i])
			}
		}
	}
	if len(failed) > 0 {
		return failed, false, fmt.Errorf("peer holds no block for %d positions", len(end.Missing))
	}
	return nil, false, nil
}

// standing sends one word about a transfer.
func (p *peer) standing(ctx context.Context, v verb, of *offer) (bool, error) {
	rep, err := p.call(ctx, &request{Verb: v, Offer: of})
	if err != nil {
		return false, err
	}
	return len(rep.Leases) == 1 && rep.Leases[0].Held, nil
}

// giveUp withdraws an offer as far as the peer answers within the time of one
// call; P notices by itself when it next writes.
func (p *peer) giveUp(of *offer) {
	ctx, cancel := context.WithTimeout(p.w.ctx, p.w.cfg.Call)
	defer cancel()
	_, _ = p.standing(ctx, verbWithdraw, &offer{Transfer: of.Transfer, Nonce: of.Nonce})
}

// withdraw tells P that a transfer is not wanted although it was never offered.
func (w *Worker) withdraw(what withdrawPayload) {
	p, err := w.peer(what.peer)
	if err != nil {
		w.counters.givenUp.Add(1)
		return
	}
	started := w.spawn(func() {
		defer p.leave()
		p.giveUp(&offer{Transfer: what.transfer})
	})
	if !started {
		p.leave()
	}
}
