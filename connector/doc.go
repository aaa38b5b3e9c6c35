// Package connector is the contract by which KV arrives at an engine and
// leaves it. It holds types and two interfaces, no behaviour: the scheduler
// imports it to ask and to account, the packages below it (pd, offload, multi)
// implement it, and an engine stands between the two sides.
//
//	            scheduler ── asks, accounts ──▶ connector.Scheduler
//	                ▲                                 │ Ops (after each Plan)
//	Deliver(Event)  │                                 ▼
//	             engine ────── Submit(Op…) ──▶ connector.Worker ── bytes ──▶ peer, host tier
//	                ▲                                 │
//	                └──────────── Events ─────────────┘
//
// The scheduler's side is bookkeeping: it is called from the goroutine that
// owns the scheduler, answers at once, does no I/O and keeps no lock. The
// worker's side moves bytes on goroutines of its own and speaks through
// events.
//
// # Rules of the contract
//
//   - C1. A completion is idempotent. A second one for the same request, kind
//     and worker changes nothing. One for a request that is unknown, finished or
//     not waiting for it is ignored and counted; it is never a fault.
//   - C2. Every wait has a deadline: a load, a hold, a lookup that is pending.
//     The side that waits knows the deadline when the wait begins. An [Op]
//     carries it to the worker, which stops the transfer then and reports it as
//     failed; the scheduler waits a grace period longer and then goes on alone.
//   - C3. A block that a transfer may still read or write is not given to anyone
//     else. Aborting a request does not end its transfer: its blocks return with
//     the completion of the transfer, or after its deadline, whichever is first.
//   - C4. A [RequestID] carries a generation. A slot that is used again is
//     another request, and a late event for the earlier one falls under C1.
//   - C5. A promised hit is true at load time or is reported as failed, block by
//     block. Failed blocks are reported no later than the Received event of the
//     same load, and the Received event still comes.
//   - C6. Work of a step is complete in this order: saves of preempted blocks
//     before anything else of that step writes to these blocks; loads that are
//     not asynchronous before the rows that read them.
//   - C7. A step without rows may still carry connector work and takes the same
//     path as any other.
//   - C8. With several workers (tensor parallelism) a load or a send is complete
//     when every worker has reported it. Each event names its worker.
package connector
