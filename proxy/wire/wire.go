// Package wire sends requests to instances over HTTP/1.1. It is a client for
// one purpose: a long body that is given as byte ranges goes out with one
// vectored write, the answer is read on the caller's goroutine, and a
// connection costs no goroutine and little memory, so that thousands of
// streams can be open. An answer whose end two readers could see in different
// places is refused.
//
// A Pool is safe for concurrent use. A Response belongs to one goroutine and
// must be closed.
package wire

import (
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

	"github.com/sluice-serving/sluice/proxy/socket"
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

	mu    sync.Mutex
	idle  map[string][]*conn // most recently used last
	epoch int                // connections of earlier ones are not kept
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
	if err := q.check(); err != nil {
		return nil, err
	}
	for {
		c, err := p.get(ctx, q.Addr)
		if err != nil {
			return nil, err
		}
		resp, again, err := p.send(ctx, c, q)
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

func (p *Pool) send(ctx context.Context, c *conn, q *Request) (resp *Response, again bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	c.limit.left = p.cfg.MaxHeader
	resp, sent, err := c.exchange(q)
	c.limit.left = -1
	if err != nil {
		stop()
		c.drop()
		// Only a request that could not be written whole is sent again: one that
		// was may have been worked on.
		stale := c.used && isReset(sent)
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
	resp.pool, resp.addr, resp.stop = p, q.Addr, stop
	resp.closes = resp.closes || sent != nil
	return resp, false, nil
}

// check reports what of a request is not fit to be sent.
func (q *Request) check() error {
	for _, f := range q.Header {
		if !fit(f) {
			return fmt.Errorf("header %q is not fit to be sent", f.Name)
		}
	}
	for i := range len(q.Path) {
		if c := q.Path[i]; c <= ' ' || c > '~' {
			return errors.New("the path is not fit to be sent")
		}
	}
	return nil
}

// head appends the request line and the header of a checked request.
func (q *Request) head(b []byte) []byte {
	size := 0
	for _, part := range q.Body {
		size += len(part)
	}
	b = append(append(append(append(b, q.Method...), ' '), q.Path...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, q.Addr...), "\r\n"...)
	for _, f := range q.Header {
		b = append(append(append(append(b, f.Name...), ": "...), f.Value...), "\r\n"...)
	}
	if size > 0 || q.Method == http.MethodPost {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), int64(size), 10), "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// tokens holds the characters of a field's name.
var tokens = func() (t [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t[c] = true
	}
	return t
}()

// fit reports whether a field cannot change the framing of a request.
func fit(f Field) bool {
	if f.Name == "" {
		return false
	}
	for i := range len(f.Name) {
		if !tokens[f.Name[i]] {
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
		if time.Since(c.since) < p.cfg.IdleTimeout && c.alive() {
			c.used = true
			return c, nil
		}
		c.drop()
	}
	p.mu.Lock()
	epoch := p.epoch // before the name is looked up
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Dial)
	defer cancel()
	raw, err := p.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &DialError{addr, err}
	}
	tcp := socket.New(raw)
	if tcp != nil {
		raw = tcp
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
	c := newConn(raw, tcp)
	c.epoch = epoch
	return c, nil
}

// put keeps a connection for the next request and closes those that were
// unused for too long.
func (p *Pool) put(addr string, c *conn) {
	c.since = time.Now()
	p.mu.Lock()
	if c.epoch != p.epoch {
		p.mu.Unlock()
		c.drop()
		return
	}
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
		c.drop()
	}
}

// CloseIdle closes the connections that are not in use, and lets those that
// are be closed after their answer: a name may lead elsewhere since.
func (p *Pool) CloseIdle() {
	p.mu.Lock()
	p.epoch++
	idle := p.idle
	p.idle = map[string][]*conn{}
	p.mu.Unlock()
	for _, list := range idle {
		for _, c := range list {
			c.drop()
		}
	}
}
