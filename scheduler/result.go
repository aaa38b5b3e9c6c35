package scheduler

import (
	"fmt"
	"time"
)

// Outcome says whether a step was computed.
type Outcome uint8

const (
	Computed Outcome = iota // every row was computed
	Failed                  // nothing of the step may be used
)

// Result is what an executor reports for one plan. Its slices are read during
// Apply only.
type Result struct {
	Outcome Outcome
	// Elapsed is how long the device took for the step, 0 if it was not
	// measured. The governor of append attempts learns from it.
	Elapsed time.Duration
	// Tokens sampled, row after row. A row whose Plan.Samples is 0 has none; a
	// row with d drafts has between 1 and d+1: the accepted drafts and then one
	// more.
	Tokens []Token
	// Counts is the number of Tokens of each row. Nil means one for each row
	// that samples.
	Counts []int32
	// Drafts proposed for the next step, row after row, and how many each row
	// has. Nil if there are none, and in asynchronous scheduling, where the
	// drafts stay with the executor.
	Drafts      []Token
	DraftCounts []int32
	// GrammarErrors are rows whose grammar rejected an accepted token: their
	// tokens are delivered and the request ends with an error.
	GrammarErrors []int32
}

// Stop says which stop rule ended a request.
type Stop uint8

const (
	StopNone   Stop = iota // none did
	StopEOS                // an EOS id
	StopID                 // one of StopIDs; Output.StopToken is it
	StopCaller             // the caller's own rule, by Finish
)

// Output is what a request has gained by a step. Tokens is valid until the
// next call of Apply.
type Output struct {
	Request RequestID
	ID      string
	// Tokens are new, in order. Each token is delivered once.
	Tokens []Token
	// Finish is set on the last output of a request.
	Finish FinishReason
	Stop   Stop
	// First is true on the first output of a request; Cached and External are
	// then the prompt tokens that were found in the local cache and through the
	// connector at its first admission.
	First     bool
	StopToken Token
	Cached    int32
	External  int32
	// Refusal is set if Finish is FinishRefused.
	Refusal Refusal
	// Params of the connector for the response, on the last output.
	Params any
	// Err is set if Finish is FinishError.
	Err error
}

// Refusal is why an append attempt was not admitted.
type Refusal struct {
	Reason       RefusalReason
	PromptTokens int32
	CachedTokens int32 // usable tokens that were found here
}

// RefusalReason has the names that the wire uses.
type RefusalReason uint8

const (
	NotRefused     RefusalReason = iota // it was admitted, or was no attempt
	NoPrefix                            // nothing of the prompt is cached here
	BelowMinPrefix                      // less than the configured minimum
	SuffixTooLong                       // too much would have to be prefilled here
	Busy                                // another route is expected to be faster
	Draining                            // the engine takes no new attempts
	BelowThreshold                      // less than the request's own cache-hit threshold
)

func (r RefusalReason) String() string {
	switch r {
	case NotRefused:
		return ""
	case NoPrefix:
		return "no_prefix"
	case BelowMinPrefix:
		return "below_min_prefix"
	case SuffixTooLong:
		return "suffix_too_long"
	case Busy:
		return "busy"
	case Draining:
		return "draining"
	case BelowThreshold:
		return "cache_threshold"
	}
	return fmt.Sprintf("RefusalReason(%d)", uint8(r))
}
