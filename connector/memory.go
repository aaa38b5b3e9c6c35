package connector

import "github.com/sluice-serving/sluice/kvcache"

// Layout describes an engine's KV so that two engines can tell whether they
// understand each other's bytes.
type Layout struct {
	Model     string        // fingerprint of weights and configuration
	DType     string        // of the stored KV: "fp32", "bf16", …
	BlockSize int           // tokens per block
	Blocks    int           // blocks of the pool, the null block included
	Groups    []LayoutGroup // one per KV group, in the cache's order
}

// LayoutGroup describes one KV group.
type LayoutGroup struct {
	Kind       string // "full_attention", "sliding_window", …
	Layers     int    // layers that store KV in this group
	BlockBytes int    // bytes of one block over all these layers
}

// BytesPerBlock is the number of bytes of one block over all groups.
func (l Layout) BytesPerBlock() int {
	n := 0
	for _, g := range l.Groups {
		n += g.BlockBytes
	}
	return n
}

// Memory is a piece of memory that KV lies in. Offsets are in bytes. Calls
// may come from several goroutines at once for ranges that do not overlap.
type Memory interface {
	// ReadAt fills p as io.ReaderAt does; a short read has an error.
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt stores p as io.WriterAt does; a short write has an error.
	WriteAt(p []byte, off int64) (int, error)
}

// HostMemory is Memory that the CPU can address directly.
type HostMemory interface {
	Memory
	// Bytes is the memory itself. It stays at its address until the engine
	// closes.
	Bytes() []byte
}

// Region is the storage of one tensor of the KV of one layer: block b of the
// group lies at [b·BlockBytes, (b+1)·BlockBytes).
type Region struct {
	Group      int    // KV group
	Layer      int    // layer of the model
	Name       string // "k", "v" or "kv"; equal names of two engines correspond
	BlockBytes int    // bytes of one block in this region
	Memory     Memory
}

// Offset is where a block begins.
func (r Region) Offset(b kvcache.BlockID) int64 { return int64(b) * int64(r.BlockBytes) }
