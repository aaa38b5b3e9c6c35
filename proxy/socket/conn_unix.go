//go:build unix

package socket

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Conn is a TCP connection with short reads and writes. As with every
// net.Conn its methods may be called at the same time, except where Poll says
// otherwise.
type Conn struct {
	*net.TCPConn
	raw syscall.RawConn

	in struct {
		sync.Mutex
		try func(fd uintptr) bool
		p   []byte
		n   int
		err syscall.Errno
	}
	out struct {
		sync.Mutex
		try   func(fd uintptr) bool
		parts [][]byte // not yet written
		at    int      // of the first part, what is written
		n     int      // bytes written
		err   syscall.Errno
		one   [1][]byte
		vec   vector
	}
	lane *lane // its part in a pump; kept from the first time on
	own  struct {
		sync.Mutex     // between Close and a change of descriptors
		joined, closed bool
	}
	poll struct {
		try     func(fd uintptr) bool
		step    func() bool
		fd      uintptr
		empty   bool        // all that had come was read
		waiting atomic.Bool // step gave false and was not called again
		// In a pump:
		err   syscall.Errno // of a read that was not step's
		ended atomic.Bool   // an end or an error comes after what is there
	}
}

// New gives a TCP connection the short way; nil when c is none, or closed.
func New(c net.Conn) *Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	s := &Conn{TCPConn: tcp, raw: raw}
	s.in.try, s.out.try, s.poll.try = s.tryRead, s.tryWrite, s.tryStep
	return s
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in.Lock()
	defer c.in.Unlock()
	c.in.p, c.in.n, c.in.err = p, 0, 0
	err := c.raw.Read(c.in.try)
	c.in.p = nil
	if err != nil {
		return 0, named(err, "read")
	}
	return c.got(c.in.n, c.in.err)
}

func (c *Conn) got(n int, err syscall.Errno) (int, error) {
	switch {
	case err != 0:
		return 0, c.failed("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// tryRead reads once; false when there is nothing to read.
func (c *Conn) tryRead(fd uintptr) bool {
	c.in.n, c.in.err = read(fd, c.in.p)
	return c.in.err != syscall.EAGAIN
}

// Poll calls step at once, and again whenever something may have come, until
// it gives true; the error is that of the wait. Meanwhile step alone may read,
// with TryRead, and must not close the connection: Close waits for Poll. What
// step writes before it gives false cannot be answered unnoticed.
func (c *Conn) Poll(step func() bool) error {
	if c.own.joined {
		return c.pumped(step)
	}
	c.poll.step = step
	err := c.raw.Read(c.poll.try)
	c.poll.step = nil
	c.poll.waiting.Store(false)
	if err != nil {
		return named(err, "read")
	}
	return nil
}

func (c *Conn) tryStep(fd uintptr) bool {
	c.poll.waiting.Store(false)
	c.poll.fd, c.poll.empty = fd, false
	done := c.poll.step()
	c.poll.waiting.Store(!done)
	return done
}

// TryRead is Read inside of a step. It gives ErrWait when nothing is there.
//
// With framed set, a read that did not fill p is taken to have emptied the
// socket, and the next one does not look. The poller will tell of more. It has
// told already, though, of an end that came together with the last bytes: who
// sets framed knows from the bytes whether more must follow, and asks Ended
// now and then.
func (c *Conn) TryRead(p []byte, framed bool) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.poll.err; err != 0 {
		c.poll.err = 0
		return 0, c.failed("read", err)
	}
	if c.poll.empty {
		return 0, ErrWait
	}
	n, err := read(c.poll.fd, p)
	if err == syscall.EAGAIN {
		c.poll.empty = true
		return 0, ErrWait
	}
	if c.own.joined && n == 0 && c.isClosed() { // the end is of our own making
		return 0, c.closedError("read")
	}
	c.poll.empty = framed && err == 0 && 0 < n && n < len(p) && !c.poll.ended.Load()
	return c.got(n, err)
}

// Close implements net.Conn. Where a pump waits for the connection Poll ends,
// and the descriptor is closed by Leave.
func (c *Conn) Close() error {
	c.own.Lock()
	tcp, joined, closed := c.TCPConn, c.own.joined, c.own.closed
	c.own.closed = true
	if joined && !closed {
		c.shut()
	}
	c.own.Unlock()
	switch {
	case closed:
		return c.closedError("close")
	case joined:
		return nil
	}
	return tcp.Close()
}

func (c *Conn) isClosed() bool {
	c.own.Lock()
	defer c.own.Unlock()
	return c.own.closed
}

func (c *Conn) closedError(op string) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: net.ErrClosed}
}

