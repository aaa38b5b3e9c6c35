// Package pd hands the KV of a prompt from a prefiller (P) to a decoder (D),
// which pulls it.
//
//	P: request ends ─▶ lease on its blocks ─▶ kv_transfer_params ─▶ (proxy) ─▶ D
//	D: request enters the queue ─▶ renew … ─▶ blocks allocated ─▶ read what D lacks
//	   ─▶ confirm that the lease was unbroken ─▶ received ─▶ release ─▶ P frees
//
// [Scheduler] is the bookkeeping side of either role, [Worker] owns the
// leases, the peers, the control channel and the transfers. The worker is made
// first, because the scheduler's side tells peers where it listens.
//
// # Rules
//
//  1. P keeps the blocks of a finished prompt under a lease: (request id, slot
//     and generation of the handle, secret). It ends by the release of D, or when
//     it was not renewed for the lease time, or at the greatest hold. At its end
//     the right to read is revoked first, so that no reader can touch the blocks,
//     and then the blocks are reported as sent. (A device of this host may read on,
//     to no avail: see rule 3.)
//  2. D renews from the moment the request enters its queue, with one message
//     per peer and interval.
//  3. D reads only the blocks that it lacks, and asks P after the read whether
//     the lease was unbroken. If not, or if P cannot say, the load has failed as
//     a whole. Where the transport takes tickets, P renews the lease as the read
//     begins and answers for it as it ends, without a message of its own; a device then
//     copies while P answers, which counts only if the lease is unbroken at the end.
//  4. Each lease is released exactly once by D: after the load, at a full local
//     hit, or when the request ends before it was loaded. A release is repeated
//     until P has acknowledged it or the lease is over by itself; P takes a
//     second one as done.
//  5. One transfer per request: after it, whatever its end, lookups answer
//     nothing and the request computes what it lacks.
//  6. The id of the request that holds the blocks travels; that of the one that
//     reads them never does, save to the metaserver that is to find it.
//  7. A peer with another engine id than the parameters name was restarted; one
//     with another model, dtype, layout, block size or KV groups is refused with
//     both values in the error.
//  8. A push (transfer_mode "push") writes layer by layer into blocks that D has
//     opened for that load; what P computes once more it writes once more, and
//     the load ends when the prompt is complete. Revoking fences late writes.
//  9. D may keep a turn's blocks for whoever computes the next turn. They are
//     named by the hashes of their tokens and namespace, and read only as far as
//     the next prompt goes on from them.
//  10. A push may begin before P is chosen: D asks a metaserver, which must be
//     among its peers, and P tells D where it is.
//  11. Every wait has a deadline, and nothing that a peer sends sizes an
//     allocation beyond a constant.
//
// # Goroutines
//
// A Worker owns: the acceptor of the control channel and one goroutine per
// accepted connection, the lease clock, one goroutine per live peer and per decoder
// that it has pushed to of late, and one per load and further KV group of it, push,
// question to a metaserver and meeting. Close ends them and waits.
package pd
