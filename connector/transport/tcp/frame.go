package tcp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/sluice-serving/sluice/connector/transport"
)

type kind uint8

const (
	kindHello kind = 1 + iota
	kindRead
	kindWrite
	kindData
	kindDone
	kindNotify
	kindLend  // answer to a read: where the memory lies
	kindBack  // the reader is done with what was lent
	kindOffer // a write that the other side fetches
	kindCard  // behind the hello: how the sender's device memory is read
	kindUnits // a read of units of many regions, which are lent to a neighbour
	kindPut   // a write of units of many regions, which a neighbour fetches
	kindEnd   // first unknown kind
)

func (k kind) String() string {
	names := [...]string{"none", "hello", "read", "write", "data", "done", "notify", "lend", "back", "offer", "card", "units", "put"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

const (
	flagCRC   = 1 << 0
	flagLast  = 1 << 1
	flagFetch = 1 << 2 // of a read: the memory may be lent
	flagNear  = 1 << 3 // of a read, a lend, an offer or a put: device memory that a neighbour reads

	flagTicket = 1 << 4 // of units: a ticket is in front
)

type status uint16

const (
	statusOK status = iota
	statusDenied
	statusRegion
	statusMemory // the memory itself failed
	statusCorrupt
	statusRefused // no handler, or shutting down
	statusFar     // what was offered cannot be read: send it
)

// err turns a status and its text into an error with the matching sentinel.
func (s status) err(text []byte) error {
	var base error
	switch s {
	case statusOK:
		return nil
	case statusDenied:
		base = transport.ErrDenied
	case statusRegion:
		base = transport.ErrRegion
	case statusCorrupt:
		base = transport.ErrCorrupt
	case statusMemory:
		base = transport.ErrMemory
	case statusRefused:
		return fmt.Errorf("peer refuses: %q", text)
	case statusFar:
		base = ErrFar
	default:
		base = transport.ErrProtocol
	}
	return fmt.Errorf("peer: %w (%q)", base, text)
}

const (
	headerSize  = 24
	helloSize   = 32
	segmentSize = 16
	requestBase = 28

	maxSegments = 4096      // of one request
	maxRequest  = 256 << 20 // bytes that one request may move
	maxOffset   = 1 << 62
	frameBytes  = 256 << 10 // greatest data payload
	maxText     = 256       // of a done frame

	wireVersion = 1
)

var helloMagic = [8]byte{'S', 'L', 'U', 'I', 'C', 'E', 'K', 'V'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	kind   kind
	flags  uint8
	status status
	length uint32
	id     uint64
	crc    uint32
}

func (h header) put(b []byte) {
	_ = b[headerSize-1]
	b[0], b[1] = uint8(h.kind), h.flags
	binary.LittleEndian.PutUint16(b[2:], uint16(h.status))
	binary.LittleEndian.PutUint32(b[4:], h.length)
	binary.LittleEndian.PutUint64(b[8:], h.id)
	binary.LittleEndian.PutUint32(b[16:], h.crc)
	binary.LittleEndian.PutUint32(b[20:], crc32.Checksum(b[:20], castagnoli))
}

// limit is the greatest payload of a kind.
func (k kind) limit() uint32 {
	switch k {
	case kindHello:
		return helloSize
	case kindRead, kindWrite:
		return requestBase + maxSegments*segmentSize
	case kindData:
		return frameBytes
	case kindDone:
		return maxText
	case kindNotify:
		return transport.MaxNotify
	case kindLend:
		return lendBase + maxLendKeys + maxSegments*lendSize
	case kindOffer:
		return 4 + kindWrite.limit() + kindLend.limit()
	case kindCard:
		return cardHead + MaxCard
	case kindPut:
		return 4 + unitsBase + maxSegments*unitsRegion + 2*maxUnits*unitsUnit + kindLend.limit()
	case kindUnits:
		return ticketBase + transport.MaxTicket + unitsBase + maxSegments*unitsRegion + maxUnits*unitsUnit
	}
	return 0
}

// parseHeader decodes headerSize bytes and checks kind and length.
func parseHeader(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, fmt.Errorf("%w: header of %d bytes", transport.ErrProtocol, len(b))
	}
	if got, want := crc32.Checksum(b[:20], castagnoli), binary.LittleEndian.Uint32(b[20:]); got != want {
		return header{}, fmt.Errorf("%w: header check %08x, want %08x", transport.ErrProtocol, want, got)
	}
	h := header{
		kind:   kind(b[0]),
		flags:  b[1],
		status: status(binary.LittleEndian.Uint16(b[2:])),
		length: binary.LittleEndian.Uint32(b[4:]),
		id:     binary.LittleEndian.Uint64(b[8:]),
		crc:    binary.LittleEndian.Uint32(b[16:]),
	}
	if h.kind == 0 || h.kind >= kindEnd {
		return header{}, fmt.Errorf("%w: unknown frame %v", transport.ErrProtocol, h.kind)
	}
	if h.length > h.kind.limit() {
		return header{}, fmt.Errorf("%w: %v frame of %d bytes, limit %d", transport.ErrProtocol, h.kind, h.length, h.kind.limit())
	}
	return h, nil
}

type hello struct {
	instance transport.Instance
	crc      uint16 // 1: this side wants payload checksums
	fetch    uint16 // 1: this side, which accepted, fetches what is offered
	near     uint16 // 1: this side has a card
}

func (h hello) put(b []byte) {
	_ = b[helloSize-1]
	clear(b[:helloSize])
	copy(b, helloMagic[:])
	binary.LittleEndian.PutUint16(b[8:], wireVersion)
	binary.LittleEndian.PutUint16(b[10:], h.crc)
	binary.LittleEndian.PutUint16(b[12:], h.fetch)
	binary.LittleEndian.PutUint16(b[14:], h.near)
	copy(b[16:], h.instance[:])
}

func parseHello(b []byte) (hello, error) {
	if len(b) != helloSize || [8]byte(b[:8]) != helloMagic {
		return hello{}, fmt.Errorf("%w: not a hello", transport.ErrProtocol)
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != wireVersion {
		return hello{}, fmt.Errorf("%w: wire version %d, ours is %d", transport.ErrProtocol, v, wireVersion)
	}
	return hello{
		instance: transport.Instance(b[16:32]), crc: binary.LittleEndian.Uint16(b[10:]), fetch: binary.LittleEndian.Uint16(b[12:]),
		near: binary.LittleEndian.Uint16(b[14:]),
	}, nil
}

// span is one piece of remote memory in a request.
type span struct {
	region transport.RegionID
	offset int64
	length int64
}

// appendRequest encodes a request's payload.
func appendRequest(b []byte, c transport.Capability, total int64, spans []span) []byte {
	b = append(b, c[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(total))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(spans)))
	for _, s := range spans {
		b = binary.LittleEndian.AppendUint32(b, uint32(s.region))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.offset))
		b = binary.LittleEndian.AppendUint32(b, uint32(s.length))
	}
	return b
}

