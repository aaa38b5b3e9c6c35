package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) (string, *atomic.Int64) {
	t.Helper()
	var conns atomic.Int64
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), &conns
}

func pool(t *testing.T, cfg Config) *Pool {
	p := New(cfg)
	t.Cleanup(p.CloseIdle)
	return p
}

func read(t *testing.T, r *Response) string {
	t.Helper()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	return string(b)
}

func TestRoundTripsShareAConnection(t *testing.T) {
	addr, conns := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Got", r.Header.Get("X-A"))
		fmt.Fprintf(w, "%s %s %d %s", r.Method, r.URL.RequestURI(), r.ContentLength, body)
		if r.URL.Query().Has("flush") {
			_ = http.NewResponseController(w).Flush() // chunked
		}
	})
	p := pool(t, Config{})
	for i, path := range []string{"/a", "/b?flush=1", "/c"} {
		resp, err := p.Do(t.Context(), &Request{Method: "POST", Addr: addr, Path: path, Header: []Field{{"X-A", "v"}}, Body: [][]byte{[]byte("ab"), nil, []byte("cd")}})
		require.NoError(t, err)
		require.Equal(t, 200, resp.Status)
		require.Equal(t, "v", resp.Header.Get("X-Got"))
		require.Equal(t, "POST "+path+" 4 abcd", read(t, resp), i)
	}
	resp, err := p.Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
	require.NoError(t, err)
	require.Equal(t, "GET / 0 ", read(t, resp))
	require.EqualValues(t, 1, conns.Load())
	// An answer that is not read to its end costs the connection.
	resp, err = p.Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
	require.NoError(t, err)
	require.NoError(t, resp.Close())
	resp, err = p.Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
	require.NoError(t, err)
	read(t, resp)
	require.EqualValues(t, 2, conns.Load())
}

func TestIdleConnections(t *testing.T) {
	addr, conns := serve(t, func(http.ResponseWriter, *http.Request) {})
	p := pool(t, Config{IdleTimeout: time.Nanosecond, MaxIdle: 1})
	for range 3 {
		resp, err := p.Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
		require.NoError(t, err)
		read(t, resp)
	}
	require.EqualValues(t, 3, conns.Load())
	p = pool(t, Config{MaxIdle: 1})
	var open []*Response
	for range 3 {
		resp, err := p.Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
		require.NoError(t, err)
		_, err = io.ReadAll(resp)
		require.NoError(t, err)
		open = append(open, resp)
	}
	for _, r := range open {
		require.NoError(t, r.Close())
	}
	require.Len(t, p.idle[addr], 1)

	// A connection that is in use when the idle ones are closed is not kept
	// either: it may be to where a name led before.
	p = pool(t, Config{})
	before := conns.Load()
	for n := range 3 {
		resp, err := p.Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
		require.NoError(t, err)
		if n == 0 {
			p.CloseIdle()
		}
		read(t, resp)
	}
	require.EqualValues(t, 2, conns.Load()-before)
}

// raw is a server that handles each connection by hand.
func raw(t *testing.T, handle func(n int, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			handle(n, c, bufio.NewReader(c))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func TestClosedWhileIdle(t *testing.T) {
	addr := raw(t, func(_ int, c net.Conn, r *bufio.Reader) { // one answer per connection, without saying so
		req, err := http.ReadRequest(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, req.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	p := pool(t, Config{})
	for range 3 {
		resp, err := p.Do(t.Context(), &Request{Method: "POST", Addr: addr, Path: "/", Body: [][]byte{[]byte("x")}})
		require.NoError(t, err)
		require.Equal(t, "ok", read(t, resp))
		time.Sleep(5 * time.Millisecond)
	}
}

func TestBrokenAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing": "", "half a line": "HTTP/1.1 20", "half a header": "HTTP/1.1 200 OK\r\nX: y\r\n", "nonsense": "hello\r\n\r\n",
		"long header": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 300<<10) + "\r\n\r\n",
		"two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
	} {
		addr := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if req, err := http.ReadRequest(r); err == nil {
				_, _ = io.Copy(io.Discard, req.Body)
				_, _ = io.WriteString(c, answer)
			}
		})
		_, err := pool(t, Config{}).Do(t.Context(), &Request{Method: "POST", Addr: addr, Path: "/"})
		require.Error(t, err, name)
		var dial *DialError
		require.False(t, errors.As(err, &dial), name)
	}
	addr := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
		}
	})
	resp, err := pool(t, Config{}).Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
	require.NoError(t, err)
	_, err = io.ReadAll(resp)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, resp.Close())
}

