//go:build ucx && cgo && linux

package ucx

/*
#include "shim.h"
*/
import "C"

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"
)

// conn is a UCX stream as a net.Conn. One goroutine reads and one writes.
type conn struct {
	n  *network
	id uint64

	read, write deadline
	readable    chan struct{} // 1: something has come, or the end
	wrote       chan error    // 1: a send has ended

	mu       sync.Mutex
	h        *C.slu_conn // nil once closed
	in       [][]byte
	err      error         // of the connection; io.EOF when the peer has gone
	broken   bool          // a send was given up: the buffer is still in use
	fetching int           // fetches under way
	done     chan struct{} // closed on this side
	failed   chan struct{} // ended from afar
}

var _ net.Conn = (*conn)(nil)

func newConn(n *network, id uint64, h *C.slu_conn) *conn {
	c := &conn{n: n, id: id, h: h, readable: make(chan struct{}, 1), wrote: make(chan error, 1), done: make(chan struct{}), failed: make(chan struct{})}
	c.read.init()
	c.write.init()
	return c
}

// arrived takes data in; called by the goroutine that polls.
func (c *conn) arrived(data []byte) {
	c.mu.Lock()
	c.in = append(c.in, data)
	c.mu.Unlock()
	c.poke()
}

func (c *conn) poke() {
	select {
	case c.readable <- struct{}{}:
	default:
	}
}

// sent ends a write.
func (c *conn) sent(err error) {
	select {
	case c.wrote <- err:
	default: // it was given up
	}
}

// fail ends the connection from afar.
func (c *conn) fail(error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = io.EOF
		close(c.failed)
	}
	c.mu.Unlock()
	c.sent(io.ErrClosedPipe)
	c.poke()
}

// Read waits for data, the end, or the deadline.
func (c *conn) Read(p []byte) (int, error) {
	for {
		c.mu.Lock()
		n := 0
		for n < len(p) && len(c.in) > 0 {
			k := copy(p[n:], c.in[0])
			n += k
			if c.in[0] = c.in[0][k:]; len(c.in[0]) == 0 {
				c.in = c.in[1:]
			}
		}
		closed, err := c.h == nil, c.err
		c.mu.Unlock()
		switch {
		case n > 0 || len(p) == 0:
			return n, nil
		case closed:
			return 0, net.ErrClosed
		case err != nil:
			return 0, err
		}
		select {
		case <-c.readable:
		case <-c.done:
		case <-c.read.wait():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// Write sends p through the connection's buffer, part by part.
func (c *conn) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n, err := c.part(p)
		if err != nil {
			return total, err
		}
		p = p[n:]
		total += n
	}
	return total, nil
}

func (c *conn) part(p []byte) (int, error) {
	c.mu.Lock()
	switch {
	case c.h == nil:
		c.mu.Unlock()
		return 0, net.ErrClosed
	case c.err != nil || c.broken:
		c.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	select {
	case <-c.write.wait():
		c.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	default:
	}
	size := int(C.slu_buffer_size())
	n := copy(unsafe.Slice((*byte)(C.slu_buffer(c.h)), size), p)
	rc := int(C.slu_send(c.n.w, c.h, C.size_t(n)))
	c.mu.Unlock()
	if rc < 0 {
		return 0, statusError(rc)
	}
	if rc == 0 {
		return n, nil
	}
	select {
	case err := <-c.wrote:
		return n, err
	case <-c.done:
		return 0, net.ErrClosed
	case <-c.write.wait():
		c.mu.Lock()
		c.broken = true
		c.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	}
}

// Close ends the connection. What was written before still arrives.
func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.closeLocked()
	return nil
}

// kill ends the connection and what is under way on it.
func (c *conn) kill() {
	c.mu.Lock()
	c.broken = true
	c.mu.Unlock()
	_ = c.Close()
}

// closeLocked is Close with the network's lock held.
func (c *conn) closeLocked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return
	}
	flush := C.int(1)
	if c.broken || c.fetching > 0 || c.err != nil || c.n.stop {
		flush = 0
	}
	C.slu_close(c.n.w, c.h, flush)
	c.h = nil
	delete(c.n.conns, c.id)
	close(c.done)
}

// LocalAddr is where the transport listens.
func (c *conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.n.addr) }

// RemoteAddr is not known: UCX chooses the way.
func (c *conn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error {
	c.read.set(t)
	c.write.set(t)
	return nil
}

// SetReadDeadline bounds reads.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return nil
}

// SetWriteDeadline bounds writes.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.write.set(t)
	return nil
}

// deadline closes a channel when it is over.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{}
}

func (d *deadline) init() { d.over = make(chan struct{}) }

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // the timer has fired or is about to
	}
	d.timer = nil
	select {
	case <-d.over:
		d.over = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	over := d.over
	if wait := time.Until(t); wait > 0 {
		d.timer = time.AfterFunc(wait, func() { close(over) })
	} else {
		close(over)
	}
}
