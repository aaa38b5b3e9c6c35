// Package host is the CPU backend of ascendrt, in pure Go: streams are ordered
// queues, each drained by one goroutine; a graph is a recorded command list;
// named operations use package arith, so their bits depend on nothing but the
// numbers of the row they compute.
//
// Device memory has addresses of its own (allocation number and offset), so a
// view that outlived its buffer or leaves it is an error at Submit, never a
// stray access. An index past the end inside an operation is a device fault:
// the device is lost, as an accelerator would be.
//
// Collectives join devices of one process. A rank that leaves, is lost or closes
// its device ends the operations of the others, whose devices are lost then with
// the rank in the error; ranks that submit different operations end likewise.
//
// Goroutines: one per stream, owned by the stream until Close; the workers of
// large operations, owned by the device until Close; one per communicator, until
// a rank leaves its group, at the latest until Close of the device.
//
// OpenOptions.Faults injects faults: comma-separated kind@call:n, where the
// n-th call (from 1) of that name fails. Kinds: lost, oom, limit, error,
// delay=DURATION. Calls: alloc, alloc_host, stream, event, plan, submit,
// capture, and command (an executed command; only lost and delay).
package host
