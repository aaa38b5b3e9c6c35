package connector

// Computing is what a step computes for one request: the KV of the positions
// [From, To). Tables is the request's whole block table; it belongs to the
// receiver.
type Computing struct {
	Request RequestID
	Tables  Tables
	From    int
	To      int
}

// Layered is implemented by workers that send KV while a prompt is still being
// computed. An engine that has such a worker calls
//
//	Computing(step, rows)      before it launches the step, rows of prompts alone
//	LayerDone(step, layer)     when the KV of the layer is in memory for all rows; may be left out
//	StepDone(step)             when all of it is, before it applies the plan
//
// in this order for each step, and leaves StepDone out for a step that failed.
// No call blocks. LayerDone comes from any goroutine, the others from the
// owner of the step. Where KV is computed once more, Computing says so by a
// From below an earlier To.
type Layered interface {
	// Wants is true for requests whose rows the worker needs to hear of.
	Wants(id RequestID) bool
	// Computing comes before the launch, with every row whose request is wanted.
	Computing(step uint64, rows []Computing)
	// LayerDone counts layers from 0.
	LayerDone(step uint64, layer int)
	// StepDone allows the worker to read every row's KV of the step.
	StepDone(step uint64)
}
