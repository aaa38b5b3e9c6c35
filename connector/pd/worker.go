package pd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// WorkerConfig configures the worker's side.
type WorkerConfig struct {
	EngineID  string        // another one after every start
	Rank      int           // of this worker in its engine, from 0
	Listen    string        // host:port of the control channel; default 127.0.0.1:0
	Advertise string        // host that peers dial; default that of Listen
	Lease     time.Duration // of a finished prompt's blocks; default 30 s
	MaxHold   time.Duration // of them, however often renewed; default 480 s
	Call      time.Duration // deadline of one control message; default 5 s
	Loads     int           // reads from one peer at a time; default 4
	Peers     int           // remembered at a time; default 256
	PeerIdle  time.Duration // a peer without work is forgotten after; default 1 min

	// Allow refuses peers that requests name, because whoever names a peer
	// decides whose KV is cached here. Nil allows all with TLS, where the
	// certificate says who is who, and without it those at this worker's own
	// address alone. It may be called from any goroutine. See Peers.
	Allow func(Endpoint) error

	// Transport makes the transport, which the worker closes. Default tcp on
	// the host of Listen.
	Transport func(transport.Notified) (transport.Transport, error)
	ServerTLS *tls.Config // of the control channel; nil: plain
	ClientTLS *tls.Config // both or none
	Log       *slog.Logger
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	c.Lease, c.MaxHold = leaseTimes(c.Lease, c.MaxHold)
	if c.Call == 0 {
		c.Call = 5 * time.Second
	}
	if c.Loads <= 0 {
		c.Loads = 4
	}
	if c.Peers <= 0 {
		c.Peers = 256
	}
	if c.PeerIdle == 0 {
		c.PeerIdle = time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Transport == nil {
		c.Transport = func(n transport.Notified) (transport.Transport, error) {
			host, _, err := net.SplitHostPort(c.Listen)
			if err != nil {
				return nil, err
			}
			cfg := tcp.Config{Listen: net.JoinHostPort(host, "0"), ServerTLS: c.ServerTLS, ClientTLS: c.ClientTLS, Notified: n, Log: c.Log}
			t, err := tcp.New(cfg)
			if err != nil {
				return nil, err
			}
			return t, nil
		}
	}
	return c
}

// Validate reports every value that cannot work.
func (c WorkerConfig) Validate() error {
	var errs []error
	if c.EngineID == "" {
		errs = append(errs, errors.New("pd: no engine id"))
	}
	if c.Lease < 0 || c.MaxHold < 0 || c.Call < 0 || c.PeerIdle < 0 {
		errs = append(errs, errors.New("pd: negative duration"))
	}
	if c.MaxHold > 0 && c.MaxHold < c.Lease {
		errs = append(errs, fmt.Errorf("pd: greatest hold %v below the lease of %v", c.MaxHold, c.Lease))
	}
	if (c.ServerTLS == nil) != (c.ClientTLS == nil) {
		errs = append(errs, errors.New("pd: TLS needs both a server and a client configuration"))
	}
	return errors.Join(errs...)
}

// Transfer is the payload of a Received event.
type Transfer struct {
	Peer    string // engine id
	Request string // P's request id
	Tokens  int
	Blocks  int   // read successfully, over all KV groups
	Bytes   int64 // of these blocks
	Took    time.Duration
}

// WorkerStats are counters since the start, and gauges.
type WorkerStats struct {
	Loads, LoadsFailed   uint64 // ended; of them those with at least one failed block
	BlocksRead           uint64
	BytesRead            uint64
	BytesPushed          uint64 // by P
	PushesFailed         uint64
	Leases               uint64 // given
	LeasesReleased       uint64 // ended by D
	LeasesExpired        uint64 // ended by the clock
	ReleasesUnknown      uint64 // releases of leases that are not held
	ReleasesGivenUp      uint64 // not acknowledged until the lease was over by itself
	Renewals             uint64 // messages sent
	Broken               uint64 // loads whose lease was not confirmed
	CancelsUnknown       uint64 // cancels of requests without a load
	LeasesNow, PeersNow  int
	TrackedNow, LoadsNow int
	PushesNow            int
}

type workerCounters struct {
	loads, loadsFailed, blocks, bytes           atomic.Uint64
	leases, released, expired, unknown, givenUp atomic.Uint64
	pushedBytes, pushesFailed                   atomic.Uint64
	renewals, broken, cancelsUnknown            atomic.Uint64
}

// Worker moves the bytes of one engine rank.
type Worker struct {
	cfg       WorkerConfig
	transport transport.Transport
	ln        net.Listener
	self      Endpoint
	id        identity // constant after Register
	leases    *leases
	pushes    *pushes  // at P
	arrivals  arrivals // at D
	meetings  meetings // at D
	counters  workerCounters

	events  chan connector.Event
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup // all goroutines but those of the transport
	closing sync.Once

	mu         sync.Mutex
	registered bool
	closed     bool
	conns      map[net.Conn]struct{}
	peers      map[Endpoint]*peer
	loads      map[connector.RequestID]context.CancelFunc
}

var _ connector.Worker = (*Worker)(nil)

// NewWorker listens on the control channel and starts the transport. Peers are
// served after Register.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	w := &Worker{
		cfg: cfg, leases: newLeases(cfg.Lease, cfg.MaxHold), events: make(chan connector.Event, 256),
		conns: map[net.Conn]struct{}{}, peers: map[Endpoint]*peer{}, loads: map[connector.RequestID]context.CancelFunc{},
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("pd control channel: %w", err)
	}
	w.pushes = newPushes(w)
	w.ln = ln
	if w.transport, err = cfg.Transport(w.notified); err != nil {
		ln.Close()
		return nil, fmt.Errorf("pd transport: %w", err)
	}
	if t, ok := w.transport.(transport.TicketServer); ok {
		t.ServeTickets(tickets{w})
	}
	host, port, err := net.SplitHostPort(ln.Addr().String())
	if err == nil {
		w.self.Port, err = strconv.Atoi(port)
	}
	if err != nil {
		ln.Close()
		w.transport.Close()
		return nil, err
	}
	w.self.EngineID, w.self.Host = cfg.EngineID, host
	if cfg.Advertise != "" {
		w.self.Host = cfg.Advertise
	}
	if w.cfg.Allow == nil {
		w.cfg.Allow = func(Endpoint) error { return nil }
		if cfg.ClientTLS == nil {
			w.cfg.Allow = ownHost(w.self.Host)
		}
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// Endpoint is how peers reach this worker.
func (w *Worker) Endpoint() Endpoint { return w.self }

// Transport is the worker's transport, for its statistics.
func (w *Worker) Transport() transport.Transport { return w.transport }

// Register makes the engine's KV addressable and begins to serve peers.
func (w *Worker) Register(layout connector.Layout, regions []connector.Region) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.registered || w.closed {
		return errors.New("pd: registered twice or closed")
	}
	w.id.EngineID, w.id.LeaseMS = w.cfg.EngineID, w.cfg.Lease.Milliseconds()
	w.id.Transport = transportInfo{w.transport.Name(), w.transport.Address(), w.transport.Instance()}
	if err := w.id.register(w.transport, layout, regions); err != nil {
		return err
	}
	w.registered = true
	w.wg.Go(w.accept)
	w.wg.Go(w.watchLeases)
	return nil
}

