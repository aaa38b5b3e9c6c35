package publish

import (
	"bufio"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

const (
	handshakeTimeout = 10 * time.Second
	replayQueue      = 16 // messages of a replay that wait for the client
)

// peer is one connected subscriber or replay client. Two goroutines serve it:
// one reads, one writes; both end when the connection is closed.
type peer struct {
	p    *Publisher
	kind zmq4.SocketType // of our socket: Pub or Router
	conn net.Conn
	out  chan []byte   // messages to write
	gone chan struct{} // closed when the reader has ended
	done chan struct{} // closed when the writer has ended

	mu     sync.Mutex
	topics map[string]int // subscriptions, counted
}

// serve runs a connection of one of the sockets until it ends, and reports
// whether the peers understood each other.
func (p *Publisher) serve(conn net.Conn, kind zmq4.SocketType, attach Attach) bool {
	defer conn.Close()
	q := &peer{p: p, kind: kind, conn: conn, gone: make(chan struct{}), done: make(chan struct{}), topics: map[string]int{}}
	if kind == zmq4.Pub {
		q.out = make(chan []byte, p.cfg.HighWater)
	} else {
		q.out = make(chan []byte, replayQueue)
	}
	if !p.add(q) {
		return false
	}
	defer p.remove(q)
	if _, err := zmq4.Open(conn, null.Security(), kind, nil, attach == Bind, nil); err != nil {
		p.cfg.Log.Debug("handshake refused", "peer", conn.RemoteAddr(), "error", err)
		return false
	}
	if !p.shaken(q) {
		return false
	}
	go func() {
		defer close(q.done)
		q.write()
	}()
	err := q.read()
	close(q.gone)
	conn.Close()
	<-q.done
	p.cfg.Log.Debug("peer left", "peer", conn.RemoteAddr(), "error", err)
	return true
}

// write sends what is queued until the reader ends or the publisher asks for the end.
func (q *peer) write() {
	for {
		select {
		case m := <-q.out:
			if _, err := q.conn.Write(m); err != nil {
				q.conn.Close()
				return
			}
		case <-q.gone:
			return
		case <-q.p.closing:
			q.drain()
			return
		}
	}
}

// drain writes what is left and closes the connection; the publisher has set a deadline.
func (q *peer) drain() {
	defer q.conn.Close()
	for {
		select {
		case m := <-q.out:
			if _, err := q.conn.Write(m); err != nil {
				return
			}
		default:
			return
		}
	}
}

// read handles what the peer sends until the connection ends.
func (q *peer) read() error {
	r := bufio.NewReader(q.conn)
	for {
		frames, isCommand, err := readMessage(r, maxFrame)
		if err != nil {
			return err
		}
		switch {
		case isCommand:
			err = q.command(frames[0])
		case q.kind == zmq4.Pub:
			q.subscription(frames[0])
		default:
			q.replay(frames)
		}
		if err != nil {
			return err
		}
	}
}

// command handles a ZMTP command: subscriptions of version 3.1 and heartbeats.
func (q *peer) command(body []byte) error {
	name, data, err := parseCommand(body)
	if err != nil {
		return err
	}
	switch name {
	case "SUBSCRIBE":
		q.subscribe(string(data), 1)
	case "CANCEL":
		q.subscribe(string(data), -1)
	case "PING":
		if len(data) > 2 {
			data = data[2:] // behind the time to live stands the context to send back
		} else {
			data = nil
		}
		q.send(command("PONG", data))
	}
	return nil
}

// subscription handles a subscription of version 3.0: a byte 1 or 0, then the topic.
func (q *peer) subscription(m []byte) {
	if len(m) == 0 {
		return
	}
	switch m[0] {
	case 1:
		q.subscribe(string(m[1:]), 1)
	case 0:
		q.subscribe(string(m[1:]), -1)
	}
}

func (q *peer) subscribe(topic string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.topics[topic] += n; q.topics[topic] <= 0 {
		delete(q.topics, topic)
	}
}

// wants reports whether the peer has subscribed to a prefix of topic.
func (q *peer) wants(topic string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for prefix := range q.topics {
		if strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

// send queues a message and waits for room, unless the connection ends.
func (q *peer) send(m []byte) {
	select {
	case q.out <- m:
	case <-q.done:
	case <-q.p.closing:
	}
}

// replay answers a request for batches. Requests of REQ sockets carry an empty frame before the number; the answers then do too.
func (q *peer) replay(frames [][]byte) {
	var envelope [][]byte
	if len(frames) > 1 && len(frames[0]) == 0 {
		envelope, frames = frames[:1], frames[1:]
	}
	if len(frames) != 1 || len(frames[0]) != 8 {
		q.p.cfg.Log.Debug("malformed replay request", "peer", q.conn.RemoteAddr(), "frames", len(frames))
		return
	}
	start := binary.BigEndian.Uint64(frames[0])
	for _, b := range q.p.since(start) {
		q.send(message(append(envelope[:len(envelope):len(envelope)], q.p.topic, seqBytes(b.seq), b.payload)...))
	}
	q.send(message(append(envelope[:len(envelope):len(envelope)], nil, seqBytes(endOfReplay), nil)...))
}
