// Package workload describes what a load run sends: sessions with arrivals,
// turns and think times, made from a seed and then frozen. A workload has a
// hash, so that two runs can show that they sent the same.
//
// A turn is new user input: text for chat servers, or token ids for servers
// that take them. What precedes it in a session, the earlier turns and the
// replies that really came, is added while it is replayed.
package workload
