// Package offload keeps KV in host memory, and optionally in files: that of
// preempted requests, so that they continue where they were, and that of
// finished turns, so that the next turn need not compute them again.
//
// [Scheduler] decides what is kept, [Worker] copies. They share the number of
// host blocks. A host block (a slot) holds one block of one KV group, all its
// layers.
//
// A preempted request goes through
//
//	running ─▶ saving ─▶ ready ─▶ restoring ─▶ (gone)
//
// and may end in any of them. While it is saving, lookups are pending.
//
// # Rules
//
//  1. A preempted request is saved whole or not at all: needed slots beyond the
//     free and evictable ones mean no save, and the request recomputes.
//  2. The copy of a preemption's save is complete when Submit returns, so the
//     rows of the same step may overwrite the blocks. A finished turn's blocks
//     are held until their copy is complete.
//  3. A slot that a record, a save or a load uses is never evicted; it is free
//     for others when the last use has ended.
//  4. Only full blocks are shared by content, keyed by namespace, group and
//     chain hash; a partial block belongs to one request. Sharing needs groups
//     that are all full attention.
//  5. A slot is matchable when its copy has been reported as complete by every
//     worker, never before. Events say when, and when it is no more.
//  6. A failed save ends the record: the request recomputes. A failed load names
//     its blocks; the host copy stays until the load has been reported.
//  7. A host tier larger than the memory that is there is an error at the start.
//  8. A file is written beside and renamed; it carries length, CRC32C, the
//     layout's fingerprint and its blocks' keys. Torn files, and those of other
//     layouts, are deleted and never read.
//
// # Goroutines
//
// A Worker owns Config.Threads copiers and, with files, one writer. Close ends
// them and waits.
package offload
