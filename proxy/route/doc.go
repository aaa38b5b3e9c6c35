// Package route makes the decisions of a session-affine P/D front door and
// nothing else: which session a request belongs to, which Decoder and rank own
// it, whether the owner is worth a local append-prefill attempt, where a
// request goes otherwise, and how healthy and loaded the instances are.
//
// A Router is a deterministic state machine. It has no goroutine, no lock, no
// clock and no I/O: the caller brings the time as a value, serialises the
// calls, does the HTTP and reports what happened. The same calls in the same
// order give the same decisions.
//
// One request is one Turn:
//
//	turn, d := r.Begin(now, query)       // local attempt, or P/D and why
//	r.Missed(turn)                       // the attempt gave no output
//	p, ok := r.Prefiller(now, turn)      // reserve a Prefiller
//	target, ok := r.Decoder(now, turn)   // reserve a Decoder and rank
//	r.Output(now, turn)                  // the first output was seen
//	r.Finish(now, turn, outcome)         // always, exactly once counts
//
// # Invariants
//
//  1. A reservation of a Turn is released exactly once, however it ends.
//  2. With no Turn open every load is zero.
//  3. At most one local attempt is made per Turn.
//  4. A local attempt goes to the session's owner and to no other instance
//     (with PlaceHash also: to the hash owner of a follow-up whose session is
//     unknown).
//  5. An owner is never a removed instance nor an earlier life of a restarted one.
//  6. The table holds at most MaxSessions sessions and none unused for SessionTTL.
package route
