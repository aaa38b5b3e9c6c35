package wire

import "github.com/sluice-serving/sluice/proxy/socket"

// Take deals with bytes of a body, on a pump's goroutine. It must not wait, and
// keeps nothing of p. Without took the bytes are left to Read; without stay
// Poll's step is called.
type Take func(p []byte, w *socket.Work) (took, stay bool)

// Join lets a pump wait for what comes on the answer's connection, of this answer
// and of later ones. It is called outside of Poll.
func (r *Response) Join(p *socket.Pump) error {
	if r.conn == nil {
		return errClosed
	}
	return r.conn.sock.Join(p)
}

// Pumpable reports whether a pump can wait for the rest of the body, and whether
// one does.
func (r *Response) Pumpable() (can, does bool) {
	if r.conn == nil || r.conn.sock == nil || !r.chunked {
		return false, false
	}
	return true, r.conn.sock.Joined()
}

// Take sets who deals first with what comes while Poll waits in a pump; nil
// leaves it to Read. It is called in Poll's step. What is not a number of whole
// small chunks is always left to Read.
func (r *Response) Take(t Take) {
	if r.take = t; t == nil || r.conn.rest() > 0 || len(r.back) > 0 || r.chunks.at != chunkSize {
		r.conn.sock.Quick(nil)
		return
	}
	if r.quick == nil {
		r.quick = r.taken
	}
	r.conn.sock.Quick(r.quick)
}

// taken deals with what was read for the connection.
func (r *Response) taken(p []byte, w *socket.Work) bool {
	body, ok := unframed(p)
	if !ok {
		r.conn.limit.back = append(r.conn.limit.back, p...)
		return false
	}
	took, stay := r.take(body, w)
	if !took {
		r.back = append(r.back, body...)
	}
	return took && stay
}

// unframed gives the data of whole chunks; what it does not know it leaves as
// it is.
func unframed(p []byte) ([]byte, bool) {
	from, to, ok := smallChunk(p)
	if !ok {
		return nil, false
	}
	if to+2 == len(p) {
		return p[from:to], true
	}
	for rest := p[to+2:]; len(rest) > 0; {
		_, to, ok := smallChunk(rest)
		if !ok {
			return nil, false
		}
		rest = rest[to+2:]
	}
	n := 0
	for rest := p; len(rest) > 0; {
		from, to, _ := smallChunk(rest)
		n += copy(p[n:], rest[from:to])
		rest = rest[to+2:]
	}
	return p[:n], true
}

// smallChunk tells where the data of the first chunk stands. It knows chunks
// without extensions that have data, and none whose end has not come.
func smallChunk(p []byte) (from, to int, ok bool) {
	size := 0
	for from < len(p) && from < 6 {
		c, digit := hexDigit(p[from])
		if !digit {
			if p[from] != '\r' || from+1 == len(p) || p[from+1] != '\n' || size == 0 {
				return 0, 0, false
			}
			from += 2
			to = from + size
			return from, to, to+2 <= len(p) && p[to] == '\r' && p[to+1] == '\n'
		}
		size = size<<4 | int(c)
		from++
	}
	return 0, 0, false
}
