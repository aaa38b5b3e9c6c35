package connector

import (
	"fmt"
	"time"
)

// Answer is what a lookup found beyond the tokens that are already local.
// The zero value means nothing was found.
type Answer struct {
	// Tokens that can be loaded, counted from the local hit on.
	Tokens int
	// Async is true if the request waits for the load and is scheduled after
	// it; false if the tokens count as computed in the step that admits the
	// request and the executor loads them before the rows of that step run
	// (C6). Meaningless where Tokens is 0.
	Async bool
	// Pending is true if the answer is not known yet. The scheduler passes
	// the request over and asks again in each plan; the worker sends an Answered
	// event when it is worth asking.
	Pending bool
	// Timeout bounds the wait: of the load if Async, of further lookups if
	// Pending. 0 takes the scheduler's configuration.
	Timeout time.Duration
}

// End says how a request ended, from the view of its KV.
type End struct {
	Reason   EndReason
	Computed int // tokens whose KV is in the blocks handed over
	Output   int // tokens generated
}

// EndReason is why a request ended.
type EndReason uint8

const (
	EndStop    EndReason = iota // a stop token, a stop string or a repetition
	EndLength                   // the limit of the request or of the model
	EndAbort                    // the caller ended it
	EndError                    // a failed load, a grammar, a deadline
	EndRefused                  // an append attempt without a usable prefix
)

// Complete is true if the request ran to its own end, so that all its KV is
// there to be handed on.
func (r EndReason) Complete() bool { return r == EndStop || r == EndLength }

func (r EndReason) String() string {
	switch r {
	case EndStop:
		return "stop"
	case EndLength:
		return "length"
	case EndAbort:
		return "abort"
	case EndError:
		return "error"
	case EndRefused:
		return "refused"
	}
	return fmt.Sprintf("EndReason(%d)", uint8(r))
}

// Hold is a connector's answer to the end of a request.
type Hold struct {
	// Delay keeps the request's blocks until a Sent event of every worker, or
	// until the timeout.
	Delay bool
	// Timeout of the delay. 0 takes the scheduler's configuration.
	Timeout time.Duration
	// Params travel with the request's last output (kv_transfer_params of the
	// response). Nil if there are none.
	Params any
}

// Scheduler is the scheduler's side of a connector.
//
// Every method is called from the goroutine that owns the scheduler, from
// within one of the scheduler's calls, except Ops, which the owner of the step
// calls itself. No method blocks, does I/O or calls back into the scheduler.
// Slices and the Request belong to the scheduler and are valid during the call.
type Scheduler interface {
	// Added is called when a request enters the scheduler, before any lookup.
	Added(r *Request)

	// Lookup says how many tokens beyond the first local ones can be loaded.
	// local is a whole number of blocks. It may be called many times, also for
	// a request that is then not admitted, and starts nothing. It is asked at
	// admission and again after a preemption.
	Lookup(r *Request, local int) Answer

	// Allocated is called at every admission, with the request's whole block
	// table and the number of tokens that will be loaded into it behind the
	// local hit; external is 0 if none, and also at the second admission of a
	// request whose asynchronous load has ended.
	Allocated(r *Request, tables Tables, local, external int)

	// Preempting is called before the blocks of a running request are taken
	// away. computed is the number of tokens whose KV is in them. It returns
	// true if the connector will save them, so that a later Lookup of the same
	// request finds them again. Called twice for one preemption it answers the
	// same and saves once.
	Preempting(r *Request, tables Tables, computed int) bool

	// Finished is called once when a request ends, in whatever state it was,
	// with the blocks that hold its computed tokens (none if it never got any).
	Finished(r *Request, tables Tables, end End) Hold

	// Completed is called for every event that the scheduler is given, before
	// it acts on it, also for those that it will ignore (C1).
	Completed(ev Event)

	// Ops appends to dst the work that was staged since it was last called, in the order
	// in which a worker must take it up, and returns dst. The owner of the
	// step calls it after every Plan and hands the result to [Worker.Submit]
	// before the step is launched; and after every Apply, before the outputs
	// leave, because parameters in them may tell a peer of blocks that the
	// worker must offer by then. step is the plan's number.
	Ops(step uint64, dst []Op) []Op
}

// Recovering is implemented by connectors that keep the KV of preempted
// requests.
type Recovering interface {
	// Recovering is true from a Preempting that answered true until the KV is
	// back or given up.
	Recovering(id RequestID) bool
}

// Composite is implemented by connectors that are made of others.
type Composite interface {
	// SubConnectors returns the children in their order. The slice is the
	// caller's to keep.
	SubConnectors() []Scheduler
}

// HasRecovery reports whether c, or any connector it is made of, holds
// recovery state for the request. It uses public methods only. c may be nil.
func HasRecovery(c Scheduler, id RequestID) bool {
	if r, ok := c.(Recovering); ok && r.Recovering(id) {
		return true
	}
	if m, ok := c.(Composite); ok {
		for _, child := range m.SubConnectors() {
			if HasRecovery(child, id) {
				return true
			}
		}
	}
	return false
}

// Tier is implemented by connectors that keep KV of earlier requests outside
// the device, so that a prompt that continues one of them need not be computed
// again.
type Tier interface {
	// Restorable says how many tokens beyond the first local ones could be
	// brought back for the request, and how long that is expected to take. It
	// starts nothing; a Lookup that follows offers the same tokens.
	Restorable(r *Request, local int) (tokens int, takes time.Duration)
}

// Restorable asks c, or the connectors that it is made of, for the most tokens
// that a tier could bring back. c may be nil.
func Restorable(c Scheduler, r *Request, local int) (tokens int, takes time.Duration) {
	if t, ok := c.(Tier); ok {
		tokens, takes = t.Restorable(r, local)
	}
	if m, ok := c.(Composite); ok {
		for _, child := range m.SubConnectors() {
			if n, d := Restorable(child, r, local); n > tokens {
				tokens, takes = n, d
			}
		}
	}
	return tokens, takes
}

// Delivery is implemented by connectors whose requests must hand their KV on
// (a prefiller's). Output that arrives for such a request after it was
// preempted is dropped, because its KV has to be computed again anyway.
type Delivery interface {
	// RequiresDelivery is true where the KV of every request is handed on.
	RequiresDelivery() bool
}

// Resetter is implemented by connectors that can forget the KV that they keep.
type Resetter interface {
	// ResetCache reports whether all of it is forgotten; it is not while
	// transfers run.
	ResetCache() bool
}

// Base implements every method of Scheduler as one that finds nothing, saves
// nothing and holds nothing. Connectors embed it and replace what they do.
type Base struct{}

var _ Scheduler = Base{}

// Added takes no note of the request.
func (Base) Added(*Request) {}

// Lookup finds nothing.
func (Base) Lookup(*Request, int) Answer { return Answer{} }

// Allocated takes no note of the blocks.
func (Base) Allocated(*Request, Tables, int, int) {}

// Preempting saves nothing.
func (Base) Preempting(*Request, Tables, int) bool { return false }

// Finished lets the blocks go at once.
func (Base) Finished(*Request, Tables, End) Hold { return Hold{} }

// Completed ignores every event.
func (Base) Completed(Event) {}

// Ops has no work.
func (Base) Ops(_ uint64, dst []Op) []Op { return dst }
