// Package ucx is the transport over UCX (libucp): its frames, grants and
// checksums are those of package tcp, and they travel on UCX streams, so that
// UCX chooses how bytes move: shared memory within a machine, RDMA where there
// is a device, TCP otherwise. The environment variables of UCX (UCX_TLS,
// UCX_NET_DEVICES, …) hold.
//
// Where a device reads remote memory (RDMA), mapped memory is registered, its
// packed remote keys are lent under the grants, and the receiver gets the bytes
// past the streams, without copies. UCX would do such gets over TCP and shared
// memory too, by messages that the peer answers; but it ends the process of a
// peer whose asker goes away meanwhile (1.13.1), so there everything stays on
// the streams. Whether an endpoint has a transport that reads so, libucp lists
// from 1.14 on, and whether it is used for that, it prints.
//
// Nothing is put: what is written here is got from the writer, so that a revoked
// grant never has to stop another process. Nor are there tagged messages:
// notifications are frames like all others, since one is answered when it was
// taken, and since a worker keeps tagged messages that nobody has asked for
// without any bound.
//
// Guarded is false: whoever has a remote key can read all of its region, and
// UCX trusts the keys and messages that it is sent. This transport belongs on a
// network of its own.
//
// It is built with cgo and the build tag ucx and needs libucp 1.13 or newer
// (Debian: libucx-dev). Without them New answers *transport.UnavailableError.
//
// # Goroutines
//
// A Transport owns those of package tcp and one that drives UCX, also for what
// peers ask of this side. Close ends them and waits.
package ucx
