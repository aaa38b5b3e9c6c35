package kvcache

import "fmt"

// Token is one token id. It is the type of token ids everywhere in the module.
type Token int32

// BlockID names one physical KV block of the pool, from 0 to Config.Blocks-1.
type BlockID int32

// NullBlock stands in a block table where no KV is kept: positions that have
// left a sliding window. It is never handed out, freed or matched.
const NullBlock BlockID = 0

// LoRA identifies an adapter. The id and the name are both part of a
// namespace's identity, so two adapters that carry one name never share KV.
type LoRA struct {
	ID   int64
	Name string
}

// Namespace says which sequences may share KV: only those with equal
// namespaces. Every field is part of the identity by itself; nothing is
// concatenated, so a salt "x" and an adapter named "x" are different
// namespaces. The zero value is the namespace of plain requests.
type Namespace struct {
	// Tenant separates customers of one engine.
	Tenant string
	// Salt is the request's cache salt.
	Salt string
	// LoRA is the adapter, zero for the base model.
	LoRA LoRA
	// Media is a digest of the inputs that are not token ids (images, audio,
	// embeddings) together with their positions; empty when there are none.
	Media string
	// Variant separates model states that produce different KV from equal
	// tokens, e.g. weight versions.
	Variant string
}

// GroupKind is the attention type of a KV group's layers.
type GroupKind uint8

const (
	// FullAttention layers read every earlier token.
	FullAttention GroupKind = iota
	// SlidingWindow layers read the last Window tokens, the current one included.
	SlidingWindow
	// ChunkedLocal layers read the tokens of the current chunk. Not supported: New returns an *UnsupportedGroupError.
	ChunkedLocal
	// Recurrent layers keep one state instead of a KV per token. Not supported: New returns an *UnsupportedGroupError.
	Recurrent
)

// String returns the kind's name as KV events spell it.
func (k GroupKind) String() string {
	switch k {
	case FullAttention:
		return "full_attention"
	case SlidingWindow:
		return "sliding_window"
	case ChunkedLocal:
		return "chunked_local_attention"
	case Recurrent:
		return "mamba"
	}
	return fmt.Sprintf("GroupKind(%d)", uint8(k))
}

// GroupSpec describes one KV group: a set of layers that share one block
// table. The zero value is a full-attention group.
type GroupSpec struct {
	Kind GroupKind
	// Window is the number of tokens that a SlidingWindow layer reads, the current token included; at least 1.
	Window int
	// Chunk is the chunk length in tokens of a ChunkedLocal group.
	Chunk int
}

// Caching switches prefix caching.
type Caching uint8

const (
	// CachingOn makes full blocks matchable. It is the default.
	CachingOn Caching = iota
	// CachingOff turns every lookup into a miss; the pool still works.
	CachingOff
)

// Publication says when the blocks of an allocation become matchable.
type Publication uint8

const (
	// PublishNow makes the full blocks of the planned tokens matchable at
	// once, before the step has run, so that equal prompts in one step share.
	PublishNow Publication = iota
	// PublishLater leaves that to Publish, as an asynchronous load needs it.
	PublishLater
)