// Ended reports whether Poll waits on a connection that has ended.
func (c *Conn) Ended() bool {
	if !c.poll.waiting.Load() {
		return false
	}
	n, err := c.peek()
	return n == 0 && err != syscall.EAGAIN
}

// Quiet reports whether the connection is open and nothing has come that was
// not read.
func (c *Conn) Quiet() bool {
	_, err := c.peek()
	return err == syscall.EAGAIN
}

// peek looks for a byte without taking it.
func (c *Conn) peek() (n int, err syscall.Errno) {
	c.own.Lock()
	raw := c.raw
	if c.own.joined {
		defer c.own.Unlock()
		return peek(c.joinedAs())
	}
	c.own.Unlock()
	if raw.Control(func(fd uintptr) { n, err = peek(fd) }) != nil {
		return 0, syscall.EBADF
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.out.Lock()
	defer c.out.Unlock()
	c.out.one[0] = p
	err := c.write(c.out.one[:])
	c.out.one[0] = nil
	return c.out.n, err
}

// WriteParts writes all parts, in order.
func (c *Conn) WriteParts(parts [][]byte) error {
	c.out.Lock()
	defer c.out.Unlock()
	return c.write(parts)
}

// write writes all parts and counts in c.out.n what was written.
func (c *Conn) write(parts [][]byte) error {
	c.out.parts, c.out.at, c.out.n, c.out.err = parts, 0, 0, 0
	var err error
	if !c.own.joined {
		err = c.raw.Write(c.out.try)
	} else if !c.tryWrite(c.joinedAs()) {
		if err = c.Leave(); err == nil {
			err = c.raw.Write(c.out.try)
		}
	}
	c.out.parts = nil
	switch {
	case err != nil:
		return named(err, "write")
	case c.out.err != 0:
		return c.failed("write", c.out.err)
	}
	return nil
}

// maxWrite bounds the bytes of one system call: the processor is not given
// away meanwhile.
const maxWrite = 256 << 10

// tryWrite writes until all is written, or until the socket takes no more: it
// gives false then.
func (c *Conn) tryWrite(fd uintptr) bool {
	o := &c.out
	for c.wrote(0); len(o.parts) > 0; {
		var n int
		if len(o.parts) == 1 {
			p := o.parts[0][o.at:]
			n, o.err = write(fd, p[:min(len(p), maxWrite)])
		} else {
			n, o.err = o.vec.write(fd, o.parts, o.at)
		}
		switch o.err {
		case 0:
			c.wrote(n)
		case syscall.EAGAIN:
			return false
		default:
			return true
		}
	}
	return true
}

// wrote takes n written bytes from the parts, and the parts that are empty then.
func (c *Conn) wrote(n int) {
	o := &c.out
	o.n += n
	o.at += n
	for len(o.parts) > 0 && o.at >= len(o.parts[0]) {
		o.at -= len(o.parts[0])
		o.parts = o.parts[1:]
	}
}

// named gives an error of the raw connection the name that it has elsewhere.
func named(err error, op string) error {
	if e, ok := err.(*net.OpError); ok {
		e.Op = op
	}
	return err
}

func (c *Conn) failed(op string, err syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, err)}
}

var _ net.Conn = (*Conn)(nil)
