package engine

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/scheduler"
)

// AnyRank lets the engine choose the rank: the one with the fewest requests.
const AnyRank = -1

// Request is what a caller submits.
type Request struct {
	ID      string // base of the scheduler's id, and of the id that peers are told
	TraceID string // the id under which the trace reports it
	Rank    int    // data-parallel rank, or AnyRank

	Prompt     []scheduler.Token // handed over
	MaxTokens  int
	MinTokens  int
	StopIDs    []scheduler.Token
	Sampling   sample.Params // without MinTokens and Ends, which follow from the members here
	IgnoreEOS  bool
	Salt       string
	Session    string
	EndSession bool // it is the last turn of the session
	Priority   int
	Append     bool            // an append attempt: refuse rather than prefill from nothing
	Params     json.RawMessage // kv_transfer_params; nil if there are none
	Threshold  *float64        // cache_hit_threshold; nil takes the engine's
	Noise      bool            // overwrite a block of its computed KV before it is used: the control of token identity
}

// Errors of Submit.
var (
	// ErrQueueFull: the rank has as many requests as Config.MaxQueue allows.
	ErrQueueFull = errors.New("the engine's queue is full")
	// ErrDraining: the engine takes no new requests.
	ErrDraining = errors.New("the engine is shutting down")
	// ErrClosed: the engine has ended, or its device is lost.
	ErrClosed = errors.New("the engine has ended")
)

// InvalidError reports a request that cannot run here.
type InvalidError struct {
	Param  string // the request's member at fault
	Reason string
}

func (e *InvalidError) Error() string { return fmt.Sprintf("%s: %s", e.Param, e.Reason) }
