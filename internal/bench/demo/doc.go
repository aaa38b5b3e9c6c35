// Package demo runs the comparison that shows Decoder Append-Prefill on one
// machine: a cluster of real processes, a frozen multi-turn workload, ordinary
// P/D against append-prefill, and a check of everything that the comparison
// rests on.
//
// The arms run one after another on the same Decoder, each with a cache salt of
// its own and a proxy of its own: ordinary P/D, append-prefill, and ordinary
// P/D with prefix reuse on the Prefiller. Before them, probes show on each rank
// of the Decoder that a warm prefix is hit and that a cold one is refused. After
// them the same workload goes to one engine without any cache, whose answers
// are the right ones: an answer of an arm is correct when it equals them.
package demo
