// Package ipc lets package tcp read device memory of another process of the
// same host by the device itself: a [Near] opens the memory of this side to
// other processes, imports that of a peer once, and copies between the two on
// streams of its own, over whatever joins the two devices. Nothing passes through
// host memory, and no byte of KV travels on a connection.
//
//	D: read ──request, capability──▶ P: checks the grant
//	D ◀──── where the blocks lie ─── P: holds the grant open
//	D: copies by its device
//	D ───── done ──────────────────▶ P: was the grant unbroken? ──▶ D
//
// A read by a ticket may be copied as it is asked for: the lease that the ticket names
// stood when the copy began if it stands when it has ended.
//
// A write is such a copy too, made by the side that receives: the writer says where the
// blocks lie.
//
// # Who is near
//
// Each side shows a card at the hello: its host, its process, the kind of its
// device, and a handle of a small piece of device memory with a random text in
// it. A peer is near if the card names this host and the text is read through
// the handle, so a handle never leads to memory of someone else. Otherwise, and
// where the backend has no such handles, the transport moves device memory
// through the host, as it does without this package, and logs why.
//
// # What it opens
//
// A handle opens a region as a whole, for reading and writing, to a process of
// this host: the grants hold peers that keep to the protocol, and no others.
// Handles of regions go only to peers that present a capability; who may
// connect at all is decided by the transport (TLS, the network). Turn it off
// where processes of this host do not trust each other.
//
// # When a peer goes away
//
// What was imported from a process is closed with the last connection to it. A
// process that comes in its place has another card. A process that dies in the
// middle of a copy takes nothing with it but the transfer: the copy ends, and
// the transfer fails, as nobody answers that the grant was unbroken.
//
// # Goroutines
//
// None of its own. A fetch blocks until the device has done it.
package ipc
