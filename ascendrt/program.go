package ascendrt

// Program is code for raw kernels.
type Program struct {
	Kind    string // "cuda-c", "cubin", "ascend-elf"
	Name    string // for error texts and compiler logs
	Data    []byte
	Options []string // the compiler's
}

// Module is a loaded program.
type Module interface {
	// Kernel looks up an entry point; it lives as long as the module.
	Kernel(name string) (Kernel, error)
	// Close unloads it: its kernels answer ErrClosed from then on. Idempotent.
	Close() error
}

// Kernel is an entry point of a module.
type Kernel interface {
	// SetMaxSharedBytes allows launches with up to n bytes of dynamic shared memory.
	SetMaxSharedBytes(n int) error
	// Ref names the kernel in command records.
	Ref() Ref
}

// Grid is the shape of a launch. Ascend uses X alone, as its number of blocks.
type Grid struct {
	X, Y, Z     uint32 // blocks
	BX, BY, BZ  uint32 // threads per block
	SharedBytes uint32 // dynamic shared memory per block
}