// Events delivers what happened.
func (w *Worker) Events() <-chan connector.Event { return w.events }

// emit hands an event over; it waits while the channel is full, and gives up
// when the worker closes.
func (w *Worker) emit(ev connector.Event) {
	ev.Worker = w.cfg.Rank
	select {
	case w.events <- ev:
	case <-w.ctx.Done():
	}
}

// Stats returns counters and gauges.
func (w *Worker) Stats() WorkerStats {
	c := &w.counters
	s := WorkerStats{
		Loads: c.loads.Load(), LoadsFailed: c.loadsFailed.Load(), BlocksRead: c.blocks.Load(), BytesRead: c.bytes.Load(),
		Leases: c.leases.Load(), LeasesReleased: c.released.Load(), LeasesExpired: c.expired.Load(),
		ReleasesUnknown: c.unknown.Load(), ReleasesGivenUp: c.givenUp.Load(), Renewals: c.renewals.Load(),
		BytesPushed: c.pushedBytes.Load(), PushesFailed: c.pushesFailed.Load(),
		Broken: c.broken.Load(), CancelsUnknown: c.cancelsUnknown.Load(), LeasesNow: w.leases.len(),
	}
	s.PushesNow = w.pushes.len()
	w.mu.Lock()
	defer w.mu.Unlock()
	s.PeersNow, s.LoadsNow = len(w.peers), len(w.loads)
	for _, p := range w.peers {
		s.TrackedNow += p.tracked()
	}
	return s
}

// spawn starts a goroutine that Close waits for. It is false when the worker
// is closed.
func (w *Worker) spawn(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.wg.Go(f)
	return true
}

// Submit takes up work. It does not wait for any of it.
func (w *Worker) Submit(ops ...connector.Op) error {
	w.mu.Lock()
	ready := w.registered && !w.closed
	w.mu.Unlock()
	if !ready {
		return errors.New("pd: worker is not registered or closed")
	}
	for i := range ops {
		w.submit(&ops[i])
	}
	return nil
}

