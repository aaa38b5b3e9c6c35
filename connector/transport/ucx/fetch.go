//go:build ucx && cgo && linux

package ucx

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// exposed is memory that is registered with UCX, and pinned as its address is
// known there.
type exposed struct {
	n      *network
	memory unsafe.Pointer
	key    []byte
	pin    runtime.Pinner
}

// Expose registers memory. The key is UCX's packed remote key.
func (n *network) Expose(mem []byte) (tcp.Exposed, error) {
	x := &exposed{n: n}
	x.pin.Pin(&mem[0])
	text := (*C.char)(C.calloc(1, textSize))
	defer C.free(unsafe.Pointer(text))
	var key unsafe.Pointer
	var size C.size_t
	if C.slu_map(n.w, unsafe.Pointer(&mem[0]), C.size_t(len(mem)), &x.memory, &key, &size, text, textSize) != 0 {
		x.pin.Unpin()
		return nil, errors.New(C.GoString(text))
	}
	defer C.free(key)
	x.key = C.GoBytes(key, C.int(size))
	return x, nil
}

// Key is UCX's packed remote key.
func (x *exposed) Key() []byte { return x.key }

// Close ends the registration.
func (x *exposed) Close() error {
	C.slu_unmap(x.n.w, x.memory)
	x.pin.Unpin()
	return nil
}

// messagesToo lets tests have gets that UCX does by messages, on machines where
// there are no others.
var messagesToo atomic.Bool

// CanFetch reports whether gets from this peer are done past it, by the kernel
// or a device. What UCX does by messages instead ends the peer's process if this
// one goes away meanwhile, so then everything travels on the streams.
func (c *conn) CanFetch() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.h != nil && c.err == nil && (messagesToo.Load() || onesided(c.transports()))
}

// transports gives what onesided asks for. The lock is held.
func (c *conn) transports() (names []string, print string) {
	const room = 2 << 10
	list := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(list))
	if C.slu_transports(c.n.w, c.h, list, room) == 0 {
		names = strings.Fields(C.GoString(list))
	}
	text := C.slu_print(c.n.w, c.h)
	defer C.free(unsafe.Pointer(text))
	return names, C.GoString(text)
}

// maxRanges bounds what is begun under one hold of the lock.
const maxRanges = 256

// Fetch gets the ranges from the peer, some at a time.
func (c *conn) Fetch(ranges []tcp.Range, stall time.Duration) error {
	for len(ranges) > 0 {
		n := min(len(ranges), maxRanges)
		if err := c.get(ranges[:n], stall); err != nil {
			return err
		}
		ranges = ranges[n:]
	}
	return nil
}

func (c *conn) get(ranges []tcp.Range, stall time.Duration) error {
	index := map[string]C.uint32_t{}
	var keys []byte
	var at []int
	list := (*[maxRanges]C.slu_range)(C.calloc(maxRanges, C.sizeof_slu_range))
	defer C.free(unsafe.Pointer(list))
	var pin runtime.Pinner
	defer pin.Unpin()
	for i, r := range ranges {
		k, ok := index[string(r.Key)]
		if !ok {
			if len(r.Key) == 0 {
				return fmt.Errorf("%w: empty key", transport.ErrProtocol)
			}
			k = C.uint32_t(len(at))
			index[string(r.Key)] = k
			at = append(at, len(keys))
			keys = append(append(keys, r.Key...), 0)
		}
		pin.Pin(&r.Local[0])
		list[i] = C.slu_range{local: unsafe.Pointer(&r.Local[0]), remote: C.uint64_t(r.Address), length: C.uint64_t(len(r.Local)), key: k}
	}
	raw := C.CBytes(append(keys, make([]byte, C.SLU_KEY_SLACK)...))
	defer C.free(raw)
	places := (*[maxRanges]unsafe.Pointer)(C.calloc(maxRanges, C.size_t(unsafe.Sizeof(raw))))
	defer C.free(unsafe.Pointer(places))
	for i, off := range at {
		places[i] = unsafe.Add(raw, off)
	}
	ended, err := c.begin(places, len(at), list, len(ranges))
	if err != nil {
		return err
	}
	timer := time.NewTimer(stall)
	defer timer.Stop()
	defer func() {
		c.mu.Lock()
		c.fetching--
		c.mu.Unlock()
	}()
	select {
	case err := <-ended:
		return err
	case <-c.done:
		err = net.ErrClosed
	case <-c.failed:
		err = io.ErrClosedPipe
		c.kill()
	case <-timer.C:
		err = fmt.Errorf("%w: no end of a get", transport.ErrStalled)
		c.kill()
	}
	<-ended // the end of the connection ends what it has under way
	return err
}

// begin starts a fetch; its end comes on the channel.
func (c *conn) begin(keys *[maxRanges]unsafe.Pointer, nkeys int, list *[maxRanges]C.slu_range, count int) (<-chan error, error) {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.h == nil:
		return nil, net.ErrClosed
	case c.err != nil:
		return nil, c.err
	}
	n.last++
	ended := make(chan error, 1)
	rc := C.slu_fetch(n.w, c.h, C.uint64_t(n.last), &keys[0], C.size_t(nkeys), &list[0], C.size_t(count))
	if rc < 0 {
		return nil, statusError(int(rc))
	}
	n.fetches[n.last] = ended
	c.fetching++
	return ended, nil
}
