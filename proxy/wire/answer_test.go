package wire

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/socket"
)

// parse reads one answer from bytes, with its body.
func parse(src []byte, size int) (*Response, string, error) {
	limit := &limitedConn{Conn: source{Reader: bytes.NewReader(src)}, left: -1}
	c := &conn{r: bufio.NewReaderSize(limit, size), limit: limit}
	r, err := readAnswer(c)
	if err != nil {
		return nil, "", err
	}
	r.pool, r.stop = New(Config{}), func() bool { return true }
	body, err := io.ReadAll(r)
	return r, string(body), err
}

// source is a connection that is only read.
type source struct {
	net.Conn
	io.Reader
}

func (s source) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// pieces gives a few bytes at a time, and nothing before each.
type pieces struct {
	src   io.Reader
	size  int
	empty bool
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.empty = !p.empty; p.empty {
		return 0, socket.ErrWait
	}
	return p.src.Read(b[:min(len(b), p.size)])
}

// parsePieces is parse of an answer that comes in pieces and is not waited for.
// With much room its chunks are read in place.
func parsePieces(src []byte, size, piece, room int) (*Response, string, error) {
	limit := &limitedConn{Conn: source{Reader: &pieces{src: bytes.NewReader(src), size: piece}}, left: -1}
	c := &conn{r: bufio.NewReaderSize(limit, size), limit: limit}
	r, err := readAnswer(c)
	for err == socket.ErrWait {
		r, err = readAnswer(c)
	}
	if err != nil {
		return nil, "", err
	}
	r.pool, r.stop = New(Config{}), func() bool { return true }
	var body []byte
	buf := make([]byte, room)
	for {
		n, err := r.Read(buf)
		body = append(body, buf[:n]...)
		switch err {
		case nil, socket.ErrWait:
		case io.EOF:
			return r, string(body), nil
		default:
			return r, string(body), err
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name, head, body, want string
		closes, broken         bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3", "abcd", "abc", false, false},
		{"no reason", "HTTP/1.1 200\r\nContent-Length: 1", "a", "a", false, false},
		{"bare line ends", "HTTP/1.1 200 OK\ncontent-length:1", "a", "a", false, false},
		{"equal lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1", "a", "a", false, false},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", "2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", "abc", false, false},
		{"trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "1\r\na\r\n0\r\nX: y\r\n\r\n", "a", false, false},
		{"cut trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "1\r\na\r\n0\r\nX: y", "a", false, true},
		{"cut chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "5\r\na", "a", false, true},
		{"cut length", "HTTP/1.1 200 OK\r\nContent-Length: 3", "a", "a", false, true},
		{"until the end", "HTTP/1.1 200 OK", "abc", "abc", true, false},
		{"close", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: x, Close", "a", "a", true, false},
		{"old", "HTTP/1.0 200 OK\r\nContent-Length: 1", "a", "a", true, false},
		{"old, kept", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive", "a", "a", false, false},
		{"no content", "HTTP/1.1 204 No Content", "", "", false, false},
		{"both", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked", "1\r\na\r\n0\r\n\r\n", "a", true, false},
	} {
		for _, size := range []int{16, 4096} {
			r, body, err := parse([]byte(c.head+"\r\n\r\n"+c.body), size)
			require.Equal(t, c.broken, err != nil, "%s: %v", c.name, err)
			require.Equal(t, c.want, body, c.name)
			require.Equal(t, c.closes, r.closes, c.name)
			require.Equal(t, !c.broken, r.eof, c.name)
			r, body, err = parsePieces([]byte(c.head+"\r\n\r\n"+c.body), size, 1, 3)
			require.Equal(t, c.broken, err != nil, "%s: %v", c.name, err)
			require.Equal(t, c.want, body, c.name)
			require.Equal(t, c.closes, r.closes, c.name)
		}
	}
}

func TestMalformedAnswers(t *testing.T) {
	for _, head := range []string{
		"", "HTTP/1.1", "HTTP/1.1 2000 OK", "HTTP/1.1 20 OK", "HTTP/1.1 099 X", "HTTP/2.0 200 OK", "HTTP/1.2 200 OK", "http/1.1 200 OK", " HTTP/1.1 200 OK",
		"HTTP/1.1 200 OK\r\nX", "HTTP/1.1 200 OK\r\n: y", "HTTP/1.1 200 OK\r\nX : y", "HTTP/1.1 200 OK\r\nX: y\r\n z", "HTTP/1.1 200 OK\r\nX: a\x00b",
		"HTTP/1.1 200 OK\r\nX: a\rb", "HTTP/1.1 200 OK\r\nContent-Length: -1", "HTTP/1.1 200 OK\r\nContent-Length: +1", "HTTP/1.1 200 OK\r\nContent-Length: 0x1",
		"HTTP/1.1 200 OK\r\nContent-Length: ", "HTTP/1.1 200 OK\r\nContent-Length: 1, 1", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
		"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked", "HTTP/1.1 200 OK" + strings.Repeat("\r\nX: y", 64),
	} {
		_, _, err := parse([]byte(head+"\r\n\r\nab"), 4096)
		var bad *AnswerError
		require.ErrorAs(t, err, &bad, "%q", head)
	}
}

func TestHeaderGet(t *testing.T) {
	r, _, err := parse([]byte("HTTP/1.1 200 OK\r\nX-Sluice-Engine: e_dp0\r\nx-sluice-engine: second\r\nLong: "+strings.Repeat("a", 9000)+"\r\nContent-Length: 0\r\n\r\n"), 4096)
	require.NoError(t, err)
	require.Equal(t, "e_dp0", r.Header.Get("x-SLUICE-engine"))
	require.Len(t, r.Header.Get("long"), 9000)
	require.Empty(t, r.Header.Get("absent"))
}

// What is accepted here net/http reads in the same way.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\na\r\nA;x=y\r\n0123456789\r\n0\r\nX: y\r\n\r\nrest",
		"HTTP/1.0 404 X\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 204 N\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nrest",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		r, body, err := parse(src, 4096)
		for _, in := range []struct{ piece, room int }{{1, 3}, {1, minInPlace}, {7, minInPlace}, {4000, 2 * minInPlace}} {
			_, piecewise, again := parsePieces(src, 4096, in.piece, in.room)
			require.Equal(t, err == nil, again == nil, "%v, in pieces %v", err, again)
			require.Equal(t, body, piecewise)
		}
		if r == nil || err != nil || r.Status < 200 {
			return
		}
		theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(src)), &http.Request{Method: "POST"})
		require.NoError(t, err)
		want, err := io.ReadAll(theirs.Body)
		if !r.chunked { // about what follows the last chunk net/http is stricter
			require.NoError(t, err)
		}
		require.Equal(t, string(want), body)
		require.Equal(t, theirs.StatusCode, r.Status)
		for _, h := range r.Header {
			if strings.EqualFold(h.Name, "Transfer-Encoding") || strings.EqualFold(h.Name, "Content-Length") || strings.EqualFold(h.Name, "Trailer") {
				continue // net/http takes those out
			}
			require.Contains(t, theirs.Header.Values(h.Name), h.Value, h.Name)
		}
	})
}