// parseRequest decodes a request's payload into spans, whose array is reused.
// The total equals the sum of the lengths, each of which is above 0.
func parseRequest(b []byte, spans []span) (transport.Capability, int64, []span, error) {
	var c transport.Capability
	if len(b) < requestBase {
		return c, 0, nil, fmt.Errorf("%w: request of %d bytes", transport.ErrProtocol, len(b))
	}
	copy(c[:], b)
	total, n := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint32(b[24:])
	b = b[requestBase:]
	if n == 0 || n > maxSegments || len(b) != int(n)*segmentSize {
		return c, 0, nil, fmt.Errorf("%w: %d segments in %d bytes", transport.ErrProtocol, n, len(b))
	}
	spans = spans[:0]
	var sum uint64
	for ; len(b) > 0; b = b[segmentSize:] {
		off, length := binary.LittleEndian.Uint64(b[4:]), binary.LittleEndian.Uint32(b[12:])
		if length == 0 || off > maxOffset {
			return c, 0, nil, fmt.Errorf("%w: segment of %d bytes at %d", transport.ErrProtocol, length, off)
		}
		sum += uint64(length)
		spans = append(spans, span{transport.RegionID(binary.LittleEndian.Uint32(b)), int64(off), int64(length)})
	}
	if sum != total || total > maxRequest {
		return c, 0, nil, fmt.Errorf("%w: segments of %d bytes, total %d, limit %d", transport.ErrProtocol, sum, total, maxRequest)
	}
	return c, int64(total), spans, nil
}
