package wire

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sluice-serving/sluice/proxy/socket"
)

// Header is the fields of an answer in the order in which they came.
type Header []Field

// Get is the value of the first field of that name, in whatever case; empty
// when there is none.
func (h Header) Get(name string) string {
	for i := range h {
		if strings.EqualFold(h[i].Name, name) {
			return h[i].Value
		}
	}
	return ""
}

// Response is an answer whose body is still to be read.
type Response struct {
	Status int
	Header Header

	conn    *conn
	pool    *Pool
	addr    string
	stop    func() bool
	left    int64 // bytes of a body of known length; -1 when it is chunked or ends with the connection
	chunked bool
	chunks  chunks
	eof     bool
	closes  bool // the connection ends with the answer

	// In a pump:
	take  Take
	quick socket.Quick // taken
	back  []byte       // of the body, not taken
}

// AnswerError reports an answer that does not follow HTTP/1.1.
type AnswerError struct{ What string }

func (e *AnswerError) Error() string { return "malformed answer: " + e.What }

func malformed(format string, args ...any) error {
	return &AnswerError{What: fmt.Sprintf(format, args...)}
}

// readAnswer reads the status line and the header of one answer, informational
// ones included. Whatever could make two readers disagree about where the body
// ends is an error. After socket.ErrWait it goes on where it was.
func readAnswer(c *conn) (*Response, error) {
	for {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			break
		}
		if len(c.ends) == maxFields+1 {
			return nil, malformed("more than %d header fields", maxFields)
		}
		c.text = append(c.text, line...)
		c.ends = append(c.ends, len(c.text))
	}
	text, ends := string(c.text), c.ends
	c.text, c.ends = c.text[:0], c.ends[:0]
	if len(ends) == 0 {
		return nil, malformed("an empty status line")
	}
	status, minor, err := statusLine(text[:ends[0]])
	if err != nil {
		return nil, err
	}
	r := &Response{Status: status, Header: make(Header, len(ends)-1), conn: c, left: -1, closes: minor == 0}
	for i := range r.Header {
		if r.Header[i], err = field(text[ends[i]:ends[i+1]]); err != nil {
			return nil, err
		}
	}
	return r, r.frame(minor)
}

// maxFields bounds the fields of an answer's header.
const maxFields = 63

func statusLine(s string) (status int, minor byte, err error) {
	if len(s) < 12 || s[:7] != "HTTP/1." || (s[7] != '0' && s[7] != '1') || s[8] != ' ' || (len(s) > 12 && s[12] != ' ') {
		return 0, 0, malformed("the status line %.40q", s)
	}
	for _, c := range []byte(s[9:12]) {
		if c < '0' || c > '9' {
			return 0, 0, malformed("the status line %.40q", s)
		}
		status = status*10 + int(c-'0')
	}
	if status < 100 {
		return 0, 0, malformed("status %d", status)
	}
	return status, s[7] - '0', nil
}

func field(line string) (Field, error) {
	name, value, found := strings.Cut(line, ":")
	f := Field{Name: name, Value: strings.Trim(value, " \t")}
	if !found || !fit(f) {
		return Field{}, malformed("the header field %.40q", line)
	}
	return f, nil
}

// frame finds out where the body ends.
func (r *Response) frame(minor byte) error {
	length, chunked := int64(-1), false
	for _, f := range r.Header {
		switch {
		case strings.EqualFold(f.Name, "Content-Length"):
			n, ok := digits(f.Value)
			if !ok || (length >= 0 && n != length) {
				return malformed("the Content-Length %.40q", f.Value)
			}
			length = n
		case strings.EqualFold(f.Name, "Transfer-Encoding"):
			if chunked || minor == 0 || !strings.EqualFold(f.Value, "chunked") {
				return malformed("the Transfer-Encoding %.40q", f.Value)
			}
			chunked = true
		case strings.EqualFold(f.Name, "Connection"):
			for option := range strings.SplitSeq(f.Value, ",") {
				switch option = strings.Trim(option, " \t"); {
				case strings.EqualFold(option, "close"):
					r.closes = true
				case strings.EqualFold(option, "keep-alive") && minor == 0:
					r.closes = false
				}
			}
		}
	}
	switch {
	case r.Status < 200 || r.Status == 204 || r.Status == 304:
		r.left, r.eof = 0, true
	case chunked:
		r.closes = r.closes || length >= 0 // such an answer is believed once, the connection never again
		r.chunked = true
	case length >= 0:
		r.left, r.eof = length, length == 0
	default:
		r.closes = true
	}
	if r.Status == 101 {
		r.closes = true
	}
	return nil
}

// digits reads a number of bytes.
func digits(s string) (n int64, ok bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

// Read reads the body. At its end the connection is ready for another request.
func (r *Response) Read(p []byte) (int, error) {
	switch {
	case r.eof:
		return 0, io.EOF
	case r.conn == nil:
		return 0, errClosed
	case len(r.back) > 0:
		n := copy(p, r.back)
		r.back = r.back[:copy(r.back, r.back[n:])]
		return n, nil
	case r.chunked:
		n, err := r.readChunks(p)
		r.eof = err == io.EOF
		return n, err
	case r.left < 0:
		n, err := r.conn.r.Read(p)
		r.eof = err == io.EOF
		return n, err
	}
	n, err := r.conn.r.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	r.eof = r.left == 0
	switch {
	case r.eof:
		err = nil // what comes after the body is not this answer's
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

var errClosed = errors.New("read of a closed answer")

// Poll calls step until it gives true: at once, and then whenever more of the
// body may have come. Read gives socket.ErrWait in it when nothing is there;
// step gives false then. The error is that of the wait. Where connections
// cannot be waited for in this way Read waits. Step must not close the answer.
func (r *Response) Poll(step func() bool) error {
	if r.conn == nil {
		return errClosed
	}
	return r.conn.poll(r.framed(), step)
}

// Ended gives a function for any goroutine: it reports whether Poll waits for
// more of a body whose connection has ended. The wait may not be told of an end
// that came together with bytes, so that who may wait for long asks now and then.
func (r *Response) Ended() func() bool {
	if r.conn == nil || r.conn.sock == nil || !r.framed() {
		return func() bool { return false }
	}
	return r.conn.sock.Ended
}

// framed reports whether the body tells where it ends.
func (r *Response) framed() bool { return r.chunked || r.left >= 0 }

// Close gives the connection back when the body was read to its end, and
// closes it otherwise. It may be called twice.
func (r *Response) Close() error {
	if r.conn == nil {
		return nil
	}
	c := r.conn
	r.conn = nil
	if r.quick != nil {
		c.sock.Quick(nil)
	}
	ended := !r.stop() // the context ended and took the connection with it
	if ended || r.closes || !r.eof || c.rest() > 0 {
		err := c.Close()
		c.leave()
		return err
	}
	r.pool.put(r.addr, c)
	return nil
}
