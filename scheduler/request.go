package scheduler

import (
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// Token is a vocabulary id.
type Token = kvcache.Token

// RequestID is the handle of a request: a dense slot and its generation. The
// caller gets it from Add; plans and outputs speak of requests by it.
type RequestID = connector.RequestID

// Route says where the KV of a prompt comes from.
type Route = connector.Route

// The three routes.
const (
	// Local: the prompt is prefilled here. A connector may still offer a part.
	Local = connector.Local
	// RemotePrefill: the connector is expected to offer the prompt's KV; the
	// request waits for it, and prefills what does not come.
	RemotePrefill = connector.RemotePrefill
	// AppendPrefill: the prompt is prefilled here on top of the prefix that is
	// cached here. Without a usable prefix the request ends at once with a
	// [Refusal] and no token, so that its sender can take another route.
	AppendPrefill = connector.AppendPrefill
)

// Request is what the caller gives to Add. The zero value of a field means
// what its comment says.
type Request struct {
	// ID is the caller's name of the request, unique among the live ones.
	ID string
	// Prompt is handed over: the scheduler keeps the slice, may append to it
	// within its capacity, and the caller does not write to it any more.
	Prompt []Token
	// Route of the prompt's KV. Default Local.
	Route Route
	// Namespace separates prefixes that must not be shared (salt, adapter).
	Namespace kvcache.Namespace
	// Session that the request belongs to; empty if to none.
	Session string
	// Tenant for fair sharing; empty is a tenant of its own.
	Tenant string
	// Params are opaque and reach the connector only.
	Params any

	// MaxTokens to generate; at least 1.
	MaxTokens int
	// MinTokens that are generated before any stop rule applies.
	MinTokens int
	// EOS ids end the request without a reported stop token. None if empty.
	EOS []Token
	// StopIDs end the request and are reported. None if empty.
	StopIDs []Token
	// Repetition ends a request whose tail repeats. Off if zero.
	Repetition Repetition

	// Priority under the Priority policy: smaller runs first.
	Priority int
	// Arrival orders requests under policies other than FCFS and breaks ties.
	Arrival Time
	// Deadline under the EarliestDeadline policy; 0 is none.
	Deadline Time

	// TurnEnd is what the session's client is known to do after this turn; see
	// [Scheduler.EndTurn] where the answer tells. Default EndOfTurn.
	TurnEnd TurnEnd
	// RemoteETA is how long the other route of an append attempt would take to
	// its first token, as far as its sender knows; 0 if it does not know.
	RemoteETA time.Duration
	// CacheHitThreshold refuses the request, on any route, when a smaller share
	// of its prompt is found in the cache and through the connector together;
	// in [0, 1], 0 is off.
	CacheHitThreshold float64

	// SkipCacheRead computes the whole prompt although a prefix is cached; its
	// blocks still become matchable.
	SkipCacheRead bool
	// Resumable makes the request a streaming session: when its turn ends it
	// waits for a continuation under the same ID. See [Scheduler.Add].
	Resumable bool
	// Grammar says whether output is constrained, and if the grammar is ready.
	Grammar GrammarState
}

// Repetition is the rule that ends a request whose tail repeats one pattern.
type Repetition struct {
	MinSize  int // shortest pattern, in tokens; below 1 means 1
	MaxSize  int // longest pattern, in tokens; 0 switches the rule off
	MinCount int // repeats that end the request; below 2 switches the rule off
}

// GrammarState of a request whose output is structured. The grammar itself is
// outside; the scheduler only waits for it.
type GrammarState uint8

const (
	NoGrammar      GrammarState = iota // output is not constrained
	GrammarPending                     // being compiled; the request waits
	GrammarReady                       // the request may run
	GrammarFailed                      // the request ends with an error
)

func (g GrammarState) String() string {
	switch g {
	case NoGrammar:
		return "none"
	case GrammarPending:
		return "pending"
	case GrammarReady:
		return "ready"
	case GrammarFailed:
		return "failed"
	}
	return fmt.Sprintf("GrammarState(%d)", uint8(g))
}

// Status of a request inside the scheduler.
type Status uint8

const (
	Waiting        Status = iota // in the queue
	WaitingGrammar               // until its grammar is compiled
	WaitingKV                    // for an asynchronous load; holds its blocks
	WaitingInput                 // a session between two turns; holds its blocks
	Running                      // scheduled whenever budget and blocks allow
	Preempted                    // in the queue again, without blocks
	Finished                     // ended; held until its blocks may go
)

func (s Status) String() string {
	switch s {
	case Waiting:
		return "waiting"
	case WaitingGrammar:
		return "waiting_grammar"
	case WaitingKV:
		return "waiting_kv"
	case WaitingInput:
		return "waiting_input"
	case Running:
		return "running"
	case Preempted:
		return "preempted"
	case Finished:
		return "finished"
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// FinishReason is why a request ended.
type FinishReason uint8

const (
	NotFinished      FinishReason = iota // it goes on
	FinishStop                           // a stop rule; Output says which
	FinishLength                         // MaxTokens, or the model's length
	FinishAbort                          // the caller ended it
	FinishError                          // a failed load, a grammar, a deadline
	FinishRefused                        // an append attempt without a usable prefix
	FinishRepetition                     // the tail repeats
	FinishRecomputed                     // preempted on a decoder that sends such requests back
)

// String is the finish reason as servers report it.
func (r FinishReason) String() string {
	switch r {
	case NotFinished:
		return ""
	case FinishStop, FinishRefused, FinishRecomputed:
		return "stop"
	case FinishLength:
		return "length"
	case FinishAbort:
		return "abort"
	case FinishError:
		return "error"
	case FinishRepetition:
		return "repetition"
	}
	return fmt.Sprintf("FinishReason(%d)", uint8(r))
}

func (r FinishReason) end() connector.EndReason {
	switch r {
	case FinishStop, FinishRepetition:
		return connector.EndStop
	case FinishLength:
		return connector.EndLength
	case FinishRefused:
		return connector.EndRefused
	case FinishError:
		return connector.EndError
	}
	return connector.EndAbort
}
