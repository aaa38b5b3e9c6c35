package publish

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	handshakeTimeout = 10 * time.Second
	maxTopics        = 1 << 10 // of one subscriber
	maxContext       = 16      // bytes of a PING's context, after the ZMTP specification (rfc.zeromq.org/spec/37)
)

var errTopics = fmt.Errorf("publish: more than %d subscriptions of one peer", maxTopics)

// peer is one connected subscriber or replay client. Two goroutines serve it:
// one reads, and answers requests of replays; one writes what is published. Both
// end when the connection is closed.
type peer struct {
	p    *Publisher
	kind socket // of ours
	conn net.Conn
	r    *bufio.Reader
	out  *outbox
	gone chan struct{} // closed when the reader has ended
	done chan struct{} // closed when the writer has ended

	mu     sync.Mutex
	topics map[string]int // subscriptions, counted
}

// serve runs a connection of one of the sockets until it ends. It reports whether
// the peers understood each other, and why it has ended.
func (p *Publisher) serve(conn net.Conn, kind socket) (understood bool, err error) {
	defer conn.Close()
	q := &peer{
		p: p, kind: kind, conn: conn, r: bufio.NewReader(conn), out: newOutbox(p.cfg.HighWater),
		gone: make(chan struct{}), done: make(chan struct{}), topics: map[string]int{},
	}
	if !p.add(q) {
		return false, ErrClosed
	}
	defer p.remove(q)
	if err := handshake(q.r, conn, kind); err != nil {
		p.cfg.Log.Debug("handshake refused", "peer", conn.RemoteAddr(), "error", err)
		return false, err
	}
	if !p.shaken(q) {
		return false, ErrClosed
	}
	go func() {
		defer close(q.done)
		q.write()
	}()
	err = q.read()
	close(q.gone)
	conn.Close()
	<-q.done
	p.cfg.Log.Debug("peer left", "peer", conn.RemoteAddr(), "error", err)
	return true, err
}

// write sends what is queued until the reader ends, or the publisher asks for the
// end, has set a deadline, and nothing is left. Then it closes the connection.
func (q *peer) write() {
	defer q.conn.Close()
	for last := false; ; {
		for m, ok := q.out.next(); ok; m, ok = q.out.next() {
			if _, err := q.conn.Write(m); err != nil {
				return
			}
		}
		if last {
			return
		}
		select {
		case <-q.out.wake:
		case <-q.gone:
			return
		case <-q.p.closing:
			last = true // what came meanwhile
		}
	}
}

// read handles what the peer sends until the connection ends.
func (q *peer) read() error {
	for {
		frames, isCommand, err := readMessage(q.r, maxFrame)
		if err != nil {
			return err
		}
		switch {
		case isCommand:
			err = q.command(frames[0])
		case q.kind == pubSocket:
			err = q.subscription(frames[0])
		default:
			err = q.replay(frames)
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
		return q.subscribe(string(data), 1)
	case "CANCEL":
		return q.subscribe(string(data), -1)
	case "PING":
		data = data[min(2, len(data)):] // behind the time to live stands the context to send back
		data = data[:min(maxContext, len(data))]
		q.out.put(command("PONG", data)) // who has no room for it hears from us anyway
	}
	return nil
}

// subscription handles a subscription of version 3.0: a byte 1 or 0, then the topic.
func (q *peer) subscription(m []byte) error {
	switch {
	case len(m) > 0 && m[0] == 1:
		return q.subscribe(string(m[1:]), 1)
	case len(m) > 0 && m[0] == 0:
		return q.subscribe(string(m[1:]), -1)
	}
	return nil
}

func (q *peer) subscribe(topic string, n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.topics[topic] += n; q.topics[topic] <= 0 {
		delete(q.topics, topic)
	}
	if len(q.topics) > maxTopics {
		return errTopics
	}
	return nil
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

// replay answers a request for batches, as fast as the peer takes them. Requests
// of REQ sockets carry an empty frame before the number; the answers then do too.
func (q *peer) replay(frames [][]byte) error {
	var envelope [][]byte
	if len(frames) > 1 && len(frames[0]) == 0 {
		envelope, frames = frames[:1], frames[1:]
	}
	if len(frames) != 1 || len(frames[0]) != 8 {
		q.p.cfg.Log.Debug("malformed replay request", "peer", q.conn.RemoteAddr(), "frames", len(frames))
		return nil
	}
	answer := func(topic, seq, payload []byte) error {
		_, err := q.conn.Write(message(append(envelope[:len(envelope):len(envelope)], topic, seq, payload)...))
		return err
	}
	for _, b := range q.p.since(binary.BigEndian.Uint64(frames[0])) {
		if err := answer(q.p.topic, seqBytes(b.seq), b.payload); err != nil {
			return err
		}
	}
	return answer(nil, seqBytes(endOfReplay), nil)
}
