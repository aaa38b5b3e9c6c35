package ascendrt

// OpKind names an operation that all backends have, with the same arithmetic.
type OpKind string

// The named operations and their arguments, in order. N is the number of rows
// of a step (padded rows included), R the number of requests. x, y, q, k, v,
// weights, caches and tables have the storage type of the spec unless said
// otherwise; ids, positions, slots and lengths are Int32. An output may be the
// same tensor as the input named beside it, else outputs overlap nothing.
const (
	// OpEmbedding: y[N,H] = table[ids[N]]. Arguments ids, table[V,H], y.
	// A negative id gives a zero row.
	OpEmbedding OpKind = "embedding"
	// OpRMSNorm: y = x / rms(x) · w, over each of Groups parts of a row.
	// Arguments x[N,G·D], w[D], y[N,G·D]; y may be x.
	OpRMSNorm OpKind = "rmsnorm"
	// OpAddRMSNorm: r ← r + x, then y = rmsnorm(r). Arguments x[N,D], r[N,D]
	// (in and out), w[D], y[N,D]; y may be x.
	OpAddRMSNorm OpKind = "add_rmsnorm"
	// OpAdd: y = a + b. Arguments a[N,D], b[N,D], y[N,D]; y may be a or b.
	OpAdd OpKind = "add"
	// OpMatmul: y = x·Wᵀ. Arguments x[N,K], w ([M,K] or, for WeightsKM, [K,M]), y[N,M].
	OpMatmul OpKind = "matmul"
	// OpRope rotates q and k in place. Arguments q[N,Hq·D], k[N,Hk·D],
	// positions[N], table[P,D] (Float32; see RopeTable). A row with a negative
	// position stays as it is.
	OpRope OpKind = "rope"
	// OpKVScatter writes k and v into the paged cache. Arguments k[N,Hk·D],
	// v[N,Hk·D], slots[N] (block·BlockSize + offset; negative: skipped),
	// kcache[B,BlockSize,Hk,D], vcache (same).
	OpKVScatter OpKind = "kv_scatter"
	// OpAttention is causal attention over the paged cache, for any mix of
	// prefills, tails and decodes. Arguments q[N,Hq·D], kcache, vcache,
	// table[R,T] (block ids), starts[R+1] (first query row of each request),
	// lens[R] (tokens in the cache, this step's included), y[N,Hq·D].
	// Request r has rows starts[r]..starts[r+1]; its last row stands at
	// position lens[r]-1. Rows of no request (behind starts[R]) and of requests
	// with length 0 give zero rows. Slots 0 (lens, R values) and 1 (starts, R+1
	// values) of the op replace the two tensors with values of the host; a
	// device with Caps.HostLengths needs both.
	OpAttention OpKind = "attention"
	// OpSwiGLU: y = silu(x[:, :F]) · x[:, F:]. Arguments x[N,2F], y[N,F].
	OpSwiGLU OpKind = "swiglu"
	// OpArgmax: index of the largest value of a row, the lowest one among
	// equals, and -1 for a row that holds a NaN; on Ascend, whose operator says
	// nothing of it, such a row gives any index. Arguments x[N,D], y[N] (Int32).
	OpArgmax OpKind = "argmax"
	// OpGather: y[R,D] = x[rows[R]]. Arguments x[N,D], rows[R], y[R,D].
	// A negative row gives zeros.
	OpGather OpKind = "gather"
	// OpCast converts between Float32 and BFloat16 (round to nearest even).
	// Arguments x[N,D], y[N,D].
	OpCast OpKind = "cast"
)

// OpSpec names an operation and what is fixed before submission. The number of
// rows may differ from call to call, up to MaxRows.
type OpSpec struct {
	Kind    OpKind
	Type    DType // storage type of activations, weights and caches: Float32 or BFloat16
	MaxRows int   // most rows of a call; 0: no bound known ahead
	Attr    any   // the operation's attribute struct, by value
}

// EmbeddingAttr is the attribute of OpEmbedding.
type EmbeddingAttr struct{ Vocab, Hidden int }

