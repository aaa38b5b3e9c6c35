package transport

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// RegionID names a registered region within one transport. Ids are never
// reused during the transport's life.
type RegionID uint32

// Capability is the random secret that a peer must present to touch memory.
// The zero value opens nothing.
type Capability [16]byte

// MarshalText writes the capability as 32 hex digits.
func (c Capability) MarshalText() ([]byte, error) { return marshalHex(c[:]), nil }

// UnmarshalText reads 32 hex digits.
func (c *Capability) UnmarshalText(b []byte) error { return unmarshalHex(c[:], b, "capability") }

// String hides the secret: it shows the first two bytes only.
func (c Capability) String() string { return hex.EncodeToString(c[:2]) + "…" }

// Instance is the random identity of one transport's life: a restarted process
// has another one.
type Instance [16]byte

// MarshalText writes the instance as 32 hex digits.
func (i Instance) MarshalText() ([]byte, error) { return marshalHex(i[:]), nil }

// UnmarshalText reads 32 hex digits.
func (i *Instance) UnmarshalText(b []byte) error { return unmarshalHex(i[:], b, "instance") }

func (i Instance) String() string { return hex.EncodeToString(i[:]) }

// Access is the direction that a capability opens, seen from the peer.
type Access uint8

const (
	// PeerReads lets the peer read the granted units.
	PeerReads Access = 1 + iota
	// PeerWrites lets the peer write them.
	PeerWrites
)

func (a Access) String() string {
	switch a {
	case PeerReads:
		return "read"
	case PeerWrites:
		return "write"
	}
	return fmt.Sprintf("access(%d)", uint8(a))
}

// Memory is what a region is made of. Calls come from the transport's
// goroutines, several at a time on ranges that do not overlap; they may block
// for the time of a copy. Memory that also implements Mapped is used without
// copies.
type Memory interface {
	io.ReaderAt
	io.WriterAt
	Size() int64 // bytes
}

// Mapped is memory in this process's address space.
type Mapped interface {
	// Bytes is the whole region. It stays valid and in place until the
	// region is deregistered.
	Bytes() []byte
}

// Descriptor is what a peer needs to address a region.
type Descriptor struct {
	Region RegionID `json:"region"`
	Size   int64    `json:"size"` // bytes
	Unit   int64    `json:"unit"` // bytes of one grantable unit (a KV block)
}

// Segment is one piece of a transfer. Reads copy remote to local, writes local
// to remote.
type Segment struct {
	Local        RegionID
	Remote       RegionID
	LocalOffset  int64 // bytes
	RemoteOffset int64 // bytes
	Length       int64 // bytes, above 0
}

// Transport moves bytes between registered memory of this process and that of
// its peers. All methods may be called from any goroutine.
type Transport interface {
	// Name is the kind, such as "tcp". Two ends must agree on it.
	Name() string
	// Instance is the identity of this transport's life.
	Instance() Instance
	// Address is what a peer passes to Connect.
	Address() string
	// Register makes memory addressable. unit divides the size.
	Register(m Memory, unit int64) (Descriptor, error)
	// Deregister blocks until no transfer touches the region.
	Deregister(r RegionID) error
	// Grant opens units of regions in one direction. The slices are not kept.
	Grant(a Access, regions []RegionID, units []int32) (Capability, error)
	// Revoke ends a grant and returns when no access under it can touch
	// memory any more. Unknown capabilities are ignored.
	Revoke(c Capability)
	// Guarded reports whether every access is checked against grants. If not,
	// only peers that keep to the protocol are held to them.
	Guarded() bool
	// Connect reaches a peer and learns its instance. It blocks for at most
	// the transport's dial time or until ctx ends. The caller closes the peer.
	Connect(ctx context.Context, address string) (Peer, error)
	// Close ends all transfers and goroutines and returns when they are gone.
	Close() error
}

