package wire

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-serving/sluice/proxy/socket"
)

// conn is a connection to an instance. It carries one request at a time.
type conn struct {
	net.Conn
	tcp   *socket.Conn // under TLS too; nil where there is none
	sock  *socket.Conn // tcp where it carries the bytes as they are
	r     *bufio.Reader
	limit *limitedConn
	since time.Time // unused since
	used  bool      // it carried a request before
	epoch int       // of the pool when it was made

	q     *Request // under way
	sent  error    // of writing it
	resp  *Response
	err   error
	wrote bool
	step  func() bool // exchangeStep

	// Memory that one request after the other uses.
	head  []byte
	parts [][]byte
	text  []byte // header lines
	ends  []int  // of the lines in text
	long  []byte // the beginning of a line longer than r's buffer
}

func newConn(c net.Conn, tcp *socket.Conn) *conn {
	limit := &limitedConn{Conn: c, left: -1}
	w := &conn{Conn: c, tcp: tcp, r: bufio.NewReaderSize(limit, 4<<10), limit: limit}
	if c == net.Conn(tcp) {
		w.sock = tcp
	}
	w.step = w.exchangeStep
	return w
}

// alive reports whether an unused connection is still open: the peer has
// neither closed it nor sent anything. It looks without waiting.
func (c *conn) alive() bool { return c.tcp == nil || c.tcp.Quiet() }

// drop closes a connection that nobody waits for, and gives up its place in a
// pump.
func (c *conn) drop() {
	_ = c.Close()
	c.leave()
}

// leave leaves the pump where the connection is in one.
func (c *conn) leave() {
	if c.sock != nil && c.sock.Joined() {
		_ = c.sock.Leave() // of a closed one it says so; what is done with it next says the same
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// limitedConn bounds what is read while a header is expected.
type limitedConn struct {
	net.Conn
	left   int64        // bytes; negative is no bound
	polled *socket.Conn // read without waiting; nil outside of a step
	framed bool
	back   []byte // read already, and given back
}

// errHeader reports an answer whose header is too long.
var errHeader = errors.New("the answer's header is too long")

func (l *limitedConn) Read(p []byte) (n int, err error) {
	if l.left == 0 {
		return 0, errHeader
	}
	if l.left > 0 {
		p = p[:min(int64(len(p)), l.left)]
	}
	if len(l.back) > 0 {
		n = copy(p, l.back)
		if l.back = l.back[:copy(l.back, l.back[n:])]; len(l.back) == 0 && cap(l.back) > maxBack {
			l.back = nil
		}
	} else if l.polled != nil {
		n, err = l.polled.TryRead(p, l.framed)
	} else {
		n, err = l.Conn.Read(p)
	}
	if l.left > 0 {
		l.left -= int64(n)
	}
	return n, err
}

// maxBack is how much memory for what is given back is kept.
const maxBack = 4 << 10

// rest is the number of bytes that were read and not taken.
func (c *conn) rest() int { return c.r.Buffered() + len(c.limit.back) }

// poll calls step until it gives true. Where the connection can be waited for,
// reads inside of step do not wait.
func (c *conn) poll(framed bool, step func() bool) error {
	if c.sock == nil {
		for !step() {
		}
		return nil
	}
	c.limit.polled, c.limit.framed = c.sock, framed
	err := c.sock.Poll(step)
	c.limit.polled = nil
	return err
}

// exchange writes a request and reads the header of its answer; sent is the
// error of writing.
func (c *conn) exchange(q *Request) (resp *Response, sent, err error) {
	c.q, c.wrote, c.resp, c.sent, c.err = q, false, nil, nil, nil
	if err = c.poll(false, c.step); err == nil {
		err = c.err
	}
	resp, sent = c.resp, c.sent
	c.q, c.resp = nil, nil
	return resp, sent, err
}

// exchangeStep writes the request when it is called first and gives up the
// wait for its answer when that has come.
func (c *conn) exchangeStep() bool {
	if !c.wrote {
		c.wrote = true
		c.send()
		return false // the answer takes its time
	}
	for {
		c.resp, c.err = readAnswer(c)
		switch {
		case c.err == socket.ErrWait:
			return false
		case c.err != nil || c.resp.Status >= 200 || c.resp.Status == http.StatusSwitchingProtocols:
			return true
		}
	}
}

// send writes the request. An instance may answer and close before it has read
// everything: when writing fails its answer is waited for a little.
func (c *conn) send() {
	c.head = c.q.head(c.head[:0])
	c.parts = append(append(c.parts[:0], c.head), c.q.Body...)
	if c.sock != nil {
		c.sent = c.sock.WriteParts(c.parts)
	} else {
		for _, part := range c.parts {
			if _, c.sent = c.Write(part); c.sent != nil {
				break
			}
		}
	}
	clear(c.parts) // the body is the caller's
	if c.sent != nil {
		c.leave() // for the deadline
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
	}
}

// rawLine takes a line with its end out of the buffer; it is valid until the
// next read. Lines longer than the buffer are errors. When nothing is there
// nothing is taken.
func (c *conn) rawLine() ([]byte, error) {
	for {
		b, _ := c.r.Peek(c.r.Buffered())
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			_, _ = c.r.Discard(i + 1) // it is buffered
			return b[:i+1], nil
		}
		if _, err := c.r.Peek(len(b) + 1); errors.Is(err, bufio.ErrBufferFull) {
			return nil, malformed("a chunk size line of more than %d bytes", c.r.Size())
		} else if err != nil {
			return nil, err
		}
	}
}

// line takes a line without its end, of any length within the limit of the
// header; it is valid until the next read.
func (c *conn) line() ([]byte, error) {
	for {
		b, _ := c.r.Peek(c.r.Buffered())
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			_, _ = c.r.Discard(i + 1) // it is buffered
			b = b[:i]
			if len(c.long) > 0 {
				c.long = append(c.long, b...)
				b, c.long = c.long, c.long[:0]
			}
			return bytes.TrimSuffix(b, []byte("\r")), nil
		}
		if len(b) == c.r.Size() {
			c.long = append(c.long, b...)
			_, _ = c.r.Discard(len(b))
			continue
		}
		if _, err := c.r.Peek(len(b) + 1); err != nil {
			return nil, err
		}
	}
}
