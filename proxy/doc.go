// Package proxy is the session-affine P/D front door: an OpenAI-compatible
// HTTP server in front of Prefillers and Decoders.
//
// A turn of a session whose owner is known is attempted on the owner Decoder
// and rank, marked so that the engine refuses rather than prefills from
// nothing. Nothing is sent to the client until the attempt has proven output;
// a refusal, or a failure before that, is followed by exactly one ordinary P/D
// round with the client's original body. After output nothing is ever tried
// again: a failure then is an error event and the end of the stream.
//
// Bodies are edited at byte offsets and never re-encoded; event streams are
// read by event whatever the chunking; the client sees one response id
// whichever leg answers. Package route makes the decisions; this package owns
// the goroutines, the connections and the lock around the Router.
//
// Replicas agree on owners by the session's hash, or by a Store that they share;
// one that does not answer costs a request nothing but the hash. Package shared,
// a module of its own, has stores in etcd and NATS.
//
// Goroutines: net/http's own per connection; the trace writer, the load scraper,
// the watchers of names, of the instances file and of the membership, and
// the pumps of streams, all ended by Close; one per instance that is asked
// whether it is ready. A turn runs on the goroutine of its request and ends with
// it; while a pump carries its stream that goroutine waits.
package proxy
