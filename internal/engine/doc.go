// Package engine is the reference serving engine: it wires scheduler, KV cache,
// graphs, connector and device together into something that answers requests.
//
// An Engine has one rank per data-parallel degree. A rank is one goroutine that
// owns a scheduler with its cache, an executor with its weights and KV memory,
// and a connector; everything else speaks to it by closures that it runs
// between two steps, and hears from it through streams. One turn of its loop:
//
//	take what was posted and what the connector reports
//	plan a step, hand its connector work over, submit its rows
//	when as many steps are in flight as allowed: wait for the oldest, apply it,
//	    tell what it did to the cache, and pass its outputs to their streams
//	when there is nothing to do: sleep until something arrives or is due
//
// Goroutines: one per rank, one writer per trace, and those of connectors,
// publishers of KV events and devices. Close ends all of them.
package engine
