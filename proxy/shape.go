package proxy

import (
	"bytes"
	"net"
	"strconv"

	"github.com/sluice-serving/sluice/internal/openai"
)

// shaping gives the answers that net/http makes itself, to requests that it
// cannot read, the shape of OpenAI's errors: a client looks for it whatever it
// was that it did wrong. Under TLS they stay as they are.
type shaping struct{ net.Listener }

// Accept implements net.Listener.
func (l shaping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return shapedConn{c}, nil
}

type shapedConn struct{ net.Conn }

// Write implements net.Conn. An answer of the server's own comes in one write,
// with no more header than plainHeader.
func (c shapedConn) Write(p []byte) (int, error) {
	if len(p) > 0 && p[0] == 'H' {
		if answer, ok := shapedAnswer(p); ok {
			if _, err := c.Conn.Write(answer); err != nil {
				return 0, err
			}
			return len(p), nil
		}
	}
	return c.Conn.Write(p)
}

// CloseWrite lets the server end its half of the connection first.
func (c shapedConn) CloseWrite() error { return closeWrite(c.Conn) }

const plainHeader = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// shapedAnswer is the answer to send in the place of one of the server's own.
func shapedAnswer(p []byte) ([]byte, bool) {
	line, text, ok := bytes.Cut(p, []byte(plainHeader))
	if !ok || len(line) < 12 || bytes.IndexByte(line, '\r') >= 0 {
		return nil, false
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil || status < 400 {
		return nil, false
	}
	e := openai.Error{Status: status, Type: openai.TypeInvalidRequest, Message: "the request cannot be read: " + printable(string(text), 200)}
	if status >= 500 {
		e.Type = openai.TypeServer
	}
	body, err := e.MarshalJSON()
	if err != nil { // an error always encodes
		panic(err)
	}
	out := append(append([]byte{}, line...), "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "...)
	out = append(strconv.AppendInt(out, int64(len(body)), 10), "\r\n\r\n"...)
	return append(out, body...), true
}
