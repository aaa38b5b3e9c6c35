package wire

import (
	"bytes"
	"io"

	"github.com/sluice-serving/sluice/proxy/socket"
)

// chunks is where the reader of a chunked body stands (RFC 9112, section 7.1).
// It may stop at any byte when nothing is there, and go on later.
type chunks struct {
	at     chunkPart
	left   int64 // bytes of the chunk's data
	excess int64 // bytes around the data beyond what small chunks need
}

type chunkPart uint8

const (
	chunkSize chunkPart = iota
	chunkData
	chunkEnd // the line end after the data
	chunkTrailer
	chunksOver
)

// maxExcess bounds what a sender may put around the data, in extensions.
const maxExcess = 16 << 10

// readChunks reads the data of a chunked body. It gives what of several
// chunks is there, and waits only while it has nothing.
func (r *Response) readChunks(p []byte) (n int, err error) {
	c, k := r.conn, &r.chunks
	if len(p) >= minInPlace && c.rest() == 0 && (k.at == chunkSize || k.at == chunkData || k.at == chunkEnd) {
		if n, err = r.readInPlace(p); n > 0 || err != nil {
			return n, err
		}
	}
	for {
		if n > 0 && (len(p) == n || !r.chunkReady()) {
			return n, nil
		}
		switch k.at {
		case chunkSize:
			err = r.nextChunk()
		case chunkData:
			var m int
			m, err = c.r.Read(p[n:][:min(int64(len(p)-n), k.left)])
			n += m
			if k.left -= int64(m); k.left == 0 {
				k.at = chunkEnd
			}
		case chunkEnd:
			var end []byte
			if end, err = c.r.Peek(2); err == nil {
				if string(end) != "\r\n" {
					return n, malformed("a chunk that is longer than its size")
				}
				_, err = c.r.Discard(2)
				k.at = chunkSize
			}
		case chunkTrailer:
			err = r.trailer()
		case chunksOver:
			return n, io.EOF
		}
		switch {
		case err == nil:
		case n > 0 && err == socket.ErrWait:
			return n, nil
		case err == io.EOF:
			return n, io.ErrUnexpectedEOF
		default:
			return n, err
		}
	}
}

// minInPlace is the least room for which chunks are read where their data is to be.
const minInPlace = 512

// readInPlace reads what is there straight into p and takes the framing out
// there: the data of small chunks is moved once, and over a few bytes. From the
// first byte on that it cannot place alone everything is given back.
func (r *Response) readInPlace(p []byte) (n int, err error) {
	c, k := r.conn, &r.chunks
	m, err := c.limit.Read(p)
	if m == 0 {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, err
	}
	b := p[:m]
	for len(b) > 0 {
		switch k.at {
		case chunkData:
			part := b[:min(int64(len(b)), k.left)]
			n += copy(p[n:], part)
			b = b[len(part):]
			if k.left -= int64(len(part)); k.left == 0 {
				k.at = chunkEnd
			}
			continue
		case chunkEnd:
			if len(b) >= 2 && b[0] == '\r' && b[1] == '\n' {
				b, k.at = b[2:], chunkSize
				continue
			}
		case chunkSize:
			if i := bytes.IndexByte(b, '\n'); i >= 0 && i < c.r.Size() {
				if err := r.chunkLine(b[:i+1]); err != nil {
					return n, err
				}
				b = b[i+1:]
				continue
			}
		}
		c.limit.back = append(c.limit.back, b...)
		break
	}
	return n, nil
}

// chunkReady reports whether the next part can be read without waiting.
func (r *Response) chunkReady() bool {
	have := r.conn.r.Buffered()
	switch r.chunks.at {
	case chunkSize:
		b, _ := r.conn.r.Peek(have)
		return bytes.IndexByte(b, '\n') >= 0
	case chunkEnd:
		return have >= 2
	case chunkData:
		return have > 0
	case chunkTrailer:
		return false
	}
	return true
}

// nextChunk takes the line with a chunk's size.
func (r *Response) nextChunk() error {
	line, err := r.conn.rawLine()
	if err != nil {
		return err
	}
	return r.chunkLine(line)
}

// chunkLine reads the line with a chunk's size.
func (r *Response) chunkLine(line []byte) error {
	k := &r.chunks
	size, ok := chunkSizeOf(line)
	if !ok {
		return malformed("the chunk size %.40q", line)
	}
	// A sender may send a byte at a time, and a little with each chunk.
	if k.excess = max(k.excess+int64(len(line))-16-2*size, 0); k.excess > maxExcess {
		return malformed("more around the chunks than in them")
	}
	k.left, k.at = size, chunkData
	if size == 0 {
		k.at = chunkTrailer
		r.conn.limit.left = r.pool.cfg.MaxHeader
	}
	return nil
}

// chunkSizeOf reads a chunk's size from its line, which ends with CRLF:
// hexadecimal digits, then perhaps blanks or an extension.
func chunkSizeOf(line []byte) (size int64, ok bool) {
	digits := 0
	for ; digits < len(line); digits++ {
		c, ok := hexDigit(line[digits])
		if !ok {
			return size, digits > 0 && digits <= 15 && endsSize(line[digits:])
		}
		size = size<<4 | int64(c)
	}
	return 0, false
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// endsSize reports whether that may follow the digits of a chunk's size.
func endsSize(rest []byte) bool {
	if string(rest) == "\r\n" {
		return true
	}
	rest, ok := bytes.CutSuffix(rest, []byte("\r\n"))
	if !ok || bytes.IndexByte(rest, '\r') >= 0 {
		return false
	}
	blanks, _, _ := bytes.Cut(rest, []byte(";"))
	return len(bytes.Trim(blanks, " \t")) == 0
}

// trailer skips the fields after the last chunk.
func (r *Response) trailer() error {
	for {
		line, err := r.conn.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			r.chunks.at = chunksOver
			r.conn.limit.left = -1
			return nil
		}
	}
}
