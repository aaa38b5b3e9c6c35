package publish

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/kvcache"
)

var (
	// ErrClosed says that the publisher was closed.
	ErrClosed = errors.New("publish: publisher is closed")
	// ErrQueueFull says that a batch was dropped because too many wait already.
	// Its sequence number stays unused, so subscribers see the gap.
	ErrQueueFull = errors.New("publish: queue is full, batch dropped")
)

// endOfReplay is the sequence number -1 that ends a replay.
const endOfReplay = math.MaxUint64

// A Publisher sends batches of events. Its methods may be called from several goroutines.
type Publisher struct {
	cfg    Config
	topic  []byte
	pub    net.Listener // nil where it connects
	router net.Listener // nil without replay

	queue   chan batch
	closing <-chan struct{} // closed when no more batches come
	end     func()          // closes it
	loop    sync.WaitGroup
	peers   sync.WaitGroup // accept loops and connections

	mu     sync.Mutex
	closed bool
	next   uint64             // sequence number of the next batch
	live   map[*peer]struct{} // connections of both sockets
	buffer []stored           // ring of the latest batches; empty without replay
	first  int                // index of the oldest
	stats  Stats
}

type batch struct {
	seq    uint64
	at     time.Time
	events []kvcache.Event
}

type stored struct {
	seq     uint64
	payload []byte
}

// Stats counts what a publisher did.
type Stats struct {
	Batches     uint64 // sent
	Events      uint64
	Overflow    uint64 // batches dropped because the queue was full
	Dropped     uint64 // messages dropped because a subscriber did not keep up
	Subscribers int    // connected, and subscribed to the topic
}

// New opens the sockets and starts to serve them. The caller ends it with Close.
func New(cfg Config) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	ctx, end := context.WithCancel(context.Background())
	p := &Publisher{
		cfg: cfg, topic: []byte(cfg.Topic), queue: make(chan batch, cfg.Queue), closing: ctx.Done(), end: end, live: map[*peer]struct{}{},
	}
	var err error
	if cfg.Attach == Bind {
		if p.pub, err = listen(cfg.Endpoint, cfg.Rank); err != nil {
			return nil, err
		}
	}
	if cfg.Replay != "" {
		if p.router, err = listen(cfg.Replay, cfg.Rank); err != nil {
			if p.pub != nil {
				p.pub.Close()
			}
			return nil, err
		}
	}
	p.loop.Add(1)
	go p.run()
	if p.pub != nil {
		p.accept(p.pub, pubSocket)
	} else {
		p.peers.Go(func() { p.connect(ctx) })
	}
	if p.router != nil {
		p.accept(p.router, routerSocket)
	}
	return p, nil
}

func listen(endpoint string, rank int) (net.Listener, error) {
	addr, err := address(endpoint, rank)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("publish: listen on %s: %w", endpoint, err)
	}
	return l, nil
}

// Addr returns the address of the PUB socket, nil where it connects.
func (p *Publisher) Addr() net.Addr {
	if p.pub == nil {
		return nil
	}
	return p.pub.Addr()
}

// ReplayAddr returns the address of the ROUTER socket, nil without one.
func (p *Publisher) ReplayAddr() net.Addr {
	if p.router == nil {
		return nil
	}
	return p.router.Addr()
}

// Publish queues one batch, which now belongs to the publisher. It does not
// block. An empty batch is not sent.
func (p *Publisher) Publish(events []kvcache.Event) error {
	if len(events) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	b := batch{seq: p.next, at: p.cfg.Now(), events: events}
	p.next++
	select {
	case p.queue <- b:
		return nil
	default:
		p.stats.Overflow++
		return ErrQueueFull
	}
}

// Stats returns the counts so far.
func (p *Publisher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	for q := range p.live {
		if q.kind == pubSocket && q.wants(p.cfg.Topic) {
			s.Subscribers++
		}
	}
	return s
}

