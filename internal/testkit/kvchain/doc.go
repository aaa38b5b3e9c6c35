// Package kvchain checks that no request ever uses KV that was not computed
// for its own tokens, over every way that KV can take: prefix cache, P/D pull,
// preemption with offload, host and file tiers, faults of transports.
//
// Its model is a chain: the KV of a position is a digest of the KV before it
// and the position's token, and the token sampled at a position is a function
// of all KV up to it. So the right answer of a prompt is known without any
// cache, and one wrong byte anywhere changes it.
package kvchain
