// Package publish sends the KV events of a cache to subscribers over ZeroMQ, in
// the frames that vLLM's subscribers read, so that a router which follows the
// caches of vLLM instances can follow this one.
//
// A PUB socket sends every batch as three frames: topic, sequence number (8
// bytes, big-endian), payload. The payload is msgpack: the array [time stamp in
// seconds, events, data-parallel rank]. Sequence numbers count up from 0 and start
// anew with the process. An optional ROUTER socket replays the latest batches: a
// request is the number to start from (8 bytes, big-endian); the replies are
// frames as above, and then a last one with the sequence number -1 and no payload.
// Where subscribers listen, the PUB socket connects to one of them instead.
//
// The engine publishes when a step is applied. Publishing never blocks the
// engine: a subscriber that does not keep up loses messages and sees it by the
// sequence numbers; it then asks for a replay or starts over.
//
// It speaks ZMTP 3.0 without security, to peers of that version and later. Every
// goroutine ends with Close, and each subscriber has a queue of its own, so that
// a slow one holds up nobody else. What a peer may make the publisher read and
// keep is bounded; who the peer is is not asked.
package publish
