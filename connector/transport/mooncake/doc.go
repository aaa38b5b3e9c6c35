// Package mooncake is the transport over Mooncake's Transfer Engine: requests,
// grants and checksums are those of package tcp on TCP connections, and the
// bytes of memory that the CPU can address are read by the Transfer Engine,
// over RDMA or whatever else it was built for. Its environment variables (MC_…)
// hold; peers find each other without a metadata service.
//
// libtransfer_engine.so is loaded at the first use: from the path in
// SLUICE_MOONCAKE_LIB, else by its name. Without it, or in a binary without cgo
// or not for Linux, New answers *transport.UnavailableError.
//
// # Limits
//
// The Transfer Engine lets whoever reaches it read and write registered memory:
// Guarded is false, and this transport belongs on a network of its own. Peers
// that keep to the protocol only ever read, by Fetch of package tcp.
//
// # Memory
//
// The Transfer Engine cannot be told to stop a transfer. It therefore reads into
// buffers of this package, from where the bytes go to their place; a buffer
// whose transfer was given up stays out of use until that transfer has ended.
//
// # Goroutines
//
// A Transport owns those of package tcp and one per batch that the Transfer
// Engine works on. Close waits a second for batches that were given up; after
// that it leaves their engine and buffers as they are.
package mooncake
