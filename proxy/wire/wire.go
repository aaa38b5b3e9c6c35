// Package wire sends requests to instances over HTTP/1.1. It is a client for
// one purpose: a long body that is given as byte ranges goes out with one
// vectored write, the answer is read on the caller's goroutine, and a
// connection costs no goroutine and little memory, so that thousands of
// streams can be open. Answers are parsed by net/http.
//
// A Pool is safe for concurrent use. A Response belongs to one goroutine and
// must be closed.
package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// Request is one request to an instance.
type Request struct {
	Method string
	Addr   string // host:port
	Path   string // with the query, already escaped
	Header []Field
	// Body is sent as it is, with its length as Content-Length. It is read only
	// while Do runs.
	Body [][]byte
}

// Field is one header field. Names and values are checked before they are sent.
type Field struct{ Name, Value string }

// Response is an answer whose body is still to be read.
type Response struct {
	Status int
	Header http.Header
	body   io.ReadCloser
	conn   *conn
	pool   *Pool
	addr   string
	stop   func() bool
	eof    bool
	closes bool // the connection ends with the answer
}

// Config sets a Pool.
type Config struct {
	Dial time.Duration // to connect, TLS included; 0 means 5 s
	// IdleTimeout is after how long an unused connection is closed; 0 means 4 s,
	// which is shorter than the servers of engines wait, so that a request
	// rarely meets a connection that is just being closed.
	IdleTimeout time.Duration
	MaxIdle     int         // unused connections per instance; 0 means 1024
	MaxHeader   int64       // bytes of an answer's header; 0 means 256 KiB
	TLS         *tls.Config // nil speaks plain HTTP
}

// Pool keeps the connections that are not in use.
type Pool struct {
	cfg    Config
	dialer net.Dialer

	mu   sync.Mutex
	idle map[string][]*conn // most recently used last
}

type conn struct {
	net.Conn
	r     *bufio.Reader
	limit *limitedConn
	since time.Time // unused since
	used  bool      // it carried a request before
}

// limitedConn bounds what is read while a header is expected.
type limitedConn struct {
	net.Conn
	left int64 // bytes; negative is no bound
}

// errHeader reports an answer whose header is too long.
var errHeader = errors.New("the answer's header is too long")

func (l *limitedConn) Read(p []byte) (int, error) {
	if l.left < 0 {
		return l.Conn.Read(p)
	}
	if l.left == 0 {
		return 0, errHeader
	}
	n, err := l.Conn.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// New makes a Pool.
func New(cfg Config) *Pool {
	if cfg.Dial <= 0 {
		cfg.Dial = 5 * time.Second
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = 4 * time.Second
	}
	if cfg.MaxIdle <= 0 {
		cfg.MaxIdle = 1024
	}
	if cfg.MaxHeader <= 0 {
		cfg.MaxHeader = 256 << 10
	}
	return &Pool{cfg: cfg, dialer: net.Dialer{Timeout: cfg.Dial, KeepAlive: 30 * time.Second}, idle: map[string][]*conn{}}
}

// DialError says that no connection could be made: the request has not
// reached the instance.
type DialError struct {
	Addr string
	Err  error
}

func (e *DialError) Error() string { return fmt.Sprintf("connect to %s: %v", e.Addr, e.Err) }

func (e *DialError) Unwrap() error { return e.Err }

// Do sends a request and reads the answer's header. When the context ends, the
// connection is closed and the error is the context's cause. A request that
// could not be written because the instance had closed the connection
// meanwhile is sent again on a fresh one.
func (p *Pool) Do(ctx context.Context, q *Request) (*Response, error) {
	head, err := q.head()
	if err != nil {
		return nil, err
	}
	for {
		c, err := p.get(ctx, q.Addr)
		if err != nil {
			return nil, err
		}
		resp, again, err := p.send(ctx, c, q, head)
		if err == nil {
			return resp, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if !again {
			return nil, fmt.Errorf("%s %s: %w", q.Method, q.Addr, err)
		}
	}
}

func (p *Pool) send(ctx context.Context, c *conn, q *Request, head []byte) (resp *Response, again bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	parts := make(net.Buffers, 0, len(q.Body)+1)
	parts = append(append(parts, head), q.Body...)
	var sent error
	if p.cfg.TLS == nil {
		_, sent = parts.WriteTo(c.Conn)
	} else {
		for _, part := range parts {
			if _, sent = c.Conn.Write(part); sent != nil {
				break
			}
		}
	}
	if sent != nil {
		// An instance may answer and close before it has read everything.
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
	}
	c.limit.left = p.cfg.MaxHeader
	var answer *http.Response
	for {
		if _, err = c.r.Peek(1); err != nil {
			break
		}
		if answer, err = http.ReadResponse(c.r, &http.Request{Method: q.Method}); err != nil || answer.StatusCode >= 200 {
			break
		}
	}
	c.limit.left = -1
	if err != nil {
		stop()
		_ = c.Close()
		// Only a request that could not be written whole is sent again: one that
		// was may have been worked on.
		stale := c.used && answer == nil && isReset(sent)
		if sent != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
			err = sent
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, stale, err
	}
	if sent != nil {
		_ = c.SetReadDeadline(time.Time{})
	}
	return &Response{
		Status: answer.StatusCode, Header: answer.Header, body: answer.Body, conn: c, pool: p, addr: q.Addr, stop: stop,
		closes: answer.Close || sent != nil || answer.StatusCode == http.StatusSwitchingProtocols,
	}, false, nil
}

// head writes the request line and the header.
func (q *Request) head() ([]byte, error) {
	size := 0
	for _, part := range q.Body {
		size += len(part)
	}
	b := make([]byte, 0, 512)
	b = append(append(append(append(b, q.Method...), ' '), q.Path...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, q.Addr...), "\r\n"...)
	for _, f := range q.Header {
		if !fit(f) {
			return nil, fmt.Errorf("header %q is not fit to be sent", f.Name)
		}
		b = append(append(append(append(b, f.Name...), ": "...), f.Value...), "\r\n"...)
	}
	if size > 0 || q.Method == http.MethodPost {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), int64(size), 10), "\r\n"...)
	}
	for i := range len(q.Path) {
		if c := q.Path[i]; c <= ' ' || c > '~' {
			return nil, errors.New("the path is not fit to be sent")
		}
	}
	return append(b, "\r\n"...), nil
}