// Close sends what is queued, waits up to Config.Linger until the subscribers
// have taken it, and ends every goroutine of the publisher.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	p.closed = true
	p.mu.Unlock()
	close(p.queue)
	p.loop.Wait() // everything is in the subscribers' queues
	var err error
	for _, l := range []net.Listener{p.pub, p.router} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	deadline := time.Now().Add(p.cfg.Linger)
	p.mu.Lock()
	for q := range p.live {
		_ = q.conn.SetDeadline(deadline) // a connection that is gone already has nothing to wait for
	}
	p.mu.Unlock()
	p.end()
	p.peers.Wait()
	return err
}

// run encodes the batches in order and hands them to the subscribers. It ends when the queue is closed and empty.
func (p *Publisher) run() {
	defer p.loop.Done()
	enc := newEncoder(&p.cfg)
	for b := range p.queue {
		payload, err := enc.batch(b.at, b.events)
		if err != nil {
			p.cfg.Log.Error("batch not sent", "seq", b.seq, "error", err)
			continue
		}
		m := message(p.topic, seqBytes(b.seq), payload)
		p.mu.Lock()
		if p.router != nil {
			p.remember(stored{b.seq, payload})
		}
		p.stats.Batches++
		p.stats.Events += uint64(len(b.events))
		for q := range p.live {
			if q.kind != pubSocket || !q.wants(p.cfg.Topic) {
				continue
			}
			if !q.out.put(m) {
				p.stats.Dropped++
			}
		}
		p.mu.Unlock()
	}
}

// remember puts a batch into the ring. The caller holds mu.
func (p *Publisher) remember(s stored) {
	if len(p.buffer) < p.cfg.Buffer {
		p.buffer = append(p.buffer, s)
		return
	}
	p.buffer[p.first] = s
	p.first = (p.first + 1) % len(p.buffer)
}

// since returns the batches in the ring from a sequence number on.
func (p *Publisher) since(seq uint64) []stored {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []stored
	for i := range p.buffer {
		if s := p.buffer[(p.first+i)%len(p.buffer)]; s.seq >= seq {
			out = append(out, s)
		}
	}
	return out
}

// accept serves the connections of a socket until it is closed.
func (p *Publisher) accept(l net.Listener, kind socket) {
	p.peers.Add(1)
	go func() {
		defer p.peers.Done()
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				p.cfg.Log.Warn("accept failed", "error", err)
				select {
				case <-p.closing:
					return
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			p.peers.Add(1)
			go func() {
				defer p.peers.Done()
				_, _ = p.serve(conn, kind) // it has logged why it ended
			}()
		}
	}()
}

// How long a publisher that connects waits before it tries again, at least and
// at most; the time doubles with each try that failed.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 10 * time.Second
)

// connect keeps a connection to the subscriber's socket until the publisher closes.
func (p *Publisher) connect(ctx context.Context) {
	addr, _ := address(p.cfg.Endpoint, p.cfg.Rank) // validated
	level := slog.LevelWarn                        // once, until a connection stands again
	for retry := minRetry; ; retry = min(2*retry, maxRetry) {
		d := net.Dialer{Timeout: handshakeTimeout}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			var understood bool
			if understood, err = p.serve(conn, pubSocket); understood {
				retry, level = minRetry, slog.LevelWarn
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
		p.cfg.Log.Log(ctx, level, "no connection to the subscriber, trying again", "endpoint", p.cfg.Endpoint, "address", addr, "error", err)
		level = slog.LevelDebug
	}
}

// add registers a connection, which has limited time for its handshake; it is
// false when the publisher is closing.
func (p *Publisher) add(q *peer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || q.conn.SetDeadline(time.Now().Add(handshakeTimeout)) != nil {
		return false
	}
	p.live[q] = struct{}{}
	return true
}

// shaken takes the limit of the handshake away.
func (p *Publisher) shaken(q *peer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && q.conn.SetDeadline(time.Time{}) == nil
}

func (p *Publisher) remove(q *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, q)
}

func seqBytes(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
