package executor

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
)

// hostMemory is device memory that the CPU addresses.
type hostMemory []byte

var _ connector.HostMemory = hostMemory(nil)

func (m hostMemory) Bytes() []byte { return m }

// Size is the length in bytes.
func (m hostMemory) Size() int64 { return int64(len(m)) }

func (m hostMemory) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(m)) {
		return 0, errOutside
	}
	n := copy(p, m[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m hostMemory) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || int64(len(p)) > int64(len(m))-off {
		return 0, errOutside
	}
	return copy(m[off:], p), nil
}

var errOutside = errors.New("offset outside the kv region")

// copier moves bytes between device memory and the CPU for connectors, one
// call at a time, on a stream of its own.
type copier struct {
	dev    ascendrt.Device
	stream ascendrt.Stream
	pinned ascendrt.HostBuffer

	mu  sync.Mutex
	cmd ascendrt.Commands
}

// copierBytes is the pinned memory through which a copier moves.
const copierBytes = 256 << 10

func newCopier(dev ascendrt.Device) (*copier, error) {
	s, err := dev.NewStream(ascendrt.StreamOptions{Role: "kv copies"})
	if err != nil {
		return nil, err
	}
	h, err := dev.AllocHost(copierBytes)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &copier{dev: dev, stream: s, pinned: h}, nil
}

func (c *copier) close() error {
	return errors.Join(c.stream.Close(), c.pinned.FreeAfter(ascendrt.Point{}))
}

// move copies p to or from device memory at v, which has its length, piece by piece.
func (c *copier) move(p []byte, v ascendrt.View, write bool) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := 0
	for done < len(p) {
		n := min(len(p)-done, copierBytes)
		host, at := c.pinned.Slice(0, n), v.Slice(done, n)
		c.cmd.Reset()
		if write {
			copy(c.pinned.Bytes(), p[done:done+n])
			c.cmd.Copy(at, host)
		} else {
			c.cmd.Copy(host, at)
		}
		point, _, err := c.stream.Submit(&c.cmd)
		if err == nil {
			err = point.Wait(context.Background())
		}
		if err != nil {
			return done, err
		}
		if !write {
			copy(p[done:], c.pinned.Bytes()[:n])
		}
		done += n
	}
	return done, nil
}

// deviceMemory is device memory that the CPU does not address.
type deviceMemory struct {
	c   *copier
	buf ascendrt.Buffer
}

var _ connector.Memory = deviceMemory{}

// Size is the length in bytes.
func (m deviceMemory) Size() int64 { return int64(m.buf.Len()) }

// DeviceBuffer is the memory itself, for transports that copy by the device.
func (m deviceMemory) DeviceBuffer() ascendrt.Buffer { return m.buf }

func (m deviceMemory) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > m.Size() {
		return 0, errOutside
	}
	n := int(min(int64(len(p)), m.Size()-off))
	done, err := m.c.move(p[:n], m.buf.Slice(int(off), n), false)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return done, err
}

func (m deviceMemory) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || int64(len(p)) > m.Size()-off {
		return 0, errOutside
	}
	return m.c.move(p, m.buf.Slice(int(off), len(p)), true)
}
