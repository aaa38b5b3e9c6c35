package pd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
)

// The control channel carries frames of a length (u32, little endian) and a
// JSON object: a request from D, a reply from P, in turn.

const (
	controlVersion = 1
	maxControl     = 1 << 20 // bytes of a frame
	maxLeases      = 2000    // of one message
)

type verb string

const (
	verbHello   verb = "hello"   // compare layouts, learn the transport and the regions
	verbRenew   verb = "renew"   // prolong leases; the reply opens their blocks
	verbConfirm verb = "confirm" // is the lease unbroken?
	verbRelease verb = "release" // end leases

	verbOffer    verb = "offer"    // D's blocks are open for a push
	verbStanding verb = "standing" // is the offer known?
	verbWithdraw verb = "withdraw" // nothing is to be pushed any more
	verbMeet     verb = "meet"     // P tells D where it is
)

type request struct {
	Version int        `json:"v"`
	Verb    verb       `json:"verb"`
	Want    string     `json:"want,omitempty"` // engine id that is meant
	Hello   *identity  `json:"hello,omitempty"`
	Leases  []leaseRef `json:"leases,omitempty"`
	Offer   *offer     `json:"offer,omitempty"`
	From    *Endpoint  `json:"from,omitempty"` // of meet: who asks
}

// offer is what D wants pushed, and where to.
type offer struct {
	Transfer string                 `json:"transfer"`
	Nonce    Secret                 `json:"nonce"`            // of this load of D's
	From     int                    `json:"from,omitempty"`   // first block position
	Blocks   [][]kvcache.BlockID    `json:"blocks,omitempty"` // of D, per KV group, position by position from there
	Open     []transport.Capability `json:"open,omitempty"`   // per KV group
	WaitMS   int64                  `json:"wait_ms,omitempty"`
}

// pushed is the notification that ends a push.
type pushed struct {
	Nonce   Secret `json:"nonce"`
	Tokens  int    `json:"tokens"`            // whose KV D has now, those that it had included
	Missing []int  `json:"missing,omitempty"` // block positions that P does not hold
	Error   string `json:"error,omitempty"`
}

// leaseRef names a lease of the receiver.
type leaseRef struct {
	Request string `json:"request"`
	Lease
}

type reply struct {
	Error  *replyError  `json:"error,omitempty"`
	Hello  *identity    `json:"hello,omitempty"`
	Leases []leaseState `json:"leases,omitempty"` // in the order of the request; one of standing
}

// replyError carries an error over the wire so that it is the same one there.
type replyError struct {
	Code   string `json:"code"` // restarted, mismatch, protocol
	Text   string `json:"text"`
	What   string `json:"what,omitempty"`
	Ours   string `json:"ours,omitempty"` // of the sender of the error
	Theirs string `json:"theirs,omitempty"`
	Peer   string `json:"peer,omitempty"`
}

// leaseState answers for one lease.
type leaseState struct {
	Held   bool                   `json:"held"`
	Open   []transport.Capability `json:"open,omitempty"` // per KV group; of renew
	LeftMS int64                  `json:"left_ms,omitempty"`
}

// ErrRestarted: another engine than the parameters name answers there.
var ErrRestarted = errors.New("engine restarted")

// ErrLeaseBroken: P no longer keeps the blocks, or cannot say.
var ErrLeaseBroken = errors.New("lease broken")

func (e *replyError) err() error {
	switch e.Code {
	case "restarted":
		return fmt.Errorf("%w: %s", ErrRestarted, e.Text)
	case "mismatch": // seen from here, ours and theirs are the other way round
		return &MismatchError{What: e.What, Ours: e.Theirs, Theirs: e.Ours, Peer: e.Peer}
	}
	return fmt.Errorf("peer: %s", e.Text)
}

func replyErrorOf(err error, self string) *replyError {
	var m *MismatchError
	switch {
	case errors.As(err, &m):
		return &replyError{Code: "mismatch", Text: err.Error(), What: m.What, Ours: m.Ours, Theirs: m.Theirs, Peer: self}
	case errors.Is(err, ErrRestarted):
		return &replyError{Code: "restarted", Text: err.Error()}
	}
	return &replyError{Code: "protocol", Text: err.Error()}
}

// channel is one end of a control connection. One goroutine uses it at a time.
type channel struct {
	conn net.Conn
	br   *bufio.Reader
	buf  bytes.Buffer
}

func newChannel(c net.Conn) *channel { return &channel{conn: c, br: bufio.NewReader(c)} }

func (c *channel) write(v any, deadline time.Time) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxControl {
		return fmt.Errorf("control message of %d bytes, limit %d", len(b), maxControl)
	}
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err = c.conn.Write(append(binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

func (c *channel) read(v any, deadline time.Time) error {
	if err := c.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	return readMessage(c.br, &c.buf, v)
}

// readMessage reads one frame. The buffer grows with what arrives, not with
// the announced length.
func readMessage(r io.Reader, buf *bytes.Buffer, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxControl {
		return fmt.Errorf("control frame of %d bytes, limit %d", n, maxControl)
	}
	buf.Reset()
	if _, err := io.CopyN(buf, r, int64(n)); err != nil {
		return err
	}
	if err := json.Unmarshal(buf.Bytes(), v); err != nil {
		return fmt.Errorf("control frame: %w", err)
	}
	return nil
}