func TestInformationalAnswers(t *testing.T) {
	addr := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	resp, err := pool(t, Config{}).Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
	require.NoError(t, err)
	require.Equal(t, "ok", read(t, resp))
}

// An instance may refuse a body that it has not read.
func TestEarlyAnswer(t *testing.T) {
	addr := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
			time.Sleep(50 * time.Millisecond)
			_ = c.(*net.TCPConn).SetLinger(0)
		}
	})
	resp, err := pool(t, Config{}).Do(t.Context(), &Request{Method: "POST", Addr: addr, Path: "/", Body: [][]byte{make([]byte, 64<<20)}})
	if err != nil {
		return // a reset may overtake the answer
	}
	require.Equal(t, 413, resp.Status)
	require.NoError(t, resp.Close())
}

func TestCancel(t *testing.T) {
	gone := make(chan struct{}, 2)
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	p := pool(t, Config{})
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	_, err := p.Do(ctx, &Request{Method: "GET", Addr: addr, Path: "/"})
	require.ErrorIs(t, err, why)
	<-gone
	ctx, cancel = context.WithCancelCause(t.Context())
	resp, err := p.Do(ctx, &Request{Method: "GET", Addr: addr, Path: "/stream"})
	require.NoError(t, err)
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	_, err = io.ReadAll(resp)
	require.Error(t, err)
	require.NoError(t, closed(resp))
	<-gone
}

// closed closes and leaves out what closing twice says.
func closed(r *Response) error {
	if err := r.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func TestDialError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	l.Close()
	_, err = pool(t, Config{}).Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
	var dial *DialError
	require.ErrorAs(t, err, &dial)
	require.Equal(t, addr, dial.Addr)
}

func TestUnfitRequests(t *testing.T) {
	p := pool(t, Config{})
	for _, q := range []Request{
		{Path: "/", Header: []Field{{"A", "b\r\nC: d"}}}, {Path: "/", Header: []Field{{"A:", "b"}}}, {Path: "/", Header: []Field{{"", "b"}}},
		{Path: "/", Header: []Field{{"A", "\x00"}}}, {Path: "/ HTTP/1.1\r\nX: y"}, {Path: "/a b"},
	} {
		q.Method, q.Addr = "GET", "127.0.0.1:1"
		_, err := p.Do(t.Context(), &q)
		require.ErrorContains(t, err, "not fit")
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(bytes.ToUpper(body))
	}))
	defer srv.Close()
	cfg := srv.Client().Transport.(*http.Transport).TLSClientConfig
	p := pool(t, Config{TLS: cfg})
	for range 3 {
		resp, err := p.Do(t.Context(), &Request{Method: "POST", Addr: srv.Listener.Addr().String(), Path: "/", Body: [][]byte{[]byte("ab"), []byte("cd")}})
		require.NoError(t, err)
		require.Equal(t, "ABCD", read(t, resp))
	}
	_, err := pool(t, Config{TLS: cfg.Clone()}).Do(t.Context(), &Request{Method: "GET", Addr: raw(t, func(int, net.Conn, *bufio.Reader) {}), Path: "/"})
	var dial *DialError
	require.ErrorAs(t, err, &dial)
}
