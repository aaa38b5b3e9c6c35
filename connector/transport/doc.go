// Package transport is the contract between connectors and the movers of
// bytes: register memory, hand a descriptor to a peer, read and write lists of
// (local, remote, length), learn of completion, notify.
//
// A transport knows regions, offsets and capabilities; it knows nothing of
// requests, blocks' meanings or leases. tcp is the pure-Go one, faulty wraps
// any other and breaks it by script.
//
// # Rules
//
//  1. Read and Write return when no byte of the local regions named by the
//     call can still be touched by it, also when the context ends first.
//  2. A write is complete when the peer has stored the bytes. After a failed
//     write the peer's bytes are undefined until the peer has revoked the
//     capability that the write used; until then it may also still read the local
//     ones, where it fetches them.
//  3. Every access by a peer needs a capability, which names units of regions
//     and a direction. Revoke returns when no access under it can still touch
//     memory. A transport that cannot check accesses (one-sided hardware)
//     says so by Guarded.
//  4. A transfer that fails says which segments may be incomplete; the others
//     hold the peer's bytes.
//  5. A peer that was replaced by another process at the same address is
//     another peer: its Instance differs and calls fail with
//     ErrPeerRestarted.
//  6. ReadBlocks reads whole units of several regions, by any peer, and WriteBlocks
//     writes them; a BlockReader or BlockWriter needs no list of the pieces.
//  7. ReadTicket does that by a name of the grant that the owner of the memory looks up
//     at both ends of the read, where both sides know of it.
//  8. Lengths that come from a peer never size an allocation beyond a
//     constant of the transport.
package transport
