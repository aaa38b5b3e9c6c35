package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/connector/transport"
)

// Direct is a Network that can also read a peer's memory past the streams.
// Requests, grants and answers stay on the streams; the bytes of memory that
// both sides can expose do not. All such access is reading, made by the side
// whose memory receives: what a peer writes here is fetched from it, so memory
// is written by its own process alone and a revoked grant never has to stop
// another process.
type Direct interface {
	Network
	// Expose makes memory readable by peers that have its key. It stays in
	// place until the result is closed.
	Expose(mem []byte) (Exposed, error)
}

// Exposed is memory that peers can read.
type Exposed interface {
	// Key is what a peer needs, at most MaxKey bytes. Equal keys are told once.
	Key() []byte
	// Close ends the exposure.
	Close() error
}

// Fetcher is what the connections of a Direct network also are.
type Fetcher interface {
	// CanFetch reports whether Fetch works on this connection. It is asked once
	// something was received; until then its answer means nothing.
	CanFetch() bool
	// Fetch copies memory of the peer and returns when none of the local
	// memory can be touched any more. It fails when nothing moves for the
	// stall time or the connection is closed, from any goroutine. One call at a
	// time per connection; the ranges are not kept.
	Fetch(ranges []Range, stall time.Duration) error
}

// Range is memory of a peer and the place for it.
type Range struct {
	Local   []byte
	Key     []byte // of the peer's Exposed
	Address uint64 // in the peer's address space
}

// MaxKey is the greatest length of a key, in bytes.
const MaxKey = 1 << 10

const (
	lendBase    = 8
	lendSize    = 16
	maxLendKeys = 64 << 10 // bytes of keys in one frame
)

// exposure is an exposed region.
type exposure struct {
	Exposed
	base   uint64           // address; 0 of device memory
	memory transport.Memory // device memory that neighbours read; nil: another
}

// expose makes a region readable by peers, where the network can do that.
func (t *Transport) expose(id transport.RegionID, m transport.Memory) error {
	mapped, ok := m.(transport.Mapped)
	if !ok && t.cfg.Near != nil {
		t.exposeNear(id, m)
	}
	if t.direct == nil || !ok {
		return nil
	}
	mem := mapped.Bytes()
	x, err := t.direct.Expose(mem)
	if err != nil {
		return fmt.Errorf("register: %w: %w", transport.ErrMemory, err)
	}
	if n := len(x.Key()); n > MaxKey {
		return errors.Join(fmt.Errorf("register: key of %d bytes, limit %d", n, MaxKey), x.Close())
	}
	t.exposedMu.Lock()
	defer t.exposedMu.Unlock()
	t.exposed[id] = exposure{Exposed: x, base: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))}
	return nil
}

// conceal ends a region's exposure; it has no users any more.
func (t *Transport) conceal(id transport.RegionID) error {
	t.exposedMu.Lock()
	x, ok := t.exposed[id]
	delete(t.exposed, id)
	t.exposedMu.Unlock()
	if !ok {
		return nil
	}
	return x.Close()
}

// appendLend encodes where pieces lie, so that a peer can fetch them, behind
// the checksum of their bytes. It reports false if one of them is not exposed.
//
//	crc u32 | number of keys u32 | keys: length u16, bytes | pieces: key u32, address u64, length u32
func (t *Transport) appendLend(b []byte, pieces []piece, crc bool) ([]byte, bool) {
	if len(pieces) > maxSegments {
		return nil, false
	}
	var sum uint32
	var keys []byte
	index := map[string]uint32{}
	list := make([]byte, 0, len(pieces)*lendSize)
	t.exposedMu.RLock()
	defer t.exposedMu.RUnlock()
	for _, p := range pieces {
		x, ok := t.exposed[p.region.ID]
		if !ok {
			return nil, false
		}
		k, ok := index[string(x.Key())]
		if !ok {
			k = uint32(len(index))
			index[string(x.Key())] = k
			keys = append(binary.LittleEndian.AppendUint16(keys, uint16(len(x.Key()))), x.Key()...)
			if len(keys) > maxLendKeys {
				return nil, false
			}
		}
		list = binary.LittleEndian.AppendUint32(list, k)
		list = binary.LittleEndian.AppendUint64(list, x.base+uint64(p.offset))
		list = binary.LittleEndian.AppendUint32(list, uint32(p.length))
		if crc {
			sum = crc32.Update(sum, castagnoli, p.region.Slice(p.offset, p.length))
		}
	}
	b = binary.LittleEndian.AppendUint32(b, sum)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(index)))
	return append(append(b, keys...), list...), true
}

