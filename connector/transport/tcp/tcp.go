package tcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// Checksum says whether payloads carry a checksum. Either side of a connection
// can ask for it.
type Checksum uint8

const (
	// CRC32C checks every frame; a mismatch fails and repeats the part.
	CRC32C Checksum = iota
	// NoChecksum trusts TCP's own.
	NoChecksum
)

func (c Checksum) String() string {
	if c == NoChecksum {
		return "none"
	}
	return "crc32c"
}

// Config of a Transport. The zero value listens on a free loopback port.
type Config struct {
	Listen       string                  // host:port; default 127.0.0.1:0
	Advertise    string                  // what peers dial; default the listener's address
	Conns        int                     // connections to a peer; default 4
	MaxConns     int                     // accepted connections; default 256
	ChunkBytes   int64                   // greatest part of a transfer on one connection; default 4 MiB, at most 256 MiB
	Checksum     Checksum                // default CRC32C
	DialTimeout  time.Duration           // connection and hello; default 5 s
	StallTimeout time.Duration           // without progress on a frame; default 10 s
	IdleTimeout  time.Duration           // an accepted connection without a request; default 5 min
	Grace        time.Duration           // for a part in flight to end by itself on cancel or revoke; default 100 ms
	Retries      int                     // of a part after a broken connection or checksum; default 2, below 0 none
	ServerTLS    *tls.Config             // nil: plain TCP
	ClientTLS    *tls.Config             // nil: plain TCP; both or none
	Notified     transport.Notified      // nil: notifications are refused
	WrapConn     func(net.Conn) net.Conn // fault injection below TLS; nil: none
	Log          *slog.Logger            // nil: silent
	Network      Network                 // what carries the streams; nil: TCP itself
	Near         Near                    // reads device memory of peers on this host; nil: it travels on the streams
	Pieces       bool                    // every piece of a read or write is named by itself, as by peers that know of no units; for comparison
	NoTickets    bool                    // reads name capabilities alone, as by peers that know of no tickets; for comparison
	NoAhead      bool                    // nothing is fetched ahead of the owner's answer; for comparison
}

// Network makes the streams that carry the frames. The transport closes it.
type Network interface {
	// Name is the transport's kind; two ends must agree on it.
	Name() string
	// Listen is called once.
	Listen(address string) (net.Listener, error)
	// Dial may be called from any goroutine.
	Dial(ctx context.Context, address string) (net.Conn, error)
	// Close is called when all streams and the listener are closed.
	Close() error
}

// plain is TCP itself.
type plain struct{}

func (plain) Name() string { return "tcp" }

func (plain) Listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

func (plain) Dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}

func (plain) Close() error { return nil }

