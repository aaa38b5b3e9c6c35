package proxy

import (
	"net"
	"sync"
)

// seats accepts no more than so many connections at a time. The socket under
// them can still be had, which netutil's listener hides.
type seats struct {
	net.Listener
	taken  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newSeats(l net.Listener, n int) *seats {
	return &seats{Listener: l, taken: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept waits for a seat first.
func (p *seats) Accept() (net.Conn, error) {
	select {
	case p.taken <- struct{}{}:
	case <-p.closed:
		return nil, net.ErrClosed
	}
	c, err := p.Listener.Accept()
	if err != nil {
		p.leave()
		return nil, err
	}
	return &seated{Conn: c, leave: sync.OnceFunc(p.leave)}, nil
}

func (p *seats) leave() { <-p.taken }

// Close ends Accept.
func (p *seats) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}

// seated is a connection that has a seat.
type seated struct {
	net.Conn
	leave func()
}

// Close gives the seat away.
func (p *seated) Close() error {
	defer p.leave()
	return p.Conn.Close()
}

// CloseWrite lets the server end its half of the connection first.
func (p *seated) CloseWrite() error { return closeWrite(p.Conn) }

// closeWrite ends one half of a connection where it has halves.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
