// Package acl is the Ascend backend of ascendrt: a thin wrapper over the CANN
// runtime (ACL), the aclnn operators and HCCL. Its backend is called "ascend".
//
// Nothing is linked and no vendor SDK is needed to build: the libraries are
// opened at first use, and what is absent is named with the CANN release that
// has it, in Backend.Probe's report and in the ErrUnsupported that its use
// answers. The search order is: the file that SLUICE_ACL_LIB names and the
// folder that it lies in; the library's soname (so LD_LIBRARY_PATH, as CANN's
// set_env.sh sets it); $ASCEND_HOME_PATH/lib64, $ASCEND_TOOLKIT_HOME/lib64,
// /usr/local/Ascend/cann/lib64, /usr/local/Ascend/ascend-toolkit/latest/lib64.
// The operators are all libopapi_*.so of the first such folder that has any,
// else libopapi.so. SLUICE_NNOPBASE_LIB, SLUICE_OPAPI_LIB and SLUICE_HCCL_LIB
// name one file each. Releases 8.1 to 9.1 are the aim; what one release lacks
// is found by its symbols, never by its version.
//
// No caller thinks of threads: each call is one crossing into C that makes the
// device's default context current, does its work and brings the error back
// with the thread's own text. Submit replays a whole buffer in one crossing,
// Capture does begin, replay and end in one. Completion is an event behind each
// submission: Done asks for it in a short crossing, Wait spins briefly
// (OpenOptions.WaitSpin, 50 µs by default), then waits in C in slices of 2 ms.
//
// The named operations are compositions of aclnn operators (op_emit.go), whose
// workspaces Plan asks for. Attention is planned on the host: Caps.HostLengths
// asks for the lengths and starts of its requests as values of slots 0 and 1.
// Attention and KV caches are bfloat16, with blocks of 128 to 512 tokens. On a
// real device the order of sums is the vendor's; on the emulation of package
// emu it is that of docs/numerics.md, and Caps.DeterministicReduce says so.
//
// Graph.Update is done by task groups. An updatable command of a graph stands
// behind an event that the graph waits for; each launch issues those commands
// again on a stream of the graph's own, behind the launch before it, and records
// the events. So a graph with updatable commands takes one stream more, and its
// launches cost the host the first phase of each such operator.
//
// An external event is a flag of the hardware: each of its records is consumed
// by one wait.
//
// A sticky fault (an exception of a core, a lost heartbeat, a memory error)
// loses the device; the process must be restarted. Every method then answers
// ErrDeviceLost without a call of the runtime.
//
// Goroutines: none. Without cgo, or on another system than Linux, the package
// builds and reports that it cannot work.
package acl

const name = "ascend"

// Backend is the Ascend runtime.
type Backend struct{}

// Name is "ascend".
func (Backend) Name() string { return name }
