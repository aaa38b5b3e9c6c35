package proxy

import (
	"context"
	"net"
	"net/http"
	"reflect"
	"strconv"
)

// direct writes the events of a stream to the client's connection, beside the
// buffers of net/http. Once a header of HTTP/1.1 without a length was flushed,
// the server has nothing of its own to write until the handler returns: what
// comes is a sequence of chunks, and each may be written whole by who knows the
// connection. The server's last chunk ends the sequence.
//
// Its zero value writes nothing.
type direct struct {
	conn net.Conn // nil where the server frames the answer itself
	buf  []byte   // room for the size of a chunk, then its data
	err  error    // of a write; the connection is closed
}

// sizeRoom is the room for the size of a chunk and its line end.
const sizeRoom = 10

// maxDirect is how much may wait for a flush.
const maxDirect = 32 << 10

type connKey struct{}

// withConn tells the requests of a connection about it.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOf is the connection on which an answer may be framed beside the server;
// nil when there is none, and when the writer is not the server's own: what a
// handler around the proxy's makes of the answer is not to be passed by.
func connOf(w http.ResponseWriter, r *http.Request) net.Conn {
	if r.ProtoMajor != 1 || r.ProtoMinor < 1 || r.Method == http.MethodHead || reflect.TypeOf(w).String() != "*http.response" {
		return nil
	}
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return c
}

// add takes bytes that wait for the next flush.
func (d *direct) add(p []byte) bool {
	if d.err != nil {
		return false
	}
	if len(d.buf) == 0 {
		d.buf = append(d.buf, make([]byte, sizeRoom)...)
	}
	d.buf = append(d.buf, p...)
	return len(d.buf) < maxDirect || d.flush()
}

// flush writes what was added as one chunk, with one write. After an error
// nothing more can come, so that half a chunk is never followed by anything.
func (d *direct) flush() bool {
	size := len(d.buf) - sizeRoom
	if d.err != nil || size <= 0 {
		return d.err == nil
	}
	var from int
	d.buf, from = framed(d.buf)
	ok := d.write(d.buf[from:])
	d.buf = d.buf[:0]
	return ok
}

// write writes a chunk, or the rest of one.
func (d *direct) write(chunk []byte) bool {
	if _, d.err = d.conn.Write(chunk); d.err != nil {
		_ = d.conn.Close()
		return false
	}
	return true
}

// framed makes a chunk of data behind sizeRoom bytes; it stands from from on.
func framed(buf []byte) (chunk []byte, from int) {
	var digits [8]byte
	text := strconv.AppendInt(digits[:0], int64(len(buf)-sizeRoom), 16)
	from = sizeRoom - 2 - len(text)
	copy(buf[from:], text)
	buf[sizeRoom-2], buf[sizeRoom-1] = '\r', '\n'
	return append(buf, '\r', '\n'), from
}
