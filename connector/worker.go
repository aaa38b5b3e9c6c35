package connector

import (
	"fmt"
	"io"
	"time"

	"github.com/sluice-serving/sluice/kvcache"
)

// OpKind says what a worker is asked to do.
type OpKind uint8

const (
	// OpLoad fills blocks from a peer or a tier. Ends with Received.
	OpLoad OpKind = iota
	// OpSend makes blocks available to a peer and keeps them so until the peer
	// has read or released them. Ends with Sent.
	OpSend
	// OpSave copies blocks to a tier. The copy is complete, or safely staged,
	// before anything else of the same step writes to the blocks (C6). Ends
	// with Saved.
	OpSave
	// OpRelease tells a peer that its blocks are not wanted, or no longer. It
	// needs no blocks and ends silently.
	OpRelease
	// OpCancel ends the request's loads early. What was under way is still
	// reported as Received.
	OpCancel
	// OpRenew prolongs the leases named in the payload. Ends silently.
	OpRenew
)

func (k OpKind) String() string {
	switch k {
	case OpLoad:
		return "load"
	case OpSend:
		return "send"
	case OpSave:
		return "save"
	case OpRelease:
		return "release"
	case OpCancel:
		return "cancel"
	case OpRenew:
		return "renew"
	}
	return fmt.Sprintf("OpKind(%d)", uint8(k))
}

// Op is one piece of work for a worker. Its slices belong to the receiver.
type Op struct {
	Kind    OpKind
	Request RequestID
	Step    uint64        // number of the plan that it belongs to
	Tokens  Range         // positions that the blocks hold
	Blocks  Tables        // one list per KV group
	Timeout time.Duration // from Submit on; the worker stops then (C2). 0: none
	Payload any           // what this connector's two sides say to each other
}

// EventKind says what a worker reports.
type EventKind uint8

const (
	// Received: the load has ended; blocks that did not arrive were reported
	// as Failed before. Nothing writes to the request's blocks any more.
	Received EventKind = iota + 1
	// Failed: these blocks did not arrive. No blocks means all of the load.
	Failed
	// Sent: the blocks that the request holds are no longer needed.
	Sent
	// Saved: a save has ended. Only connectors act on it.
	Saved
	// Released: a peer has acknowledged a release. Only connectors act on it.
	Released
	// Answered: a lookup that was pending can be asked again. Only wakes the
	// owner of the scheduler.
	Answered
)

func (k EventKind) String() string {
	switch k {
	case Received:
		return "received"
	case Failed:
		return "failed"
	case Sent:
		return "sent"
	case Saved:
		return "saved"
	case Released:
		return "released"
	case Answered:
		return "answered"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is something that happened to a transfer. Its slice belongs to the
// receiver.
type Event struct {
	Kind    EventKind
	Request RequestID
	Worker  int               // rank of the worker that reports, from 0 (C8)
	Blocks  []kvcache.BlockID // of Failed
	Err     error             // of Failed, for the log; may be nil
	Payload any               // for the connector's other side
}

// Worker is the worker's side of a connector: it moves bytes. Close may be
// called from any goroutine; the other methods from the owner of the step.
type Worker interface {
	// Register tells the worker where the KV of this engine lies. Called once,
	// before the first Submit. The regions stay valid until Close returns.
	Register(layout Layout, regions []Region) error

	// Submit takes up the work and returns without waiting for it, except for
	// saves, which follow C6. An error means that nothing of the call was taken
	// up; failures of a transfer come as events.
	Submit(ops ...Op) error

	// Events delivers what happened, in order. The channel is closed after
	// Close. It is read continuously: a worker may stop moving bytes while it
	// is full.
	Events() <-chan Event

	// Close ends every transfer, waits until none can touch a region any more,
	// and returns.
	io.Closer
}
