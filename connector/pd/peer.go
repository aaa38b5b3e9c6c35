package pd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// peer is an engine whose leases this one holds. Its goroutine renews and
// releases; loads call it from theirs.
type peer struct {
	w     *Worker
	ep    Endpoint
	slots chan struct{} // loads at a time
	turn  chan struct{} // 1: the right to use and change session

	session session

	mu       sync.Mutex
	users    int // callers between peer() and leave()
	leased   map[leaseRef]freshness
	releases []*pendingRelease
	fresh    int       // leases that were tracked since the last renewal
	renewAt  time.Time // of all
	idleAt   time.Time
	wake     chan struct{}
}

// freshness says whether the peer has heard of a lease from us.
type freshness uint8

const (
	fresh freshness = iota
	known
)

type pendingRelease struct {
	ref    leaseRef
	giveUp time.Time // the lease is over by itself
	done   bool      // acknowledged
}

// session is a connection to a peer: its control channel, its transport, and
// what it told in the handshake.
type session struct {
	ctl  *channel             // nil: to be made again; reads go on meanwhile
	data atomic.Pointer[data] // nil: to be made; who only reads needs no turn
}

// data is the transport of a session.
type data struct {
	tp      transport.Peer
	regions []transport.RegionID // of the peer, in the order of our own
}

func (s *session) hangUp() {
	if s.ctl != nil {
		s.ctl.conn.Close()
		s.ctl = nil
	}
}

func (s *session) close() {
	s.hangUp()
	if d := s.data.Swap(nil); d != nil {
		d.tp.Close()
	}
}

// peer returns the peer at an endpoint and counts a user, who calls leave. The
// error says that it is not allowed, that there are too many, or that the
// worker closes.
func (w *Worker) peer(ep Endpoint) (*peer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[ep]
	if p == nil {
		switch {
		case w.closed:
			return nil, errors.New("pd: worker is closed")
		case len(w.peers) >= w.cfg.Peers:
			return nil, fmt.Errorf("pd: %d peers at a time, no room for %s", w.cfg.Peers, ep.EngineID)
		}
		if err := w.allow(ep); err != nil {
			return nil, fmt.Errorf("pd: %w", err)
		}
		p = &peer{
			w: w, ep: ep, slots: make(chan struct{}, w.cfg.Loads), turn: make(chan struct{}, 1),
			leased: map[leaseRef]freshness{}, wake: make(chan struct{}, 1), idleAt: time.Now().Add(w.cfg.PeerIdle),
		}
		w.peers[ep] = p
		w.wg.Go(p.run)
	}
	p.mu.Lock()
	p.users++
	p.mu.Unlock()
	return p, nil
}

func (p *peer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	p.idleAt = time.Now().Add(p.w.cfg.PeerIdle)
}

func (p *peer) tracked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.leased) + len(p.releases)
}

// track renews a lease from now on, at once for the first time.
func (p *peer) track(r ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := (leaseRef{r.name, r.lease}); p.leased[l] == fresh {
		p.leased[l] = fresh
		p.countFresh()
		poke(p.wake)
	}
}

// release stops renewing a lease and tells the peer.
func (p *peer) release(r ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := leaseRef{r.name, r.lease}
	delete(p.leased, l)
	p.countFresh()
	p.releases = append(p.releases, &pendingRelease{ref: l, giveUp: time.Now().Add(2 * p.w.cfg.Lease)})
	poke(p.wake)
}