// Validate reports every value that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.Conns < 0 || c.Conns > 64 {
		errs = append(errs, fmt.Errorf("tcp: %d connections a peer, want 1 to 64", c.Conns))
	}
	if c.ChunkBytes < 0 || c.ChunkBytes > maxRequest {
		errs = append(errs, fmt.Errorf("tcp: chunk of %d bytes, want at most %d", c.ChunkBytes, maxRequest))
	}
	if c.DialTimeout < 0 || c.StallTimeout < 0 || c.IdleTimeout < 0 || c.Grace < 0 {
		errs = append(errs, errors.New("tcp: negative timeout"))
	}
	if (c.ServerTLS == nil) != (c.ClientTLS == nil) {
		errs = append(errs, errors.New("tcp: TLS needs both a server and a client configuration"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	def := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Conns == 0 {
		c.Conns = 4
	}
	if c.MaxConns <= 0 {
		c.MaxConns = 256
	}
	if c.ChunkBytes == 0 {
		c.ChunkBytes = 4 << 20
	}
	c.ChunkBytes = max(c.ChunkBytes, 4<<10)
	def(&c.DialTimeout, 5*time.Second)
	def(&c.StallTimeout, 10*time.Second)
	def(&c.IdleTimeout, 5*time.Minute)
	def(&c.Grace, 100*time.Millisecond)
	if c.Retries == 0 {
		c.Retries = 2
	}
	c.Retries = max(c.Retries, 0)
	if c.Network == nil {
		c.Network = plain{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Transport is the TCP transport. It owns a listener.
type Transport struct {
	cfg      Config
	instance transport.Instance
	ln       net.Listener
	addr     string
	direct   Direct // nil: all bytes travel on the streams
	regions  transport.Regions
	grants   transport.Grants
	counters counters

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // accept loop and accepted connections

	tickets atomic.Pointer[transport.Tickets] // nil: peers have none

	mu       sync.Mutex
	accepted map[net.Conn]struct{}
	peers    map[*peer]struct{}
	closed   bool

	exposedMu sync.RWMutex
	exposed   map[transport.RegionID]exposure
}

var (
	_ transport.Transport    = (*Transport)(nil)
	_ transport.TicketServer = (*Transport)(nil)
)

type counters struct {
	read, written, servedReads, servedWrites atomic.Uint64
	retries, corrupt, denied, malformed      atomic.Uint64
	dials, accepts, fetched, far             atomic.Uint64
	openConns, openTransfers                 atomic.Int64
}

// New listens and serves until Close.
func New(cfg Config) (*Transport, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ln, err := cfg.Network.Listen(cfg.Listen)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s transport: %w", cfg.Network.Name(), err), cfg.Network.Close())
	}
	t := &Transport{cfg: cfg, ln: ln, addr: cfg.Advertise, accepted: map[net.Conn]struct{}{}, peers: map[*peer]struct{}{}, exposed: map[transport.RegionID]exposure{}}
	t.direct, _ = cfg.Network.(Direct)
	if t.addr == "" {
		t.addr = ln.Addr().String()
	}
	rand.Read(t.instance[:]) // never fails
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.wg.Go(t.accept)
	return t, nil
}

// Name is that of the network, "tcp" for TCP itself.
func (t *Transport) Name() string { return t.cfg.Network.Name() }

// Instance is this transport's random identity.
func (t *Transport) Instance() transport.Instance { return t.instance }

// Address is what peers dial.
func (t *Transport) Address() string { return t.addr }

// Guarded is true where every access is checked: over a Direct network, and
// where neighbours read device memory, only peers that keep to the protocol are
// held to their grants.
func (t *Transport) Guarded() bool { return t.direct == nil && t.cfg.Near == nil }

// Register makes memory addressable.
func (t *Transport) Register(m transport.Memory, unit int64) (transport.Descriptor, error) {
	d, err := t.regions.Register(m, unit)
	if err == nil {
		if err = t.expose(d.Region, m); err != nil {
			err = errors.Join(err, t.regions.Deregister(d.Region))
		}
	}
	if err != nil {
		return transport.Descriptor{}, err
	}
	return d, nil
}

// Deregister waits for the region's users.
func (t *Transport) Deregister(r transport.RegionID) error {
	if err := t.regions.Deregister(r); err != nil {
		return err
	}
	return t.conceal(r)
}

// Grant opens units of regions to peers.
func (t *Transport) Grant(a transport.Access, regions []transport.RegionID, units []int32) (transport.Capability, error) {
	return t.grants.Grant(a, regions, units)
}

// ServeTickets takes tickets of neighbours that connect from now on.
func (t *Transport) ServeTickets(by transport.Tickets) { t.tickets.Store(&by) }

// Revoke ends a grant; a connection that is slow to end its access is cut.
func (t *Transport) Revoke(c transport.Capability) { t.grants.Revoke(c, t.cfg.Grace) }

// Stats returns the counters.
func (t *Transport) Stats() transport.Stats {
	c := &t.counters
	return transport.Stats{
		ReadBytes: c.read.Load(), WrittenBytes: c.written.Load(),
		ServedReads: c.servedReads.Load(), ServedWrites: c.servedWrites.Load(),
		Retries: c.retries.Load(), Corrupt: c.corrupt.Load(), Denied: c.denied.Load(), Malformed: c.malformed.Load(),
		Dials: c.dials.Load(), Accepts: c.accepts.Load(), Fetched: c.fetched.Load(), Far: c.far.Load(),
		OpenConns: c.openConns.Load(), OpenTransfers: c.openTransfers.Load(),
	}
}

// Close fails all transfers, closes all peers and waits for every goroutine.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	t.cancel()
	err := t.ln.Close()
	for c := range t.accepted {
		c.Close()
	}
	peers := make([]*peer, 0, len(t.peers))
	for p := range t.peers {
		peers = append(peers, p)
	}
	t.mu.Unlock()
	for _, p := range peers {
		p.Close()
	}
	t.wg.Wait()
	for id := range t.exposed { // nobody is left to change it
		err = errors.Join(err, t.conceal(id))
	}
	if t.cfg.Near != nil {
		err = errors.Join(err, t.cfg.Near.Close())
	}
	return errors.Join(err, t.cfg.Network.Close())
}

func (t *Transport) hello() hello {
	h := hello{instance: t.instance}
	if t.cfg.Checksum == CRC32C {
		h.crc = 1
	}
	if t.cfg.Near != nil {
		h.near = 1
	}
	return h
}
