package faulty

import (
	"net"
	"time"
)

// WrapConn gives a connection the faults of the conn rules that hit it. It
// fits tcp.Config.WrapConn.
func (s *Script) WrapConn(c net.Conn) net.Conn {
	rules := s.next(callConn)
	if len(rules) == 0 {
		return c
	}
	return &conn{Conn: c, rules: rules}
}

// conn counts the bytes that are written to it. One goroutine writes.
type conn struct {
	net.Conn
	rules []rule
	sent  int64
}

func (c *conn) Write(p []byte) (int, error) {
	begin, end := c.sent, c.sent+int64(len(p))
	c.sent = end
	out := p
	for _, r := range c.rules {
		switch r.act {
		case actSlow:
			time.Sleep(r.wait)
		case actStall:
			if end > r.bytes {
				return len(p), nil // swallowed
			}
		case actCut:
			if end > r.bytes {
				c.Close()
				return 0, net.ErrClosed
			}
		case actFlip:
			if begin <= r.bytes && r.bytes < end {
				out = append([]byte(nil), out...)
				out[r.bytes-begin] ^= 0xff
			}
		}
	}
	return c.Conn.Write(out)
}