// run is the peer's goroutine: it ends when the peer has been idle, or with
// the worker.
func (p *peer) run() {
	defer func() {
		p.turn <- struct{}{}
		p.session.close()
		<-p.turn
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	backoff := time.Duration(0)
	for {
		select {
		case <-p.w.ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		if err := p.work(); err != nil {
			backoff = min(max(2*backoff, 50*time.Millisecond), p.w.cfg.Lease/6)
			p.w.cfg.Log.Warn("pd: peer does not answer", "peer", p.ep.EngineID, "error", err)
		} else {
			backoff = 0
		}
		wait, forget := p.next(backoff)
		if forget {
			return
		}
		timer.Reset(wait)
		if backoff > 0 { // a wake must not shorten it
			select {
			case <-p.w.ctx.Done():
				return
			case <-timer.C:
				timer.Reset(0)
			}
		}
	}
}

// next says how long to wait, or that the peer was forgotten.
func (p *peer) next(backoff time.Duration) (time.Duration, bool) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case backoff > 0:
		return backoff, false
	case len(p.releases) > 0, p.fresh > 0:
		return 0, false
	case len(p.leased) > 0:
		return max(p.renewAt.Sub(now), 0), false
	case p.users == 0 && !now.Before(p.idleAt):
		delete(p.w.peers, p.ep)
		return 0, true
	}
	return max(p.idleAt.Sub(now), 10*time.Millisecond), false
}

// work sends the releases that wait and, when it is time, one renewal of all
// leases.
func (p *peer) work() error {
	now := time.Now()
	p.mu.Lock()
	var sending []*pendingRelease
	keep := p.releases[:0]
	for _, r := range p.releases {
		if now.After(r.giveUp) {
			p.w.counters.givenUp.Add(1)
			continue
		}
		keep = append(keep, r)
	}
	clear(p.releases[len(keep):])
	p.releases = keep
	sending = append(sending, keep[:min(len(keep), maxLeases)]...)
	var renewing []leaseRef
	all := !now.Before(p.renewAt)
	if all || p.fresh > 0 {
		for r, f := range p.leased {
			if all || f == fresh {
				renewing = append(renewing, r)
			}
		}
	}
	p.mu.Unlock()

	if len(sending) > 0 {
		req := request{Verb: verbRelease}
		for _, r := range sending {
			req.Leases = append(req.Leases, r.ref)
		}
		_, err := p.call(p.w.ctx, &req)
		if err != nil && !errors.Is(err, ErrRestarted) { // a restarted peer has no leases of ours
			return err
		}
		p.mu.Lock()
		for _, r := range sending {
			r.done = true
		}
		p.releases = slices.DeleteFunc(p.releases, func(r *pendingRelease) bool { return r.done })
		p.mu.Unlock()
	}
	for rest := renewing; len(rest) > 0; {
		n := min(len(rest), maxLeases)
		rep, err := p.call(p.w.ctx, &request{Verb: verbRenew, Leases: rest[:n]})
		if err != nil {
			return err
		}
		p.w.counters.renewals.Add(1)
		p.mu.Lock()
		for i, r := range rest[:n] {
			if _, ok := p.leased[r]; !ok {
				continue // released in the meantime
			}
			if p.leased[r] = known; !rep.Leases[i].Held {
				delete(p.leased, r) // the load will find out
			}
		}
		p.countFresh()
		p.mu.Unlock()
		rest = rest[n:]
	}
	if all {
		p.mu.Lock()
		p.renewAt = now.Add(p.w.cfg.Lease / 6)
		p.mu.Unlock()
	}
	return nil
}

// countFresh is called with the lock held.
func (p *peer) countFresh() {
	p.fresh = 0
	for _, f := range p.leased {
		if f == fresh {
			p.fresh++
		}
	}
}