func (w *Worker) submit(op *connector.Op) {
	switch op.Kind {
	case connector.OpSend:
		if p, ok := op.Payload.(*sendPayload); ok {
			w.keep(op, p)
		}
	case connector.OpLoad:
		if p, ok := op.Payload.(*loadPayload); ok {
			w.startLoad(op, p)
		}
	case connector.OpRenew:
		switch r := op.Payload.(type) {
		case ref:
			if p, err := w.peer(r.peer); err == nil { // else the load says why
				p.track(r)
				p.leave()
			}
		case trackPayload:
			w.pushes.track(op.Request, r.transfer)
			if r.decoder.EngineID != "" {
				w.meet(r)
			}
		}
	case connector.OpRelease:
		switch p := op.Payload.(type) {
		case ref:
			w.release(p)
		case withdrawPayload:
			w.withdraw(p)
		case ownPayload:
			if h := w.leases.own(p.id); h != nil {
				w.spawn(func() { w.end(h) })
			}
		}
	case connector.OpCancel:
		if p, ok := op.Payload.(trackPayload); ok {
			w.pushes.abort(p.transfer)
			return
		}
		w.mu.Lock()
		cancel := w.loads[op.Request]
		w.mu.Unlock()
		if cancel == nil {
			w.counters.cancelsUnknown.Add(1)
			return
		}
		cancel()
	}
}

// Discard releases the blocks that a request's parameters name although the
// request never reached the scheduler, because it was refused before. Any
// goroutine.
func (w *Worker) Discard(p *Params) {
	if p != nil && p.DoRemotePrefill && p.Lease.Generation != 0 {
		w.release(refOf(p))
	}
}

func (w *Worker) release(r ref) {
	p, err := w.peer(r.peer)
	if err != nil {
		w.counters.givenUp.Add(1)
		return
	}
	p.release(r)
	p.leave()
}

// keep begins a lease on the blocks of a finished prompt.
func (w *Worker) keep(op *connector.Op, p *sendPayload) {
	h := &held{request: op.Request, name: p.name, lease: p.lease, life: p.life}
	for g, blocks := range op.Blocks {
		if p.transfer != "" {
			break // nobody reads what is pushed
		}
		var regions []transport.RegionID
		for _, r := range w.id.Regions {
			if r.Group == g {
				regions = append(regions, r.Memory.Region)
			}
		}
		units := make([]int32, 0, len(blocks))
		for _, b := range blocks {
			if b != 0 { // the null block holds nobody's KV
				units = append(units, int32(b))
			}
		}
		c, err := w.transport.Grant(transport.PeerReads, regions, units)
		if err != nil { // a block id beyond any pool
			w.cfg.Log.Error("pd: blocks cannot be granted", "request", p.name, "error", err)
			w.spawn(func() { w.end(h) })
			return
		}
		h.open = append(h.open, c)
	}
	w.counters.leases.Add(1)
	w.leases.add(h, time.Now())
	if p.transfer != "" {
		w.pushes.finish(op, p.transfer)
	}
}

// end closes a lease that was taken out of the table: nobody can read the
// blocks any more, then they are given back.
func (w *Worker) end(h *held) {
	w.pushes.forget(h.request)
	for _, c := range h.open {
		w.transport.Revoke(c)
	}
	w.emit(connector.Event{Kind: connector.Sent, Request: h.request})
}

// watchLeases ends leases whose time is over.
func (w *Worker) watchLeases() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		ended, next, ok := w.leases.expired(time.Now())
		for _, h := range ended {
			w.counters.expired.Add(1)
			w.cfg.Log.Warn("pd: lease ran out before the decoder released it", "request", h.name)
			w.wg.Go(func() { w.end(h) })
		}
		if ok {
			timer.Reset(time.Until(next))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-w.ctx.Done():
			return
		case <-w.leases.wake:
		case <-timer.C:
		}
	}
}

// Close ends all transfers and goroutines. Leases that this engine holds at
// peers are released as far as the peers answer within a second.
func (w *Worker) Close() error {
	var err error
	w.closing.Do(func() {
		w.mu.Lock()
		w.closed = true
		peers := make([]*peer, 0, len(w.peers))
		for _, p := range w.peers {
			peers = append(peers, p)
		}
		w.mu.Unlock()
		var wg sync.WaitGroup
		for _, p := range peers {
			wg.Go(p.farewell)
		}
		wg.Wait()
		w.cancel()
		w.ln.Close()
		w.mu.Lock()
		for c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		err = w.transport.Close()
		w.wg.Wait()
		close(w.events)
	})
	return err
}
