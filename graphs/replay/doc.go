// Package replay captures the graphs of a [graphs.Dispatcher] on a device and
// replays them.
//
// A [Program] writes its forward pass to a [Pass]; the same code serves eager
// steps, warm-up and capture. [Pass.Break] marks work that a PIECEWISE graph
// leaves outside, such as attention over rows of any length: an eager pass and
// a FULL graph contain it, a PIECEWISE graph is split there into segments.
//
// A [Set] holds the graphs of one program. Capture goes through the keys in
// the dispatcher's order: PIECEWISE before FULL, the largest first. Each key
// is warmed up eagerly, attention included, with inputs that are built anew
// for the capture. Afterwards the set is sealed: nothing is captured while
// serving, and a launch whose key is missing is an error that names the key.
//
// # What a launch guarantees
//
// All graphs of a set share one result, so its launches are serial on one
// stream; the result of each is copied to a slot of its own behind it and
// stays there until it is released. A decode graph is launched only when every
// row runs as a decode. Values that a captured operation takes from the host
// are replaced before each launch, all of them or none, and never before the
// previous launch has finished where the runtime demands that.
//
// The package has no goroutine; a Set belongs to the goroutine that drives the
// steps.
package replay