// farewell releases everything this engine holds at the peer, if it answers
// within a second. No loads run any more or they are about to be cancelled.
func (p *peer) farewell() {
	p.mu.Lock()
	req := request{Verb: verbRelease}
	for r := range p.leased {
		req.Leases = append(req.Leases, r)
	}
	for _, r := range p.releases {
		req.Leases = append(req.Leases, r.ref)
	}
	p.releases = nil
	clear(p.leased)
	p.mu.Unlock()
	req.Leases = req.Leases[:min(len(req.Leases), maxLeases)]
	if len(req.Leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(p.w.ctx, time.Second)
	defer cancel()
	if _, err := p.call(ctx, &req); err != nil {
		p.w.counters.givenUp.Add(uint64(len(req.Leases)))
	}
}

// call sends one control message and returns the answer. A connection that
// has died since its last use is replaced once; all messages may be repeated.
func (p *peer) call(ctx context.Context, req *request) (*reply, error) {
	if err := p.acquire(ctx); err != nil {
		return nil, err
	}
	defer p.yield()
	used := p.session.ctl != nil
	rep, err := p.ask(ctx, req)
	if err != nil && used && ctx.Err() == nil {
		rep, err = p.ask(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	if rep.Error != nil {
		return nil, rep.Error.err()
	}
	if req.Offer == nil && len(rep.Leases) != len(req.Leases) {
		return nil, fmt.Errorf("peer answered for %d leases of %d", len(rep.Leases), len(req.Leases))
	}
	return rep, nil
}

func (p *peer) acquire(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *peer) yield() { <-p.turn }

// ask makes the control channel if there is none, and drops it at an error.
// The turn is held.
func (p *peer) ask(ctx context.Context, req *request) (*reply, error) {
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	rep, err := p.exchange(ctx, p.session.ctl, req)
	if err != nil {
		p.session.hangUp()
		return nil, err
	}
	return rep, nil
}

func (p *peer) exchange(ctx context.Context, c *channel, req *request) (*reply, error) {
	req.Version, req.Want = controlVersion, p.ep.EngineID
	deadline := time.Now().Add(p.w.cfg.Call)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()
	if err := c.write(req, deadline); err != nil {
		return nil, fmt.Errorf("control channel of %s: %w", p.ep.EngineID, err)
	}
	rep := &reply{}
	if err := c.read(rep, deadline); err != nil {
		return nil, fmt.Errorf("control channel of %s: %w", p.ep.EngineID, err)
	}
	return rep, nil
}

// open makes the session what it must be. The turn is held.
func (p *peer) open(ctx context.Context) error {
	s := &p.session
	if s.ctl != nil && s.data.Load() != nil {
		return nil
	}
	s.hangUp()
	ctx, cancel := context.WithTimeout(ctx, p.w.cfg.Call)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(p.ep.Host, strconv.Itoa(p.ep.Port)))
	if err != nil {
		return fmt.Errorf("control channel of %s: %w", p.ep.EngineID, err)
	}
	if p.w.cfg.ClientTLS != nil {
		cfg := p.w.cfg.ClientTLS.Clone()
		if cfg.ServerName == "" {
			cfg.ServerName = p.ep.Host
		}
		c = tls.Client(c, cfg)
	}
	s.ctl = newChannel(c)
	if err := p.greet(ctx, s); err != nil {
		s.hangUp()
		return err
	}
	return nil
}

// greet shakes hands and connects the transport, unless the one that is there
// still leads to the same process.
func (p *peer) greet(ctx context.Context, s *session) error {
	rep, err := p.exchange(ctx, s.ctl, &request{Verb: verbHello, Hello: &p.w.id})
	if err != nil {
		return err
	}
	if rep.Error != nil {
		return rep.Error.err()
	}
	if rep.Hello == nil {
		return fmt.Errorf("control channel of %s: no identity", p.ep.EngineID)
	}
	theirs := rep.Hello
	if theirs.EngineID != p.ep.EngineID {
		return fmt.Errorf("%w: wanted %q, found %q", ErrRestarted, p.ep.EngineID, theirs.EngineID)
	}
	if err := compare(&p.w.id, theirs); err != nil {
		return err
	}
	if old := s.data.Load(); old != nil && old.tp.Instance() == theirs.Transport.Instance {
		return nil
	}
	if old := s.data.Swap(nil); old != nil {
		old.tp.Close()
	}
	tp, err := p.w.transport.Connect(ctx, theirs.Transport.Address)
	if err != nil {
		return err
	}
	if tp.Instance() != theirs.Transport.Instance {
		tp.Close()
		return fmt.Errorf("%w: another process answers at %s", ErrRestarted, theirs.Transport.Address)
	}
	d := &data{tp: tp}
	for _, r := range theirs.Regions {
		d.regions = append(d.regions, r.Memory.Region)
	}
	s.data.Store(d)
	return nil
}