// NormAttr is the attribute of OpRMSNorm and OpAddRMSNorm.
type NormAttr struct {
	Dim    int     // elements that share one mean
	Groups int     // parts of a row, e.g. heads; 0 means 1
	Eps    float32 // added to the mean of squares
}

// AddAttr is the attribute of OpAdd.
type AddAttr struct{ Dim int }

// MatmulAttr is the attribute of OpMatmul.
type MatmulAttr struct {
	In, Out int // K, M
	Weights WeightLayout
	OutType DType // 0: the spec's type; Float32 keeps logits unrounded
	Order   SumOrder
}

// SumOrder says in which order an operation may sum.
type SumOrder uint8

const (
	// SumFixed is the order of docs/numerics.md: the same bits everywhere.
	SumFixed SumOrder = iota
	// SumFree lets the vendor's library choose, per shape: faster, and a row's
	// bits may then depend on its batch.
	SumFree
	// SumPerRow allows an order of the operation's own, but one that nothing beside
	// a row changes: the same bits in any batch, however rows are cut into steps. A
	// backend without such kernels computes SumFixed, which is such an order.
	SumPerRow
)

// String names the order.
func (o SumOrder) String() string {
	return [...]string{"fixed", "free", "per row"}[min(o, SumPerRow)]
}

// WeightLayout is how a weight matrix lies in memory.
type WeightLayout uint8

const (
	// WeightsMK is [M,K]: one row per output, as checkpoints store it.
	WeightsMK WeightLayout = iota
	// WeightsKM is [K,M]: the transposed one; the host backend is fastest on it.
	WeightsKM
)

// String names the layout.
func (l WeightLayout) String() string {
	if l == WeightsKM {
		return "km"
	}
	return "mk"
}

// RopeAttr is the attribute of OpRope: the halves of a head rotate against each other.
type RopeAttr struct {
	Heads, KVHeads, HeadDim int
	MaxPosition             int // rows of the table
}

// ScatterAttr is the attribute of OpKVScatter.
type ScatterAttr struct{ KVHeads, HeadDim, BlockSize int }

// AttentionAttr is the attribute of OpAttention.
type AttentionAttr struct {
	Heads, KVHeads, HeadDim int
	BlockSize               int
	Scale                   float32 // 0: 1/sqrt(HeadDim)
	Window                  int     // tokens that a row sees, itself included; 0: all before it
	Order                   SumOrder
	MaxQuery                int // most query rows of a request, where it is known ahead; 0: any number
}

// SwiGLUAttr is the attribute of OpSwiGLU.
type SwiGLUAttr struct{ Dim int }

// ArgmaxAttr is the attribute of OpArgmax.
type ArgmaxAttr struct{ Dim int }

// GatherAttr is the attribute of OpGather.
type GatherAttr struct{ Dim int }

// CastAttr is the attribute of OpCast.
type CastAttr struct {
	Dim      int
	From, To DType
}

// Op is a planned operation. It is immutable and may be recorded in any number
// of buffers and streams at a time.
type Op interface {
	// Spec is what was planned, with its defaults filled in.
	Spec() OpSpec
	// Workspace is the number of bytes of device memory a call needs.
	Workspace() int
	// Slots tells what Graph.Update may change, by index.
	Slots() []SlotInfo
	// Ref names the operation in command records.
	Ref() Ref
	// Close releases the operation; what records it later answers ErrClosed. Idempotent.
	Close() error
}

// SlotInfo describes one slot.
type SlotInfo struct {
	Name string // "lens", "addr:q", ...
	Kind SlotKind
}

// SlotKind says which field of a Slot carries the value.
type SlotKind uint8

const (
	// SlotInts takes Slot.I64.
	SlotInts SlotKind = iota
	// SlotAddr takes Slot.Addr.
	SlotAddr
	// SlotWord takes one value of Slot.I64: an 8-byte argument word of a launch.
	SlotWord
)

// String names the kind.
func (k SlotKind) String() string {
	switch k {
	case SlotAddr:
		return "addr"
	case SlotWord:
		return "word"
	}
	return "ints"
}
