package kvcache

import (
	"errors"
	"fmt"
)

// Misuse of the interface. The state of the cache is unchanged whenever a call returns an error.
var (
	// ErrClosedSeq says that a sequence was freed before, or never opened.
	ErrClosedSeq = errors.New("kvcache: sequence is not open")
	// ErrOpenSeq says that a sequence is attached a second time.
	ErrOpenSeq = errors.New("kvcache: sequence is already open")
	// ErrForeignSeq says that a sequence belongs to another cache.
	ErrForeignSeq = errors.New("kvcache: sequence belongs to another cache")
	// ErrStaleMatch says that a match was kept across a call that changed the cache.
	ErrStaleMatch = errors.New("kvcache: match is older than the last change of the cache")
	// ErrHitOnHolder says that a hit was given for a sequence that already holds blocks.
	ErrHitOnHolder = errors.New("kvcache: hit given for a sequence that holds blocks")
	// ErrUnknownFence says that a fence was lifted before, or never existed.
	ErrUnknownFence = errors.New("kvcache: unknown fence")
	// ErrUnknownLease says that a lease or an await has ended, or never existed.
	ErrUnknownLease = errors.New("kvcache: unknown lease")
	// ErrInUse says that Reset found blocks that are held.
	ErrInUse = errors.New("kvcache: blocks are held")
	// ErrNothingToLease says that no matchable block stands behind a lease or an await.
	ErrNothingToLease = errors.New("kvcache: no cached block to lease")
	// ErrSharedHash says that a hash algorithm is refused because the keys leave the process and are shared between tenants.
	ErrSharedHash = errors.New("kvcache: hash is not collision resistant, so it cannot key blocks shared between tenants")
)

// A RangeError reports a number outside its allowed range.
type RangeError struct {
	What     string // the argument or field, e.g. "Config.Blocks"
	Value    int
	Min, Max int // allowed range, both included
}

// Error names the value and the range.
func (e *RangeError) Error() string {
	return fmt.Sprintf("kvcache: %s is %d, allowed are %d to %d", e.What, e.Value, e.Min, e.Max)
}

// An UnsupportedGroupError reports a KV group of a kind that the types know but this version cannot serve.
type UnsupportedGroupError struct {
	Group int // index in Config.Groups
	Kind  GroupKind
}

// Error names the group and its kind.
func (e *UnsupportedGroupError) Error() string {
	return fmt.Sprintf("kvcache: group %d is of kind %s, which is not supported", e.Group, e.Kind)
}

// A BlockError reports a block id that cannot take part in a call.
type BlockError struct {
	Block  BlockID
	Reason string
}

// Error names the block.
func (e *BlockError) Error() string {
	return fmt.Sprintf("kvcache: block %d: %s", e.Block, e.Reason)
}
