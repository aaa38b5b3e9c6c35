package load

import (
	"context"
	"net"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// stamped is a connection that knows when something came on it last. The header of an
// answer, and often its first event with it, is read by another goroutine than
// the one that reads the answer: its way there is not the server's time.
type stamped struct {
	net.Conn
	last atomic.Int64 // nanoseconds since began; 0 before anything has
}

// began is what connections count from.
var began = time.Now()

// dial connects a client for load runs.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &stamped{Conn: c}, nil
}

// Read implements net.Conn.
func (c *stamped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.last.Store(int64(time.Since(began)))
	}
	return n, err
}

// arrival tells when the last bytes of an answer came: by the connection, where it
// knows, else by the clock when they are asked for.
type arrival struct {
	start time.Time // of the workload
	conn  atomic.Pointer[stamped]
}

// trace has a request of that context say which connection it got.
func (a *arrival) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		c := got.Conn
		if secure, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
			c = secure.NetConn()
		}
		if s, ok := c.(*stamped); ok {
			a.conn.Store(s)
		}
	}})
}

// last is when what was read last came, since the start of the workload.
func (a *arrival) last() time.Duration {
	if c := a.conn.Load(); c != nil {
		if at := c.last.Load(); at > 0 {
			return time.Duration(at) - a.start.Sub(began)
		}
	}
	return time.Since(a.start)
}
