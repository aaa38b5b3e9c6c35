//go:build cgo && linux

package mooncake

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"net"
	"sync"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

const (
	bufferBytes = 4 << 20
	buffers     = 8    // of one transport
	maxTasks    = 1024 // of one batch
)

// buffer is memory that the engine reads into.
type buffer struct {
	mem  unsafe.Pointer
	list *[maxTasks]C.smk_request // C memory
}

func (b *buffer) bytes() []byte { return unsafe.Slice((*byte)(b.mem), bufferBytes) }

// conn is a control connection. Its end also ends a Fetch.
type conn struct {
	net.Conn
	n    *network
	once sync.Once
	done chan struct{}
}

// Close ends the connection and the Fetch on it.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// piece is what one task of a batch is for.
type piece struct {
	local []byte
	at    int // in the buffer
}

// Fetch reads in batches of one buffer each.
func (c *conn) Fetch(ranges []tcp.Range, stall time.Duration) error {
	for i, off := 0, 0; i < len(ranges); {
		number, name, err := parseKey(ranges[i].Key)
		if err != nil {
			return err
		}
		b, err := c.take(stall)
		if err != nil {
			return err
		}
		var pieces []piece
		used := 0
		for i < len(ranges) && len(pieces) < maxTasks && used < bufferBytes {
			r := ranges[i]
			k, peer, err := parseKey(r.Key)
			if err != nil {
				c.n.free <- b
				return err
			}
			if peer != name {
				break
			}
			number = max(number, k)
			n := min(len(r.Local)-off, bufferBytes-used)
			b.list[len(pieces)] = C.smk_request{source: unsafe.Add(b.mem, used), target: C.uint64_t(r.Address + uint64(off)), length: C.uint64_t(n)}
			pieces = append(pieces, piece{r.Local[off : off+n], used})
			used += n
			if off += n; off == len(r.Local) {
				i, off = i+1, 0
			}
		}
		if err := c.batch(b, name, number, pieces, stall); err != nil {
			return err
		}
	}
	return nil
}

// take waits for a buffer, or makes one.
func (c *conn) take(stall time.Duration) (*buffer, error) {
	select {
	case b := <-c.n.free:
		return b, nil
	default:
	}
	if b, err := c.n.make(); b != nil || err != nil {
		return b, err
	}
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case b := <-c.n.free:
		return b, nil
	case <-c.done:
		return nil, net.ErrClosed
	case <-timer.C:
		return nil, fmt.Errorf("%w: all %d buffers are in use", transport.ErrStalled, buffers)
	}
}

// make makes a buffer; nil if there are enough.
func (n *network) make() (*buffer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.made == buffers {
		return nil, nil
	}
	var e C.smk_err
	mem := C.smk_buffer(n.engine, bufferBytes, &e)
	if mem == nil {
		return nil, errorOf(&e)
	}
	n.made++
	return &buffer{mem, (*[maxTasks]C.smk_request)(C.calloc(maxTasks, C.sizeof_smk_request))}, nil
}

// batch runs one batch and puts what has come to its place. It owns the buffer
// from here on: the buffer is free again when the batch has ended.
func (c *conn) batch(b *buffer, peer string, number uint32, pieces []piece, stall time.Duration) error {
	c.n.mu.Lock()
	fresh := C.int(0)
	if number > c.n.seen[peer] {
		fresh = 1
	}
	c.n.mu.Unlock()
	ended := make(chan outcome, 1)
	c.n.batches.Go(func() { ended <- c.n.read(b, peer, fresh, len(pieces)) })
	timer := time.NewTimer(stall)
	defer timer.Stop()
	giveUp := func(err error) error {
		c.n.batches.Go(func() {
			if end := <-ended; !end.lost {
				c.n.free <- b
			}
		})
		return err
	}
	select {
	case end := <-ended:
		return c.settle(b, peer, number, pieces, end)
	case <-c.done:
		return giveUp(net.ErrClosed)
	case <-timer.C:
		return giveUp(fmt.Errorf("%w: no answer from the engine at %s", transport.ErrStalled, peer))
	}
}

// settle takes the end of a batch.
func (c *conn) settle(b *buffer, peer string, number uint32, pieces []piece, end outcome) error {
	if !end.lost {
		defer func() { c.n.free <- b }()
	}
	c.n.mu.Lock()
	if end.err != nil {
		delete(c.n.seen, peer) // ask anew next time
	} else {
		c.n.seen[peer] = max(c.n.seen[peer], number)
	}
	c.n.mu.Unlock()
	if end.err != nil {
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, end.err)
	}
	from := b.bytes()
	for _, p := range pieces {
		copy(p.local, from[p.at:])
	}
	return nil
}

// outcome is the end of a batch.
type outcome struct {
	err  error
	lost bool // the buffer may be written to for ever
}

// read blocks until the engine has ended a batch.
func (n *network) read(b *buffer, peer string, fresh C.int, count int) outcome {
	cpeer := C.CString(peer)
	defer C.free(unsafe.Pointer(cpeer))
	var e C.smk_err
	rc := C.smk_read(n.engine, cpeer, fresh, &b.list[0], C.size_t(count), &e)
	if rc == 0 {
		return outcome{}
	}
	if rc > 0 {
		n.mu.Lock()
		n.lost++
		n.mu.Unlock()
	}
	return outcome{errorOf(&e), rc > 0}
}
