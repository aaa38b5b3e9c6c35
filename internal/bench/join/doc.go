// Package join puts the trace files of a proxy and of the engines behind it
// together: one row per client request with the proxy's decision, the
// scheduler's admission or refusal, and the KV that was read from a Prefiller.
//
// A trace file holds one JSON object a line. A proxy writes one "route" line
// per request, which names the id that each leg had; an engine writes "admit",
// "refuse", "kv_read", "kv_restore" and "finish" lines under those ids. Lines with other
// events, and members that are not known here, are passed over.
//
// Check then says what the rows contradict: every hit was admitted on a prefix
// that was cached, or that a host tier brought back, and read nothing from a
// Prefiller; every miss had no output and one fallback; hits and
// fallbacks together are the follow-ups; every read moved whole blocks.
package join
