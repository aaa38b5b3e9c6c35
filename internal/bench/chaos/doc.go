// Package chaos runs a P/D cluster of real processes, two Prefillers, two
// Decoders of two ranks and the proxy, and breaks it while it serves: engines
// are killed and started again, transports fail by script, disks fill up,
// clients go away. Afterwards every request has either the answer of an engine
// that nothing happened to, or an error that says so; and every survivor is at
// rest: no block held, no lease, no score, no goroutine or descriptor left over.
//
// Everything that is decided follows from a seed: which requests are made,
// which client goes away when, which engine is killed after which request and
// for how long it is gone. What the machine makes of it is not: how far a
// request is when its engine dies depends on time.
package chaos
