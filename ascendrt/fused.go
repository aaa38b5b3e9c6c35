package ascendrt

// The fused operations do the work of several named ones in one call, sum in
// an order of their own, and read and write BFloat16 unless said otherwise. A
// backend may lack them: Plan then answers ErrUnsupported and the caller uses the
// named ones. Their results agree with the named operations' within rounding, not
// bit for bit.
const (
	// OpLinear: y = f(x)·Wᵀ, where f normalises the rows of x if Norm is set: then x
	// is a residual stream. Arguments x[N,In] (Float32 with Norm), near and gain[In]
	// (only with Norm), w[Out,In] ([2·Out,In] with EpilogueSwiGLU: the gate rows, then
	// the up rows), rows[R] (only with Rows: the rows of x to take, negative for
	// none), y[N or R,Out] and, with EpilogueAdd, near: y is a residual stream then.
	//
	// A residual stream is Float32, as what is added to it would else be rounded
	// again and again. near[min(N,NearRows),...] is the same rounded, which kernels
	// for few tokens read; it is undefined where N is greater than NearRows.
	OpLinear OpKind = "linear"
	// OpRotateWrite normalises (with Norm) and rotates the heads of q in place
	// and writes the rotated keys and the values into the paged cache; the keys
	// in qkv are undefined afterwards. Arguments qkv[N,(Heads+2·KVHeads)·HeadDim],
	// qgain[HeadDim] and kgain[HeadDim] (only with Norm), positions[N],
	// table[P,HeadDim] (Float32; see RopeTable), slots[N] (negative: no keys and
	// values written), kcache[B,BlockSize,KVHeads,HeadDim], vcache (same).
	OpRotateWrite OpKind = "rotate_write"
	// OpFeedEmbedding is OpEmbedding with ids that the device knows: a row whose
	// feed is positive takes its id from that cell. Arguments ids[N], feed[N],
	// cells[C], table[V,H], y[N,H] (Float32) and near: a residual stream.
	OpFeedEmbedding OpKind = "feed_embedding"
	// OpPick takes the index of the largest of a row's float logits, the lowest
	// among equals, and -1 for a row that holds no number or a NaN. It also puts
	// the index into the cell that keep names, if that is positive.
	// Arguments x[N,D] (Float32), keep[N], cells[C], y[N] (Int32).
	OpPick OpKind = "pick"
	// OpNoise fills y with values of the SplitMix64 sequence of Seed: the sum of
	// the four 16-bit lanes of each word, less 131,070, times Factor. The
	// argument is y[N,D].
	OpNoise OpKind = "noise"
)

// NearRows is the largest number of rows of a residual stream that is kept rounded too.
const NearRows = 32

// Epilogue is what OpLinear does with its sums.
type Epilogue uint8

const (
	EpilogueStore  Epilogue = iota // y = the sums
	EpilogueAdd                    // y = y + the sums, as Float32
	EpilogueSwiGLU                 // y = silu(gate) · up
	EpilogueFloat                  // y = the sums as Float32
)

// String names the epilogue.
func (e Epilogue) String() string {
	return [...]string{"store", "add", "swiglu", "float"}[min(e, EpilogueFloat)]
}

// LinearAttr is the attribute of OpLinear.
type LinearAttr struct {
	In, Out  int
	Norm     bool
	Eps      float32 // added to the mean of squares, with Norm
	Rows     bool
	Epilogue Epilogue
	PerRow   bool // sums as SumPerRow; else how many rows there are may change a row's bits
}

// RotateAttr is the attribute of OpRotateWrite.
type RotateAttr struct {
	Heads, KVHeads, HeadDim int
	BlockSize               int
	MaxPosition             int // rows of the table
	Norm                    bool
	Eps                     float32 // added to the mean of squares, with Norm
}

// FeedAttr is the attribute of OpFeedEmbedding.
type FeedAttr struct{ Vocab, Hidden int }

// PickAttr is the attribute of OpPick.
type PickAttr struct{ Dim int }

// NoiseAttr is the attribute of OpNoise.
type NoiseAttr struct {
	Dim    int
	Seed   uint64
	Factor float32
}
