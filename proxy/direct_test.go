package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

const eventStream = "text/event-stream"

// A stream that is written beside the server's buffers is framed as the server
// would: over keep-alive and before it, with what follows the last event.
func TestStreamsAreFramed(t *testing.T) {
	const n = 200
	c := start(t, setup{backend: func(b *backendtest.Backend) { b.Tokens = n }})
	body := turnBody(1, streamTurn)
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	r := bufio.NewReader(conn)
	want := c.post(chatPath, body).body
	require.Equal(t, n, strings.Count(want, `"content":"w`))
	for _, version := range []string{"1.1", "1.1", "1.0"} { // one connection
		fmt.Fprintf(conn, "POST %s HTTP/%s\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, version, len(body), body)
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.Equal(t, version == "1.1", len(resp.TransferEncoding) == 1)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, n, strings.Count(string(got), `"content":"w`))
		require.True(t, strings.HasSuffix(string(got), "data: [DONE]\n\n"))
	}
	_, err = r.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

// The connection is used where the server itself writes over HTTP/1.1, and not
// where a handler around the proxy's changes what it writes.
func TestWhoWritesDirectly(t *testing.T) {
	c := start(t, setup{})
	srv := c.proxy.Server()
	var own, wrapped net.Conn
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own = connOf(w, r)
		around := struct{ http.ResponseWriter }{w}
		wrapped = connOf(around, r)
		c.proxy.Handler().ServeHTTP(&shouting{ResponseWriter: w}, r)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	r := c.on("http://"+l.Addr().String()).post(chatPath, turnBody(1, streamTurn))
	require.Equal(t, 200, r.status)
	require.NotNil(t, own)
	require.Nil(t, wrapped)
	require.Contains(t, r.body, `"CONTENT":"W0 "`)
	require.NotContains(t, r.body, "content")
}

// shouting writes in capitals.
type shouting struct{ http.ResponseWriter }

func (s *shouting) Write(p []byte) (int, error) { return s.ResponseWriter.Write(bytes.ToUpper(p)) }
func (s *shouting) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// An event does not wait for one that the client does not get to see.
func TestNothingWaitsForADroppedEvent(t *testing.T) {
	ended := make(chan struct{})
	c := start(t, setup{})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	c.d[0].Hook = func(w http.ResponseWriter, _ *http.Request, _ backendtest.Record) bool {
		w.Header().Set("Content-Type", eventStream)
		_, _ = io.WriteString(w, "data: "+tokenEvent+"\n\n")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "data: "+strings.Replace(tokenEvent, "w0", "w1", 1)+"\n\ndata: "+`{"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-ended
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
		return true
	}
	req, err := http.NewRequest(http.MethodPost, c.url+chatPath, strings.NewReader(turnBody(2, `,"stream":true`)))
	require.NoError(t, err)
	req.Header.Set("X-Session-ID", "s")
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "w1") {
	}
	require.Contains(t, lines.Text(), "w1")
	close(ended) // only now
	rest := ""
	for lines.Scan() {
		rest += lines.Text() + "\n"
	}
	require.Equal(t, "\ndata: [DONE]\n\n", rest)
}

// failing is a connection whose writes fail after a few bytes.
type failing struct {
	net.Conn
	wrote, closed int
}

func (f *failing) Write(p []byte) (int, error) { f.wrote++; return 3, errors.New("broken") }
func (f *failing) Close() error                { f.closed++; return nil }

// Half a chunk is followed by nothing.
func TestBrokenWriteIsTheLast(t *testing.T) {
	f := &failing{}
	d := direct{conn: f}
	require.True(t, d.add([]byte("event")))
	require.False(t, d.flush())
	require.False(t, d.add([]byte("event")))
	require.False(t, d.flush())
	require.Equal(t, 1, f.wrote)
	require.Equal(t, 1, f.closed)
	// Much is not kept for a flush.
	var kept strings.Builder
	d = direct{conn: textConn{Builder: &kept}}
	require.True(t, d.flush())
	require.True(t, d.add(nil))
	require.True(t, d.flush())
	require.Empty(t, kept.String())
	require.True(t, d.add(make([]byte, maxDirect)))
	require.Equal(t, fmt.Sprintf("%x\r\n", maxDirect), kept.String()[:6])
	kept.Reset()
	require.True(t, d.add([]byte("a")))
	require.True(t, d.add([]byte("bc")))
	require.True(t, d.flush())
	require.Equal(t, "3\r\nabc\r\n", kept.String())
}

type textConn struct {
	net.Conn
	*strings.Builder
}

func (c textConn) Write(p []byte) (int, error) { return c.Builder.Write(p) }
