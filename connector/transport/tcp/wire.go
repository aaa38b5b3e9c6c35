package tcp

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
)

// piece is one run of local memory of a transfer.
type piece struct {
	region *transport.Region
	offset int64
	length int64
}

// cursor walks the bytes of pieces in order.
type cursor struct {
	pieces []piece
	i      int
	off    int64 // within pieces[i]
}

// take returns the next run of at most n bytes.
func (c *cursor) take(n int64) (r *transport.Region, off, length int64) {
	p := c.pieces[c.i]
	r, off, length = p.region, p.offset+c.off, min(n, p.length-c.off)
	c.off += length
	if c.off == p.length {
		c.i, c.off = c.i+1, 0
	}
	return r, off, length
}

// wire is one connection with its buffers. One goroutine uses it.
type wire struct {
	conn    net.Conn
	fetch   Fetcher   // nil: what is received travels on conn
	offer   bool      // the other side fetches what is offered
	near    Neighbour // nil: device memory of the other side travels on conn
	lend    bool      // the other side fetches what is offered of device memory
	units   bool      // the other side lends units of its device memory
	tickets bool      // and takes tickets
	puts    bool      // the other side fetches units of device memory
	br      *bufio.Reader
	crc     bool // payload checksums in both directions
	stall   time.Duration

	in, out [headerSize]byte
	small   []byte // frames without data, at most the limit of their kind
	stage   []byte // frameBytes; for memory that is not mapped
	list    [][]byte
	bufs    net.Buffers
}

func newWire(c net.Conn, stall time.Duration) *wire {
	return &wire{conn: c, br: bufio.NewReaderSize(c, 128<<10), stall: stall}
}

func (w *wire) staging(n int64) []byte {
	if w.stage == nil {
		w.stage = make([]byte, frameBytes)
	}
	return w.stage[:n]
}

// readHeader waits at most timeout for the next frame.
func (w *wire) readHeader(timeout time.Duration) (header, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return header{}, err
	}
	if _, err := io.ReadFull(w.br, w.in[:]); err != nil {
		return header{}, w.cause(err)
	}
	return parseHeader(w.in[:])
}

// readPayload reads a small payload into dst's array, which the caller sized
// by the kind's limit, and checks it.
func (w *wire) readPayload(h header, dst []byte) ([]byte, error) {
	dst = dst[:h.length]
	if err := w.conn.SetReadDeadline(time.Now().Add(w.stall)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(w.br, dst); err != nil {
		return nil, w.cause(err)
	}
	if h.flags&flagCRC != 0 && crc32.Checksum(dst, castagnoli) != h.crc {
		return nil, fmt.Errorf("%w: %v frame", transport.ErrCorrupt, h.kind)
	}
	return dst, nil
}

// send writes one frame with a small payload.
func (w *wire) send(h header, payload []byte) error {
	h.length = uint32(len(payload))
	if w.crc && len(payload) > 0 {
		h.flags |= flagCRC
		h.crc = crc32.Checksum(payload, castagnoli)
	}
	if cap(w.small) < headerSize+len(payload) {
		w.small = make([]byte, headerSize+len(payload))
	}
	b := w.small[:headerSize+len(payload)]
	h.put(b)
	copy(b[headerSize:], payload)
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.stall)); err != nil {
		return err
	}
	_, err := w.conn.Write(b)
	return w.cause(err)
}

// flush writes the gathered list.
func (w *wire) flush() error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.stall)); err != nil {
		return err
	}
	if raceDetector { // it knows no order of writev, and takes Write to read after the peer has answered
		_, err := w.conn.Write(bytes.Join(w.list, nil))
		return w.cause(err)
	}
	w.bufs = w.list
	_, err := w.bufs.WriteTo(w.conn)
	clear(w.list)
	return w.cause(err)
}

// sendData writes total bytes under the cursor as data frames. stop is asked
// before every frame; its error ends the sending with the framing intact.
// The first result is an error of the memory or of stop, the second of the
// connection.
func (w *wire) sendData(id uint64, cur *cursor, total int64, stop func() error) (error, error) {
	for total > 0 {
		if err := stop(); err != nil {
			return err, nil
		}
		n := min(total, frameBytes)
		w.list = append(w.list[:0], w.out[:])
		var crc uint32
		used := int64(0)
		for left := n; left > 0; {
			r, off, length := cur.take(left)
			b := r.Slice(off, length)
			if b == nil {
				b = w.staging(frameBytes)[used : used+length]
				used += length
				if err := r.ReadAt(b, off); err != nil {
					return err, nil
				}
			}
			if w.crc {
				crc = crc32.Update(crc, castagnoli, b)
			}
			w.list = append(w.list, b)
			left -= length
		}
		total -= n
		h := header{kind: kindData, length: uint32(n), id: id}
		if w.crc {
			h.flags, h.crc = flagCRC, crc
		}
		if total == 0 {
			h.flags |= flagLast
		}
		h.put(w.out[:])
		if err := w.flush(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// recvData reads one data frame's payload into the memory under the cursor.
// The first result is an error of the memory or the checksum, with the framing
// intact; the second one of the connection.
func (w *wire) recvData(h header, cur *cursor) (error, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(w.stall)); err != nil {
		return nil, err
	}
	var memErr error
	var crc uint32
	check := h.flags&flagCRC != 0
	for left := int64(h.length); left > 0; {
		r, off, length := cur.take(left)
		left -= length
		b := r.Slice(off, length)
		staged := b == nil
		if staged {
			b = w.staging(min(length, frameBytes))
		}
		if _, err := io.ReadFull(w.br, b); err != nil {
			return nil, w.cause(err)
		}
		if check {
			crc = crc32.Update(crc, castagnoli, b)
		}
		if staged && memErr == nil {
			memErr = r.WriteAt(b, off)
		}
	}
	if memErr == nil && check && crc != h.crc {
		memErr = fmt.Errorf("%w: data frame", transport.ErrCorrupt)
	}
	return memErr, nil
}

// discard skips a frame's payload.
func (w *wire) discard(h header) error {
	if err := w.conn.SetReadDeadline(time.Now().Add(w.stall)); err != nil {
		return err
	}
	_, err := w.br.Discard(int(h.length))
	return w.cause(err)
}

// sever breaks the connection at once: TLS would say farewell first, which can wait
// for the peer.
func (w *wire) sever() {
	c := w.conn
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	c.Close()
}

// cause names a missed deadline as a stalled peer.
func (w *wire) cause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %v", transport.ErrStalled, err)
	}
	return err
}
