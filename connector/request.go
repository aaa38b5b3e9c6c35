package connector

import (
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/kvcache"
)

// RequestID is the handle of a request inside one scheduler: the slot in the
// low 32 bits, the generation of the slot in the high 32. Slots are dense, so
// an executor may index its own state with them; a generation is at least 1,
// so that the zero value names no request.
type RequestID uint64

// NewRequestID joins a slot and a generation.
func NewRequestID(slot, generation uint32) RequestID {
	return RequestID(uint64(generation)<<32 | uint64(slot))
}

// Slot is the dense index. Two live requests never share one.
func (id RequestID) Slot() uint32 { return uint32(id) }

// Generation counts the requests that have had this slot, from 1.
func (id RequestID) Generation() uint32 { return uint32(id >> 32) }

// String is "slot.generation".
func (id RequestID) String() string { return fmt.Sprintf("%d.%d", id.Slot(), id.Generation()) }

// Request is what a connector sees of a request. The scheduler owns it and
// its slices; a connector reads them during a call and copies what it keeps.
type Request struct {
	ID      RequestID
	Name    string          // the caller's id, the one that peers are told
	Tokens  []kvcache.Token // every token known now: the prompt, then what was generated
	Prompt  int             // how many of Tokens are the prompt
	Session string          // empty if the request belongs to none
	Params  any             // opaque connector parameters as the caller gave them; see [ParamsOf]
	Route   Route           // where the caller expects the prompt's KV to come from

	Namespace kvcache.Namespace // only requests of equal namespaces share KV
	SkipRead  bool              // the request reads no KV that another one computed
}

// DefaultLease is how long a prefiller keeps the KV of a finished prompt for
// which nobody asks, unless it is told otherwise.
const DefaultLease = 30 * time.Second

// Route says where the KV of a request's prompt is expected to come from.
type Route uint8

const (
	// Local prefills here; a connector may still find part of the prompt.
	Local Route = iota
	// RemotePrefill takes the prompt's KV from a prefiller.
	RemotePrefill
	// AppendPrefill prefills here on top of a prefix that is already here,
	// and is refused rather than prefilled from nothing.
	AppendPrefill
)

func (r Route) String() string {
	switch r {
	case Local:
		return "local"
	case RemotePrefill:
		return "remote"
	case AppendPrefill:
		return "append"
	}
	return fmt.Sprintf("Route(%d)", uint8(r))
}

// ParamsOf returns the request's parameters as P, if they are of that type.
func ParamsOf[P any](r *Request) (P, bool) {
	p, ok := r.Params.(P)
	return p, ok
}

// Tables is a request's block table, one list of blocks per KV group, in the
// order of its tokens. Position i of a list holds the tokens
// [i·blockSize, (i+1)·blockSize); the null block (0) stands where a group
// needs none. It is valid during the call that hands it over.
type Tables [][]kvcache.BlockID

// Clone copies the lists, for a connector that keeps them.
func (t Tables) Clone() Tables {
	out := make(Tables, len(t))
	for g, blocks := range t {
		out[g] = append([]kvcache.BlockID(nil), blocks...)
	}
	return out
}

// Blocks is the number of blocks other than the null block, over all groups.
func (t Tables) Blocks() int {
	n := 0
	for _, blocks := range t {
		for _, b := range blocks {
			if b != kvcache.NullBlock {
				n++
			}
		}
	}
	return n
}

// Range is the half-open range of token positions [From, To) of a request.
type Range struct{ From, To int }

// Len is the number of tokens in the range.
func (r Range) Len() int { return r.To - r.From }
