package tcp

import (
	"net"
	"syscall"
	"time"
)

// A reader that sleeps has to be woken, and its processor too if it was idle: with
// neighbours, whose answers are short and come at once, that may take longer than the
// answer. Config.Spin lets it poll instead.

// pollable is what spin polls of a connection; nil if it cannot.
func pollable(c net.Conn) syscall.RawConn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// spin returns when something has arrived, or the time for that is over.
func (w *wire) spin(most time.Duration) {
	if most == 0 || w.near == nil || w.poll == nil || w.br.Buffered() > 0 {
		return
	}
	end := time.Now().Add(most)
	_ = w.poll.Control(func(fd uintptr) {
		for !arrived(fd) && time.Now().Before(end) {
		}
	})
}
