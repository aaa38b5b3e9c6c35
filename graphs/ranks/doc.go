// Package ranks lets data-parallel ranks agree on the mode and the size of a
// step: it carries their votes, and every rank derives the same answer with
// [graphs.Agree].
//
// An [Exchanger] is called by each rank once per step, with the same step
// number everywhere, before the step is launched; a rank without work votes
// with a dummy batch, since the others wait for it. [Local] connects ranks of
// one process, [Listen] and [Join] ranks of several hosts over TCP in a star
// whose centre is rank 0.
//
// Ranks that do not agree must not run: a rank that replays a graph while
// another runs eagerly leaves both waiting in a collective. An exchange is
// therefore bounded by its context, and its first failure is final: it reaches
// every rank, says which one is missing or differs, and every later call
// returns it. Ranks whose ladders or policies differ are refused when they
// meet.
//
// A rank that sleeps is woken by [Caller.Called] when another one has voted.
//
// The package starts no goroutine.
package ranks