// lent is memory of a peer that may be fetched.
type lent struct {
	crc    uint32
	pieces []Range // Local is nil
	length []int64
}

// parseLend decodes what appendLend made. The lengths are above 0 and their sum
// is the total. The keys stay in b.
func parseLend(b []byte, total int64) (*lent, error) {
	bad := func(what string) (*lent, error) {
		return nil, fmt.Errorf("%w: lent memory: %s", transport.ErrProtocol, what)
	}
	if len(b) < lendBase {
		return bad("short")
	}
	l := &lent{crc: binary.LittleEndian.Uint32(b)}
	n := binary.LittleEndian.Uint32(b[4:])
	b = b[lendBase:]
	if n > maxSegments {
		return bad("too many keys")
	}
	keys := make([][]byte, n)
	for i := range keys {
		if len(b) < 2 {
			return bad("short")
		}
		size := int(binary.LittleEndian.Uint16(b))
		if b = b[2:]; size > MaxKey || size > len(b) {
			return bad("key too long")
		}
		keys[i], b = b[:size:size], b[size:]
	}
	if len(b)%lendSize != 0 || len(b)/lendSize > maxSegments {
		return bad("number of pieces")
	}
	for ; len(b) > 0; b = b[lendSize:] {
		k, length := binary.LittleEndian.Uint32(b), int64(binary.LittleEndian.Uint32(b[12:]))
		if k >= n || length == 0 || length > total {
			return bad("piece")
		}
		total -= length
		l.pieces = append(l.pieces, Range{Key: keys[k], Address: binary.LittleEndian.Uint64(b[4:])})
		l.length = append(l.length, length)
	}
	if total != 0 {
		return bad("total")
	}
	return l, nil
}

// borrow fetches lent memory into the memory under pieces, of the same total.
// The first result is an error of the memory or the checksum, the second one of
// the connection.
func (w *wire) borrow(l *lent, pieces []piece, total int64) (error, error) {
	type place struct {
		region *transport.Region // nil: mapped
		off    int64
	}
	var (
		ranges []Range
		places []place
		staged int64
		crc    uint32
		memErr error
	)
	flush := func() error {
		if err := w.fetch.Fetch(ranges, w.stall); err != nil {
			return w.cause(err)
		}
		for i, r := range ranges {
			if w.crc {
				crc = crc32.Update(crc, castagnoli, r.Local)
			}
			if p := places[i]; p.region != nil && memErr == nil {
				memErr = p.region.WriteAt(r.Local, p.off)
			}
		}
		ranges, places, staged = ranges[:0], places[:0], 0
		return nil
	}
	cur := &cursor{pieces: pieces}
	i, at := 0, int64(0) // within l
	for total > 0 {
		r, off, n := cur.take(min(l.length[i]-at, frameBytes))
		x := l.pieces[i]
		x.Address += uint64(at)
		p := place{}
		if x.Local = r.Slice(off, n); x.Local == nil {
			if staged+n > frameBytes {
				if err := flush(); err != nil {
					return nil, err
				}
			}
			x.Local, p = w.staging(frameBytes)[staged:staged+n], place{r, off}
			staged += n
		}
		ranges, places = append(ranges, x), append(places, p)
		total -= n
		if at += n; at == l.length[i] {
			i, at = i+1, 0
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	if memErr == nil && w.crc && crc != l.crc {
		memErr = fmt.Errorf("%w: fetched memory", transport.ErrCorrupt)
	}
	return memErr, nil
}
