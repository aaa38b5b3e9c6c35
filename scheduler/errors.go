package scheduler

import (
	"errors"
	"fmt"
)

// Decisions about a call that changes nothing.
var (
	// ErrDuplicate: a live request has the same ID.
	ErrDuplicate = errors.New("a live request has this id")
	// ErrUnknown: no live request has this handle.
	ErrUnknown = errors.New("unknown request")
	// ErrForeignPlan: the plan was made by another scheduler, or is none.
	ErrForeignPlan = errors.New("the plan is not of this scheduler")
	// ErrStalePlan: the plan has been applied before.
	ErrStalePlan = errors.New("the plan was applied already")
	// ErrPlanOrder: an earlier plan is still in flight.
	ErrPlanOrder = errors.New("an earlier plan is not applied yet")
	// ErrTooManyPlans: as many plans are in flight as the configuration allows.
	ErrTooManyPlans = errors.New("too many plans in flight")
	// ErrBusy: the cache cannot be reset while requests hold blocks.
	ErrBusy = errors.New("requests hold blocks")
)

// RequestError reports a request that Add does not take, and the field at
// fault.
type RequestError struct {
	ID     string
	Field  string
	Reason string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("request %q: %s: %s", e.ID, e.Field, e.Reason)
}

// TooLongError reports a prompt that is longer than the model allows.
type TooLongError struct {
	ID     string
	Prompt int // tokens
	Limit  int // tokens
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("request %q: the prompt has %d tokens, the limit is %d", e.ID, e.Prompt, e.Limit)
}

// NeverFitsError reports a request that needs more blocks than the pool has.
type NeverFitsError struct {
	ID     string
	Need   int // blocks for the prompt and the first token
	Usable int // blocks of the pool that requests can use
}

func (e *NeverFitsError) Error() string {
	return fmt.Sprintf("request %q: needs %d blocks, the pool has %d", e.ID, e.Need, e.Usable)
}

// ResultError reports a Result that does not fit its plan.
type ResultError struct {
	Step   uint64
	Row    int // -1 if the fault is not of one row
	Reason string
}

func (e *ResultError) Error() string {
	if e.Row < 0 {
		return fmt.Sprintf("result of step %d: %s", e.Step, e.Reason)
	}
	return fmt.Sprintf("result of step %d, row %d: %s", e.Step, e.Row, e.Reason)
}

// Errors that reach the caller in Output.Err.
var (
	// ErrLoadFailed: KV that was promised did not arrive.
	ErrLoadFailed = errors.New("the KV of the prompt could not be loaded")
	// ErrLoadTimeout: KV that was promised did not arrive in time.
	ErrLoadTimeout = errors.New("the KV of the prompt did not arrive in time")
	// ErrLookupTimeout: the connector could not say in time what it has.
	ErrLookupTimeout = errors.New("the connector did not answer in time")
	// ErrGrammar: the grammar could not be made, or rejected a token.
	ErrGrammar = errors.New("the grammar failed")
	// ErrGrammarTimeout: the grammar was not ready in time.
	ErrGrammarTimeout = errors.New("the grammar was not ready in time")
	// ErrInputTimeout: a session got no continuation in time.
	ErrInputTimeout = errors.New("the session got no input in time")
)
