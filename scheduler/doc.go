// Package scheduler decides, step by step, which tokens of which requests run
// next, which KV blocks they use and what moves in and out of the cache.
//
// A Scheduler is a deterministic state machine. It has no goroutine, lock,
// clock or I/O; one goroutine owns it and drives it:
//
//	id, err := s.Add(req)          // takes a request in, or says what is wrong with it
//	err = s.Abort(id)              // or Finish: ends one, in whatever state it is
//	s.Deliver(events...)           // KV arrived, failed, was sent: at any time
//	plan := s.Plan(now)            // one step
//	outs, err := s.Apply(plan, res) // what was sampled: outputs, in order
//	at, ok := s.NextDeadline()     // when Plan is due although nothing arrives
//
// # Driving it
//
// The loop of a synchronous engine:
//
//	for {
//		for !s.HasWork() { /* wait for a request, an event, or NextDeadline */ }
//		plan := s.Plan(now())
//		worker.Submit(conn.Ops(plan.Seq, nil)...) // with a connector
//		outs, err := s.Apply(plan, execute(plan))
//		worker.Submit(conn.Ops(plan.Seq, nil)...) // outputs may name blocks to a peer
//		/* hand the outputs on */
//	}
//
// An asynchronous engine (Config.Scheduling Async) makes the next plan before
// it has the result of the last one. It calls Plan until Plan returns nil or a
// plan without rows, launches each, waits for the oldest result and applies
// it. Plans are applied in the order in which they were made. Every plan is
// applied, also one without rows: outputs of requests that were refused or
// failed come with it. A step that could not be computed is applied with
// Outcome Failed; everything that depended on it is computed again.
//
// What an executor does with a plan, and in which order, stands at [Plan]. A
// row computes Scheduled[i] tokens from position Computed[i] on; their ids are
// Input(i). It writes their KV to the slots that the request's block table
// gives: position p lies in block table[p/blockSize] at p%blockSize. The
// executor keeps a table per request (index it by RequestID.Slot), and applies
// to it what Table(i, group) reports: the blocks at positions from from on. If
// Samples[i] is 1 the row yields the token that follows its last position.
//
// # Rules
//
//   - The last token of a prompt is always computed, however much is cached: a
//     step must yield a token for it. A hit is a whole number of blocks.
//   - A block becomes matchable when the step that fills it is planned, so that
//     two equal prompts of one step share. A block that was planned and not
//     computed is taken back, with everything that was built on it.
//   - A request that finds no block preempts another; in a step that preempted
//     somebody nobody is admitted. A preempted request is queued again at the
//     front and keeps its output; its blocks stay cached until they are needed.
//   - The first waiting request that finds no room is waited for, unless nothing
//     that happens by itself will make room: then those behind it may pass.
//   - A block that a plan in flight writes is not given to anyone before that
//     plan is applied.
//
// # Invariants
//
// Checked after every call in builds with the tag invariants, and by tests
// through [Scheduler.Check].
//
//   - S1: a live request is in exactly one place: a queue, the running list,
//     between two turns, or ended and held.
//   - S2: a plan's tokens stay within MaxScheduledTokens, its rows within
//     MaxNumSeqs.
//   - S3: computed tokens never exceed the known ones and those in flight; a
//     running request has something left to compute.
//   - S4: placeholders and tokens in flight are never negative, and zero when
//     nothing is in flight.
//   - S5: a request outside the running list holds blocks only if it is loading,
//     loaded, between two turns or held.
//   - S6: blocks in use are those of the requests and of the fences, no others.
//   - S7: every wait has a deadline.
//   - S8: between two steps with append tokens, attempts are held back for at
//     most GovernorConfig.Quiet steps.
package scheduler
