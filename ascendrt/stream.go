package ascendrt

import (
	"context"
	"time"
)

// Ref is the word by which a command record names a handle of a backend. It
// carries a generation: a closed handle is recognised.
type Ref uint64

// StreamOptions are the choices at NewStream.
type StreamOptions struct {
	Priority int    // higher runs first; clamped, ignored where not supported
	Role     string // for traces and error texts
}

// Stream is an ordered queue of work.
type Stream interface {
	// Submit hands the whole buffer to the device in one crossing and returns
	// the point behind it. On error n commands were accepted and run; the rest
	// were not. The buffer may be reused when Submit returns.
	Submit(c *Commands) (p Point, n int, err error)
	// Done tells whether everything up to seq has finished. It does not block.
	// A lost device's points are never done.
	Done(seq uint64) bool
	// Wait blocks until seq is done, ctx ends or the device is lost. A passed
	// deadline gives ErrTimeout, a cancelled context its error; the work goes on.
	Wait(ctx context.Context, seq uint64) error
	// Ref names the stream in command records.
	Ref() Ref
	// Close waits for the submitted work and releases the stream. Idempotent.
	Close() error
}

// Point is a position in a stream's order: everything submitted up to Seq.
// The zero Point has passed.
type Point struct {
	Stream Stream
	Seq    uint64
}

// Done tells whether the point has passed.
func (p Point) Done() bool { return p.Stream == nil || p.Stream.Done(p.Seq) }

// Wait blocks until the point has passed; see Stream.Wait.
func (p Point) Wait(ctx context.Context) error {
	if p.Stream == nil {
		return nil
	}
	return p.Stream.Wait(ctx, p.Seq)
}

// EventKind says what an event is good for.
type EventKind uint8

const (
	// EventOrder orders streams: record and wait only.
	EventOrder EventKind = iota
	// EventTiming also measures time.
	EventTiming
	// EventExternal is recorded or waited for across the edge of a graph.
	EventExternal
	// EventIPC orders streams of several processes.
	EventIPC
)

// String names the kind.
func (k EventKind) String() string {
	switch k {
	case EventTiming:
		return "timing"
	case EventExternal:
		return "external"
	case EventIPC:
		return "ipc"
	}
	return "order"
}

// Event marks a position of a stream. A wait refers to the latest record that
// was submitted before the wait; an event never recorded holds nobody back.
type Event interface {
	// Done tells whether the latest record has been reached; true if there was none.
	Done() (bool, error)
	// Elapsed is the time from the record of since to this one's; both must be
	// EventTiming and done.
	Elapsed(since Event) (time.Duration, error)
	// Ref names the event in command records.
	Ref() Ref
	// Close releases the event once nothing that was submitted needs it. Idempotent.
	Close() error
}
