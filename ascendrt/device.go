package ascendrt

import "context"

// Device is one opened device. Its methods are safe for concurrent use from
// any goroutine; none needs the caller to lock its thread, and each one that
// reaches a driver is one crossing.
type Device interface {
	// Info describes the device as Probe found it.
	Info() Info
	// Caps says what works here; it does not change while the device is open.
	Caps() Caps
	// Limits asks the driver where it can answer.
	Limits() Limits
	// Live counts the handles that exist: a program that closed everything sees zeros.
	Live() Live
	// MemInfo gives free and total device memory in bytes. A hint: others use the device too.
	MemInfo() (free, total uint64, err error)

	// Alloc gives device memory aligned to Caps.Align, content undefined.
	Alloc(bytes int, p Placement) (Buffer, error)
	// AllocHost gives pinned host memory, zeroed: the only host side a copy may have.
	AllocHost(bytes int) (HostBuffer, error)
	// Export makes a handle of a PlaceShareable buffer for another process.
	Export(b Buffer) (ShareHandle, error)
	// Import opens another process's buffer; close it before the exporter frees.
	Import(h ShareHandle) (Buffer, error)
	// PeerAccess tells how this device reaches the peer's memory.
	PeerAccess(peer Device) (PeerKind, error)
	// EnablePeer lets this device access the peer's memory: one way, idempotent.
	EnablePeer(peer Device) error

	// NewStream makes a queue; ErrResourceLimit when none is left.
	NewStream(o StreamOptions) (Stream, error)
	// NewEvent makes an event that was not recorded yet; ErrResourceLimit when none is left.
	NewEvent(k EventKind) (Event, error)

	// Plan decides everything about a named operation before its submission.
	Plan(spec OpSpec) (Op, error)
	// LoadProgram compiles or loads raw kernels; ErrUnsupported without Caps.RawKernels.
	LoadProgram(p Program) (Module, error)

	// Capture records the buffer as a graph on s without running it: begin,
	// replay and end are one crossing. The buffer may be reused afterwards.
	Capture(s Stream, rec *Commands, o CaptureOptions) (Graph, error)

	// Health is nil, ErrDegraded or ErrDeviceLost.
	Health() error
	// Close drains the streams within ctx, frees what is left and ends the
	// device's goroutines. Later calls of every method answer ErrClosed.
	// Idempotent.
	Close(ctx context.Context) error
}

// Mapper is implemented by a Device whose memory the CPU addresses directly.
type Mapper interface {
	// Map gives the bytes behind a view of device memory. The caller orders its
	// accesses with the device's by points, and drops the slice before the
	// buffer's free.
	Map(v View) ([]byte, error)
}

// Caps says what a device can do.
type Caps struct {
	Backend             string
	Align               int        // alignment of every Alloc, and of sub-allocations, in bytes
	TailPad             int        // bytes behind each block that operations may touch
	Graphs              bool       // Capture works
	GraphUpdate         UpdateKind // how Graph.Update is done
	HostLengths         bool       // attention needs lens and starts as slot values too, each step
	DeviceSignal        bool       // completion is a word in host memory: Done crosses nothing
	SyncTimeout         bool       // the driver waits with a deadline of its own
	RawKernels          bool       // LoadProgram works
	BatchCopy           bool       // CopyBatch is one driver call
	ListCopy            bool       // CopyBatch of many small copies within device memory runs at the memory's speed
	BlockCopy           bool       // CopyBlocks works
	IPCMemory           bool       // Export and Import work
	IPCEvents           bool       // EventIPC works
	PeerCopy            bool       // copies between devices work
	Collectives         bool       // the Device implements Collectives
	DeterministicReduce bool       // named operations are bitwise those of docs/numerics.md
}

// UpdateKind is how a runtime changes a captured graph.
type UpdateKind uint8

const (
	// UpdateNone: capture again.
	UpdateNone UpdateKind = iota
	// UpdateNodeParam: parameters of a node of the executable graph (CUDA).
	UpdateNodeParam
	// UpdateTaskGroup: a task group is issued again on a second stream, ordered by events (Ascend).
	UpdateTaskGroup
	// UpdateReplay: the recorded command list itself is edited (host).
	UpdateReplay
)

// String names the kind.
func (k UpdateKind) String() string {
	switch k {
	case UpdateNodeParam:
		return "node-param"
	case UpdateTaskGroup:
		return "task-group"
	case UpdateReplay:
		return "replay"
	}
	return "none"
}

// Limits are the ends of a device's resources; -1 where unknown.
type Limits struct {
	Streams, StreamsFree int
	Events, EventsFree   int
	GraphNodes           int
	LargestAlloc         uint64 // bytes
}

// Live counts handles that were created and not yet closed.
type Live struct {
	Buffers, HostBuffers int
	Bytes, HostBytes     int
	Streams, Events      int
	Ops, Modules, Graphs int
	Communicators        int
	Leaked               int // handles dropped without Close that the collector found
}

// PeerKind is how one device reaches another's memory.
type PeerKind uint8

const (
	// PeerNone: not at all.
	PeerNone PeerKind = iota
	// PeerCopyOnly: by copies through the driver.
	PeerCopyOnly
	// PeerDirect: by loads and stores too, after EnablePeer.
	PeerDirect
)

// String names the kind.
func (k PeerKind) String() string {
	switch k {
	case PeerCopyOnly:
		return "copy"
	case PeerDirect:
		return "direct"
	}
	return "none"
}
