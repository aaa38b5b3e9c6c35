package faulty

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// ErrInjected is the cause of every fault that a script makes.
var ErrInjected = errors.New("injected fault")

// reorderLimit bounds the wait of a reordered call for the next one.
const reorderLimit = time.Second

// Transport wraps another one. Faults happen on the side that calls.
type Transport struct {
	transport.Transport
	script *Script

	mu      sync.Mutex
	regions map[transport.RegionID]transport.Memory
	passed  chan struct{} // closed when a call ends, then replaced
}

// Wrap returns inner with the script's faults. Closing it closes inner.
func Wrap(inner transport.Transport, script *Script) *Transport {
	return &Transport{Transport: inner, script: script, regions: map[transport.RegionID]transport.Memory{}, passed: make(chan struct{})}
}

var _ transport.Transport = (*Transport)(nil)

// Register remembers the memory, to damage it.
func (t *Transport) Register(m transport.Memory, unit int64) (transport.Descriptor, error) {
	d, err := t.Transport.Register(m, unit)
	if err == nil {
		t.mu.Lock()
		t.regions[d.Region] = m
		t.mu.Unlock()
	}
	return d, err
}

// Connect makes a peer whose calls obey the script.
func (t *Transport) Connect(ctx context.Context, address string) (transport.Peer, error) {
	for _, r := range t.script.next(callConnect) {
		if err := pause(ctx, r); err != nil {
			return nil, fmt.Errorf("connect %s: %w: %w", address, transport.ErrUnreachable, err)
		}
	}
	p, err := t.Transport.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	return &peer{Peer: p, t: t}, nil
}

// pause does what delay, drop and error mean before a call.
func pause(ctx context.Context, r rule) error {
	switch r.act {
	case actDelay:
		timer := time.NewTimer(r.wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case actDrop:
		<-ctx.Done()
		return fmt.Errorf("%w: dropped: %w", ErrInjected, context.Cause(ctx))
	case actError:
		return ErrInjected
	}
	return nil
}

type peer struct {
	transport.Peer
	t    *Transport
	mu   sync.Mutex
	dead bool
}

// Read obeys the script.
func (p *peer) Read(ctx context.Context, c transport.Capability, segs []transport.Segment) error {
	return p.transfer(ctx, callRead, c, segs, p.Peer.Read)
}

// Write obeys the script.
func (p *peer) Write(ctx context.Context, c transport.Capability, segs []transport.Segment) error {
	return p.transfer(ctx, callWrite, c, segs, p.Peer.Write)
}

type move func(context.Context, transport.Capability, []transport.Segment) error

func (p *peer) transfer(ctx context.Context, what call, c transport.Capability, segs []transport.Segment, do move) error {
	rules := p.t.script.next(what)
	if err := p.before(ctx, rules); err != nil {
		return err
	}
	err := do(ctx, c, segs)
	for _, r := range rules {
		switch r.act {
		case actCorrupt:
			if err == nil && len(segs) > 0 {
				err = p.t.damage(what, segs)
			}
		case actReorder:
			p.t.waitForNext(ctx)
		}
	}
	p.t.pass()
	return err
}

// Notify obeys the script.
func (p *peer) Notify(ctx context.Context, msg []byte) error {
	rules := p.t.script.next(callNotify)
	if err := p.before(ctx, rules); err != nil {
		return err
	}
	err := p.Peer.Notify(ctx, msg)
	for _, r := range rules {
		switch r.act {
		case actRepeat:
			err = errors.Join(err, p.Peer.Notify(ctx, msg))
		case actReorder:
			p.t.waitForNext(ctx)
		}
	}
	p.t.pass()
	return err
}

// before does what happens instead of a call or ahead of it.
func (p *peer) before(ctx context.Context, rules []rule) error {
	for _, r := range rules {
		if r.act == actKill {
			p.mu.Lock()
			p.dead = true
			p.mu.Unlock()
			p.Peer.Close()
		}
		if err := pause(ctx, r); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return fmt.Errorf("%w: %w: killed", transport.ErrUnreachable, ErrInjected)
	}
	return nil
}

// damage flips a byte in the middle of the middle segment and reports it, as a
// transport with checksums does. A write's damage is only reported.
func (t *Transport) damage(what call, segs []transport.Segment) error {
	i := len(segs) / 2
	te := &transport.TransferError{Failed: []int{i}, Err: fmt.Errorf("%w: %w", transport.ErrCorrupt, ErrInjected)}
	if what == callWrite {
		return te
	}
	t.mu.Lock()
	m := t.regions[segs[i].Local]
	t.mu.Unlock()
	var b [1]byte
	at := segs[i].LocalOffset + segs[i].Length/2
	if _, err := m.ReadAt(b[:], at); err != nil {
		return errors.Join(te, err)
	}
	b[0] ^= 0xff
	if _, err := m.WriteAt(b[:], at); err != nil {
		return errors.Join(te, err)
	}
	return te
}

// pass lets the calls go that wait for the next one.
func (t *Transport) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.passed)
	t.passed = make(chan struct{})
}

func (t *Transport) waitForNext(ctx context.Context) {
	t.mu.Lock()
	passed := t.passed
	t.mu.Unlock()
	timer := time.NewTimer(reorderLimit)
	defer timer.Stop()
	select {
	case <-passed:
	case <-timer.C:
	case <-ctx.Done():
	}
}
