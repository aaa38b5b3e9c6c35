// Package overlap runs the workload in which append-prefill and preemption with
// offload meet inside single requests: a cluster of real processes whose
// Decoder has too few blocks for the sessions that it serves, and a host tier
// for those that must give way. Every answer must be that of one engine
// without a cache, at least one request must have gone the whole way in order,
// and nothing may be held afterwards.
package overlap
