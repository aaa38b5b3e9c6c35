package ascendrt

// Collectives is implemented by a Device that can talk to its peers (NCCL on
// CUDA, HCCL on Ascend, memory between devices of one process on the host).
type Collectives interface {
	// UniqueID makes the token by which the ranks of one communicator find each other.
	UniqueID() ([]byte, error)
	// NewCommunicator joins; it blocks until all size ranks have called it. On the
	// host it also ends when this device is lost or closed, and for the others too.
	NewCommunicator(id []byte, rank, size int) (Communicator, error)
}

// Communicator is one rank's membership in a group. Its operations are
// commands: Commands.AllReduce, AllGather, AllToAll. All ranks submit the same
// operations in the same order. The first run of an operation connects the
// ranks, which a capture cannot do: run each one eagerly once before.
type Communicator interface {
	// Rank counts from 0.
	Rank() int
	// Size is the number of ranks, this one included.
	Size() int
	// Ref names the membership in command records.
	Ref() Ref
	// Close leaves the group, behind the last operation of every rank. Idempotent.
	Close() error
}

// Reduce is how AllReduce combines.
type Reduce uint8

const (
	// ReduceSum adds.
	ReduceSum Reduce = iota
	// ReduceMax takes the largest.
	ReduceMax
	// ReduceMin takes the smallest.
	ReduceMin
)

// String names the reduction.
func (r Reduce) String() string {
	switch r {
	case ReduceMax:
		return "max"
	case ReduceMin:
		return "min"
	}
	return "sum"
}
