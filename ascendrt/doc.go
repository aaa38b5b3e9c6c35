// Package ascendrt answers on what a serving engine runs: it is the contract
// between the engine and a device runtime. The folder holds every runtime of
// the project (the Ascend one came first, hence the name); each backend is a
// package below this one: host (the CPU, pure Go), cuda and acl (thin cgo
// wrappers that load the vendor's libraries at run time).
//
// Work reaches a device as a [Commands] buffer: a pointer-free list of records
// that a backend replays in one crossing, eagerly ([Stream.Submit]) or under
// capture ([Device.Capture]). Named operations ([OpSpec]) mean the same on all
// backends; docs/numerics.md states their arithmetic and summation order.
//
// # Rules
//
// Every backend keeps these; package conformance checks them.
//
//  1. Submit is atomic in order: the buffers of two goroutines never interleave
//     on one stream.
//  2. A [Point] is done only after everything submitted to its stream up to it
//     is done, work of other streams that joined it by event included.
//  3. A failed Capture leaves the streams usable, not capturing, with nothing
//     enqueued. Its error is [ErrCapture], [ErrResourceLimit] or
//     [ErrOutOfMemory]; the caller runs that shape eagerly from then on.
//  4. Graph.Update affects the launches submitted after it returns, none
//     before. Two launches of one graph never overlap, whatever their streams;
//     they run in the order of submission.
//  5. A buffer that a live graph names is not freed: FreeAfter answers
//     [ErrInUse] and the buffer stays as it was.
//  6. After a device is lost, every method answers [ErrDeviceLost] at once,
//     every blocked Wait returns it, and Close returns within its context.
//  7. An Alloc that fails answers [ErrOutOfMemory] with free and total bytes in
//     the text and changes nothing.
//  8. Copies and fills of zero bytes, and operations over zero rows, are legal
//     and do nothing; a zero-byte allocation is legal.
//  9. There are no default streams, contexts, threads, pageable memory, host
//     callbacks, device-wide synchronisation or vendor flag numbers here.
//
// A view that leaves its buffer, a handle used after its Close, and an
// argument of the wrong type or shape are errors, never memory accesses.
// Index tensors may hold negative values for padded rows (each operation says
// what it does with them); an index past the end is a device fault, after
// which the device is lost, as on a real accelerator.
package ascendrt
