// Package graphs decides which captured device graph a batch may replay, and
// says why when it may not replay the fastest one.
//
// A serving engine captures graphs before it serves: FULL graphs that record a
// whole forward pass, attention included, and PIECEWISE graphs that leave
// attention outside. A FULL decode graph is only correct for rows that the
// decode kernels understand: every row of the batch has the same query length
// and computes exactly one new token (plus drafts to verify) over context that
// already exists.
//
// The package gives one [RowVerdict] per row and step: decode, tail, prefill or
// malformed, and the cause. A tail is a row that is logically still prefilling
// but computes one token over existing context, as the first step of a request
// whose KV was imported from a prefiller does. The same verdict value feeds the
// choice of the graph, the drafter and the attention metadata; a verdict made
// twice from different data is how a graph recorded for decoding comes to run
// with metadata for prefilling.
//
// The calls, in the order of one step:
//
//	b := d.Classify(rows, step, verdicts) // one verdict per row, and a summary
//	dec := d.Select(b)                    // the key of the graph, or NONE and a reason
//	// with several data-parallel ranks:
//	a := graphs.Agree(votes)              // votes gathered by the caller
//	dec = d.SelectAgreed(b, a)
//
// [Dispatcher.Dispatch] is the first two in one call.
//
// Notation, per row: s tokens scheduled (drafts included), d of them drafts,
// n = s-d new tokens, c tokens computed before the step, P the prefill length:
// every token known when the request was last admitted, so after a preemption
// its own earlier outputs count. Per step: N rows, T = sum of s, Q = largest s.
// Per configuration: K speculative tokens, b bonus tokens (1, or 0 where a step
// samples nothing beyond its drafts), D = K+b the decode width, R = MaxNumSeqs,
// M the largest captured size in tokens.
//
// Invariants, checked by the tests of this package:
//
//	G1  FULL through a decode key implies that every row is decode or tail,
//	    T == uniform*N, padded tokens == padded rows * uniform, padded rows >= N.
//	G2  Padded tokens >= T; NONE pads nothing; PIECEWISE pads no rows.
//	G3  The order of the rows does not change the decision.
//	G4  Strict admits a subset of ConsumerOneToken, that a subset of
//	    OneNewToken; OneNewTokenHardened admits a subset of OneNewToken.
//	G5  A prefilling row that is no tail never raises the mode.
//	G6  Every captured key is reachable through its own shape.
//	G7  The smallest graph that fits is taken; an exact size is never padded.
//	G8  Data-parallel ranks end with one mode and, unless NONE, one token count.
//	G9  Context parallelism never turns a miss of FULL into FULL.
//
// The package is pure: no goroutine, lock, clock, random source or I/O, and no
// allocation after construction. The folder replay below it captures and
// replays on a device.
package graphs
