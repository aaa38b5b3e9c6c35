// Package sim runs the scheduler, the cache and the front door's routing
// decisions on a virtual clock: real scheduler cores over real caches, the
// real Router, and a cost model in place of a device. It answers what a
// cluster would do with a workload, in a small fraction of the time.
//
//	workload ── turns ──▶ proxy (route.Router) ──▶ Group of ranks ──▶ Record per request
//	                          ▲                       │ Plan → cost → Apply
//	                          └── refusals, ends ─────┘
//
// Everything is deterministic: the same inputs give the same records, byte
// for byte. Time is scheduler.Time; nothing in the package reads a clock or
// starts a goroutine.
//
// # Invariants
//
//  1. Events happen in the order of their time, and of their making at one time.
//  2. The ranks of a group step together: a step lasts as long as its slowest rank.
//  3. A request is counted once: as a hit, a fallback or an ordinary P/D turn.
//  4. After the last request no rank holds a block.
//  5. Whatever fails, every turn is answered once, or its client gives up.
//  6. A block that is being saved to the host tier is not used again before.
package sim
