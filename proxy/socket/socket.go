// Package socket gives TCP connections a short way into the kernel.
//
// The runtime brackets every system call, as each could block for long: it
// marks the processor as given away, wakes a watcher every 20 µs that takes it
// away, and starts a thread to go on with it. Reads and writes of a socket that
// never blocks end in a few µs, so that for connections that carry little at a
// time the brackets cost as much as the call. A Conn leaves them out. It waits
// as any other connection does, in the runtime's poller, with its deadlines.
//
// Where there are many connections of which each carries little, a Pump waits for
// all of them on one goroutine, and may deal with what comes there.
//
// On systems other than Unix connections stay as they are, on those other than
// Linux the brackets stay and there are no pumps.
package socket

import (
	"errors"
	"net"
)

// ErrWait says that nothing can be read at the moment.
var ErrWait = errors.New("nothing to read at the moment")

// Listen gives the connections that l accepts the short way.
func Listen(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if short := New(c); short != nil {
		return short, nil
	}
	return c, nil
}
