//go:build ucx && cgo && linux

package ucx

/*
#cgo pkg-config: ucx
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"unsafe"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// New listens on cfg.Listen and serves until Close. TLS is not available.
func New(cfg tcp.Config) (transport.Transport, error) {
	if cfg.ServerTLS != nil || cfg.ClientTLS != nil {
		return nil, &transport.UnavailableError{Transport: "ucx", Reason: "it has no TLS: use the transport tcp"}
	}
	cfg.Network = &network{conns: map[uint64]*conn{}, fetches: map[uint64]chan error{}, accepted: make(chan *conn, 64), closed: make(chan struct{})}
	t, err := tcp.New(cfg)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// network is one UCX worker with its listener and connections.
type network struct {
	w        *C.slu
	addr     netip.AddrPort
	accepted chan *conn
	closed   chan struct{} // the listener is closed
	stopping sync.Once
	ended    sync.WaitGroup // the goroutine that polls

	mu      sync.Mutex
	conns   map[uint64]*conn
	fetches map[uint64]chan error // under way
	last    uint64                // fetch
	stop    bool
}

var (
	_ tcp.Direct   = (*network)(nil)
	_ tcp.Fetcher  = (*conn)(nil)
	_ net.Listener = (*listener)(nil)
)

// Name is "ucx".
func (n *network) Name() string { return "ucx" }

// textSize is room for what UCX says about an error.
const textSize = 256

// call runs f with C memory for an address and a text.
func call(ip string, f func(ip, text *C.char) C.int) error {
	cip := C.CString(ip)
	defer C.free(unsafe.Pointer(cip))
	text := (*C.char)(C.calloc(1, textSize))
	defer C.free(unsafe.Pointer(text))
	if rc := f(cip, text); rc != 0 {
		return errors.New(C.GoString(text))
	}
	return nil
}

// resolve gives a numeric address and a port.
func resolve(ctx context.Context, address string) (string, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", 0, fmt.Errorf("port %q: %w", port, err)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), n, nil
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", 0, err
	}
	return list[0].Unmap().String(), n, nil
}

// Listen makes the worker and its listener, and begins to drive them.
func (n *network) Listen(address string) (net.Listener, error) {
	ip, port, err := resolve(context.Background(), address)
	if err != nil {
		return nil, err
	}
	var bound C.int
	err = call(ip, func(cip, text *C.char) C.int { return C.slu_open(&n.w, cip, C.int(port), &bound, text, textSize) })
	if err != nil {
		n.w = nil
		return nil, err
	}
	n.addr = netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(bound))
	n.ended.Go(n.poll)
	return &listener{n}, nil
}

// Dial connects; that nobody listens there shows at the first read.
func (n *network) Dial(ctx context.Context, address string) (net.Conn, error) {
	ip, port, err := resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock() // events of the connection come after it is known
	defer n.mu.Unlock()
	if n.stop {
		return nil, net.ErrClosed
	}
	var h *C.slu_conn
	var id C.uint64_t
	err = call(ip, func(cip, text *C.char) C.int { return C.slu_dial(n.w, cip, C.int(port), &h, &id, text, textSize) })
	if err != nil {
		return nil, err
	}
	return n.add(uint64(id), h), nil
}

// add makes the Go side of a connection. The lock is held.
func (n *network) add(id uint64, h *C.slu_conn) *conn {
	c := newConn(n, id, h)
	n.conns[id] = c
	return c
}

const (
	pollEvents = 64
	pollMillis = 100
)

// poll drives UCX until the network is closed.
func (n *network) poll() {
	events := (*[pollEvents]C.slu_event)(C.calloc(pollEvents, C.sizeof_slu_event))
	defer C.free(unsafe.Pointer(events))
	for {
		n.mu.Lock()
		stop := n.stop
		n.mu.Unlock()
		if stop {
			return
		}
		count := int(C.slu_poll(n.w, pollMillis, &events[0], pollEvents))
		for i := range count {
			n.take(&events[i])
		}
	}
}

func (n *network) take(ev *C.slu_event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ev.kind == C.SLU_ACCEPTED {
		c := n.add(uint64(ev.id), ev.conn)
		select {
		case <-n.closed:
			c.closeLocked()
			return
		default:
		}
		select {
		case n.accepted <- c:
		default: // more than anybody takes up
			c.closeLocked()
		}
		return
	}
	if ev.kind == C.SLU_FETCHED {
		n.fetches[uint64(ev.id)] <- statusError(int(ev.status))
		delete(n.fetches, uint64(ev.id))
		return
	}
	var data []byte
	if ev.data != nil {
		data = C.GoBytes(ev.data, C.int(ev.length))
		C.free(ev.data)
	}
	c := n.conns[uint64(ev.id)]
	if c == nil {
		return
	}
	switch ev.kind {
	case C.SLU_DATA:
		c.arrived(data)
	case C.SLU_SENT:
		c.sent(statusError(int(ev.status)))
	case C.SLU_CLOSED:
		c.fail(statusError(int(ev.status)))
	}
}

// statusError is an error of UCX; nil for success.
func statusError(status int) error {
	if status == 0 {
		return nil
	}
	return errors.New("ucx: " + C.GoString(C.slu_text(C.int(status))))
}

// Close ends what is left and frees the worker.
func (n *network) Close() error {
	n.stopping.Do(func() {
		n.mu.Lock()
		n.stop = true
		for _, c := range n.conns {
			c.closeLocked()
		}
		n.mu.Unlock()
		if n.w == nil {
			return
		}
		C.slu_wake(n.w)
		n.ended.Wait()
		C.slu_destroy(n.w)
	})
	return nil
}

// listener hands out accepted connections.
type listener struct{ n *network }

// Accept waits for a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.n.accepted:
		return c, nil
	case <-l.n.closed:
		return nil, net.ErrClosed
	}
}

// Close stops accepting.
func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	select {
	case <-l.n.closed:
		return nil
	default:
	}
	close(l.n.closed)
	C.slu_unlisten(l.n.w)
	return nil
}

// Addr is where it listens.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.n.addr) }
