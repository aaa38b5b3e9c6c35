//go:build cgo && linux

package mooncake

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// New listens on cfg.Listen and serves until Close. TLS is not available: the
// Transfer Engine does not encrypt.
func New(cfg tcp.Config) (transport.Transport, error) {
	if cfg.ServerTLS != nil || cfg.ClientTLS != nil {
		return nil, &transport.UnavailableError{Transport: "mooncake", Reason: "it has no TLS: use the transport tcp"}
	}
	if err := load(); err != nil {
		return nil, err
	}
	cfg.Network = &network{seen: map[string]uint32{}, free: make(chan *buffer, buffers)}
	t, err := tcp.New(cfg)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// network is an engine with its buffers, beside TCP connections.
type network struct {
	engine unsafe.Pointer
	name   string // of the engine; what peers open
	dialer net.Dialer

	batches sync.WaitGroup
	free    chan *buffer

	mu      sync.Mutex
	made    int               // buffers
	lost    int               // buffers whose batch never ends
	exposed uint32            // registrations so far
	seen    map[string]uint32 // per peer: its registrations that the engine knows of
}

var (
	_ tcp.Direct  = (*network)(nil)
	_ tcp.Fetcher = (*conn)(nil)
)

// Name is "mooncake".
func (n *network) Name() string { return "mooncake" }

// Listen makes the engine and the listener of the control connections.
func (n *network) Listen(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	chost := C.CString(host)
	defer C.free(unsafe.Pointer(chost))
	const size = 256
	name := (*C.char)(C.calloc(1, size))
	defer C.free(unsafe.Pointer(name))
	var e C.smk_err
	if n.engine = C.smk_open(chost, name, size, &e); n.engine == nil {
		return nil, errors.Join(fmt.Errorf("%w (the library has told more on standard error)", errorOf(&e)), l.Close())
	}
	n.name = C.GoString(name)
	return &listener{l, n}, nil
}

// Dial opens a control connection.
func (n *network) Dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := n.dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return n.wrap(c), nil
}

func (n *network) wrap(c net.Conn) *conn { return &conn{Conn: c, n: n, done: make(chan struct{})} }

// CanFetch is true: the Transfer Engine reaches every peer.
func (c *conn) CanFetch() bool { return true }

// Close frees the engine unless a batch that was given up still runs in it.
func (n *network) Close() error {
	if n.engine == nil {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		n.batches.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
		return errors.New("mooncake: a transfer does not end; its engine stays")
	}
	if n.lost > 0 {
		return fmt.Errorf("mooncake: %d transfers were lost; their engine stays", n.lost)
	}
	for range n.made {
		b := <-n.free
		C.smk_buffer_free(n.engine, b.mem)
		C.free(unsafe.Pointer(b.list))
	}
	C.smk_close(n.engine)
	n.engine = nil
	return nil
}

type listener struct {
	net.Listener
	n *network
}

// Accept waits for a control connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.n.wrap(c), nil
}

// exposed is registered memory, pinned as the engine keeps its address.
type exposed struct {
	n   *network
	mem []byte
	key []byte
	pin runtime.Pinner
}

// Expose registers memory with the engine. The key is the number of the
// registration and the engine's name: who knows of fewer registrations asks
// the engine anew.
func (n *network) Expose(mem []byte) (tcp.Exposed, error) {
	x := &exposed{n: n, mem: mem}
	x.pin.Pin(&mem[0])
	var e C.smk_err
	if C.smk_expose(n.engine, unsafe.Pointer(&mem[0]), C.size_t(len(mem)), &e) != 0 {
		x.pin.Unpin()
		return nil, errorOf(&e)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.exposed++
	x.key = append(binary.LittleEndian.AppendUint32(nil, n.exposed), n.name...)
	return x, nil
}

// Key is the number of the registration and the engine's name.
func (x *exposed) Key() []byte { return x.key }

// Close ends the registration.
func (x *exposed) Close() error {
	var e C.smk_err
	if C.smk_conceal(x.n.engine, unsafe.Pointer(&x.mem[0]), &e) != 0 {
		return errorOf(&e) // it stays pinned
	}
	x.pin.Unpin()
	return nil
}

func parseKey(key []byte) (number uint32, name string, err error) {
	if len(key) <= 4 || len(key) > 4+256 {
		return 0, "", fmt.Errorf("%w: key of %d bytes", transport.ErrProtocol, len(key))
	}
	for _, b := range key[4:] {
		if b <= ' ' || b > '~' {
			return 0, "", fmt.Errorf("%w: key with byte %#x", transport.ErrProtocol, b)
		}
	}
	return binary.LittleEndian.Uint32(key), string(key[4:]), nil
}