// fit reports whether a field cannot change the framing of a request.
func fit(f Field) bool {
	if f.Name == "" {
		return false
	}
	for i := range len(f.Name) {
		if c := f.Name[i]; c <= ' ' || c > '~' || c == ':' {
			return false
		}
	}
	for i := range len(f.Value) {
		if c := f.Value[i]; (c < ' ' && c != '\t') || c == 0x7f {
			return false
		}
	}
	return true
}

// Read reads the body. At its end the connection is ready for another request.
func (r *Response) Read(p []byte) (int, error) {
	if r.eof {
		return 0, io.EOF
	}
	n, err := r.body.Read(p)
	if errors.Is(err, io.EOF) && err == io.EOF {
		r.eof = true
	}
	return n, err
}

// Close gives the connection back when the body was read to its end, and
// closes it otherwise. It may be called twice.
func (r *Response) Close() error {
	if r.conn == nil {
		return nil
	}
	c := r.conn
	r.conn = nil
	ended := !r.stop() // the context ended and took the connection with it
	if ended || r.closes || !r.eof || c.r.Buffered() > 0 {
		return c.Close()
	}
	r.pool.put(r.addr, c)
	return nil
}

// get takes an unused connection, or makes one.
func (p *Pool) get(ctx context.Context, addr string) (*conn, error) {
	for {
		p.mu.Lock()
		list := p.idle[addr]
		if len(list) == 0 {
			p.mu.Unlock()
			break
		}
		c := list[len(list)-1]
		list[len(list)-1] = nil
		p.idle[addr] = list[:len(list)-1]
		p.mu.Unlock()
		if time.Since(c.since) < p.cfg.IdleTimeout && alive(c.Conn) {
			c.used = true
			return c, nil
		}
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Dial)
	defer cancel()
	raw, err := p.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &DialError{addr, err}
	}
	if p.cfg.TLS != nil {
		cfg := p.cfg.TLS.Clone()
		if cfg.ServerName == "" {
			cfg.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secure := tls.Client(raw, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, &DialError{addr, errors.Join(err, raw.Close())}
		}
		raw = secure
	}
	limit := &limitedConn{Conn: raw, left: -1}
	return &conn{Conn: raw, r: bufio.NewReaderSize(limit, 4<<10), limit: limit}, nil
}

// put keeps a connection for the next request and closes those that were
// unused for too long.
func (p *Pool) put(addr string, c *conn) {
	c.since = time.Now()
	p.mu.Lock()
	list := append(p.idle[addr], c)
	drop := 0
	for drop < len(list) && (len(list)-drop > p.cfg.MaxIdle || c.since.Sub(list[drop].since) > p.cfg.IdleTimeout) {
		drop++
	}
	old := list[:drop:drop]
	if drop > 0 {
		list = append([]*conn(nil), list[drop:]...)
	}
	p.idle[addr] = list
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}

// CloseIdle closes the connections that are not in use.
func (p *Pool) CloseIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = map[string][]*conn{}
	p.mu.Unlock()
	for _, list := range idle {
		for _, c := range list {
			_ = c.Close()
		}
	}
}
