// Package ucx is the transport over UCX (libucp): its frames, grants and
// checksums are those of package tcp, and they travel on UCX streams, so that
// UCX chooses how bytes move: shared memory within a machine, RDMA where there
// is a device, TCP otherwise. The environment variables of UCX (UCX_TLS,
// UCX_NET_DEVICES, …) hold. It copies through buffers of its own; regions are
// not exposed to remote puts and gets, so every access stays checked.
//
// It is built with cgo and the build tag ucx and needs libucp 1.13 or newer
// (Debian: libucx-dev). Without them New answers *transport.UnavailableError.
//
// # Goroutines
//
// A Transport owns those of package tcp and one that drives UCX. Close ends
// them and waits.
package ucx