// Peer is one remote transport. All methods may be called from any goroutine.
type Peer interface {
	// Instance is the identity that the peer had at Connect.
	Instance() Instance
	// Read copies remote segments into local ones and blocks until it is
	// complete or failed. The segments are not kept after the return.
	Read(ctx context.Context, c Capability, segs []Segment) error
	// Write copies local segments into remote ones, likewise.
	Write(ctx context.Context, c Capability, segs []Segment) error
	// Notify delivers a message of at most MaxNotify bytes to the peer's
	// notification handler and returns when the handler has taken it.
	Notify(ctx context.Context, msg []byte) error
	// Close fails what is in flight and returns when the peer's goroutines
	// are gone.
	Close() error
}

// Notified is called with every message that a peer sends, one at a time per
// connection. It must not block for long; msg is only valid during the call.
type Notified func(from Instance, msg []byte)

// MaxNotify is the greatest length of a notification, in bytes.
const MaxNotify = 64 << 10

// Stats are counters since the start of a transport.
type Stats struct {
	ReadBytes     uint64 // bytes that this side read from peers
	WrittenBytes  uint64 // bytes that this side wrote to peers
	ServedReads   uint64 // bytes that peers read here
	ServedWrites  uint64 // bytes that peers wrote here
	Fetched       uint64 // bytes that this side took out of peers' memory past the connections
	Far           uint64 // times that a peer's device memory was found not to be readable, so that it goes through the host
	Retries       uint64 // parts of transfers sent again after a broken connection
	Corrupt       uint64 // frames whose checksum did not match
	Denied        uint64 // accesses without a matching grant
	Malformed     uint64 // connections closed for a frame that cannot be
	Dials         uint64 // connections opened
	Accepts       uint64 // connections accepted
	OpenConns     int64  // connections now
	OpenTransfers int64  // Read, Write and Notify calls now
}

func marshalHex(b []byte) []byte { return []byte(hex.EncodeToString(b)) }

func unmarshalHex(dst, src []byte, what string) error {
	if len(src) != 2*len(dst) {
		return fmt.Errorf("%s: %d characters, want %d hex digits", what, len(src), 2*len(dst))
	}
	if _, err := hex.Decode(dst, src); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Sentinels that callers decide by.
var (
	// ErrClosed: the transport or the peer was closed on this side.
	ErrClosed = errors.New("transport closed")
	// ErrUnreachable: no connection to the peer could be made or kept.
	ErrUnreachable = errors.New("peer unreachable")
	// ErrPeerRestarted: another process answers at the peer's address.
	ErrPeerRestarted = errors.New("peer restarted")
	// ErrDenied: the capability does not open these bytes, or was revoked.
	ErrDenied = errors.New("access denied")
	// ErrCorrupt: a checksum did not match.
	ErrCorrupt = errors.New("checksum mismatch")
	// ErrStalled: the peer made no progress for the configured time.
	ErrStalled = errors.New("peer stalled")
	// ErrProtocol: the peer sent what cannot be.
	ErrProtocol = errors.New("protocol violation")
	// ErrMemory: the memory itself could not be read or written.
	ErrMemory = errors.New("memory failed")
	// ErrRegion: a segment names no registered bytes.
	ErrRegion = errors.New("no such region or range")
)

// UnavailableError reports a transport that this binary or machine lacks, and
// what to change.
type UnavailableError struct {
	Transport string
	Reason    string
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("transport %s is not available: %s", e.Transport, e.Reason)
}

// TransferError reports which segments of a Read or Write may be incomplete.
type TransferError struct {
	Failed []int // indexes into the call's segments, ascending
	Err    error // the first cause
}

func (e *TransferError) Error() string {
	return fmt.Sprintf("%d segments failed: %v", len(e.Failed), e.Err)
}

func (e *TransferError) Unwrap() error { return e.Err }

// FailedSegments returns the segments of n that may be incomplete after a call
// returned err: none for nil, those named by a TransferError, else all.
func FailedSegments(err error, n int) []int {
	if err == nil {
		return nil
	}
	var te *TransferError
	if errors.As(err, &te) {
		return te.Failed
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
